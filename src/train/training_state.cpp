#include "training_state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/checkpoint/adapt.hpp"
#include "ditrain/checkpoint/checkpoint.hpp"
#include "ditrain/checkpoint/export.hpp"
#include "ditrain/checkpoint/snapshots.hpp"
#include "ditrain/config/differences.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/files/checkpoint_folder.hpp"
#include "ditrain/kernels/dispatch.hpp"
#include "ditrain/optim/outer.hpp"

namespace ditrain::train {
namespace {

std::unique_ptr<dist::NodeMemory> make_gradient_memory(RunContext& run) {
  dist::Communicator& ranks = run.groups.summing();
  if (!run.config.dist.engine || ranks.world_size() == 1) return nullptr;
  const size_t bytes = size_t(run.plan.gradients.buckets.n()) * sizeof(float);
  auto memory = std::make_unique<dist::NodeMemory>(ranks, bytes, /*may_share=*/true, run.config.memory.pages);
  run.note(memory->note());
  run.note(memory->page_note());
  return memory;
}

std::unique_ptr<automem::AutoMem> make_automem(RunContext& run) {
  if (!run.plan.automem) return nullptr;
  const config::MemoryConfig& m = run.config.memory;
  auto automem = std::make_unique<automem::AutoMem>(
      *run.plan.automem, automem::AutoMem::Setup{.pages = m.pages,
                                                 .clusters = plan::fast_shares(run.plan.place),
                                                 .bulk_nodes = run.plan.place.bulk_nodes,
                                                 .free_memory = run.plan.place.free_memory,
                                                 .disk_folder = run.disk_folder(),
                                                 .copy_pus = run.placement.pus_of_copies(),
                                                 .simulate = m.simulate_bulk});
  log::detail_lines(automem->describe());
  for (const std::string& note : automem->notes()) run.note(note);
  automem->engine().record_spans(run.options.trace.has_value());
  return automem;
}

// Warns if the last update would have had another learning rate with this run's settings: a schedule over more steps
// raises a rate that had fallen, one that decays before a branch lowers it. Within a run a rate changes by a tenth from
// one update to the next only at the ends of a schedule; rates below a hundredth of the highest do no harm.
void warn_of_rate(const config::Config& before, const config::Config& now, int64_t updates) {
  if (updates == 0) return;
  const auto highest_of = [](const config::Config& c, bool of_muon) {
    return of_muon ? c.optimizer.muon_lr : c.optimizer.lr;
  };
  const auto rate = [&](const config::Config& c, bool of_muon) {
    const double lr = optim::learning_rate(c.optimizer, updates - 1, c.train.steps);
    return of_muon && c.optimizer.lr > 0 ? lr * highest_of(c, of_muon) / c.optimizer.lr : lr;
  };
  for (const bool of_muon : {false, true}) {  // the rate in metrics and log first
    if (of_muon && now.optimizer.kind != optim::Kind::kMuon) continue;
    const double was = rate(before, of_muon), is = rate(now, of_muon), least = std::min(was, is);
    const double highest = std::max(highest_of(before, of_muon), highest_of(now, of_muon));
    if (std::max(was, is) <= 1.1 * least || std::max(was, is) <= 0.01 * highest) continue;
    std::vector<std::string> why;
    for (const config::Difference& d : config::differences(before, now))
      if (d.key.starts_with("optimizer.") || d.key == "train.steps")
        why.push_back(fmt::format("{} was {}, is {}", d.key, d.old_value, d.new_value));
    return log::warn("{} changes at once: the last update ({}) had {:.3g} and would have {:.3g} now; {}",
                     of_muon ? "the learning rate of matrices (optimizer.muon_lr)" : "the learning rate", updates, was,
                     is, fmt::join(why, "; "));
  }
}

}  // namespace

TrainingState::TrainingState(RunContext& context, const dataset::Dataset& validation)
    : run(context),
      gradient_memory(make_gradient_memory(run)),
      automem(make_automem(run)),
      model(run.config.model, run.groups.tensor_parallel()),
      step(make_step(validation)) {
  spread();
  make_saver();
  if (step.outer()) log::info_line(step.outer()->description());
  const dist::Engine* engine = step.sync().engine();
  if (engine == nullptr) return;
  log::detail_line(engine->description());
  log::detail_lines(describe_factors(run.plan.gradients, run.config));
  run.note(engine->binding_failure());
}

void TrainingState::load_other_models(const dataset::Dataset& validation) {
  if (const std::string& path = run.config.sample.guide; !path.empty() && config::draws_samples(run.config)) {
    guide = checkpoint::load_guide(path, run.config, run.settled.facts.class_names);
    log::info("guidance leads away from the samples of {}", guide != nullptr ? path : "the model with its routes");
  }
  const auto load = [](const eval::LatentCodecPlan& plan, nn::AutoencoderUse use) {
    log::info_lines(plan.describe());
    return std::make_unique<eval::LatentCodec>(plan, use);
  };
  const plan::InputFacts& files = run.settled.facts;
  if (files.decoder) {
    decoder = load(*files.decoder, nn::AutoencoderUse::kDecode);
  }
  if (!files.encoder) return;
  encoder = load(*files.encoder, nn::AutoencoderUse::kEncode);
  encoded = std::make_unique<eval::EncodedImages>(run.config.data, validation, *encoder);
}

// Other models first: what reading them takes is free again when the arenas come.
TrainStep TrainingState::make_step(const dataset::Dataset& validation) {
  load_other_models(validation);
  const plan::GradientPlan& gradients = run.plan.gradients;
  autograd::ParameterStore& p = model.parameters();
  const bool moves = automem != nullptr;
  p.allocate(autograd::ParameterStore::For::kTraining, run.config.train.precision,
             {.home = moves ? &automem->beside() : &memory::system_memory(),
              .gradients = moves && gradient_memory ? &automem->beside(*gradient_memory) : gradient_memory.get(),
              .states = optim::state_arrays(run.config.optimizer, run.config.ema, run.config.dist.outer.has_value()),
              .state_parts = gradients.state_parts(),
              .gradient_slices = gradients.gradient_slices,
              .segments = moves ? &automem->source() : nullptr});
  return TrainStep(run.plan, model, {run.groups.data(), &run.groups.summing(), run.groups.tensor()}, run.ctx,
                   {gradient_memory.get(), automem.get(), run.placement.comm_pus});
}

// What stays where it is lies on the memory of all clusters.
void TrainingState::spread() {
  const autograd::ParameterStore& p = model.parameters();
  const bool moves = automem != nullptr;
  std::vector<Tensor> shared{p.grads};
  if (!moves) shared.insert(shared.end(), {p.values, p.values_bf16});
  if (moves)
    for (const Tensor& temporary : step.tape().temporaries()) shared.push_back(temporary);
  run.note(plan::spread_over_nodes(plan::nodes_of_fixed(run.plan.place, moves), shared));
  if (moves && step.outer())
    run.note(plan::spread_over_nodes(run.plan.place.bulk_nodes, step.outer()->arrays_between_steps()));
}

void TrainingState::make_saver() {
  const plan::GradientPlan& gradients = run.plan.gradients;
  checkpoint::OwnState mine{.parts = step.sync().state().parts(),
                            .shared = run.groups.data().rank() == 0 || gradients.sharded,
                            .group = run.groups.group(),
                            .groups = gradients.groups};
  if (!run.writes()) mine.parts.clear();
  if (!run.leader()) mine.frozen = false, mine.whole_parameters = gradients.sharded || gradients.groups > 1;
  const size_t buffer = plan::checkpoint_buffer_bytes(run.config.checkpoint, model.parameters().state_bytes());
  saver = std::make_unique<checkpoint::CheckpointSaver>(
      checkpoint::CheckpointSaver::Setup{.checkpoints_dir = run.checkpoints(),
                                         .config = run.config.checkpoint,
                                         .snapshots_dir = checkpoint::snapshots_of(run.options.out),
                                         .in_use = run.config.sample.guide,
                                         .mine = mine,
                                         .buffer_bytes = mine.parts.empty() ? 0 : buffer,
                                         .pus = run.placement.helper_pus},
      model.parameters(), run.comm, run.ctx);
  step.sync().state().set_saver(saver.get());
  if (step.outer()) step.outer()->set_saver(saver.get());
}

checkpoint::CheckpointState expect_trunk(const config::Config& c, const std::string& folder) {
  checkpoint::CheckpointState state = checkpoint::read_checkpoint_state(folder);
  const config::Config trunk = config::parse_config(state.config_yaml, folder);
  std::vector<config::Difference> differences = checkpoint::differences_of_meaning(trunk, c);
  for (const config::Difference& d : config::differences(trunk, c))
    if (d.key.starts_with("model.") || d.key == "optimizer.kind" || d.key == "dist.outer") differences.push_back(d);
  for (const config::Difference& d : differences)
    throw InputError({.where = "train.branch_from",
                      .what = "the checkpoint holds another model or other state: " + folder,
                      .got = d.key + ": " + d.old_value,
                      .expected = d.new_value,
                      .hint = (d.key == "data.condition" ? "the same bands" : "--set " + d.key + "=" + d.old_value) +
                              std::string(", or train.init_from, which adapts weights")});
  if (c.ema.snapshots_every > 0 && !state.files.contains(files::kAveragesFile))
    throw InputError({.where = "train.branch_from",
                      .what = "the checkpoint has no power averages to go on with: " + folder,
                      .got = fmt::format("ema.snapshots_every: {}", c.ema.snapshots_every),
                      .expected = "0",
                      .hint = "--set ema.snapshots_every=0, or a trunk that was trained with it"});
  if (state.step >= c.train.steps)
    throw InputError({.where = "train.branch_from",
                      .what = "the checkpoint is at or beyond the last step: " + folder,
                      .got = fmt::format("step {} of train.steps: {}", state.step, c.train.steps),
                      .expected = "an earlier checkpoint, or more steps",
                      .hint = fmt::format("train.steps: {}", 2 * state.step)});
  return state;
}

// The steps of the trunk count: schedules and the order of the data go on.
void TrainingState::branch(const std::string& path) {
  const std::string folder = checkpoint::find_checkpoint(path);
  const checkpoint::CheckpointState state = expect_trunk(run.config, folder);
  load(folder);
  progress.skipped_in_a_row = 0;  // of the trunk
  log::info("branched from {}: step {}, with its optimiser state", folder, state.step);
}

void TrainingState::initialise() {
  const config::Config& config = run.config;
  if (!config.train.branch_from.empty()) return branch(config.train.branch_from);
  nn::initialise(model, uint64_t(config.train.seed));
  if (const std::string& from = config.train.init_from; !from.empty()) {
    const checkpoint::DitFile file(from, checkpoint::Weights::kEma, checkpoint::hints_of(config.model));
    for (const std::string& note : file.notes()) log::info("weights: {}", note);
    for (const std::string& change : checkpoint::load_adapted(file, config, model, run.placement.helper_pus))
      log::info("weights: {}", change);
    const std::string other = checkpoint::other_class(file.class_names(), run.settled.facts.class_names);
    if (!other.empty() && file.config().model.num_classes == config.model.num_classes)
      log::info("weights: the label table is kept, although labels mean other classes here: {}", other);
    for (const config::Difference& d : checkpoint::differences_of_meaning(file.config(), config))
      if (file.has_config() && !d.key.starts_with("model."))  // those of the model have been told
        log::info("weights: they learnt with {}: {}, here it is {}", d.key, d.old_value, d.new_value);
    const dataset::Config& before = file.config().data;
    if (run.leader() && file.has_config() && before.hold_out < config.data.hold_out && before.path == config.data.path)
      log::warn(
          "weights: they learnt with data.hold_out: {}, here it is {}: they may have seen images that are held out",
          before.hold_out, config.data.hold_out);
    if (file.config().sample.cfg_channels == config::GuidedChannels::kThree && config.model.in_channels > 3 &&
        config.sample.cfg_channels == config::GuidedChannels::kAll)
      log::info("weights: guidance acted on their first three channels, here on all (sample.cfg_channels: 3 keeps it)");
    log::info("weights: {}", file.path());
  }
  step.copy_own_part(model.parameters().values, model.parameters().ema_state());
  step.begin_phase(/*loaded=*/false);
}

void TrainingState::load(const std::string& folder) {
  const checkpoint::CheckpointState state = checkpoint::read_checkpoint_state(folder);
  checkpoint::load_training_state(
      folder, model.parameters(),
      [this](const Tensor& whole, const autograd::OptimizerState& mine) { step.copy_own_part(whole, mine); },
      run.placement.helper_pus, {.group = run.groups.group(), .groups = run.plan.gradients.groups});
  step.begin_phase(/*loaded=*/true);
  progress = {state.step, state.optimizer_step, state.skipped_steps, state.skipped_in_a_row};
  if (state.isa != kernels::chosen_isa())
    log::warn("the checkpoint was computed with {} kernels, this run uses {}: it may not continue bit for bit",
              state.isa, kernels::chosen_isa());
  const std::string was = kernels::kernels_in(state.kernels), is = kernels::kernels_in(kernels::dispatch_report());
  if (state.isa == kernels::chosen_isa() && was != is)
    log::warn("the checkpoint was computed by other kernels ({}; here {}): it may not continue bit for bit", was, is);
  if (!run.leader()) return;
  const config::Config before = config::parse_config(state.config_yaml, folder);
  if (run.config.train.precision == DType::kBF16 && before.kernels.fuse != run.config.kernels.fuse)
    log::warn(
        "kernels.fuse was {} before: in bf16 it changes where values are rounded, so the run does not continue "
        "bit for bit",
        before.kernels.fuse);
  const double held = before.data.hold_out, holds = run.config.data.hold_out;
  if (held < holds && before.data.path == run.config.data.path)  // a larger share holds what a smaller one does, too
    log::warn(
        "the checkpoint was trained with data.hold_out: {}, here it is {}: it may have seen images that are held out, "
        "so that validation looks better than it is",
        held, holds);
  if (state.samples > 0 && state.samples != run.settled.facts.samples && held == holds)
    log::warn(
        "data.path has {} samples, had {} when the checkpoint was written: the rest of the epoch shows some of them "
        "again and leaves out others",
        run.settled.facts.samples, state.samples);
  // Of a branch: a run that resumes is refused.
  if (const auto other = checkpoint::other_class(state.class_names, run.settled.facts.class_names); !other.empty())
    log::warn("the labels of data.path mean other classes than in the checkpoint: {}", other);
  if (state.step < run.config.train.steps) warn_of_rate(before, run.config, state.optimizer_step);
  if (state.world_size != run.comm.world_size())
    log::info("resuming a run of {} rank(s) on {}", state.world_size, run.comm.world_size());
}

}  // namespace ditrain::train
