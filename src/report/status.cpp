#include "ditrain/report/status.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"

namespace ditrain::report {
namespace {

constexpr double kOld_s = 60;  // of a heartbeat; a run writes one every few seconds, but not within a step

constexpr double kLast_s = 253402300799;  // of the year 9999: a damaged file may tell any time

std::string utc_text(double unix_s) {
  const auto seconds = std::time_t(std::clamp(std::isnan(unix_s) ? 0 : unix_s, 0.0, kLast_s));
  std::tm parts{};
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%FT%TZ", ::gmtime_r(&seconds, &parts));
  return text.data();
}

// Whether no other process holds any part of the lock, as far as the file system can tell. It asks only: a lock taken
// here could refuse a run that starts.
bool is_free(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return errno == ENOENT;
  struct flock lock {};
  lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET;
  const bool free = ::fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
  ::close(fd);
  return free;
}

std::string label(const std::string& text) {
  // With a replacement for bytes that are no UTF-8, as in JSON: a reader would refuse the whole file.
  const nlohmann::json valid = files::parse_json(files::json_text(nlohmann::json(text)));
  std::string escaped;
  for (const char c : valid.get<std::string>()) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return escaped;
}

}  // namespace

double unix_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string to_json(const Status& s) {
  nlohmann::ordered_json j;
  j["state"] = word_of(s.state);
  j["step"] = s.step, j["steps"] = s.steps;
  j["eta_s"] = nullptr;
  if (s.eta_s && std::isfinite(*s.eta_s)) j["eta_s"] = std::round(*s.eta_s);
  j["heartbeat"] = std::round(1000 * s.heartbeat_s) / 1000;
  j["heartbeat_utc"] = utc_text(s.heartbeat_s);
  j["reason"] = s.reason, j["build"] = s.build;
  return files::json_text(j, 1) + "\n";
}

std::optional<Status> read_status(const std::string& folder, double now_s) try {
  const nlohmann::json j = files::read_json_object(folder + "/status.json");
  Status s;
  if (!find_word(j.at("state").get<std::string>(), s.state)) return std::nullopt;
  s.step = j.value("step", int64_t{0}), s.steps = j.value("steps", int64_t{0});
  if (const auto eta = j.find("eta_s"); eta != j.end() && eta->is_number()) s.eta_s = eta->get<double>();
  s.heartbeat_s = j.value("heartbeat", 0.0);
  s.reason = j.value("reason", ""), s.build = j.value("build", "");
  if (s.state == RunState::kRunning && now_s - s.heartbeat_s > kOld_s && is_free(folder + "/.lock"))
    s.state = RunState::kVanished, s.eta_s.reset();
  return s;
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
} catch (const Error&) {
  return std::nullopt;
}

std::string builds_with(const std::string& folder, const std::string& build) try {
  std::error_code error;
  const std::string metrics = folder + "/metrics.jsonl", status = folder + "/status.json";
  if (!std::filesystem::exists(metrics, error) || std::filesystem::file_size(metrics, error) == 0) return build;
  const std::string before = files::read_json_object(status).value("build", "");
  if (before.empty()) return "unknown, " + build;
  return before.find(build) != before.npos ? before : before + ", " + build;
} catch (const std::exception&) {  // no such file, or a damaged one
  return "unknown, " + build;
}

std::string to_prometheus(const Status& s, const LastStep& last, const std::string& run) {
  const std::string name = label(run);
  std::string text;
  const auto add = [&](const char* metric, const char* help, double value) {
    if (!std::isfinite(value)) return;
    text += fmt::format("# HELP ditrain_{0} {1}\n# TYPE ditrain_{0} gauge\nditrain_{0}{{run=\"{2}\"}} {3}\n", metric,
                        help, name, value);
  };
  add("step", "Training steps done.", double(s.step));
  add("steps", "Training steps that the run shall have at its end.", double(s.steps));
  add("loss", "Loss of the last step.", last.loss);
  add("learning_rate", "Learning rate of the last step.", last.lr);
  add("gradient_norm", "L2 norm of the gradient of the last step.", last.grad_norm);
  add("images_per_second", "Images trained per second in the last step.", last.images_per_second);
  add("peak_share", "Share of the measured multiply-add peak (MFU) of the last step.", last.mfu);
  add("resident_bytes", "Resident memory of rank 0.", last.rss_bytes);
  if (s.eta_s) add("eta_seconds", "Seconds until the last step.", *s.eta_s);
  add("heartbeat_timestamp_seconds", "When the run wrote this, in seconds since 1970.", s.heartbeat_s);
  text += "# HELP ditrain_state 1 for the state that the run is in.\n# TYPE ditrain_state gauge\n";
  for (const RunState state : {RunState::kRunning, RunState::kFinished, RunState::kStopped, RunState::kFailed})
    text += fmt::format("ditrain_state{{run=\"{}\",state=\"{}\"}} {}\n", name, state, int(state == s.state));
  return text;
}

}  // namespace ditrain::report
