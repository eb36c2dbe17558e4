#include "ditrain/kernels/described.hpp"

#include <algorithm>

namespace ditrain::kernels {

bool Operator::has(Role role) const {
  return std::any_of(parameters.begin(), parameters.end(), [=](const Parameter& p) { return p.role == role; });
}

namespace {

template <class T>
void add_activations(std::vector<Operator>& list) {
#define DITRAIN_ACTIVATION(name, title, result, parameters, arguments)           \
  list.push_back(described::describe<typename described::Descriptions<T>::name>( \
      #name, title, static_cast<typename roles::Signatures<T>::name*>(&kernels::name)));
#include "ditrain/kernels/operators.inc"
}

}  // namespace

std::vector<Operator> operators(DType activation) {
  std::vector<Operator> list;
  if (activation == DType::kBF16) {
    add_activations<BFloat16>(list);
    return list;
  }
  add_activations<float>(list);
#define DITRAIN_OPERATOR(name, title, result, parameters, arguments) \
  list.push_back(described::describe<described::Descriptions<float>::name>(#name, title, &kernels::name));
#include "ditrain/kernels/operators.inc"
  return list;
}

AdamWStep some_adamw_step() {
  return {.lr = 1e-4, .weight_decay = 0.1, .bias1 = 0.1, .bias2 = 0.001, .grad_scale = 0.5};
}

NormalKl some_normal_kl(const float* out, const float* x_t, const float* x0, const float* v) {
  return {.out = out,
          .x_t = x_t,
          .x0 = x0,
          .v = v,
          .by_out = -0.7,
          .by_x_t = 1.3,
          .by_x0 = -0.9,
          .by_v = 0.8,
          .at_v_0 = 0.3,
          .inverse_true_variance = 40};
}

}  // namespace ditrain::kernels
