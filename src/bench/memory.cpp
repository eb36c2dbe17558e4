#include "ditrain/bench/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "ditrain/automem/automem.hpp"
#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/bench/step.hpp"
#include "ditrain/plan/automem_plan.hpp"
#include "ditrain/train/train_step.hpp"
#include "own_keys.hpp"
#include "stop.hpp"
#include "turns.hpp"

namespace ditrain::bench {
namespace {

// A model that trains with its tensors where the config says, and the times of its steps.
class Training {
 public:
  Training(std::string name, const plan::RunPlan& plan, ops::Context& ctx, const std::string& disk_folder,
           const std::vector<int>& copy_pus)
      : name_(std::move(name)),
        plan_(plan),
        automem_(plan.automem
                     ? std::make_unique<automem::AutoMem>(
                           *plan.automem, automem::AutoMem::Setup{.pages = plan.config.memory.pages,
                                                                  .clusters = plan::fast_shares(plan.place),
                                                                  .bulk_nodes = plan.place.bulk_nodes,
                                                                  .free_memory = plan.place.free_memory,
                                                                  .disk_folder = disk_folder,
                                                                  .copy_pus = copy_pus,
                                                                  .simulate = plan.config.memory.simulate_bulk})
                     : nullptr),
        model_(plan.config.model),
        batch_(random_batch(plan.config.model, plan.samples)) {
    const size_t before = memory::system_memory().bytes_in_use();
    model_.parameters().allocate(autograd::ParameterStore::For::kTraining, plan.config.train.precision,
                                 {.home = automem_ ? &automem_->beside() : &memory::system_memory(),
                                  .states = optim::state_arrays(plan.config.optimizer, plan.config.ema),
                                  .gradient_slices = plan_.gradients.gradient_slices,
                                  .segments = automem_ ? &automem_->source() : nullptr});
    step_ = std::make_unique<train::TrainStep>(plan_, model_, train::StepRanks{*comm_}, ctx,
                                               train::StepPlace{.automem = automem_.get()});
    allocated_bytes_ = memory::system_memory().bytes_in_use() - before;
    nn::initialise(model_, 0);
    copy(model_.parameters().values, model_.parameters().ema);
  }

  void step(bool counts) {
    const automem::ResidencyTotals before = automem_ ? automem_->totals() : automem::ResidencyTotals{};
    const memory::TierTotals copied = automem_ ? automem_->copies() : memory::TierTotals{};
    const double start = now_s();
    step_->run(batch_, progress_);
    if (!counts) return;
    seconds_.push_back(now_s() - start);
    if (!automem_) return;
    const automem::ResidencyTotals after = automem_->totals();
    rates_ = automem::measured_rates({}, copied, automem_->copies());
    stalls_.push_back((after.stall_s - before.stall_s) / seconds_.back());
    moved_ = {.bytes_in = after.bytes_in - before.bytes_in, .bytes_out = after.bytes_out - before.bytes_out};
  }

  Row row(const Training& off, double share) const {
    const config::MemoryConfig& m = plan_.config.memory;
    Row row = timed_row(name_, dtype_name(plan_.config.train.precision), seconds_);
    row.details = {{"automem", std::string(word_of(m.automem))},
                   {"fast_gib", m.fast_gib},
                   {"fast_share", share},
                   {"copies", automem_ && automem_->copies_by_workers() ? "workers" : "threads"},
                   {"step_ratio", median_ratio(seconds_, off.seconds_)},
                   {"stall_share", automem_ ? quantile(stalls_, 0.5) : 0.0},
                   {"fast_peak_bytes", int64_t(automem_ ? automem_->fast_peak_bytes() : allocated_bytes_)}};
    if (!automem_) return row;
    row.details.push_back({"predicted_s", automem_->plan().forecast.step_s});
    row.details.push_back({"in_place_bytes", int64_t(automem_->plan().in_place_bytes())});
    row.details.push_back({"in_bytes", int64_t(moved_.bytes_in)});
    row.details.push_back({"out_bytes", int64_t(moved_.bytes_out)});
    row.details.push_back({"in_gb_s", rates_.in_bytes_s * 1e-9});
    row.details.push_back({"out_gb_s", rates_.out_bytes_s * 1e-9});
    return row;
  }

 private:
  const std::string name_;
  const plan::RunPlan plan_;
  std::unique_ptr<automem::AutoMem> automem_;
  std::unique_ptr<dist::Communicator> comm_ = dist::make_null_communicator();
  nn::Model model_;
  std::unique_ptr<train::TrainStep> step_;
  dataset::Batch batch_;
  train::Progress progress_;
  size_t allocated_bytes_ = 0;  // of tensors that do not move
  std::vector<double> seconds_, stalls_;
  automem::ResidencyTotals moved_;
  memory::TierRates rates_;  // of copies in the last step
};

// They are in memory at the same time, so that they can take turns.
void check_all_fit(const std::vector<std::pair<std::string, plan::RunPlan>>& plans) {
  const platform::MemoryLimit limit = platform::memory_limit();
  size_t needed = 0;
  std::string each;
  for (const auto& [name, plan] : plans) {
    needed += plan.memory.outside_huge_pages();
    each += fmt::format("{}{} of '{}'", each.empty() ? "" : ", ", format_bytes(plan.memory.total()), name);
  }
  if (needed <= limit.bytes) return;
  refuse("memory", "contenders that take turns do not fit side by side", format_bytes(needed) + ": " + each,
         fmt::format("at most {} ({})", format_bytes(limit.bytes), limit.source),
         "a smaller --model or --batch, --fast none for the tiers alone, or a run of each setting "
         "(ditrain --config configs/bench.yaml --set memory.automem=planned ...)");
}

}  // namespace

void bench_memory(Harness& harness, const MemoryBench& bench) {
  expect_not_set(bench.sets, {{"memory.automem", "none: all are compared"}, {"memory.fast_gib", "--fast"}});
  const TemporaryFolder folder;
  const config::Config config =
      step_config({.model = bench.model, .precision = bench.precision, .sets = bench.sets}, bench.batch);
  const std::string disk = config.memory.disk_path.empty() ? folder.path() : config.memory.disk_path;
  // A folder that is not on a disk is refused before anything is measured.
  memory::make_disk({.bytes = memory::kBlock, .folder = disk});
  bench_tiers(harness, config.memory, plan::place_of(harness.placement(), 1), disk);

  if (bench.fast_shares.empty()) return;
  config::Config off = config;
  off.memory.automem = config::AutoMem::kOff;
  const plan::RunPlan off_plan = plan_on_team(off, harness);
  const automem::Uses uses = plan::record_step(off, off_plan.gradients, off_plan.samples, off_plan.micro_batch);
  const size_t fixed = plan::fixed_fast_bytes(off, off_plan.gradients, off_plan.micro_batch) + uses.small_bytes;
  const size_t all = fixed + uses.total_bytes();
  harness.apply(off);
  config::Config moving = config;
  moving.memory.automem = config::AutoMem::kPlanned, moving.memory.disk_path = disk;
  const automem::Copying copying = copying_on_team(moving, harness);
  for (const double share : bench.fast_shares) {
    std::vector<std::pair<std::string, plan::RunPlan>> plans{{fmt::format("{} off", off.model.name), off_plan}};
    for (const config::AutoMem automem : {config::AutoMem::kPaper, config::AutoMem::kPlanned}) {
      config::Config c = config;
      c.memory.automem = automem, c.memory.fast_gib = share * double(all) / 0x1p30;
      plans.emplace_back(fmt::format("{} {} {:.0f} %", c.model.name, word_of(automem), 100 * share),
                         plan_on_team(c, harness, copying));
    }
    check_all_fit(plans);
    std::vector<std::unique_ptr<Training>> contenders;
    for (const auto& [name, plan] : plans)
      contenders.push_back(
          std::make_unique<Training>(name, plan, harness.ctx(), disk, harness.placement().pus_of_copies()));
    const int64_t rounds = bench.once ? 1 : harness.effort().repeats;
    for (int64_t warm = bench.once ? 0 : -3; warm < rounds; ++warm)
      for (const auto& contender : contenders) {
        check_stop();
        contender->step(warm >= 0);
      }
    for (const auto& contender : contenders) {
      const bool is_off = contender == contenders.front();
      harness.add(contender->row(*contenders.front(), is_off ? 1 : share));
    }
  }
  harness.note(fmt::format("off uses {} of tensors, {} of them gradients and temporaries, which never move",
                           format_bytes(all), format_bytes(fixed)));
}

}  // namespace ditrain::bench
