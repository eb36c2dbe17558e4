#include "ditrain/nn/image_input.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"

namespace ditrain::nn {

ImageInput::ImageInput(autograd::Tape& tape, autograd::Node& node, const ModelConfig& c, const TokenStream& stream)
    : noisy(tape.keep(node, "image", {stream.batch, c.in_channels, c.input_height, c.input_width})), stream_(stream) {
  const int64_t channels = c.in_channels + c.condition_channels;
  if (c.condition_channels > 0)
    given_ = tape.keep(node, "image_and_condition", {stream.batch, channels, c.input_height, c.input_width});
}

const Tensor& ImageInput::join(ops::Context& ctx) const {
  if (given_ == nullptr) return noisy->tensor;
  const int64_t batch = noisy->shape[0], own = num_elements(noisy->shape) / batch,
                all = num_elements(given_->shape) / batch;
  const Pin<float> from(noisy->tensor), to(given_->tensor);
  ctx.for_range(batch, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t b = begin; b < end; ++b) {
      const std::vector<float>& condition = stream_.inputs->conditions[size_t(b)].image;
      DITRAIN_CHECK(int64_t(condition.size()) == all - own, "a condition with the image that the model takes");
      std::copy_n(from + b * own, own, to + b * all);
      std::copy_n(condition.data(), all - own, to + b * all + own);
    }
  });
  return given_->tensor;
}

}  // namespace ditrain::nn
