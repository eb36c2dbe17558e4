// ditverify: runs reference fixtures with this build on this machine and compares every value; checks the checksums of
// a checkpoint.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/checkpoint/checkpoint.hpp"
#include "ditrain/config/command_line.hpp"
#include "ditrain/files/checkpoint_folder.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/verify/verify.hpp"

using namespace ditrain;

namespace {

config::CommandLine make_command_line() {
  std::string kinds;
  for (const std::string& kind : verify::fixture_kinds()) kinds += " " + kind;
  return config::CommandLine(
      "ditverify", "acceptance test of this build on this machine: run reference fixtures and compare every value",
      {{"json", "FILE", "write the verdicts there as JSON"},
       {"checkpoint", "DIR", "hold the files of a checkpoint (or of the newest one of a run) against their checksums"},
       {"threads", "N", "threads that compute (default: one for each core this process may use)"}},
      "FIXTURE.safetensors...",
      "Kinds of fixtures:" + kinds +
          "\nExit codes: 0 all passed, 1 a comparison failed, 2 bad usage or a bad fixture.\n");
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

int verify_checkpoint(const std::string& path) {
  const std::string folder = checkpoint::find_checkpoint(path);
  checkpoint::CheckedFiles files;
  try {
    files = checkpoint::read_checkpoint_state(folder).files;
  } catch (const InputError& e) {
    std::cout << "DAMAGED  " << e.what() << '\n';
    return kExitFailed;
  }
  if (files.empty())
    throw InputError({.where = folder, .what = "the checkpoint has no checksums: an earlier version wrote it"});
  // A snapshot has the averages alone, and the state of the whole checkpoint (checkpoint/snapshots.hpp).
  const bool snapshot = files.contains(files::kAveragesFile) &&
                        !std::filesystem::exists(std::filesystem::path(folder) / files::kCheckpointFiles[0]) &&
                        std::filesystem::weakly_canonical(folder).parent_path().filename() == "snapshots";
  if (snapshot) std::erase_if(files, [](const auto& file) { return file.first != files::kAveragesFile; });
  const double start = now_s();
  uint64_t bytes = 0;
  int damaged = 0;
  for (const auto& [name, file] : files) {
    try {
      checkpoint::check_file(folder + "/" + name, file);
      std::cout << "ok       " << name << '\n';
    } catch (const InputError& e) {
      std::cout << "DAMAGED  " << e.what() << '\n';
      ++damaged;
    }
    bytes += file.bytes;
  }
  std::printf("%s: %s (%.2f GB, %.2f GB/s)\n", folder.c_str(), damaged == 0 ? "intact" : "damaged",
              double(bytes) * 1e-9, double(bytes) * 1e-9 / (now_s() - start));
  return damaged == 0 ? kExitDone : kExitFailed;
}

int body(int argc, char** argv) {
  config::CommandLine line = make_command_line();
  if (!line.parse(argc, argv)) return kExitDone;
  if (line.has("checkpoint")) {
    if (!line.positional().empty() || line.has("json"))
      throw InputError({.where = "command line", .what = "--checkpoint stands alone: no fixtures, no --json"});
    return verify_checkpoint(line.get_path("checkpoint"));
  }
  if (line.positional().empty())
    throw InputError({.where = "command line", .what = "no fixture given", .expected = "FIXTURE.safetensors..."});
  if (line.has("json")) files::check_output_file(line.get_path("json"));
  parallel::Team team({.num_workers = line.get_threads(1)});
  ops::Context ctx(team);
  std::vector<verify::Report> reports;
  for (const std::string& path : line.positional()) {
    reports.push_back(run_fixture(path, ctx));
    verify::print(std::cout, reports.back());
    std::cout << std::flush;
  }
  if (line.has("json")) files::write_file_atomically(line.get("json"), verify::to_json(reports));
  return close(reports);
}

}  // namespace

int main(int argc, char** argv) {
  return config::run_program("ditverify", [&] { return body(argc, argv); });
}
