// The commands of README.md work as they stand there: every line of its sh blocks that starts one of the programs is
// run, in order, in a folder where runs/quickstart is a (tiny) run and DIR a folder of images; every script it names is
// there. To keep it short, flags are added: for ditrain --set train.steps=2 --set sample.every_steps=0, for ditbench
// --repeats 1 --threads 2, for mpirun --oversubscribe. Two hosts are left out where the system allows no namespaces. A
// tuning file is written and read in the scratch folder.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <sstream>

#include "inputs.hpp"
#include "run.hpp"

using namespace ditrain::e2e;

namespace {

// Lines of the ```sh blocks, without comments.
std::vector<std::string> shell_lines() {
  std::istringstream readme(read_file(std::string(DITRAIN_SOURCE_DIR) + "/README.md"));
  std::vector<std::string> lines;
  bool inside = false;
  for (std::string line; std::getline(readme, line);) {
    if (line.starts_with("```")) {
      inside = line == "```sh";
    } else if (inside && !line.empty()) {
      lines.push_back(line.substr(0, line.find(" #")));
    }
  }
  return lines;
}

void replace(std::string& text, const std::string& what, const std::string& with) {
  for (size_t i = text.find(what); i != text.npos; i = text.find(what, i + with.size()))
    text.replace(i, what.size(), with);
}

// The word that begins at `begin`, under another name and in quotes, for a path with spaces.
void replace_word(std::string& line, size_t begin, const std::string& with) {
  line.replace(begin, std::min(line.find(' ', begin), line.size()) - begin, "'" + with + "'");
}

// Digits right after `before`; 0 if that is not in the text.
int64_t number_after(const std::string& text, const std::string& before) {
  const size_t at = text.find(before);
  return at == text.npos ? 0 : std::strtoll(text.c_str() + at + before.size(), nullptr, 10);
}

}  // namespace

TEST_CASE("the commands of README.md run as they stand there") {
  const ScratchFolder scratch;
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "runs/quickstart", 2)), 0);
  write_image_folder(scratch / "images", 10, 4);
  fs::create_directory_symlink(fs::path(DITRAIN_CONFIG_DIR), scratch / "configs");
  fs::create_directory_symlink(fs::path(DITRAIN_GOLDEN_DIR).parent_path(), scratch / "tests");
  int programs = 0, scripts = 0;
  for (std::string line : shell_lines()) {
    INFO(line);
    if (line.starts_with("./")) {
      const std::string script = std::string(DITRAIN_SOURCE_DIR) + "/" + line.substr(2, line.find(' ') - 2);
      CHECK((fs::status(script).permissions() & fs::perms::owner_exec) != fs::perms::none);
      ++scripts;
    }
    const std::string folder = "build/release/bin/";
    const size_t at = line.find(folder);
    if (at == line.npos) continue;
    const size_t name = at + folder.size();
    const std::string program_name = line.substr(name, line.find(' ', name) - name);
    replace_word(line, at, std::string(DITRAIN_PROGRAM_DIR) + "/" + program_name);
    if (line.starts_with("mpirun ")) {
      replace_word(line, 0, DITRAIN_MPIRUN);
      replace(line, " -np ", " --oversubscribe -np ");
    }
    replace(line, "=DIR", "=images");
    if (program_name == "ditrain") line += " --set train.steps=2 --set sample.every_steps=0";
    if (program_name == "ditbench") line += " --repeats 1 --threads 2";
    const bool two_hosts = line.starts_with("./scripts/two_hosts.sh");
    if (two_hosts) line = DITRAIN_SOURCE_DIR + line.substr(1);
    const RunOptions options{.timeout_s = 200, .environment = {"DITRAIN_TUNING=" + scratch / "tuning.json"}};
    const Result result = run({"/bin/sh", "-c", "cd '" + (scratch / "") + "' && " + line}, options);
    if (two_hosts && result.exit_code == 77)
      WARN("skipped: " << result.err);
    else
      REQUIRE_EXIT(result, 0);
    ++programs;
  }
  CHECK(programs >= 11);
  CHECK(scripts >= 4);
  CHECK(fs::exists(scratch / "grid.png"));
  CHECK(fs::exists(scratch / "tuning.json"));
}

TEST_CASE("README.md names the picture of the quick start's last step") {
  const std::string root = DITRAIN_SOURCE_DIR;
  const int64_t steps = number_after(read_file(root + "/configs/quickstart.yaml"), "\n  steps: ");
  REQUIRE(steps > 0);
  CHECK(number_after(read_file(root + "/README.md"), "runs/quickstart/samples/step_") == steps);
}

TEST_CASE("README.md shows the lines and the map that a dry run prints of such nodes") {
  const std::string readme = read_file(std::string(DITRAIN_SOURCE_DIR) + "/README.md");
  const ScratchFolder scratch;
  const Result dry = run(tiny_ditrain(scratch / "run", 4, {"--dry-run", "--ranks", "4"}),
                         {.environment = {"HWLOC_SYNTHETIC=package:2 die:1 numa:1 l3:1 core:8 pu:1"}});
  REQUIRE_EXIT(dry, 0);
  int shown = 0;
  std::istringstream lines(dry.out);
  for (std::string line; std::getline(lines, line);) {
    for (const char* begin : {"launch: ", "    or: "})
      if (line.starts_with(begin)) line = line.substr(8);
    const bool of_map = line.starts_with("  rank ") || line.find("  cluster ") != line.npos ||
                        line.find("  communication  ") != line.npos || line.starts_with("communication: ");
    if (!of_map && !line.starts_with("mpirun") && !line.starts_with("srun") && !line.starts_with("threads: ")) continue;
    INFO(line);
    CHECK(readme.find("\n" + line + "\n") != readme.npos);
    ++shown;
  }
  CHECK(shown == 9);
}
