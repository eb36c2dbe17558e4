#include "ditrain/base/temporary_folder.hpp"

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "ditrain/base/error.hpp"

using namespace ditrain;
namespace fs = std::filesystem;

TEST_CASE("a temporary folder is new, lies in TMPDIR, and goes with what it holds") {
  const TemporaryFolder outer;
  const char* was = std::getenv("TMPDIR");
  const std::optional<std::string> before = was ? std::optional<std::string>(was) : std::nullopt;
  REQUIRE(setenv("TMPDIR", outer.path().c_str(), 1) == 0);
  {
    const TemporaryFolder a, b;
    CHECK(a.path() != b.path());
    CHECK(fs::is_empty(a.path()));
    CHECK(fs::path(a.path()).parent_path() == outer.path());
    CHECK(a / "x/y" == a.path() + "/x/y");
    fs::create_directory(a / "x");
    std::ofstream(a / "x/y") << "content";
  }
  CHECK(fs::is_empty(outer.path()));
  REQUIRE(setenv("TMPDIR", (outer / "absent").c_str(), 1) == 0);
  CHECK_THROWS_AS(TemporaryFolder(), RunError);
  before ? setenv("TMPDIR", before->c_str(), 1) : unsetenv("TMPDIR");
}
