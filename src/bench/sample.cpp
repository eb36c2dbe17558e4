#include "ditrain/bench/sample.hpp"

#include "ditrain/bench/step.hpp"
#include "ditrain/eval/sampling.hpp"
#include "own_keys.hpp"

namespace ditrain::bench {
namespace {

// Draws the same few images again and again.
class Drawing {
 public:
  Drawing(const config::Config& config, const SampleBench& bench, int64_t batch, ops::Context& ctx)
      : process_(config.diffusion), model_(config.model), ctx_(ctx), times_(ctx) {
    request_.sampler = config::sampler_of(config);
    request_.sampler.spacing = std::to_string(bench.steps);
    request_.sampler.cfg_scale = 4;
    request_.conditions = conditions_of(eval::make_labels("balanced", batch, config.model.num_classes, 0));
    request_.batch = batch, request_.precision = bench.precision;
    autograd::ParameterStore& parameters = model_.parameters();
    parameters.allocate(autograd::ParameterStore::For::kInference, bench.precision);
    nn::initialise(model_, 0);
    if (parameters.values_bf16.defined()) ops::to_bf16(ctx, parameters.values, parameters.values_bf16);
  }

  void draw() {
    times_.make([&] { eval::generate(ctx_, model_, process_, request_); });
  }
  /// Of the model for one image; a step that is guided has two.
  int64_t evaluations() const {
    const auto process = diffusion::make_process(process_, model_.config().learn_sigma);
    int64_t count = 0;
    for (const double t : diffusion::model_times(*process, request_.sampler))
      count += request_.sampler.cfg_interval.contains(process->data_share(t)) ? 2 : 1;
    return count;
  }
  void add_split(Row& row) const { times_.add_split(row, /*optimizer=*/false); }
  size_t bytes() {
    return eval::generate_bytes(model_, process_, request_.sampler, request_.batch, false, request_.precision);
  }

 private:
  diffusion::Config process_;
  nn::Model model_;
  ops::Context& ctx_;
  eval::GenerateRequest request_;
  CallTimes times_;
};

Row measure_sampling(Harness& harness, const SampleBench& bench, int64_t batch) {
  const std::string fixed = "without it: a row has " + std::to_string(bench.steps) + " steps, guided at scale 4";
  expect_not_set(bench.sets, {{"train.global_batch", "--batch"},
                              {"sample.steps", fixed},
                              {"sample.cfg_scale", fixed},
                              {"sample.guide", fixed}});
  const config::Config config = step_config({.model = bench.model, .sets = bench.sets}, batch);
  harness.apply(config);
  if (config.train.precision != DType::kF32)
    refuse("ditbench", "--set train.precision is not measured here", "", "", "--precision");
  Drawing drawing(config, bench, batch, harness.ctx());
  Row row = harness.measure({.name = "sample " + config.model.name,
                             .dtype = bench.precision,
                             .call = [&] { drawing.draw(); },
                             .flop = 2 * nn::forward_macs(config.model) * double(batch * drawing.evaluations())});
  row.details = {{"batch", batch},
                 {"steps", bench.steps},
                 {"step_s", row.time.median_s / double(bench.steps)},
                 {"mfu", row.share, false}};
  drawing.add_split(row);
  row.details.push_back({"memory_bytes", int64_t(drawing.bytes())});
  row.details.push_back({"products", harness.products(), false});
  return row;
}

}  // namespace

void bench_sampling(Harness& harness, const SampleBench& bench) {
  for (const int64_t batch : bench.batches) harness.add(measure_sampling(harness, bench, batch));
  harness.note(harness.products());
}

}  // namespace ditrain::bench
