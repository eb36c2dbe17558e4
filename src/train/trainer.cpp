#include "ditrain/train/trainer.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "disk_watch.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/checkpoint/dit_file.hpp"
#include "ditrain/checkpoint/export.hpp"
#include "ditrain/config/agreement.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/dataset/tile_shards.hpp"
#include "ditrain/kernels/dispatch.hpp"
#include "ditrain/plan/kernel_settings.hpp"
#include "ditrain/platform/signals.hpp"
#include "ditrain/train/metrics.hpp"
#include "train_loop.hpp"

namespace ditrain::train {
namespace {

/// Program, instruction set, command line and config of this process.
std::vector<config::RankInvariant> start_invariants(const config::Config& config, const TrainOptions& options) {
  const std::string command_line = fmt::format(
      "--out {} --resume '{}' --maxh {}{}{}", options.out, options.resume_auto ? "auto" : options.resume_from,
      options.max_hours, options.strict ? " --strict" : "", options.trace ? " --trace " + *options.trace : "");
  std::vector<config::RankInvariant> invariants = config::program_invariants("ditrain");
  invariants.push_back(
      {"instruction set", kernels::chosen_isa(),
       "the lower one for all (mpirun -x DITRAIN_ISA=NAME): the last bits of their results differ, and "
       "weights would drift apart"});
  invariants.push_back({"kernels", kernels::kernels_in(kernels::dispatch_report()),
                        "the same processor for all, or one instruction set by name (mpirun -x DITRAIN_ISA=NAME)"});
  invariants.push_back({"command line", command_line, "the same flags for all ranks"});
  invariants.push_back({"config", config::to_yaml(config), "one config file on a file system that all nodes share"});
  return invariants;
}

// The numbers of the reference are scaled as the data's, so they have to mean the same: what data.number_* say, or what
// the tiles of the data say where these keys were given.
void expect_same_numbers(const dataset::Config& reference, const dataset::Config& data) {
  const std::string words = "tiles of the same type, scale and offset as data.path";
  if (reference.number_type != data.number_type)
    refuse("eval.reference", "the tiles have another type than the data", std::string(word_of(*reference.number_type)),
           std::string(word_of(*data.number_type)), words);
  std::vector<dataset::TileBand> said;
  if (data.kind->of_bands) {
    const dataset::TileShards shards(data.path);
    for (const int b : dataset::find_bands(shards.band_names(), data.bands, "data.bands"))
      said.push_back(shards.bands()[size_t(b)]);
  }
  for (size_t b = 0; b < data.bands.size() && !data.number_scale.empty() && !data.number_offset.empty(); ++b) {
    const double scale = reference.number_scale[b], offset = reference.number_offset[b];
    const bool same = (scale == data.number_scale[b] && offset == data.number_offset[b]) ||
                      (!said.empty() && scale == said[b].scale && offset == said[b].offset);
    if (!same)
      refuse("eval.reference", "the tiles have other scales or offsets than the data",
             fmt::format("{} * {} + {}", data.bands[b], scale, offset),
             fmt::format("{} * {} + {}", data.bands[b], data.number_scale[b], data.number_offset[b]), words);
  }
}

// A reference of tiles, scaled as the samples are; null: it is statistics or pictures.
std::unique_ptr<dataset::Dataset> reference_tiles(const config::Config& c, const dataset::SampleShape& shape) {
  if (!dataset::has_scaling(c.data) || c.eval.reference.empty() || !dataset::holds_tiles(c.eval.reference))
    return nullptr;
  dataset::Config data = c.data;
  data.kind = dataset::find_kind("tiles"), data.path = c.eval.reference, data.hold_out = 0;
  data.condition.clear(), data.condition_low.clear(), data.condition_high.clear();  // distances need none
  std::error_code other;
  if (!std::filesystem::equivalent(c.eval.reference, c.data.path, other))
    data.number_type.reset(), data.number_scale.clear(), data.number_offset.clear();  // as these tiles say
  std::unique_ptr<dataset::Dataset> tiles;
  try {
    dataset::settle_tiles(data);
    tiles = dataset::open_dataset(data, shape, /*num_classes=*/0, uint64_t(c.train.seed));
  } catch (const InputError& error) {  // it knows the keys of the data
    throw InputError({.where = "eval.reference", .what = c.eval.reference + ": " + error.what()});
  }
  expect_same_numbers(data, c.data);
  return tiles;
}

eval::FeatureKind feature_kind(const config::Config& config) {
  return config.eval.features == config::FidFeatures::kInception ? eval::FeatureKind::kInception
                                                                 : eval::FeatureKind::kPixels;
}

// Collective: the reference that samples are compared with; null: they are not.
std::unique_ptr<eval::TrainingFid> make_fid(TrainingState& state, const dataset::Dataset& data) {
  RunContext& run = state.run;
  const config::Config& config = run.config;
  if (config.eval.fid_every_steps == 0) return nullptr;
  const bool decodes = state.decoder != nullptr;
  const dataset::SampleShape samples = decodes ? state.decoder->images() : plan::model_shape(config.model);
  const bool latents = !config::learns_pixels(config) && !decodes;
  const auto tiles = latents ? nullptr : reference_tiles(config, samples);
  eval::TrainingFid::Setup setup{
      .reference = tiles ? "" : config.eval.reference, .samples = samples, .is_latent = latents};
  if (latents) setup.latent_scale = config.data.latent_scale;
  setup.features.kind = feature_kind(config);
  setup.features.weights = config.eval.weights;
  const RankTimeoutScope no_limit(run, 0);
  auto fid = std::make_unique<eval::TrainingFid>(setup, tiles ? *tiles : data, run.team, run.comm);
  log::info("{}: samples are compared with {}{}", fid->name(), fid->description(),
            tiles ? " in " + config.eval.reference : "");
  return fid;
}

void tell_nothing_to_do(const RunContext& run, int64_t step) {
  log::info("nothing to do: the checkpoint is at step {} of {}", step, run.config.train.steps);
  if (step > run.config.train.steps) return;
  if (run.comm.rank() == 0 && run.options.resume_auto && !metric_of_step(run.options.out, step, "step"))
    log::warn(
        "the run ended during samples and validation of its last step, which are missing: ditsample draws samples, "
        "ditfid measures them; --resume with an earlier checkpoint repeats the steps after it");
}

void expect_there(const char* key, const std::string& path) {
  if (!path.empty() && !std::filesystem::exists(path))
    throw InputError({.where = key, .what = "there is no such file or folder", .got = path});
}

// From the start report to the outcome.
int train_from(StartingPoint& start, const plan::Inputs& inputs, RunContext& run, RunReport& report) {
  const dataset::Dataset& data = *inputs.data;
  const config::Config& config = run.config;
  report.tell_start(data, start.checkpoint());
  // Whole before the writers of checkpoints, and there until they are joined.
  const DiskWatch disk_watch(run.comm, config.checkpoint.timeout_s, run.placement.helper_pus);
  TrainingState state(run, inputs.validation());
  start.join_lock();  // ranks may see the folder late
  report.tell_fallbacks();

  report.heartbeat.begin("weights that the run starts from");
  report.heartbeat.start(run.placement.helper_pus);
  if (start.checkpoint().empty()) state.initialise();
  start.load([&](const std::string& checkpoint) { state.load(checkpoint); });
  start.expect_same_on_all_ranks(state.progress, data.size());
  const config::TrainConfig& train = config.train;
  if (state.progress.step > train.steps) {  // what the folder says of the longer run stays
    tell_nothing_to_do(run, state.progress.step);
    log::close_file();
    return kExitDone;
  }
  report.heartbeat.begin("reference of eval");
  const bool done = state.progress.step >= train.steps;
  const auto fid = done ? nullptr : make_fid(state, data);

  start.begin(state.progress.step, report.topology());
  Checkpointing checkpointing(state, start, report);
  if (!start.checkpoint().empty() || !train.init_from.empty() || !train.branch_from.empty())
    checkpointing.expect_same_start();  // each rank read files that may be others elsewhere
  const bool measures = config.eval.fid_every_steps > 0;
  const std::string metric = eval::TrainingFid::name_of(feature_kind(config));
  if (measures) checkpointing.restore_best(metric);
  if (done) tell_nothing_to_do(run, state.progress.step);
  report.begin_loop(state, start.folder());
  int code = kExitDone;
  try {
    code = TrainLoop(state, data, inputs.validation(), fid.get(), start, checkpointing, report).run();
  } catch (const std::exception& e) {
    report.tell_failure(e.what());  // before the checkpoint that is being written is waited for
    throw;
  }
  report.tell_end(data.bad_samples());
  if (measures) checkpointing.report_best(metric);
  report.write_trace();
  report.tell_outcome(code);
  log::close_file();
  return code;
}

}  // namespace

int64_t check_start(const config::Config& c, const TrainOptions& options, const std::vector<std::string>& class_names) {
  const bool has_data = c.data.kind->path.empty() || !c.data.path.empty();
  ResumeCandidates candidates(options);
  const bool resumes = !candidates.next(has_data ? &c : nullptr, class_names).empty();
  int64_t step = candidates.step();
  if (const std::string& trunk = c.train.branch_from; !resumes && !trunk.empty())
    step = has_data ? expect_trunk(c, checkpoint::find_checkpoint(trunk)).step
                    : checkpoint::read_checkpoint_state(checkpoint::find_checkpoint(trunk)).step;
  if (!resumes && !c.train.init_from.empty())
    checkpoint::DitFile(c.train.init_from, checkpoint::Weights::kEma, checkpoint::hints_of(c.model));
  if (config::draws_samples(c) && !c.sample.guide.empty() && c.sample.guide != config::kRoutedGuide) {
    if (has_data)
      checkpoint::find_guide(c.sample.guide, c, class_names);
    else
      checkpoint::find_weights(c.sample.guide, checkpoint::Weights::kEma);
  }
  if (c.eval.fid_every_steps > 0) {
    expect_there("eval.reference", c.eval.reference);
    if (c.eval.features == config::FidFeatures::kInception) expect_there("eval.weights", c.eval.weights);
  }
  if (c.kernels.tuned == config::TunedFrom::kFile) plan::read_tuning(c.kernels.tuning_file);
  if (!options.resumes() && holds_run(options.out))
    log::warn("{} holds a run already: to train, add --resume auto, or --out with another folder", options.out);
  return step;
}

int run_training(const config::Config& wanted, const TrainOptions& options, dist::Communicator& comm) {
  config::validate(wanted);
  const plan::Inputs inputs = plan::open_inputs(wanted);
  const plan::Settled settled = plan::settle(wanted, inputs.facts, plan::ranks_of(comm));
  config::check_agreement(comm, start_invariants(settled.config, options));

  platform::install_signal_flags();  // anew: an MPI library may have put handlers of its own there
  log::show_times(true);
  log::show_details(settled.config.log.level == config::LogLevel::kDebug);
  RunContext run(settled, options, comm);
  StartingPoint start(run);
  RunReport report(run);
  try {
    return train_from(start, inputs, run, report);
  } catch (const std::exception& e) {
    report.tell_failure(e.what());
    throw;
  }
}

}  // namespace ditrain::train
