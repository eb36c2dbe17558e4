// The config of plans whose memory depends on recomputation and micro-batch, and the memory they are held against.
#pragma once
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <string>

#include "ditrain/config/config.hpp"
#include "ditrain/platform/limits.hpp"

namespace ditrain::test {

inline config::Config config_of(const std::string& recompute, int64_t micro_batch = 8) {
  config::Config c;
  c.train.recompute = parse_word<nn::Recompute>("test", "recompute", recompute), c.train.global_batch = 8,
  c.train.micro_batch = micro_batch;
  c.optimizer.clip_norm = 1;  // there is memory for all gradients
  return c;
}

/// Lowers what the plan is held against to `bytes` for its lifetime.
struct DataLimit {
  explicit DataLimit(size_t bytes) {
    getrlimit(RLIMIT_DATA, &before);
    const rlimit lower{bytes, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_DATA, &lower) == 0);
    REQUIRE(platform::memory_limit(1).bytes == bytes);
  }
  ~DataLimit() { setrlimit(RLIMIT_DATA, &before); }
  rlimit before{};
};

}  // namespace ditrain::test
