// Whole training steps, with the FMA peak of the same cores beside them.
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"
#include "ditrain/dataset/loader.hpp"
#include "ditrain/nn/model.hpp"
#include "ditrain/plan/run_plan.hpp"

namespace ditrain::bench {

struct StepBench {
  std::string model = "DiT-S/2";
  std::vector<int64_t> batches = {8};
  DType precision = DType::kF32;
  std::vector<std::string> sets = {};        ///< config keys, "a.b=v", as --set of ditrain
  bool once = false;                         ///< a single step, the first one, see Work::once
  std::function<void()> wait_for_data = {};  ///< called at the beginning of each step, and timed with it
};

/// Times whole training steps (noise, forward, loss, backward, AdamW and EMA) on random data at 32 x 32 x 4, 1,000
/// classes: the shapes of 256 x 256 images in latent space; one row per batch size.
/// share     6 x forward MACs x batch / median, of the peak of the precision
/// Details   batch, recompute, images_per_second, mfu (the share), where the time of the median step went
///           (ops::WorkTimes, and other_s: what no op accounts for), peak_rss_bytes of the process so far,
///           kept_bytes_per_image (for backward), products: what computed them
/// Errors:   InputError for a config that cannot run or does not fit into memory
void bench_steps(Harness& harness, const StepBench& bench);

/// The row of one batch size, under another name if one is given.
Row measure_step(Harness& harness, const StepBench& bench, int64_t batch, const std::string& name = "");

/// The config of those steps, checked. Errors: as bench_steps, but for memory
config::Config step_config(const StepBench& bench, int64_t batch);
/// The plan of a run of that config on the harness's team alone. Errors: InputError for what one rank cannot do
plan::RunPlan plan_on_team(const config::Config& config, Harness& harness);
/// The same with what was measured for an earlier plan: who copies between tiers is then the same in both.
plan::RunPlan plan_on_team(const config::Config& config, Harness& harness, const automem::Copying& copying);
automem::Copying copying_on_team(const config::Config& config, Harness& harness);
/// Weights, gradients and state of a model that is to be trained, as `homes` says.
void allocate_weights(nn::Model& model, DType precision, const autograd::ParameterStore::Homes& homes);
/// `batch` samples for the model: standard normal images, uniform labels.
dataset::Batch random_batch(const nn::ModelConfig& model, int64_t batch);

/// Remembers where the time of each call went.
class CallTimes {
 public:
  explicit CallTimes(ops::Context& ctx) : ctx_(ctx) {}
  /// What happens between these two is a call of so many seconds.
  void begin();
  void end(double seconds);
  /// Makes a call and times it.
  void make(const std::function<void()>& call);
  /// The call that took nearest to the row's median.
  size_t median_call(const Row& row) const;
  /// Adds to the row's details what worker 0 did in that call: products_s, attention_s, elementwise_s, optimizer_s
  /// (where there is one), waiting_s and other_s, what no op accounts for.
  void add_split(Row& row, bool optimizer = true) const;
  const ops::Meetings& meetings() const { return meetings_; }  ///< in the last call

 private:
  ops::Context& ctx_;
  ops::WorkTimes times_before_;
  ops::Meetings met_before_, meetings_;
  std::vector<double> seconds_;
  std::vector<ops::WorkTimes> work_;
};

/// "S" means "DiT-S/2"; full names stay. Errors: InputError for unknown names
std::string model_name(const std::string& wanted);

}  // namespace ditrain::bench
