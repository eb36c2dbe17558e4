#include "models.hpp"

#include "ditrain/base/error.hpp"

namespace ditrain::nn {

void check_dit(const ModelConfig& config);
std::unique_ptr<Network> make_dit(const Declarations& model, const ModelConfig& config);
void check_uvit(const ModelConfig& config);
std::unique_ptr<Network> make_uvit(const Declarations& model, const ModelConfig& config);

namespace {

constexpr int64_t kDitPatches[] = {2, 4, 8};
constexpr NamedSize kDitSizes[] = {{"S", 384, 12, 6}, {"B", 768, 12, 12}, {"L", 1024, 24, 16}, {"XL", 1152, 28, 16}};
constexpr int64_t kUvitPatches[] = {2, 4};
constexpr NamedSize kUvitSizes[] = {
    {"S", 512, 13, 8}, {"S-Deep", 512, 17, 8}, {"M", 768, 17, 12}, {"L", 1024, 21, 16}, {"H", 1152, 29, 16}};

const ModelRow kRows[] = {
    {ModelKind::kDit, "DiT", "Diffusion Transformer with adaLN-Zero", kDitSizes, kDitPatches, check_dit, make_dit,
     /*uniform_blocks=*/true},
    {ModelKind::kUvit, "U-ViT", "long skip connections; time and label are tokens", kUvitSizes, kUvitPatches,
     check_uvit, make_uvit},
};

}  // namespace

std::span<const ModelRow> model_rows() { return kRows; }

const ModelRow& model_row(ModelKind kind) {
  for (const ModelRow& row : kRows)
    if (row.kind == kind) return row;
  throw LogicFault({.where = "model", .what = "a kind without a row"});
}

}  // namespace ditrain::nn
