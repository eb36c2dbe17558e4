// Inputs that fuzzing found interesting, and the good and hostile files of the fixtures, through the fuzzed readers.
#include <catch2/catch.hpp>
#include <filesystem>

#include "fuzz/raster_target.hpp"
#include "fuzz/targets.hpp"
#include "support/files.hpp"

using namespace ditrain;

namespace {

int run_files(const std::string& folder, void (*target)(std::string_view)) {
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    CAPTURE(entry.path().string());
    CHECK_NOTHROW(target(get_file(entry.path().string())));
    ++files;
  }
  return files;
}

}  // namespace

TEST_CASE("the corpus of the fuzzed readers gives values or an InputError, nothing else") {
  const std::string golden = DITRAIN_GOLDEN_DIR, corpus = golden + "/../fuzz/corpus/";
  CHECK(run_files(golden + "/pt_files", fuzz::read_pytorch) > 50);
  CHECK(run_files(golden + "/npz_files", fuzz::read_npz) > 25);
  CHECK(run_files(corpus + "pytorch", fuzz::read_pytorch) > 0);
  CHECK(run_files(corpus + "pickle", fuzz::read_pickle) > 0);
  CHECK(run_files(corpus + "npz", fuzz::read_npz) > 0);
  CHECK(run_files(corpus + "image", fuzz::read_image) > 0);
  CHECK(run_files(corpus + "raster", fuzz::read_raster) > 0);
}
