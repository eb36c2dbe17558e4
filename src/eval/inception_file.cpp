// The weights of the FID Inception from a file, and files that are something else.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/eval/features.hpp"
#include "ditrain/weights/weight_file.hpp"

namespace ditrain::eval {
namespace {

constexpr const char* kHint = "pt_inception-2015-12-05-6726825d.pth of pytorch-fid, or the same tensors as safetensors";

// torchvision's network has the same names, other weights and 1,000 classes: it would give plausible, wrong distances.
void check_kind(const weights::WeightFile& file) {
  const auto has = [&](const char* name) { return file.find(name) != nullptr; };
  if (!has("Conv2d_1a_3x3.conv.weight") || !has("Mixed_7c.branch_pool.conv.weight")) {
    std::vector<std::string> names;
    for (const weights::WeightTensor& tensor : file.tensors()) names.push_back(tensor.name);
    const std::string network = weights::network_of(names);
    throw InputError({.where = file.path(),
                      .what = "not the weights of the FID Inception",
                      .got = !network.empty() ? network
                             : names.empty()  ? "no tensors"
                                              : "tensors such as " + names[0],
                      .expected = "Conv2d_1a_3x3.conv.weight and others",
                      .hint = kHint});
  }
  const weights::WeightTensor* fc = file.find("fc.weight");
  const bool aux = has("AuxLogits.conv0.conv.weight");
  if (aux || (fc != nullptr && !fc->shape.empty() && fc->shape[0] == 1000))
    throw InputError({.where = file.path(),
                      .what = "these are the weights of torchvision's Inception, not of the FID Inception",
                      .got = aux ? "a second head (AuxLogits)" : "1000 classes",
                      .expected = fmt::format("{} classes", nn::kInceptionClasses),
                      .hint = kHint});
}

}  // namespace

nn::Inception load_inception(const std::string& path, DType type) {
  const weights::WeightFile file(path);
  check_kind(file);
  for (const nn::InceptionWeight& w : nn::inception_weights()) {
    const weights::WeightTensor* found = file.find(w.name);
    if (found == nullptr)
      throw InputError({.where = path, .what = "a weight of the FID Inception is missing", .got = "no " + w.name});
    if (found->shape != w.shape)
      throw InputError({.where = path,
                        .what = "shape of " + w.name,
                        .got = to_string(found->shape),
                        .expected = to_string(w.shape)});
  }
  return {type, [&](const std::string& name, const Shape&) {
            std::vector<float> values = file.read(*file.find(name));
            const bool variance = name.ends_with("running_var");
            if (!std::all_of(values.begin(), values.end(),
                             [&](float v) { return std::isfinite(v) && (!variance || v >= 0); }))
              throw InputError({.where = path, .what = name + " holds numbers that cannot be"});
            return values;
          }};
}

}  // namespace ditrain::eval
