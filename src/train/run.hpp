// The state of one training run. Its chapters: run_start.cpp (place, plan, memory, first weights or a checkpoint),
// trainer.cpp (the loop), run_end.cpp (what the run has to tell).
#pragma once
#include <array>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/automem/automem.hpp"
#include "ditrain/base/interval.hpp"
#include "ditrain/checkpoint/saver.hpp"
#include "ditrain/eval/latent_codec.hpp"
#include "ditrain/eval/training_fid.hpp"
#include "ditrain/plan/inputs.hpp"
#include "ditrain/plan/rank_groups.hpp"
#include "ditrain/plan/run_plan.hpp"
#include "ditrain/train/evaluation.hpp"
#include "ditrain/train/heartbeat.hpp"
#include "ditrain/train/run_folder.hpp"
#include "ditrain/train/trace.hpp"
#include "ditrain/train/train_step.hpp"
#include "ditrain/train/trainer.hpp"

namespace ditrain::train {

// In this scope: seconds a rank waits for the others, whichever of them it talks to; 0 waits for ever.
class PatienceScope {
 public:
  PatienceScope(dist::Communicator& all, plan::RankGroups& groups, double seconds)
      : all_(all, seconds), data_(groups.data(), seconds) {
    if (groups.tensor() != nullptr) tensor_.emplace(groups.tensor()->communicator(), seconds);
  }

 private:
  dist::TimeoutScope all_, data_;
  std::optional<dist::TimeoutScope> tensor_;
};

/// All the state of one run.
class Run {
 public:
  Run(const plan::Settled& settled, std::unique_ptr<dataset::Dataset> data, const TrainOptions& options,
      dist::Communicator& comm)
      : settled_(settled),
        options_(options),
        comm_(comm),
        start_s_(now_s()),
        placement_(plan::plan_placement(config_, comm)),
        groups_(config_, comm),
        team_(placement_.team()),
        ctx_(team_),
        plan_(make_plan()),
        model_(config_.model, groups_.tensor_parallel()),
        step_(plan_, model_, groups_.data(), ctx_, groups_.tensor()),
        trace_(options.trace.has_value(), comm.rank()),
        data_(std::move(data)) {}

  int run();

 private:
  bool leader() const { return comm_.rank() == 0; }
  bool writes() const;
  void open();
  plan::RunPlan make_plan();
  void start_report();
  void check_fallbacks();
  void check_same_start();
  void choose_kernels();
  void measure_peak();
  void allocate();
  void load_autoencoders();
  void prepare_fid();
  void restore_best();
  void measure_fid(StepMetrics& metrics, Evaluation& evaluation);
  void start_automem();
  const std::string& disk_folder() const;
  void initialise_weights();
  void next_candidate();
  void pass_over(const std::string& folder, const std::string& why);
  void load_or_fall_back();
  void load_checkpoint();
  void begin_folder();
  double patience_s() const;
  int train_loop();
  void encode(dataset::Batch& batch);
  StepMetrics one_step();
  bool after_step(StepMetrics& metrics, bool last);
  void agree_again();
  void report(StepMetrics& metrics, bool last);
  void report_automem(StepMetrics& metrics);
  void report_pages();
  std::map<std::string, int> lines_of_ranks(const std::string& mine);
  std::string of_ranks(const std::string& line, int ranks) const;
  void verify();
  StepFacts facts();
  void checkpoint(bool must_succeed);
  void advance_checkpoint();
  void judge(const std::optional<checkpoint::SaveOutcome>& outcome, bool must_succeed);
  void finish();
  void watch_layers();

  const plan::Settled settled_;
  const config::Config& config_ = settled_.config;
  const double flop_per_image_ = 6.0 * nn::forward_macs(config_.model);
  const TrainOptions& options_;
  dist::Communicator& comm_;
  double start_s_;
  plan::Placement placement_;
  std::string notes_, topology_;  // on rank 0: fallbacks and advice; the content of topology.txt
  std::string products_;          // what computes the matrix products
  plan::RankGroups groups_;
  bool told_pages_ = false;
  std::unique_ptr<dist::NodeMemory>
      gradient_memory_;  // before the model, whose gradients live there; only of several ranks
  parallel::Team team_;
  ops::Context ctx_;
  const plan::RunPlan plan_;
  std::unique_ptr<automem::AutoMem> automem_;  // before what has its memory from it
  nn::Dit model_;
  TrainStep step_;
  Trace trace_;
  std::unique_ptr<dataset::Dataset> data_;
  std::optional<RunLock> lock_;                           // on rank 0 and others that write
  std::unique_ptr<RunFolder> folder_;                     // on rank 0
  std::string resumed_;                                   // checkpoint folder; "": a new run
  std::vector<std::string> candidates_;                   // on rank 0: it, and those to fall back to
  std::unique_ptr<eval::LatentCodec> encoder_, decoder_;  // data.vae, sample.vae
  std::unique_ptr<eval::EncodedImages> encoded_;          // of the validation; with encoder_
  std::unique_ptr<eval::TrainingFid> fid_;                // of eval.fid_every_steps
  double best_fid_ = std::numeric_limits<double>::infinity();
  int64_t best_step_ = -1;  // of it; its checkpoint is linked as `best`
  std::unique_ptr<dataset::Loader> loader_;
  Progress progress_;
  PhaseLog beside_;      // beside the steps, since the last line of metrics: samples, checkpoints, comparisons
  StepFacts agreed_;     // of the last step, by all ranks
  double last_mfu_ = 0;  // of this rank
  std::unique_ptr<checkpoint::CheckpointSaver> saver_;
  double checkpoint_start_s_ = 0;
  Interval since_checkpoint_{60 * config_.checkpoint.every_minutes};
  automem::ResidencyTotals moved_;                      // until the last line of metrics
  memory::PerTier<std::array<double, 2>> copied_ = {};  // bytes in each direction, likewise
  int64_t verified_step_ = -1;                          // the last one after which the replicas were compared
  int64_t first_step_ = 0;                              // of the loop
  double peak_flops_ = 0;                               // of all ranks together
  DType peak_type_ = DType::kF32;
  double loop_start_s_ = 0, recent_step_s_ = 0, hidden_s_ = 0;
  PhaseTimes total_;
  Heartbeat heartbeat_{leader() ? config_.log.every_seconds : 0};  // last: its thread ends first
};

}  // namespace ditrain::train
