#include "ditrain/eval/sampling.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/ops/random.hpp"
#include "model_pass.hpp"

namespace ditrain::eval {
namespace {

// The noise of one batch, drawn by the whole team for a step at a time; sample_loop then asks for it piece by piece.
class StepNoise {
 public:
  StepNoise(ops::Context& ctx, uint64_t seed, int64_t first_index, int64_t n, int64_t elements)
      : ctx_(ctx), seed_(seed), first_index_(first_index), n_(n), elements_(elements), noise_(size_t(n * elements)) {}

  void draw(uint64_t number, float* out) const {
    std::vector<RandomKey> keys;
    for (int64_t i = 0; i < n_; ++i) keys.emplace_back(seed_, Stream::kSampleNoise, uint64_t(first_index_ + i), number);
    ops::fill_normal(ctx_, keys, elements_, out);
  }
  void operator()(int64_t loop_step, int64_t sample, float* out) {
    if (loop_step != drawn_step_) draw(uint64_t(loop_step) + 1, noise_.data());
    drawn_step_ = loop_step;
    std::copy_n(noise_.data() + sample * elements_, elements_, out);
  }

 private:
  ops::Context& ctx_;
  uint64_t seed_;
  int64_t first_index_, n_, elements_;
  std::vector<float> noise_;
  int64_t drawn_step_ = -1;
};

void check_request(const GenerateRequest& request, const nn::ModelConfig& model) {
  DITRAIN_CHECK(request.batch >= 1 && request.first_index >= 0, "a batch of images with numbers from 0");
  for (const Condition& condition : request.conditions)
    if (int64_t(condition.image.size()) != model.condition_channels * model.pixels())
      throw InputError({.where = "sampling",
                        .what = "the image that conditions a sample is not the one that the model takes",
                        .got = fmt::format("{} values", condition.image.size()),
                        .expected = fmt::format("{} channels of {} x {}", model.condition_channels, model.input_height,
                                                model.input_width)});
  if (model.num_classes == 0) return;
  const bool takes_none = model.class_dropout > 0;
  for (const auto& [label, numbers, image, valid] : request.conditions)
    if (label < 0 || label > model.num_classes || (label == model.num_classes && !takes_none))
      throw InputError({.where = "sampling",
                        .what = label == model.num_classes ? "samples without labels, which the model never learned"
                                                           : "label out of range",
                        .got = label == model.num_classes ? "none" : std::to_string(label),
                        .expected = "0 to " + std::to_string(model.num_classes - 1)});
}

// A weaker model may have learnt less than the model. (Numbers that are missing are those of the data, or checked where
// they are chosen.)
void check_guide(const GenerateRequest& request) {
  const nn::ModelConfig& guide = request.guide->config();
  for (const Condition& condition : request.conditions)
    if (guide.num_classes > 0 && guide.class_dropout == 0 && condition.label == guide.num_classes)
      throw InputError({.where = "guide",
                        .what = "the guide never trained without a label",
                        .got = "model.class_dropout: 0",
                        .expected = "above 0, as samples without labels are drawn",
                        .hint = "a guide that was trained with model.class_dropout, or samples with labels"});
}

std::vector<int64_t> parse_list(const std::string& spec) {
  std::vector<int64_t> list;
  for (const std::string& word : split(spec, ',')) {
    const bool number = !word.empty() && word.size() <= 9 && word.find_first_not_of("0123456789") == word.npos;
    if (!number)
      throw InputError({.where = "sampling",
                        .what = "unknown labels",
                        .got = "'" + spec + "'",
                        .expected = "a list such as 0,1,2, or uniform, balanced or none",
                        .hint = nearest_word(spec, {"uniform", "balanced", "none"})});
    list.push_back(std::stoll(word));
  }
  return list;
}

std::vector<int64_t> checked_list(const std::string& spec, int64_t num_classes) {
  const std::vector<int64_t> list = parse_list(spec);
  if (num_classes == 0)
    throw InputError({.where = "sampling", .what = "labels for a model without classes", .got = spec});
  for (const int64_t label : list)
    if (label >= num_classes)
      throw InputError({.where = "sampling",
                        .what = "label out of range",
                        .got = std::to_string(label),
                        .expected = "0 to " + std::to_string(num_classes - 1)});
  return list;
}

}  // namespace

std::vector<float> generate(ops::Context& ctx, nn::Model& model, const diffusion::Config& config,
                            const GenerateRequest& request, const GenerateProgress& progress) {
  const nn::ModelConfig& sizes = model.config();
  check_request(request, sizes);
  if (request.guide != nullptr && request.sampler.cfg_scale != 1) check_guide(request);
  const auto process = diffusion::make_process(config, sizes.learn_sigma);
  request.sampler.validate(*process);
  const diffusion::Shape shape{sizes.in_channels, sizes.pixels()};
  const auto total = int64_t(request.conditions.size());
  std::vector<float> images(size_t(total * shape.elements()));
  const int64_t null_class = takes_guidance(sizes) ? sizes.num_classes : -1;
  const std::vector<double> times = diffusion::model_times(*process, request.sampler);
  ModelPass pass(ctx, model, request.precision);
  std::optional<ModelPass> guide;
  const bool routed = !request.guide_routes.empty();
  if ((request.guide != nullptr || routed) && request.sampler.cfg_scale != 1)
    guide.emplace(ctx, request.guide != nullptr ? *request.guide : model, request.precision, request.guide_routes);
  const diffusion::ModelFn call_guide = [&](auto... args) { (*guide)(args...); };
  for (int64_t first = 0; first < total; first += request.batch) {
    const int64_t n = std::min(request.batch, total - first);
    StepNoise noise(ctx, request.seed, request.first_index + first, n, shape.elements());
    float* z = images.data() + first * shape.elements();
    noise.draw(0, z);
    const Condition* conditions = request.conditions.data() + first;
    std::vector<Condition> expected(conditions, conditions + n);
    if (guide) guide->expect(times, expected, request.modulation_bytes);
    if (guide) guide->draw_routes_from(request.seed, request.first_index + first);
    if (!guide && request.sampler.cfg_scale != 1) expected.push_back(without_label({}, null_class));
    pass.expect(times, expected, request.modulation_bytes);
    diffusion::sample_loop(
        *process, request.sampler, shape, std::ref(pass),
        {.n = n, .z = z, .conditions = conditions, .null_class = null_class, .guide = guide ? &call_guide : nullptr},
        std::ref(noise), [&](int64_t step, int64_t num_steps, const float*) {
          if (progress) progress((double(first) + double(n) * double(step + 1) / double(num_steps)) / double(total));
        });
  }
  return images;
}

void expect_finite(const std::vector<float>& images, int64_t n, int64_t first, const LikelyCause& cause) {
  const size_t each = n == 0 ? 1 : images.size() / size_t(n);
  int64_t values = 0, bad_images = 0, first_bad = -1;
  for (size_t i = 0; i < images.size(); i += each) {
    const auto bad = std::count_if(images.begin() + std::ptrdiff_t(i), images.begin() + std::ptrdiff_t(i + each),
                                   [](float x) { return !std::isfinite(x); });
    if (bad > 0 && first_bad < 0) first_bad = first + int64_t(i / each);
    values += bad, bad_images += bad > 0;
  }
  if (values == 0) return;
  throw RunError({.where = "sampling",
                  .what = fmt::format("{} of {} values in {} of {} images are not finite, the first in image {}; {}",
                                      values, images.size(), bad_images, n, first_bad, cause.what),
                  .hint = cause.advice});
}

size_t generate_bytes(nn::Model& model, const diffusion::Config& config, const diffusion::SamplerConfig& sampler,
                      int64_t batch, bool has_guide, DType precision) {
  const auto process = diffusion::make_process(config, model.config().learn_sigma);
  const auto steps = int64_t(diffusion::model_times(*process, sampler).size());
  const int64_t twice = sampler.cfg_scale != 1 ? 2 : 1;
  nn::ModelPass pass(model, twice * batch, autograd::Mode::kInference,
                     {.precision = precision, .given_modulations = model.has_modulations()});
  const nn::ModelConfig& m = model.config();
  // Images of the condition: in the request, in what is expected, in the loop and in the pass.
  const size_t given = size_t((2 + 2 * twice) * batch * m.condition_channels * m.pixels()) * sizeof(float);
  const size_t bytes = pass.tape().temporary_bytes() + given;
  if (!model.has_modulations()) return bytes;
  const int64_t columns = m.metadata.empty() ? std::min(batch, std::max<int64_t>(1, m.num_classes)) : batch;
  const auto table = [&](int64_t labels) {
    return StepModulations::table_bytes(model, steps, labels, kModulationBytes);
  };
  return bytes + (has_guide && twice == 2 ? 2 * table(columns) : table(columns + twice - 1));
}

WeightsFrom::WeightsFrom(autograd::ParameterStore& parameters, const Tensor& arena) {
  DITRAIN_CHECK(arena.defined() && arena.size() == parameters.arena_size(), "an arena of this model");
  for (autograd::Parameter* p : parameters.state_dict()) {
    if (!p->trainable) continue;
    saved_.push_back({p, p->value});
    p->value = parameters.view(arena, *p);
  }
}

WeightsFrom::~WeightsFrom() {
  for (Saved& saved : saved_) saved.parameter->value = std::move(saved.value);
}

std::vector<int64_t> make_labels(const std::string& spec, int64_t num, int64_t num_classes, uint64_t seed) {
  std::vector<int64_t> labels(size_t(num), spec == "none" ? num_classes : 0);
  if (spec == "none") return labels;
  const bool uniform = spec == "uniform";
  if (!uniform && spec != "balanced") {
    const std::vector<int64_t> list = checked_list(spec, num_classes);
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = list[i % list.size()];
    return labels;
  }
  if (num_classes == 0) return labels;
  for (int64_t i = 0; i < num; ++i)
    labels[size_t(i)] =
        uniform ? int64_t(RandomKey(seed, Stream::kSampleLabel, uint64_t(i)).below(0, uint64_t(num_classes)))
                : i % num_classes;
  return labels;
}

}  // namespace ditrain::eval
