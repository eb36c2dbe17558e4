#include "run.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "ditrain/files/checkpoint_folder.hpp"
#include "ditrain/files/json.hpp"

namespace ditrain::e2e {
namespace {

constexpr double kGraceS = 5;  // between the polite and the hard end of a program that ran too long

std::vector<char*> pointers(const Args& words) {
  std::vector<char*> list;
  for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  return list;
}

Args environment_with(const Args& more) {
  Args all = more;  // in the place of what is inherited: the loader takes the last LD_PRELOAD
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string inherited = *entry, name = inherited.substr(0, inherited.find('=') + 1);
    if (std::none_of(more.begin(), more.end(), [&](const std::string& m) { return m.starts_with(name); }))
      all.push_back(inherited);
  }
  // Root may not use mpirun unless the first two say so. The third is what Open MPI chooses here after it has waited
  // 0.2 s for faster networks, in every run; the tests of the communicator (tests/dist) leave it the choice.
  all.insert(all.end(), {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_pml=ob1"});
  return all;
}

void limit(__rlimit_resource resource, int64_t bytes) {
  if (bytes < 0) return;
  const rlimit value{rlim_t(bytes), rlim_t(bytes)};
  if (setrlimit(resource, &value) != 0) _exit(126);
}

// Between fork and exec: only what is safe there.
[[noreturn]] void become(char* const* command, char* const* environment, const RunOptions& options, const char* out,
                         const char* err) {
  const int null = open("/dev/null", O_RDONLY);
  const int out_fd = open(out, O_WRONLY | O_CREAT | O_APPEND, 0600),
            err_fd = open(err, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (null < 0 || out_fd < 0 || err_fd < 0) _exit(126);
  dup2(null, STDIN_FILENO), dup2(out_fd, STDOUT_FILENO), dup2(err_fd, STDERR_FILENO);
  for (const int s : {SIGINT, SIGHUP, SIGPIPE}) std::signal(s, SIG_DFL);  // nohup ctest & ignores them
  if (options.max_file_bytes >= 0) std::signal(SIGXFSZ, SIG_IGN);
  limit(RLIMIT_FSIZE, options.max_file_bytes);
  limit(RLIMIT_DATA, options.max_data_bytes);
  execve(command[0], command, environment);
  _exit(127);
}

}  // namespace

Args operator+(Args a, const Args& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::string Result::text() const {
  return "exit code " + std::to_string(exit_code) + (timed_out ? " (timed out)" : "") + " after " +
         std::to_string(seconds) + " s\n--- stdout\n" + out + "\n--- stderr\n" + err;
}

Process::Process(const Args& command, const RunOptions& options) : options_(options), start_s_(now_s()) {
  const Args environment = environment_with(options.environment);
  const std::string out = scratch_ / "out", err = scratch_ / "err";
  const auto command_pointers = pointers(command), environment_pointers = pointers(environment);
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) become(command_pointers.data(), environment_pointers.data(), options_, out.c_str(), err.c_str());
}

Process::~Process() {
  if (!running()) return;
  send(SIGTERM);  // mpirun ends its ranks
  if (!wait_until([this] { return !running(); }, kGraceS)) send(SIGKILL);
  reap(true);
}

void Process::reap(bool block) {
  if (ended_) return;
  int status = 0;
  rusage usage{};
  const pid_t got = wait4(pid_, &status, block ? 0 : WNOHANG, &usage);
  if (got != pid_) return;
  ended_ = true;
  result_.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  result_.seconds = now_s() - start_s_;
  result_.peak_bytes = int64_t(usage.ru_maxrss) * 1024;
}

bool Process::running() {
  reap(false);
  return !ended_;
}

void Process::send(int signal_number) {
  if (running()) kill(pid_, signal_number);
}

Result Process::wait() {
  const double left = options_.timeout_s - (now_s() - start_s_);
  if (!wait_until([this] { return !running(); }, left)) {
    result_.timed_out = true;
    send(SIGTERM);
    if (!wait_until([this] { return !running(); }, kGraceS)) send(SIGKILL);
    reap(true);
  }
  result_.out = read_file(scratch_ / "out");
  result_.err = read_file(scratch_ / "err");
  return result_;
}

Result run(const Args& command, const RunOptions& options) { return Process(command, options).wait(); }

namespace {

void check_error(const Result& result, int exit_code, const std::vector<std::string>& texts) {
  REQUIRE_EXIT(result, exit_code);
  INFO(result.text());
  for (const std::string& text : texts) CHECK_THAT(result.err, Catch::Contains(text));
}

}  // namespace

Result require_ok(const Args& command, const RunOptions& options, int line) {
  INFO("line " << line << ": " << Catch::StringMaker<Args>::convert(command));
  const Result result = run(command, options);
  REQUIRE_EXIT(result, 0);
  return result;
}

Result require_error(const Args& command, const std::vector<std::string>& texts, int exit_code, int line) {
  INFO("line " << line << ": " << Catch::StringMaker<Args>::convert(command));
  const Result result = run(command);
  check_error(result, exit_code, texts);
  return result;
}

void require_refused(const Result& result, const std::string& out, const std::vector<std::string>& texts) {
  check_error(result, 2, texts);
  INFO(result.text());
  CHECK(result.err.find("error: ") == result.err.rfind("error: "));
  CHECK_FALSE(fs::exists(out));
}

std::vector<Result> run_side_by_side(const std::vector<Args>& commands, const RunOptions& options) {
  std::vector<std::unique_ptr<Process>> processes;
  for (const Args& command : commands) processes.push_back(std::make_unique<Process>(command, options));
  std::vector<Result> results;
  for (const auto& process : processes) results.push_back(process->wait());
  return results;
}

pid_t process_of_rank(int rank, const std::string& out) {
  const std::string wanted = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank) + '\0';
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    if (read_file((entry.path() / "environ").string()).find(wanted) == std::string::npos) continue;
    if (read_file((entry.path() / "cmdline").string()).find(out) != std::string::npos) return pid_t(std::stol(name));
  }
  return 0;
}

std::string preload(const std::string& library) {
  const char* before = std::getenv("LD_PRELOAD");  // what a sanitized run needs
  return "LD_PRELOAD=" + std::string(before != nullptr ? before : "") + ":" + library;
}

std::vector<std::string> trap(const std::string& call, const std::string& path, const std::string& action, int rank) {
  std::vector<std::string> variables = {preload(DITRAIN_TRAPPED_CALLS),
                                        "DITRAIN_TEST_TRAP=" + call + " " + path + " " + action};
  if (rank > 0) variables.push_back("DITRAIN_TEST_TRAP_RANK=" + std::to_string(rank));
  return variables;
}

namespace {

// As /proc has it ("R", "T", ...); "": there is no such process.
std::string state_of(pid_t process) {
  const std::string stat = read_file("/proc/" + std::to_string(process) + "/stat");
  const size_t name_ends = stat.rfind(')');
  return name_ends == stat.npos ? "" : stat.substr(name_ends + 2, 1);
}

}  // namespace

bool is_stopped(pid_t process) { return state_of(process) == "T"; }

bool has_ended(pid_t process) {
  const std::string state = state_of(process);
  if (state != "Z") return state.empty();
  // Its other threads may still be ending; until then its files are open and its locks held.
  std::error_code gone;
  const fs::directory_iterator threads("/proc/" + std::to_string(process) + "/task", gone);
  return gone || std::distance(threads, {}) <= 1;
}

bool has_open(pid_t process, const std::string& path) {
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(process) + "/fd", gone))
    if (fs::read_symlink(entry.path(), gone) == path) return true;
  return false;
}

Args program(const std::string& name, const Args& arguments) {
  return Args{std::string(DITRAIN_PROGRAM_DIR) + "/" + name} + arguments;
}

Args mpirun(int ranks, const Args& command, const Args& mpirun_arguments) {
  return Args{DITRAIN_MPIRUN, "-np", std::to_string(ranks), "--oversubscribe"} + mpirun_arguments + command;
}

Args on_ranks(int ranks, const Args& command) { return ranks == 1 ? command : mpirun(ranks, command); }

Args sets(const std::vector<std::string>& assignments) {
  Args all;
  for (const std::string& assignment : assignments) all = all + Args{"--set", assignment};
  return all;
}

Args tiny_ditrain(const std::string& out, int64_t steps, const Args& more) {
  return program("ditrain", {"--config", std::string(DITRAIN_CONFIG_DIR) + "/quickstart.yaml", "--out", out}) +
         sets({"model.hidden_size=32",
               "model.depth=2",
               "model.num_heads=2",
               "model.patch_size=4",
               "model.patch_overlap=0",
               "train.global_batch=8",
               "optimizer.lr=1e-3",
               "optimizer.schedule=constant",
               "optimizer.warmup_steps=50",
               "optimizer.clip_norm=1",
               "optimizer.betas=[0.9,0.999]",
               "model.learn_sigma=true",
               "diffusion.process=ddpm",
               "diffusion.prediction=auto",
               "diffusion.time=uniform",
               "diffusion.time_mean=0",
               "diffusion.time_deviation=1",
               "diffusion.schedule=linear",
               "sample.sampler=auto",
               "sample.cfg_scale=2",
               "sample.steps=50",
               "checkpoint.keep_last=2",
               "log.every_steps=25",
               "sample.every_steps=0",
               "eval.every_steps=0",
               "checkpoint.every_steps=0",
               "log.level=debug",
               "train.steps=" + std::to_string(steps)}) +
         more;
}

void sleep_s(double seconds) { usleep(useconds_t(seconds * 1e6)); }

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream content;
  content << in.rdbuf();
  return content.str();
}

nlohmann::json read_json(const std::string& path) { return files::parse_json(read_file(path)); }

void write_file(const std::string& path, const std::string& content) {
  std::ofstream out(path, std::ios::binary);
  out << content << std::flush;
  if (!out) throw std::runtime_error("cannot write " + path);
}

bool same_file(const std::string& a, const std::string& b) {
  return fs::is_regular_file(a) && fs::is_regular_file(b) && read_file(a) == read_file(b);
}

std::vector<std::pair<std::string, std::string>> folder_content(const std::string& path) {
  std::vector<std::pair<std::string, std::string>> content;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path)) {
    const std::string name = entry.path().string();
    if (entry.is_symlink())
      content.emplace_back(name, fs::read_symlink(entry.path()).string());
    else if (entry.is_regular_file())
      content.emplace_back(name, read_file(name));
  }
  std::sort(content.begin(), content.end());
  return content;
}

std::vector<std::pair<std::string, std::string>> data_files(const std::string& folder) {
  auto files = folder_content(folder);
  for (auto& [name, content] : files) name = fs::path(name).filename().string();
  std::erase_if(files, [](const auto& file) { return file.first.starts_with(".") || file.first.ends_with(".lock"); });
  return files;
}

std::vector<nlohmann::json> read_metrics(const std::string& out) {
  std::ifstream in(out + "/metrics.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) {
    auto object = files::parse_json_or_discard(line);
    if (object.is_object()) lines.push_back(std::move(object));
  }
  return lines;
}

std::vector<double> column(const std::vector<nlohmann::json>& metrics, const std::string& key) {
  std::vector<double> values;
  for (const nlohmann::json& line : metrics)
    values.push_back(line.at(key).is_null() ? std::numeric_limits<double>::quiet_NaN() : line.at(key).get<double>());
  return values;
}

double largest_relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) return HUGE_VAL;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]) / std::abs(b[i]);
    largest = std::isnan(difference) ? HUGE_VAL : std::max(largest, difference);
  }
  return largest;
}

bool steps_are_complete(const std::vector<nlohmann::json>& metrics, int64_t last) {
  if (int64_t(metrics.size()) != last) return false;
  for (int64_t i = 0; i < last; ++i)
    if (metrics[size_t(i)].at("step") != i + 1) return false;
  return true;
}

bool steps_increase(const std::vector<nlohmann::json>& metrics) {
  for (size_t i = 1; i < metrics.size(); ++i)
    if (metrics[i].at("step").get<int64_t>() <= metrics[i - 1].at("step").get<int64_t>()) return false;
  return true;
}

std::vector<int64_t> checkpoints(const std::string& out) { return files::list_checkpoints(out + "/checkpoints"); }

std::string checkpoint_of(const std::string& out, int64_t step) {
  return out + "/checkpoints/" + files::checkpoint_name(step);
}

std::string different_files(const std::string& checkpoint_a, const std::string& checkpoint_b) {
  std::string different;
  for (const char* name : {"model", "ema", "optimizer"}) {
    const std::string file = std::string("/") + name + ".safetensors";
    if (!same_file(checkpoint_a + file, checkpoint_b + file)) different += std::string(name) + " ";
  }
  return different;
}

}  // namespace ditrain::e2e
