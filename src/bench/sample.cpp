#include "ditrain/bench/sample.hpp"

#include <algorithm>
#include <cmath>

#include "ditrain/bench/step.hpp"
#include "ditrain/eval/sampling.hpp"

namespace ditrain::bench {
namespace {

// Draws the same few images again and again, and remembers where the time of each call went.
class Drawing {
 public:
  Drawing(const config::Config& config, const SampleBench& bench, int64_t batch, ops::Context& ctx)
      : process_(config.diffusion), model_(config.model), ctx_(ctx) {
    request_.sampler = config::sampler_of(config);
    request_.sampler.spacing = std::to_string(bench.steps);
    request_.sampler.cfg_scale = 4;
    request_.labels = eval::make_labels("balanced", batch, config.model.num_classes, 0);
    request_.batch = batch;
    model_.parameters().allocate(autograd::ParameterStore::For::kInference);
    nn::initialise(model_, 0);
  }

  void draw() {
    const ops::WorkTimes before = ctx_.times();
    const double start = now_s();
    eval::generate(ctx_, model_, process_, request_);
    calls_.push_back({now_s() - start, difference(ctx_.times(), before)});
  }

  // Of the call that took nearest to `seconds`.
  std::vector<Field> split(double seconds) const {
    const auto& [took, work] = *std::min_element(calls_.begin(), calls_.end(), [&](const auto& a, const auto& b) {
      return std::fabs(a.first - seconds) < std::fabs(b.first - seconds);
    });
    return split_of(work, took);
  }
  size_t bytes() { return eval::generate_bytes(model_, process_, request_.sampler, request_.batch); }

 private:
  diffusion::Config process_;
  nn::Dit model_;
  ops::Context& ctx_;
  eval::GenerateRequest request_;
  std::vector<std::pair<double, ops::WorkTimes>> calls_;
};

Row measure_sampling(Harness& harness, const SampleBench& bench, int64_t batch) {
  const config::Config config = step_config({.model = bench.model, .sets = bench.sets}, batch);
  harness.apply(config);
  Drawing drawing(config, bench, batch, harness.ctx());
  Row row = harness.measure({.name = "sample " + config.model.name,
                             .dtype = DType::kF32,
                             .call = [&] { drawing.draw(); },
                             .flop = 2 * nn::forward_macs(config.model) * double(2 * batch * bench.steps)});
  row.details = {{"batch", batch},
                 {"steps", bench.steps},
                 {"step_s", row.time.median_s / double(bench.steps)},
                 {"mfu", row.share, false}};
  for (Field& f : drawing.split(row.time.median_s))
    if (f.name != "optimizer_s") row.details.push_back(std::move(f));
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
