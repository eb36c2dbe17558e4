// A step that is easy to follow, for tests of tensors that move.
#pragma once
#include <string>

#include "ditrain/automem/uses.hpp"

namespace ditrain::automem {

inline constexpr size_t kTensor = size_t{64} << 10;  // bytes: the smallest that moves

// `layers` layers, each with a weight and an activation; weights are updated at the end, with a moment each.
inline Uses layered(int layers) {
  Uses uses;
  for (const char* kind : {"weight", "moment"})
    for (int i = 0; i < layers; ++i) uses.tensors.push_back({kind + std::to_string(i), kTensor, Written::kInUpdates});
  for (int i = 0; i < layers; ++i)
    uses.tensors.push_back({"activation" + std::to_string(i), kTensor * size_t(1 + i % 3), Written::kInForward});
  const auto weight = [&](int i) { return i; };
  const auto moment = [&](int i) { return layers + i; };
  const auto activation = [&](int i) { return 2 * layers + i; };
  for (int i = 0; i < layers; ++i) {
    Point p{Phase::kForward, std::to_string(i), {weight(i), activation(i)}};
    if (i + 1 < layers) p.uses.push_back(activation(i + 1));  // its output
    uses.points.push_back(p);
  }
  for (int i = layers; i-- > 0;)
    uses.points.push_back({Phase::kBackward, std::to_string(i), {weight(i), activation(i)}});
  for (int i = layers; i-- > 0;) uses.points.push_back({Phase::kUpdate, std::to_string(i), {weight(i), moment(i)}});
  return uses;
}

}  // namespace ditrain::automem
