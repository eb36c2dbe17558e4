// What becomes of a process that reads a mapped file which has lost its pages. Each case is a process of its own.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <functional>
#include <thread>

#include "ditrain/weights/safetensors.hpp"
#include "support/files.hpp"

using namespace ditrain;
using Catch::Contains;

namespace {

constexpr int64_t kElements = 1 << 16;  // many pages

std::string write_tensor(const TemporaryFolder& folder, const std::string& name) {
  const std::vector<float> values(kElements, 1.5f);
  const std::string path = folder / name;
  weights::write_safetensors(path, {{"x", "F32", {kElements}, values.data()}});
  return path;
}

struct Ending {
  int status;
  std::string err;
};

// Runs `body` in a child process, which ends with 0 if it comes through.
Ending in_child(const std::function<void()>& body) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    body();
    ::_exit(0);
  }
  ::close(ends[1]);
  Ending ending{};
  std::array<char, 4096> block{};
  for (ssize_t n = 0; (n = ::read(ends[0], block.data(), block.size())) > 0;)
    ending.err.append(block.data(), size_t(n));
  ::close(ends[0]);
  ::waitpid(child, &ending.status, 0);
  return ending;
}

double sum(const weights::TensorView& view) {
  double total = 0;
  for (const float value : weights::to_f32(view)) total += double(value);
  return total;
}

void require_message(const Ending& ending, const std::string& path) {
  INFO(ending.err);
  REQUIRE(WIFEXITED(ending.status));
  CHECK(WEXITSTATUS(ending.status) == 1);
  CHECK(ending.err == "test_files: error: [" + path +
                          "] the file became shorter while it was being read; try again when no other program writes "
                          "it\n");
}

// Sanitizers have a handler of their own, which reports and exits.
bool ended_by_bus_error(const Ending& ending) {
  INFO(ending.err);
  if (ending.err.find("Sanitizer") != std::string::npos) return true;
  CHECK(ending.err == "");
  return WIFSIGNALED(ending.status) && WTERMSIG(ending.status) == SIGBUS;
}

}  // namespace

TEST_CASE("a mapped file that another process shortens ends the program with its name, not with a core dump") {
  const TemporaryFolder folder;
  const std::string other = write_tensor(folder, "other"), path = write_tensor(folder, "shard.safetensors");
  require_message(in_child([&] {
                    const weights::SafetensorsFile before(other), file(path), after(other);
                    if (sum(file.tensor("x")) != 1.5 * kElements || ::truncate(path.c_str(), 4096) != 0) ::_exit(3);
                    sum(before.tensor("x")), sum(after.tensor("x"));
                    sum(file.tensor("x"));
                  }),
                  path);
}

TEST_CASE("several threads that read a file which became shorter: one message") {
  const TemporaryFolder folder;
  const std::string path = write_tensor(folder, "shard.safetensors");
  require_message(in_child([&] {
                    const weights::SafetensorsFile file(path);
                    if (::truncate(path.c_str(), 4096) != 0) ::_exit(3);
                    std::thread beside([&] { sum(file.tensor("x")); });
                    sum(file.tensor("x"));
                    beside.join();
                  }),
                  path);
}

TEST_CASE("a bus error that no mapped file of ours causes keeps its action") {
  const TemporaryFolder folder;
  const std::string path = write_tensor(folder, "ours"), foreign = write_tensor(folder, "foreign");
  const Ending elsewhere = in_child([&] {
    const weights::SafetensorsFile file(path);
    { const weights::SafetensorsFile gone(foreign); }  // its range is free again
    const int fd = ::open(foreign.c_str(), O_RDONLY);
    const auto* data = static_cast<volatile char*>(::mmap(nullptr, 65536, PROT_READ, MAP_SHARED, fd, 0));
    if (::truncate(foreign.c_str(), 0) != 0) ::_exit(3);
    (void)data[0];
  });
  CHECK(ended_by_bus_error(elsewhere));

  const Ending sent = in_child([&] {
    const weights::SafetensorsFile file(path);
    ::raise(SIGBUS);
  });
  CHECK(ended_by_bus_error(sent));
}
