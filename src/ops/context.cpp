#include "ditrain/ops/context.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"

namespace ditrain::ops {

Context::Context(parallel::Team& team) : team_(team), scratch_(size_t(team.num_workers())) {}

void* Context::at_least(Block& block, size_t bytes) {
  if (block.get_deleter().bytes < bytes || block == nullptr) {
    const size_t rounded = std::max(bytes, size_t{1} << 16);
    block.reset();
    block = {memory::system_memory().allocate(rounded), Free{rounded}};
  }
  return block.get();
}

void* Context::scratch(const parallel::Worker& w, size_t bytes) { return at_least(scratch_[size_t(w.worker)], bytes); }
void* Context::workspace(int slot, size_t bytes) { return at_least(workspace_[slot], bytes); }

void expect_shape(const char* op, const char* name, const Tensor& t, const Shape& expected) {
  if (!t.defined() || t.shape() != expected)
    throw ShapeError({.where = op,
                      .what = name,
                      .got = t.defined() ? to_string(t.shape()) : "nothing",
                      .expected = to_string(expected)});
}

}  // namespace ditrain::ops
