// The config of a model that is quick everywhere.
#pragma once
#include "ditrain/config/config.hpp"

namespace ditrain::test {

inline config::Config small_config() {
  config::Config c;
  c.model.name = "custom";
  c.model.input_height = c.model.input_width = 8, c.model.in_channels = 3, c.model.patch_size = 2;
  c.model.hidden_size = 32, c.model.depth = 3, c.model.num_heads = 4, c.model.num_classes = 5;
  c.train.global_batch = 4;
  return c;
}

}  // namespace ditrain::test
