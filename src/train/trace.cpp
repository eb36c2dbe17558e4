#include "ditrain/train/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ditrain/dist/clock_offset.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/version.hpp"

namespace ditrain::train {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxEvents = 400000;          // about 50 MB
constexpr size_t kMaxBytes = size_t{1} << 30;  // of all ranks
constexpr const char* kEndOfEvent = ",\n";

constexpr const char* kLaneNames[] = {"compute", "communication", "copies into the fast tier",
                                      "copies out of the fast tier"};

/// The first events that fit into `bytes`.
std::string cut(const std::string& events, size_t bytes) {
  if (events.size() <= bytes) return events;
  const size_t end = bytes < 2 ? std::string::npos : events.rfind(kEndOfEvent, bytes - 2);
  return end == std::string::npos ? "" : events.substr(0, end + 2);
}

ordered_json meta_event(const char* name, int pid, int tid, const ordered_json& args) {
  return {{"name", name}, {"ph", "M"}, {"pid", pid}, {"tid", tid}, {"args", args}};
}

}  // namespace

void Trace::start(dist::Communicator& comm) {
  if (!enabled_) return;
  const dist::ClockOffset clock = dist::measure_clock_offset(comm, clock_);
  double zero_of_rank_0 = clock_();
  comm.broadcast(&zero_of_rank_0, sizeof(zero_of_rank_0), 0);
  zero_s_ = zero_of_rank_0 + clock.offset_s;
  clock_offset_s_ = clock.offset_s;
  clock_error_s_ = clock.error_s;
  comm.allreduce_max(&clock_error_s_, 1);
}

void Trace::add(const std::string& name, const char* category, double start_s, double end_s, Lane lane) {
  if (!enabled_) return;
  if (num_events_ >= kMaxEvents) {
    ++left_out_;
    return;
  }
  // Both ends are rounded alike, so that events that lie inside each other or touch still do.
  const double begin_ns = std::round((start_s - zero_s_) * 1e9), end_ns = std::round((end_s - zero_s_) * 1e9);
  // Names are our own (phases, parameters): nothing in them needs escaping.
  events_ += fmt::format(
      "{{\"name\":\"{}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f}}}{}", name,
      category, rank_, track_for(lane, start_s, end_s), begin_ns * 1e-3, (end_ns - begin_ns) * 1e-3, kEndOfEvent);
  ++num_events_;
}

size_t Trace::track_for(Lane lane, double start_s, double end_s) {
  int number = 0;
  for (size_t i = 0; i < tracks_.size(); ++i) {
    Track& track = tracks_[i];
    if (track.lane != lane) continue;
    if (lane == Lane::kCompute) return i;
    ++number;
    if (start_s < track.busy_until_s) continue;
    track.busy_until_s = end_s;
    return i;
  }
  tracks_.push_back({lane, number, end_s});
  return tracks_.size() - 1;
}

void Trace::add_phases(const std::vector<PhaseSpan>& spans) {
  for (const PhaseSpan& span : spans) {
    const bool waits = span.phase == Phase::kAllreduceExposed;
    add(waits ? "waiting for sums" : kPhaseNames[size_t(span.phase)], "phase", span.start_s, span.end_s);
  }
}

void Trace::add_step(int64_t step, double start_s, const std::vector<PhaseSpan>& phases,
                     const std::vector<dist::ReductionOutcome>& sums) {
  if (!enabled_) return;
  add("step " + std::to_string(step), "step", start_s, clock_());
  add_phases(phases);
  int64_t bucket = 0;
  for (const dist::ReductionOutcome& sum : sums)
    add("bucket " + std::to_string(bucket++), "communication", sum.start_s, sum.end_s, Lane::kCommunication);
}

void Trace::watch(autograd::Tape& tape) {
  if (!enabled_) return;
  using autograd::HookPoint;
  for (HookPoint point : {HookPoint::kPreForward, HookPoint::kPreBackward})
    tape.add_hook(point, [this](const autograd::Node&) { node_start_s_ = clock_(); });
  tape.add_hook(HookPoint::kPostForward,
                [this](const autograd::Node& node) { add(node.name(), "forward", node_start_s_, clock_()); });
  tape.add_hook(HookPoint::kPostBackward,
                [this](const autograd::Node& node) { add(node.name(), "backward", node_start_s_, clock_()); });
}

/// Names of the process and of its lanes, in the order in which viewers show them.
std::string Trace::lanes(const std::string& host) const {
  std::string text =
      files::json_text(meta_event("process_name", rank_, 0, {{"name", fmt::format("rank {} ({})", rank_, host)}})) +
      kEndOfEvent + files::json_text(meta_event("process_sort_index", rank_, 0, {{"sort_index", rank_}})) + kEndOfEvent;
  for (size_t tid = 0; tid < tracks_.size(); ++tid) {
    const Track& track = tracks_[tid];
    const int order = 1000 * int(track.lane) + track.number;
    const std::string more = track.number == 0 ? "" : fmt::format(" {}", track.number + 1);
    text += files::json_text(
                meta_event("thread_name", rank_, int(tid), {{"name", kLaneNames[size_t(track.lane)] + more}})) +
            kEndOfEvent;
    text += files::json_text(meta_event("thread_sort_index", rank_, int(tid), {{"sort_index", order}})) + kEndOfEvent;
  }
  return text;
}

void Trace::write(const std::string& path, dist::Communicator& comm) const {
  if (!enabled_) return;
  const std::string mine = lanes(comm.host(rank_)) + events_;
  const std::string kept = cut(mine, kMaxBytes / size_t(comm.world_size()));
  const auto lines = [](const std::string& text) { return double(std::count(text.begin(), text.end(), '\n')); };
  const double offset_s = dist::measure_clock_offset(comm, clock_).offset_s;
  double drift_s = std::abs(offset_s - clock_offset_s_);
  comm.allreduce_max(&drift_s, 1);
  double left_out = double(left_out_) + lines(mine) - lines(kept);
  comm.allreduce_sum(&left_out, 1);
  std::string all;
  for (const std::string& events : comm.gather_strings(kept)) all += events;
  if (comm.rank() != 0) return;
  const ordered_json about = {
      {"program", std::string("ditrain ") + kVersion},
      {"ranks", comm.world_size()},
      {"nodes", comm.num_nodes()},
      {"clock",
       "microseconds of rank 0's clock since the trace began; clocks of other nodes were aligned by pings then"},
      {"largest_clock_error_us", clock_error_s_ * 1e6},
      {"largest_clock_drift_us", drift_s * 1e6},
      {"events_left_out", int64_t(left_out)}};
  if (!all.empty()) all.resize(all.size() - 2);
  files::write_file_atomically(path, "{\"displayTimeUnit\":\"ms\",\"otherData\":" + files::json_text(about) +
                                         ",\n\"traceEvents\":[\n" + all + "\n]}\n");
}

}  // namespace ditrain::train
