#include "model_pass.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"

namespace ditrain::eval {

void ModelPass::expect(const std::vector<double>& times, const std::vector<Condition>& conditions, size_t most_bytes) {
  if (!model_.has_modulations()) return;
  DITRAIN_CHECK(modulations_ || !pass_, "times and conditions before the first call");
  if (modulations_ && modulations_->is_of(conditions)) return;  // batches of one sampling have the same times
  modulations_.reset();                                         // its memory goes before the new table takes some
  modulations_.emplace(model_, times, conditions, most_bytes);
}

void ModelPass::draw_routes(int64_t n) {
  for (int64_t i = 0; i < n && !routes_.empty(); ++i)
    pass_->draw_remaining_tokens(i, RandomKey(seed_, Stream::kRoute, uint64_t(first_index_ + i), calls_));
  ++calls_;
}

void ModelPass::operator()(const float* x, const double* t, const Condition* c, int64_t n, float* out) {
  if (!pass_ || pass_->batch() != n) {
    pass_.reset();  // its memory goes before the new pass takes some
    pass_.emplace(
        model_, n, autograd::Mode::kInference,
        nn::PassOptions{.precision = precision_, .given_modulations = modulations_.has_value(), .routes = routes_});
    pass_->allocate();
  }
  {
    const Tensor image = pass_->image();
    const Pin<float> to(image);
    std::copy_n(x, image.size(), to.get());
  }
  std::copy_n(c, n, pass_->conditions().begin());
  if (modulations_) {
    DITRAIN_CHECK(std::all_of(t, t + n, [&](double time) { return time == t[0]; }), "samples at one time");
    modulations_->give(ctx_, *pass_, t[0]);
  } else {
    std::copy_n(t, n, pass_->t().begin());
  }
  draw_routes(n);
  pass_->forward(ctx_);
  const Tensor result = pass_->out();
  const Pin<float> from(result);
  std::copy_n(from.get(), result.size(), out);
}

}  // namespace ditrain::eval
