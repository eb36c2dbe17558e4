// ditverify: runs reference fixtures with this build on this machine and compares every value.
#include <algorithm>
#include <cstdio>
#include <iostream>

#include "ditrain/base/error.hpp"
#include "ditrain/config/command_line.hpp"
#include "ditrain/io/files.hpp"
#include "ditrain/platform/limits.hpp"
#include "ditrain/platform/topology.hpp"
#include "ditrain/verify/verify.hpp"

using namespace ditrain;

namespace {

config::CommandLine make_command_line() {
  std::string kinds;
  for (const std::string& kind : verify::fixture_kinds()) kinds += " " + kind;
  return config::CommandLine(
      "ditverify", "acceptance test of this build on this machine: run reference fixtures and compare every value",
      {{"json", "FILE", "write the verdicts there as JSON"},
       {"threads", "N", "threads that compute (default: one for each core this process may use)"}},
      "FIXTURE.safetensors...",
      "Kinds of fixtures:" + kinds +
          "\nExit codes: 0 all passed, 1 a comparison failed, 2 bad usage or a bad fixture.\n");
}

int num_threads(const config::CommandLine& line) {
  if (line.has("threads")) return int(line.get_int("threads", 1, 1024));
  return platform::default_threads(platform::probe_topology()).threads;
}

/// A fixture that cannot be run does not keep the others from being run.
verify::Report run_fixture(const std::string& path, ops::Context& ctx) {
  try {
    return verify::verify_fixture(path, ctx);
  } catch (const InputError& e) {
    std::cerr << "ditverify: error: " << e.what() << '\n';
    return {.file = path, .error = e.what()};
  }
}

int close(const std::vector<verify::Report>& reports) {
  const auto passed = std::count_if(reports.begin(), reports.end(), [](const auto& r) { return r.passed; });
  const bool bad = std::any_of(reports.begin(), reports.end(), [](const auto& r) { return !r.error.empty(); });
  std::cout << passed << " of " << reports.size() << " fixtures passed\n";
  if (bad) return kExitBadInput;
  return passed == int64_t(reports.size()) ? kExitDone : kExitFailed;
}

int body(int argc, char** argv) {
  config::CommandLine line = make_command_line();
  if (!line.parse(argc, argv)) return kExitDone;
  if (line.positional().empty())
    throw InputError({.where = "command line", .what = "no fixture given", .expected = "FIXTURE.safetensors..."});
  parallel::Team team({.num_workers = num_threads(line)});
  ops::Context ctx(team);
  std::vector<verify::Report> reports;
  for (const std::string& path : line.positional()) {
    reports.push_back(run_fixture(path, ctx));
    verify::print(std::cout, reports.back());
    std::cout << std::flush;
  }
  if (line.has("json")) io::write_file_atomically(line.get("json"), verify::to_json(reports));
  return close(reports);
}

}  // namespace

int main(int argc, char** argv) {
  return config::run_program("ditverify", [&] { return body(argc, argv); });
}
