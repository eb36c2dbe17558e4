// The commands of README.md work as they stand there: every line of its sh blocks that starts one of the programs is
// run, in order, in a folder where runs/quickstart is a (tiny) run; every script it names is there.
#include <catch2/catch.hpp>
#include <regex>
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

std::string replace(const std::string& text, const std::string& what, const std::string& with) {
  return std::regex_replace(text, std::regex(what), with);
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
    if (line.find("build/release/bin/") == line.npos) continue;
    line = replace(line, "build/release/bin", DITRAIN_PROGRAM_DIR);
    line = replace(line, "^mpirun", std::string(DITRAIN_MPIRUN) + " --oversubscribe");
    line = replace(line, "=DIR", "=images");
    if (line.find("/ditrain ") != line.npos) line += " --set train.steps=2 --set sample.every_steps=0";
    if (line.find("/ditbench ") != line.npos) line += " --repeats 1 --threads 2";
    REQUIRE_EXIT(run({"/bin/sh", "-c", "cd '" + (scratch / "") + "' && " + line}, {.timeout_s = 200}), 0);
    ++programs;
  }
  CHECK(programs >= 6);
  CHECK(scripts >= 3);
  CHECK(fs::exists(scratch / "grid.png"));
}
