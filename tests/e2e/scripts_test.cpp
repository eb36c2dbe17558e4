// What scripts build, and when they configure again.
#include <catch2/catch.hpp>
#include <set>
#include <sstream>

#include "ditrain/images/raster.hpp"
#include "run.hpp"
#include "support/skip.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

const std::string kRoot = DITRAIN_SOURCE_DIR;

}  // namespace

TEST_CASE("scripts: the target programs, which the quick start builds, is all programs that there are") {
  std::set<std::string> sources, built;
  for (const auto& entry : fs::directory_iterator(kRoot + "/apps"))
    if (entry.path().extension() != ".md") sources.insert(entry.path().stem());
  const std::string build = fs::path(DITRAIN_PROGRAM_DIR).parent_path();
  const Result query =
      require_ok({"/bin/sh", "-c", "PATH=/usr/bin:$PATH exec ninja -C '" + build + "' -t query programs"});
  std::istringstream lines(query.out);
  for (std::string line; std::getline(lines, line);)
    if (const size_t at = line.find("bin/"); at != line.npos) built.insert(line.substr(at + 4));
  CHECK(sources.size() >= 8);
  CHECK(built == sources);
}

TEST_CASE("scripts: build.sh configures again while an optional library is missing, and finds it when it has come") {
  const TemporaryFolder scratch;
  fs::create_directory(scratch / "scripts");
  fs::copy(kRoot + "/scripts/build.sh", scratch / "scripts/build.sh");
  fs::copy(kRoot + "/CMakePresets.json", scratch / "CMakePresets.json");
  fs::copy(kRoot + "/cmake/dependencies.cmake", scratch / "dependencies.cmake");
  write_file(scratch / "scripts/install_packages.sh", "#!/bin/sh\n");
  fs::permissions(scratch / "scripts/install_packages.sh", fs::perms::owner_all);
  write_file(scratch / "CMakeLists.txt",
             "cmake_minimum_required(VERSION 3.25)\n"
             "project(scratch LANGUAGES CXX)\n"
             "file(APPEND ${CMAKE_SOURCE_DIR}/configured x)\n"
             "set(CMAKE_DISABLE_FIND_PACKAGE_GDAL OFF)\n"
             "set(DITRAIN_ONEDNN OFF)\n"
             "set(DITRAIN_SIMGRID OFF)\n"
             "if(EXISTS ${CMAKE_SOURCE_DIR}/no_gdal)\n"
             "  set(CMAKE_DISABLE_FIND_PACKAGE_GDAL ON)\n"
             "endif()\n"
             "include(dependencies.cmake)\n");
  write_file(scratch / "no_gdal", "");
  const std::string missing = scratch / "build/release/missing_libraries.txt";
  const auto times_configured = [&] {
    REQUIRE_EXIT(run({scratch / "scripts/build.sh"}), 0);
    return read_file(scratch / "configured").size();
  };
  CHECK(times_configured() == 1);
  CHECK(read_file(missing) == "GDAL");
  CHECK(times_configured() == 2);
  fs::remove(scratch / "no_gdal");
  CHECK(times_configured() == 3);
  if (!ditrain::images::has_gdal()) SKIP("no GDAL that could come");
  CHECK(read_file(missing).empty());
  CHECK(times_configured() == 3);  // nothing is missing any more
}

TEST_CASE("scripts: build.sh takes the cmake of PATH, which a module may have put there, where there is no apt-get") {
  const TemporaryFolder scratch;
  fs::create_directories(scratch / "scripts");
  fs::create_directories(scratch / "build/release");
  fs::create_directories(scratch / "bin");
  fs::copy(kRoot + "/scripts/build.sh", scratch / "scripts/build.sh");
  write_file(scratch / "build/release/build.ninja", "");
  write_file(scratch / "build/release/missing_libraries.txt", "");
  const auto write_program = [&](const std::string& path, const std::string& text) {
    write_file(path, text);
    fs::permissions(path, fs::perms::owner_all);
  };
  write_program(scratch / "scripts/install_packages.sh", "#!/bin/sh\n");
  write_program(scratch / "bin/cmake", "#!/bin/sh\necho of the module\n");
  fs::create_symlink("/bin/bash", scratch / "bin/bash");
  fs::create_symlink("/usr/bin/dirname", scratch / "bin/dirname");
  const Result built = run({scratch / "scripts/build.sh"}, {.environment = {"PATH=" + scratch / "bin"}});
  REQUIRE_EXIT(built, 0);
  CHECK(built.out == "of the module\n");
}

TEST_CASE("scripts: the commands of bench_report.sh are ones that ditbench takes") {
  const TemporaryFolder scratch;
  fs::create_directories(scratch / "scripts");
  fs::create_directories(scratch / "build/release/bin");
  fs::copy(kRoot + "/scripts/bench_report.sh", scratch / "scripts/bench_report.sh");
  const std::string stub = scratch / "build/release/bin/ditbench";
  write_file(stub, "#!/bin/sh\nexec '" + std::string(DITRAIN_PROGRAM_DIR) + "/ditbench' \"$@\" --help\n");
  fs::permissions(stub, fs::perms::owner_all);
  // Not here: parts that start other programs, and mpirun.
  const std::string parts = "PARTS=gemm ops step ladder conv sample memory disk recompute backward";
  const auto report = [&](const std::string& flags) {
    return run({scratch / "scripts/bench_report.sh", scratch / "report.md"}, {.environment = {parts, flags}});
  };
  REQUIRE_EXIT(report("FLAGS=--quick"), 0);
  const std::string text = read_file(scratch / "report.md");
  for (const char* command :
       {"$ ditbench vae --precision f32,bf16", "$ ditbench sample --model XL",
        "$ ditbench memory --model XL --batch 8 --repeats 3 --fast 0.5,0.33",
        "$ prlimit --data=3935000000 ditbench step --model B --batch 8 --repeats 2 --recompute auto",
        "$ ditbench step --model B --batch 8 --set train.on_non_finite=skip"})
    CHECK_THAT(text, Contains(command));
  CHECK(report("FLAGS=--no-such-flag").exit_code == 1);
}
