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

std::vector<const Parameter*> ParameterStore::in_arena() const {
  std::vector<const Parameter*> order;
  for (const Parameter& p : parameters_)
    if (p.trainable) order.push_back(&p);
  std::sort(order.begin(), order.end(),
            [](const Parameter* a, const Parameter* b) { return a->slice.begin < b->slice.begin; });
  return order;
}

std::vector<ArenaSlice> ParameterStore::segments(const ArenaSlice& slice) const {
  std::vector<ArenaSlice> segments;
  bool open = false;  // the last one takes more vectors
  for (const Parameter* p : in_arena()) {
    const bool vector = p->shape.size() == 1;
    if (vector && open)
      segments.back().end = p->slice.end;
    else
      segments.push_back(p->slice);
    open = vector;
  }
  std::vector<ArenaSlice> cut;
  for (const ArenaSlice& s : segments)
    if (const ArenaSlice both{std::max(s.begin, slice.begin), std::min(s.end, slice.end)}; both.begin < both.end)
      cut.push_back(both);
  return cut;
}

Tensor ParameterStore::make_arena(const std::string& name, DType dtype, const Homes& homes) const {
  if (homes.segments == nullptr) return Tensor({arena_size_}, dtype, *homes.home);
  return make_arena(name, dtype, segments(), *homes.segments);
}

Tensor ParameterStore::make_arena(const std::string& name, DType dtype, const std::vector<ArenaSlice>& slices,
                                  StorageSource& source) const {
  std::vector<std::shared_ptr<Storage>> parts;
  int64_t elements = 0;
  for (const ArenaSlice& slice : slices) {
    const int64_t n = slice.end - slice.begin;
    parts.push_back(source.make(name + " of " + name_at(slice.begin), size_t(n) * dtype_bytes(dtype)));
    elements += n;
  }
  return Tensor({elements}, dtype, std::make_shared<Storage>(std::move(parts)));
}

StateLayout ParameterStore::layout_of(const StateArray& array, const std::vector<ArenaSlice>& state_parts) const {
  std::vector<ArenaSlice> held;
  for (const Parameter* p : in_arena())
    if (array.holds(p->group)) held.push_back(p->slice);
  const StateLayout whole(held);
  if (state_parts.empty()) return whole;
  held.clear();
  for (const ArenaSlice& part : state_parts)
    for (const ArenaSlice& slice : whole.held(part)) held.push_back(slice);
  return StateLayout(held);
}

Tensor ParameterStore::make_state(const std::string& name, const StateLayout& layout, const Homes& homes) const {
  if (homes.segments == nullptr || layout.size() == 0) return Tensor({layout.size()}, DType::kF32, *homes.home);
  std::vector<ArenaSlice> pieces;
  for (const ArenaSlice& slice : layout.slices())
    for (const ArenaSlice& piece : segments(slice)) pieces.push_back(piece);
  return make_arena(name, DType::kF32, pieces, *homes.segments);
}

void ParameterStore::allocate(For purpose, DType products, const Homes& homes) {
  values = make_arena("weights", DType::kF32, homes);
  if (purpose == For::kTraining) {
    gradient_slices_ = homes.gradient_slices;
    keeps_all_ = homes.state_parts.empty();
    int64_t elements = gradient_slices_.empty() ? arena_size_ : 0;
    for (const ArenaSlice& slice : gradient_slices_) elements = std::max(elements, slice.end - slice.begin);
    grads = Tensor({elements}, DType::kF32, homes.gradients != nullptr ? *homes.gradients : *homes.home);
    for (const StateArray& array : homes.states) {
      const StateLayout layout = layout_of(array, homes.state_parts);
      states.push_back({array, layout, make_state(array.title, layout, homes)});
    }
    kept = layout_of({}, homes.state_parts);
    ema = make_state("ema", kept, homes);
  }
  if (products == DType::kBF16) values_bf16 = make_arena("bf16 weights", DType::kBF16, homes);
  for (Parameter& p : parameters_) {
    if (p.trainable && products == DType::kBF16) p.value_bf16 = view(values_bf16, p);
    p.value = p.trainable ? view(values, p) : Tensor(p.shape, DType::kF32, *homes.home);
    if (p.trainable && purpose == For::kTraining) p.grad = gradients_of(p.slice).slice(0, p.shape);
  }
}

Tensor ParameterStore::gradients_of(const ArenaSlice& slice) const {
  const int64_t n = slice.end - slice.begin;
  if (gradient_slices_.empty()) return grads.slice(slice.begin, {n});
  for (const ArenaSlice& all : gradient_slices_)
    if (all.begin <= slice.begin && slice.end <= all.end) return grads.slice(slice.begin - all.begin, {n});
  throw LogicFault({.where = "parameters", .what = "gradients that do not lie in one slice"});
}

void ParameterStore::clear_between_gradients(const ArenaSlice& slice) const {
  if (gradient_slices_.empty()) return;
  for (const Parameter& p : parameters_) {
    const int64_t padding = p.slice.end - p.slice.begin - p.size();
    if (!p.trainable || p.slice.begin < slice.begin || p.slice.end > slice.end || padding == 0) continue;
    std::fill_n(Pin<float>(gradients_of(p.slice)) + p.size(), padding, 0.0f);
  }
}

const OptimizerState& ParameterStore::state(const std::string& name) const {
  for (const OptimizerState& state : states)
    if (state.declared.name == name) return state;
  throw LogicFault({.where = "optimiser state",
                    .what = "the store was allocated without " + name,
                    .hint = "Homes::states = optim::state_arrays(config)"});
}

size_t ParameterStore::state_bytes() const {
  size_t bytes = 2 * ema.bytes();
  for (const OptimizerState& state : states) bytes += state.data.bytes();
  return bytes;
}

size_t ParameterStore::bytes(For purpose, DType products, const std::vector<StateArray>& states) const {
  size_t frozen = 0;
  for (const Parameter& p : parameters_) frozen += p.trainable ? 0 : size_t(p.size()) * sizeof(float);
  const size_t copy = products == DType::kBF16 ? dtype_bytes(products) : 0;
  size_t kept = 0;  // of the optimiser
  for (const StateArray& array : states) kept += size_t(layout_of(array).size()) * sizeof(float);
  return frozen + kept + size_t(arena_size_) * (sizeof(float) * (purpose == For::kTraining ? 3 : 1) + copy);
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

int64_t ParameterStore::first_whole(int64_t i) const {
  int64_t first = arena_size_;
  for (const Parameter& p : parameters_)
    if (p.trainable && p.slice.begin >= i) first = std::min(first, p.slice.begin);
  return first;
}

std::string ParameterStore::name_at(int64_t i) const {
  const Parameter& p = at(i);
  return p.name + (i == p.slice.begin ? "" : " from element " + std::to_string(i - p.slice.begin));
}

int64_t ParameterStore::num_parameters() const {
  int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.size();
  return n;
}

}  // namespace ditrain::autograd
