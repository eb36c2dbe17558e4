#include "ditrain/optim/outer.hpp"

#include <array>
#include <deque>
#include <utility>

#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/optim/optimizer.hpp"

namespace ditrain::optim {
namespace {

// Calls f(arrays, begin, end) for the elements of arenas, which may be in parts: part by part, begin and end within it.
template <size_t N, class F>
void for_elements(ops::Context& ctx, const std::array<Tensor, N>& arenas, const F& f) {
  for_common_parts({arenas.begin(), arenas.end()}, [&](int64_t, const std::vector<Tensor>& parts) {
    std::deque<Pin<float>> pins;
    std::array<float*, N> arrays;
    for (size_t i = 0; i < N; ++i) arrays[i] = pins.emplace_back(parts[i]);
    ctx.for_range(ops::WorkKind::kOptimizer, parts.front().size(), kUpdateGrain,
                  [&](int64_t begin, int64_t end, const parallel::Worker&) { f(arrays, begin, end); });
  });
}

}  // namespace

OuterOptimizer::Arrays OuterOptimizer::arrays(const OuterConfig& config) {
  return config.overlap ? Arrays{5, 2, 2} : Arrays{3, 1, 0};
}

OuterOptimizer::OuterOptimizer(const OuterConfig& config, int ranks, autograd::ParameterStore& parameters,
                               memory::Allocator& shared)
    : config_(config),
      share_(1.0f / float(ranks)),
      parameters_(parameters),
      states_before_(parameters.states.size()),
      gradient_({parameters.arena_size()}, DType::kF32, shared),
      weights_({parameters.arena_size()}) {
  momentum_ = add_state("outer_momentum", "outer momentum", /*of_group=*/false);
  if (!config.overlap) return;
  // What is on its way is a part of the state, and so is what groups have for themselves.
  add_state("outer_gradient", "outer gradient", false, gradient_);
  add_state("group_weights", "weights of a group", true, parameters.values);
  group_momentum_ = add_state("group_momentum", "outer momentum of a group", true);
  start_ = Tensor({parameters.arena_size()});
  parameters.published = weights_;
}

// Its memory may go before the store does.
OuterOptimizer::~OuterOptimizer() {
  parameters_.states.resize(states_before_);
  parameters_.published = {};
}

Tensor OuterOptimizer::add_state(const std::string& name, const std::string& title, bool of_group, Tensor data) {
  autograd::OptimizerState state{.declared = {.name = name, .title = title}};
  state.declared.of_group = of_group;
  state.layout = parameters_.layout_of(state.declared);
  state.data = data.defined() ? std::move(data) : Tensor({parameters_.arena_size()});
  parameters_.states.push_back(state);
  return state.data;
}

void OuterOptimizer::begin(ops::Context& ctx, bool loaded) {
  if (!config_.overlap || !loaded) copy_as_updated(ctx, parameters_.values, weights_);
  if (config_.overlap) copy_as_updated(ctx, parameters_.values, start_);
}

void OuterOptimizer::take_gradient(ops::Context& ctx) {
  if (!config_.overlap) {
    for_elements(ctx, std::array{gradient_, parameters_.values, weights_},
                 [&](const auto& arrays, int64_t begin, int64_t end) {
                   const auto [gradient, w, u] = arrays;
                   for (int64_t i = begin; i < end; ++i) gradient[i] = share_ * (u[i] - w[i]);
                 });
    return;
  }
  const auto momentum = float(config_.momentum), own = float(config_.lr / config_.groups);
  for_elements(ctx, std::array{gradient_, parameters_.values, weights_, start_, group_momentum_},
               [&](const auto& arrays, int64_t begin, int64_t end) {
                 const auto [gradient, w, u, start, c] = arrays;
                 for (int64_t i = begin; i < end; ++i) {
                   const float d = start[i] - w[i];
                   c[i] = momentum * c[i] + d;
                   gradient[i] = share_ * d;
                   w[i] = start[i] = u[i] - own * (d + momentum * c[i]);
                 }
               });
}

void OuterOptimizer::apply(ops::Context& ctx, double ema_decay) {
  const auto momentum = float(config_.momentum), lr = float(config_.lr), moves = float(1 - ema_decay);
  for_elements(ctx, std::array{gradient_, parameters_.values, weights_, momentum_, parameters_.ema},
               [&](const auto& arrays, int64_t begin, int64_t end) {
                 const auto [gradient, w, u, b, ema] = arrays;
                 for (int64_t i = begin; i < end; ++i) {
                   b[i] = momentum * b[i] + gradient[i];
                   u[i] -= lr * (gradient[i] + momentum * b[i]);
                   if (!config_.overlap) w[i] = u[i];
                 }
                 kernels::move_average(moves, u + begin, ema + begin, end - begin);
               });
}

std::vector<autograd::StateArray> state_arrays(const Config& config, const EmaConfig& ema, bool groups) {
  std::vector<autograd::StateArray> arrays = state_arrays(config, ema);
  for (autograd::StateArray& array : arrays) array.of_group = groups && !array.is_average();
  return arrays;
}

}  // namespace ditrain::optim
