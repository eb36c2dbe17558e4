// The layout of the arenas: slices of whole cache lines in the order of adding, frozen parameters outside.
#include "ditrain/autograd/parameters.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"

using namespace ditrain;
using namespace ditrain::autograd;
using For = ParameterStore::For;

namespace {

// Layout: w at 0 (15 of 16 elements), b at 16 (16), v at 32 (17 of 32); the state dict sorts them as v, w, b.
struct Rig {
  Rig() {
    store.lay_out({&w, &b, &v});
    w.group = ParameterGroup::kBlockMatrix;
  }
  ParameterStore store;
  Parameter& v = store.add("v", {17});
  Parameter& w = store.add("w", {3, 5});
  Parameter& b = store.add("b", {16});
  Parameter& frozen = store.add({.name = "frozen", .full_shape = {7}, .trainable = false});
};

// One array of all parameters, one of matrices.
const std::vector<StateArray> kArrays = {
    {.name = "of_all", .title = "all"},
    {.name = "of_w", .title = "w", .has = [](ParameterGroup g) { return g == ParameterGroup::kBlockMatrix; }}};

bool all_zero(const Tensor& t) {
  const auto x = to_vector(t);
  return std::all_of(x.begin(), x.end(), [](float value) { return value == 0; });
}

const void* address(const Tensor& t) { return Pin<float>(t).get(); }

}  // namespace

TEST_CASE("slices are whole multiples of 64 bytes, one after the other, and frozen parameters have none") {
  Rig rig;
  CHECK((rig.w.slice.begin == 0 && rig.w.slice.end == 16));
  CHECK((rig.b.slice.begin == 16 && rig.b.slice.end == 32));
  CHECK((rig.v.slice.begin == 32 && rig.v.slice.end == 64));
  CHECK((rig.frozen.slice.begin == 0 && rig.frozen.slice.end == 0));
  CHECK(rig.store.arena_size() == 64);
  CHECK(rig.store.num_parameters() == 15 + 16 + 7 + 17);
  CHECK(rig.store.bytes(For::kInference) == (64 + 7) * sizeof(float));
  CHECK(rig.store.bytes(For::kTraining) == (3 * 64 + 7) * sizeof(float));
  CHECK(rig.store.bytes(For::kTraining, DType::kF32, kArrays) == (3 * 64 + 64 + 16 + 7) * sizeof(float));
}

TEST_CASE("without an order of their own, arenas have that of adding") {
  ParameterStore store;
  const Parameter &a = store.add("a", {3}), &b = store.add("b", {20});
  CHECK((a.slice.begin == 0 && a.slice.end == 16 && b.slice.begin == 16 && b.slice.end == 48));
}

TEST_CASE("an order of the arenas names each trainable parameter once") {
  Rig rig;
  CHECK_THROWS_AS(rig.store.lay_out({&rig.w, &rig.b}), LogicFault);
  CHECK_THROWS_AS(rig.store.lay_out({&rig.w, &rig.b, &rig.w}), LogicFault);
  CHECK_THROWS_AS(rig.store.lay_out({&rig.w, &rig.b, &rig.frozen}), LogicFault);
}

TEST_CASE("parameters are found by name, by arena element and in the order of the state dict") {
  Rig rig;
  CHECK(rig.store.state_dict() == std::vector<Parameter*>{&rig.v, &rig.w, &rig.b, &rig.frozen});
  CHECK(&rig.store.find("b") == &rig.b);
  CHECK(&rig.store.find("frozen") == &rig.frozen);
  CHECK_THROWS_AS(rig.store.find("c"), LogicFault);
  CHECK(&rig.store.at(0) == &rig.w);
  CHECK(&rig.store.at(15) == &rig.w);  // padding belongs to the parameter before it
  CHECK(&rig.store.at(16) == &rig.b);
  CHECK(&rig.store.at(63) == &rig.v);
  CHECK_THROWS_AS(rig.store.at(64), LogicFault);
  CHECK_THROWS_AS(rig.store.at(-1), LogicFault);
}

TEST_CASE("allocation for training: zeroed arenas, parameters are views of them") {
  Rig rig;
  ParameterStore& store = rig.store;
  store.allocate(For::kTraining, DType::kF32, {.states = kArrays});
  for (const Tensor& arena : {store.values, store.grads, store.state("of_all").data, store.ema}) {
    REQUIRE(arena.shape() == Shape{64});
    CHECK(all_zero(arena));
  }
  CHECK(rig.w.value.shape() == Shape{3, 5});
  CHECK(address(rig.b.value) == Pin<float>(store.values) + 16);
  CHECK(address(rig.b.grad) == Pin<float>(store.grads) + 16);
  CHECK(uintptr_t(address(rig.v.value)) % 64 == 0);
  Pin<float>(rig.v.value)[1] = 3;
  CHECK(to_vector(store.values)[33] == 3);
  CHECK(address(store.view(store.ema, rig.v)) == Pin<float>(store.ema) + 32);
  CHECK(store.view(store.ema, rig.v).shape() == Shape{17});

  CHECK(&rig.frozen.value.storage() != &store.values.storage());
  CHECK(rig.frozen.value.shape() == Shape{7});
  CHECK(all_zero(rig.frozen.value));
  CHECK_FALSE(rig.frozen.grad.defined());
}

TEST_CASE("allocation for inference: values only") {
  Rig rig;
  rig.store.allocate(For::kInference);
  CHECK(all_zero(rig.store.values));
  CHECK(rig.b.value.defined());
  CHECK(rig.frozen.value.defined());
  CHECK_FALSE(rig.b.grad.defined());
  CHECK_FALSE(rig.store.grads.defined());
  CHECK_FALSE(rig.store.ema.defined());
}

TEST_CASE("an array of state takes memory for its groups only, of the parts that a rank keeps") {
  Rig rig;
  rig.store.allocate(For::kTraining, DType::kF32, {.states = kArrays});
  const OptimizerState& of_w = rig.store.state("of_w");
  CHECK(of_w.data.shape() == Shape{16});
  CHECK(address(of_w.of({4, 16})) == Pin<float>(of_w.data) + 4);
  CHECK_THROWS_AS(of_w.of({8, 17}), LogicFault);
  CHECK_THROWS_AS(rig.store.state("of_b"), LogicFault);
  CHECK(of_w.layout.held({32, 64}).empty());

  Rig sharded;  // two parts, the later one first, as buckets come
  sharded.store.allocate(For::kTraining, DType::kF32, {.states = kArrays, .state_parts = {{40, 64}, {0, 0}, {8, 24}}});
  CHECK(sharded.store.ema.shape() == Shape{40});
  CHECK(sharded.store.state("of_all").data.shape() == Shape{40});
  CHECK(sharded.store.state("of_w").data.shape() == Shape{8});
  CHECK(sharded.store.kept.at(40) == 0);
  CHECK(sharded.store.kept.at(8) == 24);
  CHECK(sharded.store.state("of_w").layout.at(15) == 7);
  CHECK_THROWS_AS(sharded.store.kept.at(24), LogicFault);
  CHECK_THROWS_AS(sharded.store.kept.of(sharded.store.ema, {16, 48}), LogicFault);
  CHECK(sharded.store.state_bytes() == (2 * 40 + 40 + 8) * sizeof(float));
}
