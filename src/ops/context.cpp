#include "ditrain/ops/context.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"

namespace ditrain::ops {

void* Context::scratch(const parallel::Worker& w, size_t bytes) {
  auto& mine = scratch_[size_t(w.worker)];
  if (mine.get_deleter().bytes < bytes || mine == nullptr) {
    const size_t rounded = std::max(bytes, size_t{1} << 16);
    mine.reset();
    mine = {memory::system_memory().allocate(rounded), Free{rounded}};
  }
  return mine.get();
}

void expect_shape(const char* op, const char* name, const Tensor& t, const Shape& expected) {
  if (!t.defined() || t.shape() != expected)
    throw ShapeError({.where = op,
                      .what = name,
                      .got = t.defined() ? to_string(t.shape()) : "nothing",
                      .expected = to_string(expected)});
}

}  // namespace ditrain::ops
