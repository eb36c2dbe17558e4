// The config of plans whose memory depends on recomputation and micro-batch.
#pragma once
#include <string>

#include "ditrain/config/config.hpp"

namespace ditrain::test {

inline config::Config config_of(const std::string& recompute, int64_t micro_batch = 8) {
  config::Config c;
  c.train.recompute = parse_word<nn::Recompute>("test", "recompute", recompute), c.train.global_batch = 8,
  c.train.micro_batch = micro_batch;
  c.optimizer.clip_norm = 1;  // there is memory for all gradients
  return c;
}

}  // namespace ditrain::test
