// Whole training steps, with the FMA peak of the same cores beside them.
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"
#include "ditrain/dataset/loader.hpp"
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
/// `batch` samples for the model: standard normal images, uniform labels.
dataset::Batch random_batch(const nn::DitConfig& model, int64_t batch);

ops::WorkTimes difference(ops::WorkTimes after, const ops::WorkTimes& before);
/// What worker 0 did in a step of `seconds`: products_s, attention_s, elementwise_s, optimizer_s, waiting_s and
/// other_s, what no op accounts for.
std::vector<Field> split_of(const ops::WorkTimes& work, double seconds);

/// Makes calls and remembers where the time of each went.
class CallTimes {
 public:
  explicit CallTimes(ops::Context& ctx) : ctx_(ctx) {}
  void make(const std::function<void()>& call);
  /// split_of the call that took nearest to `seconds`, without the optimiser.
  std::vector<Field> split(double seconds) const;

 private:
  struct Call {
    double seconds;
    ops::WorkTimes work;
  };
  ops::Context& ctx_;
  std::vector<Call> calls_;
};

/// "S" means "DiT-S/2"; full names stay. Errors: InputError for unknown names
std::string model_name(const std::string& wanted);

}  // namespace ditrain::bench
