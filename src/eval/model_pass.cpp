#include "model_pass.hpp"

#include <algorithm>

namespace ditrain::eval {

void ModelPass::operator()(const float* x, const double* t, const int64_t* y, int64_t n, float* out) {
  if (!pass_ || pass_->batch() != n) {
    pass_.reset();  // its memory goes before the new pass takes some
    pass_.emplace(model_, n, autograd::Mode::kInference);
    pass_->allocate();
  }
  {
    const Tensor image = pass_->image();
    const Pin<float> to(image);
    std::copy_n(x, image.size(), to.get());
  }
  std::copy_n(t, n, pass_->t().begin());
  if (y != nullptr) std::copy_n(y, n, pass_->y().begin());
  pass_->forward(ctx_);
  const Tensor result = pass_->out();
  const Pin<float> from(result);
  std::copy_n(from.get(), result.size(), out);
}

}  // namespace ditrain::eval
