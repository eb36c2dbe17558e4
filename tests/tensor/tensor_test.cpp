#include "ditrain/tensor/tensor.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <deque>

#include "ditrain/base/error.hpp"

using namespace ditrain;

namespace {

// Gives every storage a block of its own when it is needed.
struct Blocks final : Mover, StorageSource {
  std::shared_ptr<Storage> make(const std::string&, size_t bytes) override {
    memory.emplace_back(bytes);
    return std::make_shared<Storage>(*this, bytes, int64_t(memory.size()) - 1);
  }
  void bring(Storage& storage) override {
    ++brought;
    storage.place(memory[size_t(storage.number())].data());
  }
  void note_use(Storage& storage) override { used.push_back(storage.number()); }
  using Mover::set_watches;
  std::deque<std::vector<std::byte>> memory;
  int brought = 0;
  std::vector<int64_t> used;
};

// 2, 3 and 4 floats.
Tensor in_parts(Blocks& blocks) {
  std::vector<std::shared_ptr<Storage>> parts;
  for (size_t n : {2, 3, 4}) parts.push_back(blocks.make("part", n * sizeof(float)));
  return Tensor({9}, DType::kF32, std::make_shared<Storage>(std::move(parts)));
}

std::vector<int64_t> sizes(const std::vector<Tensor>& tensors) {
  std::vector<int64_t> sizes;
  for (const Tensor& t : tensors) sizes.push_back(t.size());
  return sizes;
}

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

TEST_CASE("a movable storage gets its place when it is needed, and keeps it while it is held") {
  Blocks blocks;
  const Tensor x({4}, DType::kF32, blocks.make("x", 16)), view = x.slice(2, {2});
  CHECK_FALSE(x.storage().is_placed());
  CHECK_FALSE(x.storage().try_hold());
  CHECK_FALSE(x.storage().try_leave());
  {
    const Pin<float> held(view), again(x);
    CHECK(blocks.brought == 1);
    CHECK_FALSE(x.storage().try_leave());
    held[0] = 5;
  }
  CHECK(x.storage().try_hold());
  x.storage().release();
  CHECK(x.storage().try_leave());
  CHECK_FALSE(x.storage().is_placed());
  CHECK(to_vector(x) == std::vector<float>{0, 0, 5, 0});
  CHECK(blocks.brought == 2);
  CHECK(blocks.used.empty());
  blocks.set_watches(true);
  to_vector(x);
  CHECK(blocks.used == std::vector<int64_t>{0});
}

TEST_CASE("a tensor in parts is held part by part") {
  Blocks blocks;
  const Tensor x = in_parts(blocks);
  CHECK_THROWS_AS(Pin<float>(x), LogicFault);
  CHECK_THROWS_AS(Pin<float>(x.slice(1, {2})), LogicFault);
  CHECK(sizes(x.parts()) == std::vector<int64_t>{2, 3, 4});
  CHECK(sizes(x.slice(1, {6}).parts()) == std::vector<int64_t>{1, 3, 2});
  CHECK(sizes(x.slice(5, {4}).parts()) == std::vector<int64_t>{4});
  copy(from_values({9}, {0, 1, 2, 3, 4, 5, 6, 7, 8}), x);
  CHECK(to_vector(x.slice(2, {3})) == std::vector<float>{2, 3, 4});
  CHECK(to_vector(x.slice(1, {6})) == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(to_vector(x.slice(1, {6}).slice(2, {3})) == std::vector<float>{3, 4, 5});
  CHECK(Pin<float>(x.slice(2, {3}).reshaped({3, 1}).rows(1, 3))[1] == 4);
  fill_zero(x.slice(3, {4}));
  CHECK(to_vector(x) == std::vector<float>{0, 1, 2, 0, 0, 0, 0, 7, 8});
}

TEST_CASE("common parts end where any part does") {
  Blocks blocks;
  const Tensor x = in_parts(blocks), h({9}, DType::kBF16), y = in_parts(blocks).slice(2, {7});
  std::vector<std::pair<int64_t, int64_t>> cuts;
  for_common_parts({x, h}, [&](int64_t first, const std::vector<Tensor>& part) {
    CHECK(part[1].size() == part[0].size());
    cuts.emplace_back(first, part[0].size());
  });
  CHECK(cuts == std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {2, 3}, {5, 4}});
  cuts.clear();
  for_common_parts({x.slice(0, {7}), y},
                   [&](int64_t first, const std::vector<Tensor>& part) { cuts.emplace_back(first, part[0].size()); });
  CHECK(cuts == std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {2, 1}, {3, 2}, {5, 2}});
  copy(x, h);
}

TEST_CASE("copy converts between f32 and bf16 and refuses the rest") {
  const Tensor x = from_values({3}, {1.0f, -2.5f, 3.14159f}), h({3}, DType::kBF16), y({3});
  copy(x, h);
  copy(h, y);
  CHECK(to_vector(y) == std::vector<float>{1.0f, -2.5f, 3.140625f});
  CHECK_THROWS_AS(copy(x, Tensor({3}, DType::kI64)), ShapeError);
  CHECK_THROWS_AS(copy(x, Tensor({4})), ShapeError);
}
