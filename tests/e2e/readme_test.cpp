// The guides (README.md, those of some folders, CONTRIBUTING.md and CHANGELOG.md) say what is true. Every line of
// their sh blocks that starts one of the programs is run, in order, in a folder where runs/quickstart is a (tiny) run,
// DIR a folder of images and scenes one of rasters, scenes_of_level_2a and _1c of a product each, imagenet/train the
// images again and sd-vae-ft-ema a tiny autoencoder; scripts are there and parse; links and names of files lead
// somewhere. To keep it short, lines are changed: ditrain gets --set train.steps=2 --set sample.every_steps=0 and few
// or no images for distances, smaller batches, dry runs one thread whose rates are measured, ditdata images of 64 x 64,
// ditbench --quick --threads 2 (1 under mpirun), one image per rank and, for comm and quality, a small model, mpirun
// --oversubscribe. Two hosts are left out where the system allows no namespaces. A tuning file is written and read in
// the scratch folder.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cctype>
#include <cstdlib>
#include <sstream>

#include "ditrain/images/raster.hpp"
#include "inputs.hpp"
#include "run.hpp"

using namespace ditrain::e2e;

namespace {

const std::string kRoot = DITRAIN_SOURCE_DIR;
constexpr std::array kGuides = {"README.md",       "configs/README.md", "scripts/README.md",
                                "apps/README.md",  "src/README.md",     "tests/README.md",
                                "CONTRIBUTING.md", "CHANGELOG.md",      "configs/KEYS.md"};

// Lines of the ```sh blocks, without comments, or those outside of all blocks.
enum class Lines { kShell, kProse };
std::vector<std::string> lines_of(const std::string& guide, Lines wanted) {
  std::istringstream text(read_file(kRoot + "/" + guide));
  std::vector<std::string> lines;
  bool block = false, shell = false;
  for (std::string line; std::getline(text, line);) {
    const size_t begin = std::min(line.find_first_not_of(' '), line.size());
    if (line.compare(begin, 3, "```") == 0) {
      block = !block, shell = block && line == "```sh";
    } else if (wanted == Lines::kShell ? shell && !line.empty() : !block) {
      lines.push_back(shell ? line.substr(0, line.find(" #")) : line);
    }
  }
  return lines;
}

// What stands between `begin` and `end` in a line, each time.
std::vector<std::string> between(const std::string& line, const std::string& begin, const std::string& end) {
  std::vector<std::string> found;
  for (size_t i = line.find(begin); i != line.npos;) {
    const size_t first = i + begin.size(), last = line.find(end, first);
    if (last == line.npos) break;
    found.push_back(line.substr(first, last - first));
    i = line.find(begin, last + end.size());
  }
  return found;
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

// A line of a guide that starts a program of this build, as it is run here; "" if it starts none.
std::string as_run_here(std::string line) {
  const std::string folder = "build/release/bin/";
  const size_t at = line.find(folder);
  if (at == line.npos) return "";
  const size_t name = at + folder.size();
  const std::string program_name = line.substr(name, line.find(' ', name) - name);
  replace_word(line, at, std::string(DITRAIN_PROGRAM_DIR) + "/" + program_name);
  const bool under_mpirun = line.starts_with("mpirun ");
  if (under_mpirun) {
    replace_word(line, 0, DITRAIN_MPIRUN);
    replace(line, " -np ", " --oversubscribe -np ");
  }
  if (line.starts_with("./")) line = kRoot + line.substr(1);
  replace(line, "=DIR", "=images");
  replace(line, "{every: 50}", "{every: 2}");
  replace(line, "--size 256", "--size 64");
  replace(line, "train.global_batch=8", "train.global_batch=2");
  replace(line, "photos.yaml", "photos.yaml --set train.global_batch=4");
  if (program_name == "ditrain" && line.find(" report ") == line.npos && line.find(" --help ") == line.npos)
    line += std::string(" --set train.steps=2 --set sample.every_steps=0") +
            (line.find("eval.") == line.npos ? " --set eval.fid_every_steps=0"
                                             : " --set eval.fid_samples=8 --set data.num_images=1000");
  if (line.find(" --dry-run") != line.npos) line += " --set parallel.threads=1";
  if (program_name == "ditbench") line += std::string(" --quick --threads ") + (under_mpirun ? "1" : "2");
  if (program_name == "ditsample" && line.find("--steps") == line.npos) line += " --steps 2";
  replace(line, "--batch 4", "--batch 1");
  const std::string small = " --set model.hidden_size=32 --set model.num_heads=2";
  replace(line, " comm --model S", " comm --model custom" + small);
  if (line.find(" quality ") != line.npos) line += small + " --set model.depth=1 --set train.global_batch=8";
  if (line.find(" tune ") != line.npos) line += " --batch 1";
  return line;
}

// Whether a word of a guide is the path of a file, and no pattern and no placeholder such as MODULE/NAME.cpp.
bool is_name_of_file(const std::string& word) {
  const fs::path path(word);
  constexpr std::array kEndings = {".cpp", ".hpp",    ".inc", ".cmake", ".md",
                                   ".sh",  ".sbatch", ".py",  ".yaml",  ".safetensors"};
  if (std::find(kEndings.begin(), kEndings.end(), path.extension()) == kEndings.end()) return false;
  if (word.find_first_of(" *~") != word.npos || !path.has_parent_path()) return false;
  for (const fs::path& part : path) {
    const std::string stem = part.stem().string();
    const bool capitals = std::all_of(stem.begin(), stem.end(), [](unsigned char c) { return std::isupper(c) != 0; });
    if (capitals && stem != "README") return false;
  }
  return true;
}

// From the root, or without src or include/ditrain.
bool is_in_source(const std::string& name) {
  for (const char* below : {"/", "/src/", "/include/ditrain/"})
    if (fs::exists(kRoot + below + name)) return true;
  return false;
}

}  // namespace

TEST_CASE("the commands of the guides run as they stand there") {
  const TemporaryFolder scratch;
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "runs/quickstart", 2)), 0);
  write_image_folder(scratch / "images", 10, 4);
  write_scenes(scratch / "scenes");
  write_level_2a(scratch / "scenes_of_level_2a");
  write_level_1c(scratch / "scenes_of_level_1c");
  fs::create_directory(scratch / "imagenet");
  fs::create_directory_symlink(scratch / "images", scratch / "imagenet/train");
  write_small_vae(scratch / "sd-vae-ft-ema");
  fs::create_directory_symlink(fs::path(DITRAIN_CONFIG_DIR), scratch / "configs");
  fs::create_directory_symlink(fs::path(DITRAIN_GOLDEN_DIR).parent_path(), scratch / "tests");
  int programs = 0, scripts = 0;
  for (const std::string guide : kGuides) {
    for (const std::string& line : lines_of(guide, Lines::kShell)) {
      INFO(guide << ": " << line);
      if (line.starts_with("./")) {
        const std::string script = kRoot + "/" + line.substr(2, line.find(' ') - 2);
        CHECK((fs::status(script).permissions() & fs::perms::owner_exec) != fs::perms::none);
        ++scripts;
      }
      const std::string command = as_run_here(line);
      if (command.empty()) continue;
      if (line.find("scenes") != line.npos && !ditrain::images::has_gdal()) continue;
      const RunOptions options{.timeout_s = 200, .environment = {"DITRAIN_TUNING=" + scratch / "tuning.json"}};
      const Result result = run({"/bin/sh", "-c", "cd '" + (scratch / "") + "' && " + command}, options);
      if (line.starts_with("./scripts/two_hosts.sh") && result.exit_code == 77)
        WARN("left out: " << result.err);
      else if (result.exit_code == 2 && result.err.find("no SimGrid") != result.err.npos)
        WARN("left out: " << line);
      else
        REQUIRE_EXIT(result, 0);
      ++programs;
    }
  }
  CHECK(programs >= 15);
  CHECK(scripts >= 8);
  for (const char* written : {"grid.png", "tuning.json", "plan.svg", "model.safetensors", "runs/traced/trace.json"})
    CHECK(fs::exists(scratch / written));
}

TEST_CASE("every script parses") {
  int scripts = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot + "/scripts")) {
    const fs::path ending = entry.path().extension();
    if (ending != ".sh" && ending != ".sbatch") continue;
    REQUIRE_EXIT(run({"/bin/bash", "-n", entry.path().string()}), 0);
    ++scripts;
  }
  CHECK(scripts >= 12);
}

TEST_CASE("links and names of files in the guides lead somewhere") {
  int links = 0, names = 0;
  for (const std::string guide : kGuides) {
    for (const std::string& line : lines_of(guide, Lines::kProse)) {
      for (const std::string& link : between(line, "](", ")")) {
        if (link.starts_with("http")) continue;
        INFO(guide << " links to " << link);
        CHECK(fs::exists(fs::path(kRoot + "/" + guide).parent_path() / link));
        ++links;
      }
      for (const std::string& word : between(line, "`", "`")) {
        if (!is_name_of_file(word)) continue;
        INFO(guide << " names " << word);
        CHECK(is_in_source(word));
        ++names;
      }
    }
  }
  CHECK(links >= 15);
  CHECK(names >= 80);
}

TEST_CASE("README.md names the picture of the quick start's last step") {
  const int64_t steps = number_after(read_file(kRoot + "/configs/quickstart.yaml"), "\n  steps: ");
  REQUIRE(steps > 0);
  CHECK(number_after(read_file(kRoot + "/README.md"), "runs/quickstart/samples/step_") == steps);
}

TEST_CASE("the guide for clusters shows the lines and the map that a dry run prints for such nodes") {
  const std::string guide = read_file(kRoot + "/scripts/README.md");
  const TemporaryFolder scratch;
  const Result dry = require_ok(tiny_ditrain(scratch / "run", 4, {"--dry-run", "--ranks", "4"}),
                                {.environment = {"HWLOC_SYNTHETIC=package:2 die:1 numa:1 l3:1 core:8 pu:1"}});
  int shown = 0;
  std::istringstream lines(dry.out);
  for (std::string line; std::getline(lines, line);) {
    for (const char* begin : {"launch: ", "    or: "})
      if (line.starts_with(begin)) line = line.substr(8);
    const bool of_map = line.starts_with("  rank ") || line.find("  cluster ") != line.npos ||
                        line.find("  communication  ") != line.npos || line.starts_with("communication: ");
    if (!of_map && !line.starts_with("mpirun") && !line.starts_with("srun") && !line.starts_with("threads: ")) continue;
    INFO(line);
    CHECK(guide.find("\n" + line + "\n") != guide.npos);
    ++shown;
  }
  CHECK(shown == 9);
}
