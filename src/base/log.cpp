#include "ditrain/base/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <mutex>
#include <sstream>

#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"

namespace ditrain::log {
namespace {

struct State {
  std::mutex mutex;
  int rank = 0, world_size = 1;
  bool progress_open = false, shows_times = false, shows_details = false;
  std::shared_ptr<spdlog::logger> file;
};
State& state() {
  static State s;
  return s;
}

void end_progress(State& s) {
  if (s.progress_open) std::fputc('\n', stdout);
  s.progress_open = false;
}

// "16:03:59 " of the local time, or nothing.
std::string time_of_day(const State& s) {
  if (!s.shows_times) return "";
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  char text[16] = {};
  std::strftime(text, sizeof text, "%H:%M:%S ", ::localtime_r(&now, &local));
  return text;
}

// A line that is longer than the terminal would not replace itself.
std::string as_wide_as_terminal(std::string line) {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 && line.size() >= size.ws_col)
    line.resize(size.ws_col - 1);
  return line;
}

void print(std::FILE* stream, const std::string& prefix, const std::string& text, spdlog::level::level_enum level) {
  const std::string line = printable_lines(text);
  State& s = state();
  std::lock_guard lock(s.mutex);
  const bool is_detail = level == spdlog::level::debug;
  const bool silent = (is_detail && !s.shows_details) || (level <= spdlog::level::info && s.rank != 0);
  if (!silent) {
    end_progress(s);
    const std::string who = s.rank != 0 ? fmt::format("[rank {}] ", s.rank) : "";
    std::fputs((time_of_day(s) + who + prefix + line + "\n").c_str(), stream);
    std::fflush(stream);
  }
  if (s.file) s.file->log(level, line);
}

}  // namespace

void set_rank(int rank, int world_size) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.rank = rank, s.world_size = world_size;
}

std::string of_rank() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (s.rank == 0) return "";
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return fmt::format("[rank {} on {}] ", s.rank, host);
}

void open_file(const std::string& path) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    s.file = std::make_shared<spdlog::logger>("ditrain", sink);
    s.file->set_pattern("%Y-%m-%d %H:%M:%S.%e %L %v");
    s.file->set_level(spdlog::level::debug);
    s.file->flush_on(spdlog::level::debug);
    s.file->set_error_handler([](const std::string&) {});  // a full disk must not stop the run
  } catch (const spdlog::spdlog_ex& e) {
    throw InputError({.where = "log", .what = "cannot open " + path + ": " + e.what()});
  }
}

void close_file() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.file.reset();
}

void show_times(bool shown) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.shows_times = shown;
}
void show_details(bool shown) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.shows_details = shown;
}

namespace {

void each_line(const std::string& text, void (*print_line)(const std::string&)) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) print_line(line);
}

}  // namespace

void info_line(const std::string& line) { print(stdout, "", line, spdlog::level::info); }
void info_lines(const std::string& text) { each_line(text, info_line); }
void detail_line(const std::string& line) { print(stdout, "", line, spdlog::level::debug); }
void detail_lines(const std::string& text) { each_line(text, detail_line); }
void warn_line(const std::string& line) { print(stderr, "warning: ", line, spdlog::level::warn); }

void error_into_file(const std::string& line) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (s.file) s.file->error(printable_lines(line));
}

void progress_line(const std::string& text) {
  const std::string line = without_controls(text);
  State& s = state();
  // mpirun gives its ranks a terminal of their own whatever its output goes to: plain lines there.
  if (isatty(STDOUT_FILENO) == 0 || s.world_size > 1) return info_line(line);
  std::lock_guard lock(s.mutex);
  if (s.file) s.file->info(line);
  if (s.rank != 0) return;
  std::fputs(("\r\033[2K" + as_wide_as_terminal(time_of_day(s) + line)).c_str(), stdout);
  std::fflush(stdout);
  s.progress_open = true;
}

}  // namespace ditrain::log
