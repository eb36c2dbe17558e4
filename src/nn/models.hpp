// The architectures by model.kind: src/nn/models.cpp has a row for each.
#pragma once
#include <span>

#include "ditrain/nn/model.hpp"

namespace ditrain::nn {

/// The sizes behind a name: "DiT-S/2" is size "S" with patches of 2.
struct NamedSize {
  const char* name;
  int64_t hidden_size, depth, num_heads;
};

struct ModelRow {
  ModelKind kind;
  const char* title;  ///< of its names, before the size: "DiT"
  const char* help;
  std::span<const NamedSize> sizes;
  std::span<const int64_t> patches;  ///< with which the sizes have names
  /// Checks what `validate` does not know. Errors: InputError "[model] ..."
  void (*check)(const ModelConfig& config);
  std::unique_ptr<Network> (*make)(const Declarations& model, const ModelConfig& config);
  /// Blocks follow one another alone: tokens may pass by some (nn/routing.hpp) and be compared (nn/layer_sync.hpp).
  bool uniform_blocks = false;
};
std::span<const ModelRow> model_rows();
const ModelRow& model_row(ModelKind kind);

/// Throws InputError "[model] what; got ..., expected ..." unless ok.
void require_model(bool ok, const std::string& what, const std::string& got, const std::string& expected);

}  // namespace ditrain::nn
