#include "ditrain/report/live_report.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/images/image.hpp"
#include "ditrain/report/page.hpp"

namespace ditrain::report {
namespace {

// The shares together are 0.2 % of the time.
constexpr double kStatusEvery_s = 5, kPageEvery_s = 60, kFirstPage_s = 5;
constexpr double kStatusShare = 0.0004, kNumbersShare = 0.001, kPageShare = 0.0006;
constexpr size_t kBytesAtOnce = 16 << 20, kGridsAtOnce = 2;  // of a long run that is resumed

// Tags as people look for them; "seconds.forward" becomes "seconds/forward".
std::string tag_of(std::string name) {
  std::replace(name.begin(), name.end(), '.', '/');
  return name.find('/') == name.npos ? "train/" + name : name;
}

std::vector<std::pair<std::string, double>> scalars_of(const nlohmann::json& line) {
  std::vector<std::pair<std::string, double>> scalars;
  for (const auto& [name, value] : line.items()) {
    if (value.is_number() && name != "step") scalars.emplace_back(tag_of(name), value.get<double>());
    if (!value.is_object()) continue;
    for (const auto& [inner, number] : value.items())
      if (number.is_number()) scalars.emplace_back(tag_of(name + "." + inner), number.get<double>());
  }
  return scalars;
}

}  // namespace

LiveReport::LiveReport(LiveOptions options)
    : options_(std::move(options)),
      files_(options_.folder),
      status_{.step = options_.first_step,
              .steps = options_.steps,
              .build = options_.first_step > 0 ? builds_with(options_.folder, options_.build) : options_.build},
      status_pace_(now_s() + kStatusEvery_s, kStatusEvery_s, kStatusShare),
      numbers_pace_(now_s() + kStatusEvery_s, kStatusEvery_s, kNumbersShare),
      page_pace_(now_s() + kFirstPage_s, kPageEvery_s, kPageShare) {
  guarded([&] { write_status(); });
  if (!options_.tensorboard) return;
  events_until_s_ = unix_time_s();
  for (const auto& [step, path] : sample_grids(options_.folder)) grids_in_events_.insert(step);
  guarded([&] { events_ = std::make_unique<EventFile>(options_.folder + "/tensorboard", events_until_s_); });
}

template <class F>
void LiveReport::guarded(const F& write) try {
  write();
} catch (const std::exception& e) {
  if (!std::exchange(warned_, true)) log::warn("the report of the run is not up to date: {}", e.what());
}

template <class F>
void LiveReport::when_due(Pace& pace, const F& write) {
  const double start_s = now_s();
  if (!pace.is_due(start_s)) return;
  guarded(write);
  const double end_s = now_s();
  pace.took(end_s, end_s - start_s);
}

void LiveReport::step(int64_t step, double seconds_left) {
  status_.step = step, status_.eta_s = seconds_left;
  when_due(status_pace_, [&] { write_status(); });
  when_due(numbers_pace_, [&] { write_numbers(kBytesAtOnce); });
  when_due(page_pace_, [&] { write_page(kGridsAtOnce); });
}

void LiveReport::end(RunState state, const std::string& reason) {
  status_.state = state, status_.reason = reason, status_.eta_s.reset();
  guarded([&] { write_status(); });
  guarded([&] { write_numbers(RunFiles::kAll); });
  guarded([&] { write_page(RunFiles::kAll); });
}

void LiveReport::write_status() {
  status_.heartbeat_s = unix_time_s();
  files::write_file_atomically(options_.folder + "/status.json", to_json(status_), /*synced=*/false);
}

void LiveReport::write_numbers(size_t max_bytes) {
  guarded([&] { add_events(max_bytes); });
  if (options_.prometheus.empty()) return;
  const auto last = [&](const char* name) { return files_.last(name); };
  const LastStep numbers{.loss = last("loss"),
                         .lr = last("lr"),
                         .grad_norm = last("grad_norm"),
                         .images_per_second = last("images_per_second"),
                         .mfu = last("mfu"),
                         .rss_bytes = last("memory.rss_bytes")};
  files::write_file_atomically(options_.prometheus, to_prometheus(status_, numbers, options_.folder), /*synced=*/false);
}

// Steps since the last call took about the same time each.
void LiveReport::add_events(size_t max_bytes) {
  std::vector<std::pair<int64_t, std::vector<std::pair<std::string, double>>>> lines;
  files_.read_on(max_bytes, [&](const nlohmann::json& line) {
    const auto step = line.at("step").get<int64_t>();
    if (events_ && step > options_.first_step) lines.emplace_back(step, scalars_of(line));
  });
  if (!events_) return;
  const double now = unix_time_s(), step_s = (now - events_until_s_) / double(std::max<size_t>(1, lines.size()));
  for (const auto& [step, scalars] : lines) events_->add_scalars(events_until_s_ += step_s, step, scalars);
  events_until_s_ = now;
  guarded([&] { add_grids(); });
  events_->flush();
}

void LiveReport::add_grids() {
  for (const auto& [step, path] : sample_grids(options_.folder)) {
    if (!grids_in_events_.insert(step).second) continue;
    const images::ImageU8 image = images::read_image(path);
    events_->add_image(unix_time_s(), step,
                       {"samples", files::read_text_file(path, images::kMaxImageFileBytes), image.width, image.height});
  }
}

void LiveReport::write_page(size_t max_new_grids) {
  files_.read_grids(max_new_grids);
  files::write_file_atomically(page_path(), page({{&files_, status_}}, unix_time_s()), /*synced=*/false);
}

}  // namespace ditrain::report
