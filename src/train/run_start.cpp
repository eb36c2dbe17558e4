// Everything that a run does before its first step.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/checkpoint/adapt.hpp"
#include "ditrain/checkpoint/checkpoint.hpp"
#include "ditrain/config/agreement.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/dataset/tile_shards.hpp"
#include "ditrain/io/checkpoint_folder.hpp"
#include "ditrain/io/files.hpp"
#include "ditrain/kernels/dispatch.hpp"
#include "ditrain/kernels/measure.hpp"
#include "ditrain/plan/inputs.hpp"
#include "ditrain/plan/kernel_settings.hpp"
#include "ditrain/plan/memory_check.hpp"
#include "ditrain/version.hpp"
#include "run.hpp"

namespace ditrain::train {
namespace {

namespace fs = std::filesystem;

constexpr double kPatience_s = 30;  // for a run that is ending when --resume auto comes

// The run folder that a checkpoint folder belongs to, RUN/checkpoints/step_N.
fs::path run_of(const std::string& checkpoint) {
  return fs::weakly_canonical(fs::path(checkpoint) / "state.json").parent_path().parent_path().parent_path();
}

// What is wrong in the checkpoint that `read` reads; "": nothing. That it cannot be read now is no damage.
// Errors: RunError for that
template <class F>
std::string damage_of(const F& read) try {
  read();
  return "";
} catch (const io::OpenError& e) {
  throw RunError({.where = "resume", .what = std::string("a checkpoint cannot be read: ") + e.what()});
} catch (const InputError& e) {
  return e.what();
}

}  // namespace

// With what is measured: the bandwidth between NUMA domains, where clusters lie in several, and that of copies.
plan::RunPlan Run::make_plan() {
  plan::RankPlace place = plan::place_of(placement_, comm_.local_size());
  place.rank = groups_.data().rank();
  place.copying = plan::plan_copying(config_, placement_, place, disk_folder(), &team_);
  const auto bandwidth = place.nodes.size() > 1 ? plan::measure_domains(ctx_) : plan::DomainBandwidth{};
  return plan::plan_run(config_, comm_.world_size(), place, bandwidth, settled_.facts);
}

void Run::open() {
  plan::check_memory(plan_);
  plan::check_tiers(plan_, options_.out);  // ranks meet before the first one makes its file
  if (config_.dist.engine && groups_.data().world_size() > 1) {
    gradient_memory_ =
        std::make_unique<dist::NodeMemory>(groups_.data(), size_t(model_.parameters().arena_size()) * sizeof(float),
                                           /*may_share=*/true, config_.memory.pages);
    for (const std::string& note : {gradient_memory_->note(), gradient_memory_->page_note()})
      if (!note.empty()) placement_.notes.push_back(note);
  }
  if (leader()) {  // it alone decides, so that all ranks go on from the same place
    if (!options_.resume_from.empty()) candidates_ = {checkpoint::find_checkpoint(options_.resume_from)};
    io::make_output_folder(options_.out);
    lock_.emplace(options_.out, options_.resume_auto ? kPatience_s : 0);
    if (!lock_->note().empty()) placement_.notes.push_back(lock_->note());
    if (options_.resumes()) io::remove_stale_temporaries(options_.out + "/checkpoints");
    if (options_.resume_auto) candidates_ = io::checkpoints_to_resume(options_.out + "/checkpoints");
    next_candidate();
    if (!resumed_.empty() && holds_run(options_.out) && run_of(resumed_) != fs::weakly_canonical(options_.out))
      throw InputError({.where = "output",
                        .what = options_.out + " holds another run than " + resumed_,
                        .expected = "the folder of the resumed run, or a new one"});
    folder_ = std::make_unique<RunFolder>(options_.out, options_.resumes());
    log::open_file(options_.out + "/log.txt");
  }
  resumed_ = dist::broadcast_text(comm_, resumed_);
  if (leader() || !writes() || !fs::exists(options_.out + "/.lock")) return;  // check_same_start: it is not there
  lock_.emplace(options_.out);
  if (!lock_->note().empty()) placement_.notes.push_back(lock_->note());
}

// Whether this rank has a part of the checkpoints.
bool Run::writes() const { return plan_.gradients.sharded || groups_.data().rank() == 0; }

// On rank 0: the next checkpoint to start from whose state can be read and is of this config.
void Run::next_candidate() {
  for (resumed_.clear(); resumed_.empty() && !candidates_.empty();) {
    const std::string folder = candidates_.front();
    checkpoint::CheckpointState state;
    const std::string missing = io::missing_file(folder);
    const std::string damage = missing.empty() ? damage_of([&] { state = checkpoint::read_checkpoint_state(folder); })
                                               : missing + " is missing";
    if (!damage.empty()) {
      pass_over(folder, damage);
      continue;
    }
    config::check_resume(config::parse_config(state.config_yaml, folder), config_);
    resumed_ = folder;
  }
}

// On rank 0: goes on to the candidate after a damaged one. Errors: InputError if it is the only one that was asked for,
// or the last.
void Run::pass_over(const std::string& folder, const std::string& why) {
  candidates_.erase(candidates_.begin());
  if (!options_.resume_auto) {
    const std::string intact = checkpoint::newest_intact_beside(folder);
    throw InputError(
        {.where = "resume",
         .what = folder + " is damaged: " + why,
         .hint = intact.empty() ? "another copy of the run: no checkpoint beside it is intact" : "--resume " + intact});
  }
  if (candidates_.empty())
    throw InputError({.where = "resume",
                      .what = "no checkpoint in " + options_.out + " is intact; the last one: " + why,
                      .hint = "--out with another folder, to start anew"});
  log::warn("{} is damaged and passed over: {}", folder, why);
}

// Collective. A checkpoint that any rank finds damaged is passed over.
void Run::load_or_fall_back() {
  while (!resumed_.empty()) {
    checkpoint::expect_readable(resumed_);  // a folder that this rank does not see is no damage
    const std::string damage = damage_of([this] { load_checkpoint(); });
    std::string problem;
    if (leader())
      for (const std::string& of_rank : comm_.gather_strings(damage)) problem = problem.empty() ? of_rank : problem;
    else
      comm_.gather_strings(damage);
    problem = dist::broadcast_text(comm_, problem);
    if (problem.empty()) return;
    if (leader()) {
      pass_over(resumed_, problem);
      next_candidate();
    }
    resumed_ = dist::broadcast_text(comm_, resumed_);
  }
}

// What every rank read by itself: a folder that is not shared, or a copy of the data that is not complete.
void Run::check_same_start() {
  constexpr const char* kShare = "a file system that all nodes share";
  const bool seen = !writes() || fs::exists(options_.out + "/.lock");
  if (seen && writes() && !lock_) lock_.emplace(options_.out);  // it was not yet visible here when the run was opened
  config::check_agreement(
      comm_, {{"starting point", fmt::format("step {}, {} samples", progress_.step, data_->size()), kShare},
              {"run folder", options_.out + (seen ? "" : ", which is not there"), kShare}});
}

// Collective. On rank 0: each line of any rank, with the ranks that have it; elsewhere none.
std::map<std::string, int> Run::lines_of_ranks(const std::string& mine) {
  std::map<std::string, int> ranks_with;
  for (const std::string& of_rank : comm_.gather_strings(mine)) {
    std::istringstream lines(of_rank);
    for (std::string line; std::getline(lines, line);) ++ranks_with[line];
  }
  return ranks_with;
}

std::string Run::of_ranks(const std::string& line, int ranks) const {
  return comm_.world_size() == 1 ? line : fmt::format("{} of {} ranks: {}", ranks, comm_.world_size(), line);
}

// Collective: the notes of all ranks, each once. Call after allocation and pinning: all that can fall back has
// done so.
void Run::check_fallbacks() {
  if (config_.train.precision == DType::kBF16 && peak_type_ == DType::kF32)
    placement_.notes.push_back(
        "train.precision: bf16, but this CPU has no bf16 products: less memory, but f32 would be faster");
  for (const std::string& failure : team_.binding_failures()) placement_.notes.push_back(failure);
  std::string mine;
  for (const std::string& note : placement_.notes) mine += note + "\n";
  const uint64_t any = comm_.allreduce_or(mine.empty() ? 0 : 1);
  for (const auto& [note, ranks] : lines_of_ranks(mine)) {
    notes_ += "note: " + of_ranks(note, ranks) + "\n";
    log::warn_line(of_ranks(note, ranks));
  }
  if (options_.strict && any != 0)
    throw InputError(
        {.where = "strict", .what = "fallbacks are not allowed with --strict:\n" + (leader() ? notes_ : mine)});
  topology_ += notes_;
}

void Run::start_report() {
  const std::string machine = describe(placement_, comm_) + "kernels: " + kernels::chosen_isa() + "\n" +
                              kernels::dispatch_report() + products_ + "\n" + "cut: " + plan_.cut.why + "\n";
  log::info("ditrain {}: {} -> {}", kVersion, resumed_.empty() ? "new run" : "resuming " + resumed_, options_.out);
  log::info_lines(machine);
  log::info_lines(settled_.describe());
  log::info_lines(plan::describe_model(config_));
  log::info_lines(describe(plan_.memory));
  if (plan_.automem) log::info_lines(automem::describe(*plan_.automem));
  if (leader())
    for (const std::string& warning : config::warnings(config_)) log::warn_line(warning);
  log::info("data: {}", data_->describe());
  if (const std::string unused = data_->describe_unused(config_.model.num_classes); leader() && !unused.empty())
    log::warn("data: there are no samples of {}", unused);
  if (config_.sample.cfg_scale != 1 && config::draws_samples(config_) && config_.model.num_classes == 0)
    log::info("guidance is off: sample.cfg_scale {} needs labels, and the model has none (model.num_classes: 0)",
              config_.sample.cfg_scale);
  if (const std::string ignored = data_->describe_ignored(); !ignored.empty()) log::info("data: {}", ignored);
  topology_ = machine;
  if (plan_.automem) topology_ += automem::describe_copying(*plan_.automem);
}

// The highest of all measurements counts: other programs on the machine can only lower one.
void Run::measure_peak() {
  constexpr double kSeconds = 0.02;
  std::vector<double> flops(size_t(team_.num_workers()));
  team_.run(
      [&](const parallel::Worker& w) { flops[size_t(w.worker)] = kernels::measure_fma_peak(peak_type_, kSeconds); });
  double peak = 0;
  for (double f : flops) peak += f;
  comm_.allreduce_sum(&peak, 1);
  peak_flops_ = std::max(peak_flops_, peak);
}

void Run::choose_kernels() {
  products_ = plan::apply_kernel_settings(config_, placement_.topology, placement_.pus, ctx_);
  const bool has_bf16 = kernels::measure_fma_peak(DType::kBF16, 1e-4) > 0;
  peak_type_ = has_bf16 ? config_.train.precision : DType::kF32;
}

void Run::allocate() {
  autograd::ParameterStore& parameters = model_.parameters();
  load_autoencoders();
  start_automem();
  const bool moves = automem_ != nullptr;
  parameters.allocate(
      autograd::ParameterStore::For::kTraining, config_.train.precision,
      {.home = moves ? &automem_->beside() : &memory::system_memory(),
       .gradients = moves && gradient_memory_ ? &automem_->beside(*gradient_memory_) : gradient_memory_.get(),
       .state_elements = plan_.gradients.sharded ? plan_.gradients.state_elements() : -1,
       .state_slices = plan_.gradients.state_slices(),
       .gradient_slices = plan_.gradients.gradient_slices,
       .segments = moves ? &automem_->source() : nullptr});
  const auto& p = parameters;
  std::vector<Tensor> shared{p.grads};
  if (!moves) shared.insert(shared.end(), {p.values, p.values_bf16});
  step_.allocate(gradient_memory_.get(), placement_.comm_pus, automem_.get());
  if (moves)
    for (const Tensor& temporary : step_.tape().temporaries()) shared.push_back(temporary);
  const std::string refusal = plan::spread_over_nodes(plan::nodes_of_fixed(plan_.place, moves), shared);
  if (!refusal.empty()) placement_.notes.push_back(refusal);
  checkpoint::OwnState mine{.parts = step_.sync().state().parts()};
  if (!writes()) mine.parts.clear();
  if (!leader()) mine.frozen = false, mine.whole_parameters = plan_.gradients.sharded;
  saver_ = std::make_unique<checkpoint::CheckpointSaver>(
      checkpoint::CheckpointSaver::Setup{
          .checkpoints_dir = options_.out + "/checkpoints",
          .config = config_.checkpoint,
          .mine = mine,
          .buffer_bytes = mine.parts.empty()
                              ? 0
                              : plan::checkpoint_buffer_bytes(config_.checkpoint, plan_.gradients.state_elements()),
          .pus = placement_.helper_pus},
      model_.parameters(), comm_, ctx_);
  step_.sync().state().set_saver(saver_.get());
  const dist::Engine* engine = step_.sync().engine();
  if (engine == nullptr) return;
  log::info("{}", engine->description());
  log::info_lines(describe_factors(plan_.gradients, config_));
  if (!engine->binding_failure().empty()) placement_.notes.push_back(engine->binding_failure());
}

void Run::load_autoencoders() {
  const auto load = [](const eval::LatentCodecPlan& plan, nn::AutoencoderUse use) {
    log::info("{}", plan.describe());
    return std::make_unique<eval::LatentCodec>(plan, use);
  };
  const plan::InputFacts& files = settled_.facts;
  if (files.decoder) {
    plan::expect_learned_scale(*files.decoder, config_);
    decoder_ = load(*files.decoder, nn::AutoencoderUse::kDecode);
  }
  if (!files.encoder) return;
  encoder_ = load(*files.encoder, nn::AutoencoderUse::kEncode);
  encoded_ = std::make_unique<eval::EncodedImages>(config_.data, *data_, *encoder_);
}

namespace {

// A reference of tiles, scaled as the samples are; null: it is statistics or pictures.
std::unique_ptr<dataset::Dataset> reference_tiles(const config::Config& c, const dataset::SampleShape& shape) {
  if (!dataset::has_scaling(c.data) || c.eval.reference.empty() || !dataset::holds_tiles(c.eval.reference))
    return nullptr;
  dataset::Config data = c.data;
  data.kind = dataset::find_kind("tiles"), data.path = c.eval.reference;
  return dataset::open_dataset(data, shape, /*num_classes=*/0, uint64_t(c.train.seed));
}

}  // namespace

// Collective: the reference that samples are compared with.
void Run::prepare_fid() {
  if (config_.eval.fid_every_steps == 0) return;
  const dataset::SampleShape samples = decoder_ != nullptr ? decoder_->images() : plan::model_shape(config_.model);
  const bool latents = !config::learns_pixels(config_) && decoder_ == nullptr;
  const auto tiles = latents ? nullptr : reference_tiles(config_, samples);
  eval::TrainingFid::Setup setup{.reference = tiles ? "" : config_.eval.reference, .samples = samples};
  setup.features.kind = config_.eval.features == config::FidFeatures::kInception ? eval::FeatureKind::kInception
                                                                                 : eval::FeatureKind::kPixels;
  setup.features.weights = config_.eval.weights;
  const PatienceScope no_limit(comm_, groups_, 0);
  fid_ = std::make_unique<eval::TrainingFid>(setup, tiles ? *tiles : *data_, team_, comm_);
  log::info("{}: samples are compared with {}{}", fid_->name(), fid_->description(),
            tiles ? " in " + config_.eval.reference : "");
}

// Collective: of a run that goes on, the distance that belongs to the checkpoint `best`.
void Run::restore_best() {
  if (fid_ == nullptr || resumed_.empty()) return;
  double found[2] = {best_fid_, -1};
  const auto best = leader() ? io::best_checkpoint(folder_->checkpoints()) : std::nullopt;
  if (best) {
    const std::string link = folder_->checkpoints() + "/best";
    const std::string damage = damage_of([&] {
      const config::Config before = config::parse_config(checkpoint::read_checkpoint_state(link).config_yaml, link);
      const auto value = metric_of_step(options_.out, *best, fid_->name());
      if (!config::measure_same_distances(before, config_))
        log::info("{}: was measured in another way before; the best checkpoint is chosen anew", fid_->name());
      else if (value)
        found[0] = *value, found[1] = double(*best);
      else
        log::warn("the best checkpoint is chosen anew: metrics.jsonl has no {} of step {}", fid_->name(), *best);
    });
    if (!damage.empty()) log::warn("the best checkpoint is chosen anew: {}", damage);
  }
  comm_.broadcast(found, sizeof found, 0);
  best_fid_ = found[0], best_step_ = int64_t(found[1]);
}

const std::string& Run::disk_folder() const {
  return config_.memory.disk_path.empty() ? options_.out : config_.memory.disk_path;
}

// Before the store and the tape, whose memory comes from it.
void Run::start_automem() {
  if (!plan_.automem) return;
  const config::MemoryConfig& m = config_.memory;
  automem_ = std::make_unique<automem::AutoMem>(*plan_.automem,
                                                automem::AutoMem::Setup{.pages = m.pages,
                                                                        .clusters = plan::fast_shares(plan_.place),
                                                                        .bulk_nodes = plan_.place.bulk_nodes,
                                                                        .rooms = plan_.place.rooms,
                                                                        .disk_folder = disk_folder(),
                                                                        .copy_pus = placement_.pus_of_copies(),
                                                                        .simulate = m.simulate_bulk});
  log::info_lines(automem_->describe());
  for (const std::string& note : automem_->notes()) placement_.notes.push_back(note);
  automem_->engine().record_spans(trace_.enabled());
}

void Run::initialise_weights() {
  autograd::ParameterStore& parameters = model_.parameters();
  nn::initialise(model_, uint64_t(config_.train.seed));
  if (const std::string& from = config_.train.init_from; !from.empty()) {
    const checkpoint::DitFile file(from, checkpoint::Weights::kEma, checkpoint::hints_of(config_.model));
    for (const std::string& note : file.notes()) log::info("weights: {}", note);
    for (const std::string& change : checkpoint::load_adapted(file, config_, model_, placement_.helper_pus))
      log::info("weights: {}", change);
    if (file.config().sample.cfg_channels == config::GuidedChannels::kThree && config_.model.in_channels > 3 &&
        config_.sample.cfg_channels == config::GuidedChannels::kAll)
      log::info("weights: guidance acted on their first three channels, here on all (sample.cfg_channels: 3 keeps it)");
    log::info("weights: {}", file.path());
  }
  step_.keep(parameters.values, parameters.ema);
}

void Run::load_checkpoint() {
  const checkpoint::CheckpointState state = checkpoint::read_checkpoint_state(resumed_);
  checkpoint::load_training_state(
      resumed_, model_.parameters(), [this](const Tensor& whole, const Tensor& state) { step_.keep(whole, state); },
      placement_.helper_pus);
  progress_ = {state.step, state.optimizer_step, state.skipped_steps};
  if (state.isa != kernels::chosen_isa())
    log::warn("the checkpoint was computed with {} kernels, this run uses {}: it may not continue bit for bit",
              state.isa, kernels::chosen_isa());
  const config::Config before = config::parse_config(state.config_yaml, resumed_);
  if (config_.train.precision == DType::kBF16 && before.kernels.fuse != config_.kernels.fuse)
    log::warn("kernels.fuse was {} before: in bf16 it moves roundings, so the run does not continue bit for bit",
              before.kernels.fuse);
  if (state.world_size != comm_.world_size())
    log::info("resuming a run of {} rank(s) on {}", state.world_size, comm_.world_size());
}

// Rank 0, once nothing can be refused any more: what an abandoned continuation left after this step goes aside.
void Run::begin_folder() {
  folder_->write("config.yaml", config::to_yaml(settled_.wanted));
  folder_->write("topology.txt", topology_);
  for (const std::string& aside : io::discard_checkpoints_after(folder_->checkpoints(), progress_.step))
    log::info("a checkpoint after step {} is now {}; {}", progress_.step, aside,
              config_.checkpoint.keep_discarded ? "it stays (checkpoint.keep_discarded)"
                                                : "it goes when the next one is whole");
  const int64_t lines = discard_metrics_after(options_.out, progress_.step);
  if (lines > 0) log::info("{} line(s) after step {} moved to metrics.discarded.jsonl", lines, progress_.step);
}

}  // namespace ditrain::train
