// For tests: weights of the FID Inception by the fixtures' formula, as a file.
#pragma once
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "ditrain/nn/inception.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "formula.hpp"

namespace ditrain::test {

inline std::vector<float> formula_weight(const std::string& name, const Shape& shape) {
  const Formula u(name);
  double offset = 0, bound = 0.1;
  if (name.ends_with("running_var"))
    offset = 1, bound = 0.5;
  else if (name.ends_with("weight") && shape.size() == 1)
    offset = 1, bound = 0.25;
  else if (name.ends_with("weight"))
    bound = std::sqrt(3.0 / double(num_elements(shape) / shape[0])) * std::sqrt(2.0);
  std::vector<float> values(size_t(num_elements(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = float(offset + bound * u.symmetric(i));
  return values;
}

/// A safetensors file with those of the names that `keep` lets pass, and `more` of one element each; `shape_of_fc` may
/// be another network's.
inline void write_inception_weights(
    const std::string& path,
    const std::function<bool(const std::string&)>& keep = [](const std::string&) { return true; },
    const std::vector<std::string>& more = {}, const Shape& shape_of_fc = {1008, 2048}) {
  std::vector<nn::InceptionWeight> wanted;
  for (const nn::InceptionWeight& w : nn::inception_weights())
    if (keep(w.name)) wanted.push_back({w.name, w.name == "fc.weight" ? shape_of_fc : w.shape});
  for (const std::string& name : more) wanted.push_back({name, {1}});
  std::vector<std::vector<float>> values;
  for (const nn::InceptionWeight& w : wanted) values.push_back(formula_weight(w.name, w.shape));
  std::vector<weights::TensorToWrite> tensors;
  for (size_t i = 0; i < wanted.size(); ++i)
    tensors.push_back({wanted[i].name, "F32", wanted[i].shape, values[i].data()});
  weights::write_safetensors(path, tensors);
}

}  // namespace ditrain::test
