// What a run tells when it is over.
#include <fmt/format.h>

#include "ditrain/base/bytes.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/io/checkpoint_folder.hpp"
#include "ditrain/platform/limits.hpp"
#include "ditrain/train/run_summary.hpp"
#include "run.hpp"

namespace ditrain::train {

void Run::finish() {
  total_.add(beside_.seconds);
  const double wall = now_s() - loop_start_s_;
  log::info_lines(phase_table(total_, wall, comm_));
  const RunSummary summary = summarise({.total = total_,
                                        .wall_s = wall,
                                        .steps = progress_.step - first_step_,
                                        .threads = placement_.threads,
                                        .comm_shares_cores = comm_.world_size() > 1 && placement_.comm_pus.empty()},
                                       comm_);
  log::info_lines(load_line(summary));
  if (step_.sync().engine()) {
    const double in_group = groups_.tensor() ? groups_.tensor()->summing_s() : 0;
    double seconds[2] = {hidden_s_, total_[Phase::kAllreduceExposed] - in_group};
    comm_.allreduce_sum(seconds, 2);
    const double ranks = double(comm_.world_size()), all = seconds[0] + seconds[1];
    log::info(
        "all-reduce of gradients, mean per rank: {:.2f} s hidden behind backward, {:.2f} s waited for ({:.0f} % "
        "hidden)",
        seconds[0] / ranks, seconds[1] / ranks, all > 0 ? 100 * seconds[0] / all : 0);
  }
  if (groups_.tensor()) {
    double seconds = groups_.tensor()->summing_s();
    comm_.allreduce_sum(&seconds, 1);
    log::info("all-reduce of activations between ranks that share a replica, mean per rank: {:.2f} s waited for",
              seconds / double(comm_.world_size()));
  }
  double peak = double(platform::peak_resident_bytes());
  comm_.allreduce_max(&peak, 1);
  log::info("steps skipped: {}   bad files: {}   largest peak resident memory of any rank: {}", progress_.skipped_steps,
            int64_t(agreed_.bad_files), format_bytes(size_t(peak)));
  if (best_step_ >= 0) {
    const bool linked = leader() && io::best_checkpoint(folder_->checkpoints()) == best_step_;
    log::info("best {}: {:.4g} at step {}, {}", fid_->name(), best_fid_, best_step_,
              linked ? options_.out + "/checkpoints/best" : "of which there is no checkpoint");
  }
  for (const std::string& line : advice(summary, config_)) log::info("advice: {}", line);
  if (!options_.trace) return;
  trace_.add_phases(beside_.spans);
  const std::string path = options_.trace->empty() ? options_.out + "/trace.json" : *options_.trace;
  trace_.write(path, comm_);
  log::info("trace: {}", path);
}

}  // namespace ditrain::train
