#include "ditrain/dataset/kinds.hpp"

#include "ditrain/base/error.hpp"

namespace ditrain::dataset {

std::unique_ptr<Dataset> open_shapes(const OpenRequest& request);
std::unique_ptr<Dataset> open_image_folder(const OpenRequest& request);
std::unique_ptr<Dataset> open_latents(const OpenRequest& request);
std::unique_ptr<Dataset> open_tiles(const OpenRequest& request);

namespace {
constexpr DataKind kKinds[] = {
    {.name = "shapes", .help = "drawn, needs no files", .open = open_shapes, .path = "", .num_classes = kShapesClasses},
    {.name = "folder",
     .help = "images",
     .open = open_image_folder,
     .path = "a folder of images, or one with a sub-folder of images per class",
     .of_colours = true,
     .advice = "smaller image files"},
    {.name = "latents",
     .help = "safetensors shards",
     .open = open_latents,
     .path = "a folder of .safetensors shards with latents",
     .pixels = false},
    {.name = "tiles",
     .help = "scenes of any number of bands, cut by ditdata make",
     .open = open_tiles,
     .path = "a folder of .safetensors shards with tiles (ditdata make)",
     .of_bands = true},
};
}  // namespace

std::span<const DataKind> rows_of(const DataKind*) { return kKinds; }
const DataKind* default_kind() { return &kKinds[0]; }

const DataKind* find_kind(std::string_view name) {
  const DataKind* kind = nullptr;
  DITRAIN_CHECK(find_word(name, kind), std::string(name));
  return kind;
}

std::string help_of_kinds() {
  std::string text;
  for (const DataKind& kind : kKinds)
    text += (text.empty() ? "" : "; ") + std::string(kind.name) + ": " + std::string(kind.help);
  return text;
}

}  // namespace ditrain::dataset
