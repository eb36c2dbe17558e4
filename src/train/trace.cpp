#include "ditrain/train/trace.hpp"

#include <fmt/format.h>

#include "ditrain/base/clock.hpp"
#include "ditrain/io/files.hpp"

namespace ditrain::train {
namespace {
constexpr size_t kMaxEvents = 400000;          // about 50 MB
constexpr size_t kMaxBytes = size_t{1} << 30;  // of all ranks: gather_strings ends at 2 GiB

/// The first events that fit into `bytes`.
std::string cut(const std::string& events, size_t bytes) {
  if (events.size() <= bytes) return events;
  const size_t end = events.rfind(",\n", bytes);
  return end == std::string::npos ? "" : events.substr(0, end);
}

}  // namespace

void Trace::add(const std::string& name, const char* category, double start_s, double end_s, int lane) {
  if (!enabled_ || num_events_ >= kMaxEvents) return;
  // Names are our own (phases, parameters): nothing in them needs escaping.
  events_ += fmt::format(
      "{}{{\"name\":\"{}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{:.1f},\"dur\":{:.1f}}}",
      num_events_ == 0 ? "" : ",\n", name, category, rank_, lane, start_s * 1e6, (end_s - start_s) * 1e6);
  ++num_events_;
}

void Trace::watch(autograd::Tape& tape) {
  if (!enabled_) return;
  using autograd::HookPoint;
  for (HookPoint point : {HookPoint::kPreForward, HookPoint::kPreBackward})
    tape.add_hook(point, [this](const autograd::Node&) { node_start_s_ = now_s(); });
  tape.add_hook(HookPoint::kPostForward,
                [this](const autograd::Node& node) { add(node.name(), "forward", node_start_s_, now_s()); });
  tape.add_hook(HookPoint::kPostBackward,
                [this](const autograd::Node& node) { add(node.name(), "backward", node_start_s_, now_s()); });
}

void Trace::write(const std::string& path, dist::Communicator& comm) const {
  if (!enabled_) return;
  std::string all;
  for (const std::string& events : comm.gather_strings(cut(events_, kMaxBytes / size_t(comm.world_size()))))
    if (!events.empty()) all += (all.empty() ? "" : ",\n") + events;
  if (comm.rank() == 0) io::write_file_atomically(path, "{\"traceEvents\":[\n" + all + "\n]}\n");
}

}  // namespace ditrain::train
