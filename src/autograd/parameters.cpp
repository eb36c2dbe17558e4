#include "ditrain/autograd/parameters.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"

namespace ditrain::autograd {

namespace {

// f(offset in full, offset in part, elements) for the runs of neighbouring elements.
template <class F>
void for_runs(const Part& p, F f) {
  const int64_t run = (p.end - p.begin) * p.inner;
  for (int64_t o = 0; o < p.outer; ++o) f((o * p.length + p.begin) * p.inner, o * run, run);
}

}  // namespace

void Part::take(const float* full, float* part) const {
  for_runs(*this, [&](int64_t from, int64_t to, int64_t n) { std::copy_n(full + from, n, part + to); });
}
void Part::put(const float* part, float* full) const {
  for_runs(*this, [&](int64_t to, int64_t from, int64_t n) { std::copy_n(part + from, n, full + to); });
}

Parameter& ParameterStore::add(Parameter declared) {
  Parameter& p = parameters_.emplace_back(std::move(declared));
  if (p.shape.empty()) p.shape = p.full_shape, p.part = {.length = p.size(), .end = p.size()};
  if (p.trainable) place(p);
  return p;
}

void ParameterStore::place(Parameter& p) {
  constexpr int64_t kPad = int64_t(memory::kAlignment / sizeof(float));
  p.slice = {arena_size_, arena_size_ + (p.size() + kPad - 1) / kPad * kPad};
  arena_size_ = p.slice.end;
}

void ParameterStore::lay_out(const std::vector<Parameter*>& order) {
  int64_t trainable = 0;
  for (Parameter& p : parameters_) p.slice = {}, trainable += p.trainable ? 1 : 0;
  arena_size_ = 0;
  for (Parameter* p : order) {
    DITRAIN_CHECK(p->trainable && p->slice.end == 0, p->name + " twice in the arenas, or frozen");
    place(*p);
  }
  DITRAIN_CHECK(int64_t(order.size()) == trainable, "an order of the arenas that lacks parameters");
}

void ParameterStore::allocate(For purpose, DType products, memory::Allocator& home, memory::Allocator* gradients,
                              int64_t state_elements) {
  values = Tensor({arena_size_}, DType::kF32, home);
  if (purpose == For::kTraining) {
    grads = Tensor({arena_size_}, DType::kF32, gradients != nullptr ? *gradients : home);
    for (Tensor* state : {&exp_avg, &exp_avg_sq, &ema})
      *state = Tensor({state_elements < 0 ? arena_size_ : state_elements}, DType::kF32, home);
  }
  if (products == DType::kBF16) values_bf16 = Tensor({arena_size_}, DType::kBF16, home);
  for (Parameter& p : parameters_) {
    if (p.trainable && products == DType::kBF16) p.value_bf16 = view(values_bf16, p);
    p.value = p.trainable ? view(values, p) : Tensor(p.shape, DType::kF32, home);
    if (p.trainable && purpose == For::kTraining) p.grad = view(grads, p);
  }
}

size_t ParameterStore::bytes(For purpose, DType products) const {
  size_t frozen = 0;
  for (const Parameter& p : parameters_) frozen += p.trainable ? 0 : size_t(p.size()) * sizeof(float);
  const size_t copy = products == DType::kBF16 ? dtype_bytes(products) : 0;
  return frozen + size_t(arena_size_) * (sizeof(float) * (purpose == For::kTraining ? 5 : 1) + copy);
}

std::vector<Parameter*> ParameterStore::state_dict() {
  std::vector<Parameter*> all;
  for (Parameter& p : parameters_) all.push_back(&p);
  return all;
}

Parameter& ParameterStore::find(const std::string& name) {
  for (Parameter& p : parameters_)
    if (p.name == name) return p;
  throw LogicFault({.where = "parameters", .what = "no parameter called " + name});
}

const Parameter& ParameterStore::at(int64_t i) const {
  for (const Parameter& p : parameters_)
    if (p.trainable && p.slice.begin <= i && i < p.slice.end) return p;
  throw LogicFault({.where = "parameters", .what = "arena element out of range", .got = std::to_string(i)});
}

int64_t ParameterStore::num_parameters() const {
  int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.size();
  return n;
}

}  // namespace ditrain::autograd
