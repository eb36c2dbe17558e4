#include "ditrain/base/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <sstream>

#include "ditrain/base/error.hpp"

namespace ditrain::log {
namespace {

struct State {
  std::mutex mutex;
  int rank = 0, world_size = 1;
  bool progress_open = false;
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

void print(std::FILE* stream, const std::string& prefix, const std::string& line, spdlog::level::level_enum level) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  const bool silent = level == spdlog::level::info && s.rank != 0;
  if (!silent) {
    end_progress(s);
    const std::string who = s.rank != 0 ? fmt::format("[rank {}] ", s.rank) : "";
    std::fputs((who + prefix + line + "\n").c_str(), stream);
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
    s.file->flush_on(spdlog::level::info);
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

void info_line(const std::string& line) { print(stdout, "", line, spdlog::level::info); }
void info_lines(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) info_line(line);
}
void warn_line(const std::string& line) { print(stderr, "warning: ", line, spdlog::level::warn); }

void progress_line(const std::string& line) {
  State& s = state();
  // mpirun gives its ranks a terminal of their own whatever its output goes to: plain lines there.
  if (isatty(STDOUT_FILENO) == 0 || s.world_size > 1) return info_line(line);
  std::lock_guard lock(s.mutex);
  if (s.file) s.file->info(line);
  if (s.rank != 0) return;
  std::fputs(("\r\033[2K" + line).c_str(), stdout);
  std::fflush(stdout);
  s.progress_open = true;
}

}  // namespace ditrain::log
