#include "ditrain/tensor/tensor.hpp"

#include <catch2/catch.hpp>
#include <cstdint>

#include "ditrain/base/error.hpp"

using namespace ditrain;

namespace {
struct OtherTier final : memory::Allocator {
  std::string name() const override { return "other"; }
  void* allocate_block(size_t bytes) override { return memory::system_memory().allocate(bytes); }
  void deallocate_block(void* p, size_t bytes) override { memory::system_memory().deallocate(p, bytes); }
};
}  // namespace

TEST_CASE("tensors are zeroed, aligned and share memory with their views") {
  for (int64_t n : {1, 5, 1000, 100000}) {
    const Tensor x({n, 3});
    const Pin<float> p(x);
    CHECK(reinterpret_cast<uintptr_t>(p.get()) % memory::kAlignment == 0);
    CHECK(std::all_of(p.get(), p.get() + x.size(), [](float v) { return v == 0; }));
  }
  const Tensor x = from_values({3, 2}, {0, 1, 2, 3, 4, 5});
  CHECK(to_vector(x.rows(1, 2)) == std::vector<float>{2, 3});
  CHECK(to_vector(x.slice(3, {2})) == std::vector<float>{3, 4});
  Pin<float>(x.reshaped({6}))[5] = 7;
  CHECK(to_vector(x)[5] == 7);
  CHECK_THROWS_AS(x.rows(1, 4), ShapeError);
  CHECK_THROWS_AS(x.slice(5, {2}), ShapeError);
  CHECK_THROWS_AS(x.reshaped({5}), ShapeError);
  CHECK_THROWS_AS(Pin<int64_t>(x), ShapeError);
  CHECK_THROWS_AS(Tensor({-1}), ShapeError);
}

TEST_CASE("storage moves between allocators while nothing holds it") {
  OtherTier other;
  {
    const Tensor x = from_values({4}, {1, 2, 3, 4}), view = x.slice(2, {2});
    {
      const Pin<float> held(view);
      CHECK_THROWS_AS(x.storage().move_to(other), LogicFault);
    }
    x.storage().move_to(other);
    CHECK(x.storage().home().name() == "other");
    CHECK(other.bytes_in_use() == 16);
    CHECK(to_vector(view) == std::vector<float>{3, 4});
  }
  CHECK(other.bytes_in_use() == 0);
  CHECK(other.peak_bytes() == 16);
}

TEST_CASE("copy converts between f32 and bf16 and refuses the rest") {
  const Tensor x = from_values({3}, {1.0f, -2.5f, 3.14159f}), h({3}, DType::kBF16), y({3});
  copy(x, h);
  copy(h, y);
  CHECK(to_vector(y) == std::vector<float>{1.0f, -2.5f, 3.140625f});
  CHECK_THROWS_AS(copy(x, Tensor({3}, DType::kI64)), ShapeError);
  CHECK_THROWS_AS(copy(x, Tensor({4})), ShapeError);
}
