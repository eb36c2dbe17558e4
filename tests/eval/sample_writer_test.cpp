#include "ditrain/eval/sample_writer.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/parallel/team.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "support/workers.hpp"

using namespace ditrain;

namespace {

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

}  // namespace

TEST_CASE("samples: values of data that is no picture are in one file, which appears when it is whole") {
  const TemporaryFolder scratch;
  test::Workers crew(2);
  const auto comm = dist::make_null_communicator();
  const eval::SampleForm form{.channels = 4, .height = 2, .width = 3, .is_latent = true};
  const eval::BandPictures picture(dataset::Config(), form.channels);
  std::vector<float> values(3 * 4 * 6);
  for (size_t i = 0; i < values.size(); ++i) values[i] = float(i) / 100;
  {
    eval::SampleWriter unfinished({.folder = scratch.path(), .num = 3}, form, picture, {0, 1, 2}, *comm);
    unfinished.add(crew.ctx, {values.begin(), values.begin() + 24}, 0, 1);
  }
  CHECK(names_in(scratch.path()) == std::set<std::string>{"000000.png"});
  eval::SampleWriter writer({.folder = scratch.path(), .grid = scratch / "grid.png", .npz = {}, .num = 3}, form,
                            picture, {0, 1, 2}, *comm);
  writer.add(crew.ctx, {values.begin(), values.begin() + 48}, 0, 2);
  writer.add(crew.ctx, {values.begin() + 48, values.end()}, 2, 1);
  writer.finish();
  CHECK(names_in(scratch.path()) ==
        std::set<std::string>{"000000.png", "000001.png", "000002.png", "grid.png", eval::kRawSamplesFile});
  const weights::SafetensorsFile file(scratch / eval::kRawSamplesFile);
  CHECK(file.tensor("samples").shape == std::vector<int64_t>{3, 4, 2, 3});
  CHECK(std::memcmp(file.tensor("samples").data, values.data(), values.size() * sizeof(float)) == 0);
}
