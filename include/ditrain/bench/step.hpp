// Times whole training steps, compared with the FMA peak of the same cores.
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
  bool once = false;                         ///< time only one step, the first; see Work::once
  std::function<void()> wait_for_data = {};  ///< called at the beginning of each step, and timed with it
};

/// Times whole training steps (noise, forward, loss, backward, AdamW and EMA) on random data of 32 x 32 x 4 with 1,000
/// classes, the shape of 256 x 256 images in latent space. One row per batch size.
/// share     6 x forward MACs x batch / median, as a share of the peak of the precision
/// Details   batch, recompute, images_per_second, mfu (the share), where the time of the median step went
///           (ops::WorkTimes, and other_s: what no op accounts for), peak_rss_bytes of the process during the row,
///           kept_bytes_per_image (stored activations), products: which code computed the GEMMs
/// Errors:   InputError for a config that cannot run or does not fit into memory, and for sets of parallel.threads and
///           parallel.clusters, which the harness has
void bench_steps(Harness& harness, const StepBench& bench);

/// The row of one batch size, under another name if one is given.
Row measure_step(Harness& harness, const StepBench& bench, int64_t batch, const std::string& name = "");

/// The checked config of those steps. Errors: as bench_steps, except for memory
config::Config step_config(const StepBench& bench, int64_t batch);
/// The plan of a run with this config in one rank, on the harness's team. Errors: InputError if it needs several ranks
plan::RunPlan plan_on_team(const config::Config& config, Harness& harness);
/// The same with a given `copying`, for example that of an earlier plan, so that the same threads copy between tiers in
/// both.
plan::RunPlan plan_on_team(const config::Config& config, Harness& harness, const automem::Copying& copying);
automem::Copying copying_on_team(const config::Config& config, Harness& harness);
/// Allocates weights, gradients and optimiser state of a model for training, placed as `homes` says.
void allocate_weights(nn::Model& model, DType precision, const autograd::ParameterStore::Homes& homes);
/// A batch of `batch` random samples: standard normal images, uniform labels.
dataset::Batch random_batch(const nn::ModelConfig& model, int64_t batch);

/// Records where the time of each call went.
class CallTimes {
 public:
  explicit CallTimes(ops::Context& ctx) : ctx_(ctx) {}
  /// Mark the begin and the end of a call, which took `seconds`.
  void begin();
  void end(double seconds);
  /// Runs and times a call.
  void make(const std::function<void()>& call);
  /// The number of the call whose time is nearest to the row's median.
  size_t median_call(const Row& row) const;
  /// Adds to the row's details where worker 0 spent its time in that call: products_s (GEMM), attention_s,
  /// elementwise_s, optimizer_s (if `optimizer`), waiting_s, and other_s, the time outside of ops.
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
