// The weights of the FID Inception from a file, and files that are something else.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/eval/features.hpp"
#include "ditrain/io/weight_file.hpp"

namespace ditrain::eval {
namespace {

constexpr const char* kHint = "pt_inception-2015-12-05-6726825d.pth of pytorch-fid, or the same tensors as safetensors";

// torchvision's network has the same names, other weights and 1,000 classes: it would give plausible, wrong distances.
void check_kind(const io::WeightFile& file) {
  const bool named = file.contains("Conv2d_1a_3x3.conv.weight") && file.contains("Mixed_7c.branch_pool.conv.weight");
  if (!named)
    throw InputError({.where = file.path(),
                      .what = "not the weights of the FID Inception",
                      .got = file.first_name().empty() ? "no tensors" : "tensors such as " + file.first_name(),
                      .expected = "Conv2d_1a_3x3.conv.weight and others",
                      .hint = kHint});
  const std::vector<int64_t> fc = file.contains("fc.weight") ? file.shape("fc.weight") : std::vector<int64_t>{};
  const bool aux = file.contains("AuxLogits.conv0.conv.weight");
  if (aux || (!fc.empty() && fc[0] == 1000))
    throw InputError({.where = file.path(),
                      .what = "these are the weights of torchvision's Inception, not of the FID Inception",
                      .got = aux ? "a second head (AuxLogits)" : "1000 classes",
                      .expected = fmt::format("{} classes", nn::kInceptionClasses),
                      .hint = kHint});
}

}  // namespace

nn::Inception load_inception(const std::string& path, DType type) {
  const io::WeightFile file(path);
  check_kind(file);
  for (const nn::InceptionWeight& w : nn::inception_weights()) {
    if (!file.contains(w.name))
      throw InputError({.where = path, .what = "a weight of the FID Inception is missing", .got = "no " + w.name});
    if (file.shape(w.name) != w.shape)
      throw InputError({.where = path,
                        .what = "shape of " + w.name,
                        .got = to_string(file.shape(w.name)),
                        .expected = to_string(w.shape)});
  }
  return {type, [&](const std::string& name, const Shape&) {
            std::vector<float> values = file.to_f32(name);
            const bool variance = name.ends_with("running_var");
            if (!std::all_of(values.begin(), values.end(),
                             [&](float v) { return std::isfinite(v) && (!variance || v >= 0); }))
              throw InputError({.where = path, .what = name + " holds numbers that cannot be"});
            return values;
          }};
}

}  // namespace ditrain::eval
