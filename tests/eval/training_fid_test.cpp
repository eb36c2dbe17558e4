#include "ditrain/eval/training_fid.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "dataset/tile_fixture.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/eval/fid.hpp"
#include "ditrain/images/image.hpp"
#include "ditrain/parallel/team.hpp"
#include "ditrain/weights/npz.hpp"

using namespace ditrain;
using Catch::Contains;

TEST_CASE("training fid: a reference of other pixels than the samples is refused, though it has as many") {
  const TemporaryFolder scratch;
  parallel::Team team({.num_workers = 1});
  const auto comm = dist::make_null_communicator();
  const dataset::SampleShape shape{3, 8, 8};
  const auto data = dataset::open_dataset({}, shape, 0, 0);
  const auto with = [&](const std::string& reference) {
    eval::TrainingFid::Setup setup{.reference = scratch / reference, .samples = shape};
    setup.features.kind = eval::FeatureKind::kPixels;
    return eval::TrainingFid(setup, *data, team, *comm);
  };
  for (const auto& [folder, width] : {std::pair{"wide", 16}, {"square", 8}})
    for (int i = 0; i < 3; ++i) {
      std::filesystem::create_directories(scratch / folder);
      images::write_png(scratch / folder + "/" + std::to_string(i) + ".png",
                        {width, 64 / width, 3, std::vector<uint8_t>(192, uint8_t(50 * i))});
    }
  CHECK_NOTHROW(with("square"));
  CHECK_THROWS_WITH(with("wide"), Contains("192 values of 4x16x3 pixels in ") && Contains("192 values of 8x8x3"));
  const std::vector<double> mu(192, 1000), sigma(192 * 192);
  weights::write_npz_f64(scratch / "digital.npz", {{"mu", {192}, mu.data()}, {"sigma", {192, 192}, sigma.data()}});
  CHECK_THROWS_WITH(with("digital.npz"), Contains("means from 1000 to 1000"));
}

TEST_CASE("training fid: statistics of tiles of eight bits are not those of bands from -1 to 1") {
  const TemporaryFolder scratch;
  parallel::Team team({.num_workers = 1});
  const auto comm = dist::make_null_communicator();
  const dataset::SampleShape shape{4, 8, 8};
  const auto data = dataset::open_dataset({}, shape, 0, 0);
  std::vector<uint8_t> numbers;
  for (size_t i = 0; i < 260 * 256; ++i) numbers.push_back(uint8_t(i * i / 7 % 251));
  dataset::TestTiles{.n = 260, .side = 8, .bands = {"B2", "B3", "B4", "B8"}}.write(scratch / "tiles.safetensors",
                                                                                   numbers, "U8");
  eval::FidRequest saved{.real = scratch / "tiles.safetensors",
                         .generated = scratch / "tiles.safetensors",
                         .features = {.kind = eval::FeatureKind::kPixels},
                         .keep_statistics = true};
  saved.metrics = {eval::FidMetric::kFid};
  evaluate_fid(team, saved).kept->write(scratch / "s.npz");
  eval::TrainingFid::Setup setup{.reference = scratch / "s.npz", .samples = shape};
  setup.features.kind = eval::FeatureKind::kPixels;
  CHECK_THROWS_WITH(eval::TrainingFid(setup, *data, team, *comm),
                    Contains("the statistics are of digital numbers") && Contains("divided by 255, bands b2"));
}

TEST_CASE("training fid: latents of three channels are compared as they are, not as pictures of eight bits") {
  const TemporaryFolder scratch;
  parallel::Team team({.num_workers = 1});
  const auto comm = dist::make_null_communicator();
  const dataset::SampleShape shape{3, 2, 2};
  const std::vector<double> mu(12, 2.0);
  std::vector<double> sigma(144);
  for (size_t i = 0; i < 12; ++i) sigma[13 * i] = 1;
  weights::write_npz_f64(scratch / "s.npz", {{"mu", {12}, mu.data()}, {"sigma", {12, 12}, sigma.data()}});
  eval::TrainingFid::Setup setup{.reference = scratch / "s.npz", .samples = shape, .is_latent = true};
  setup.features.kind = eval::FeatureKind::kPixels;
  const auto data = dataset::open_dataset({}, shape, 0, 0);
  eval::TrainingFid fid(setup, *data, team, *comm);
  const auto draw = [&](int64_t, int64_t n) { return std::vector<float>(size_t(n * shape.elements()), 2.5f); };
  CHECK(fid.distance(4, draw) == Approx(12 * 0.25 + 12));
}

TEST_CASE("training fid: samples that are not finite have no distance, and end nothing") {
  parallel::Team team({.num_workers = 1});
  const auto comm = dist::make_null_communicator();
  const dataset::SampleShape shape{4, 8, 8};
  eval::TrainingFid::Setup setup{.samples = shape};
  setup.features.kind = eval::FeatureKind::kPixels;
  const auto data = dataset::open_dataset({}, shape, 0, 0);
  eval::TrainingFid fid(setup, *data, team, *comm);
  float value = 0.5f;
  const auto draw = [&](int64_t, int64_t n) {
    std::vector<float> images(size_t(n * shape.elements()), 0.5f);
    images.back() = value;
    return images;
  };
  CHECK(std::isfinite(fid.distance(4, draw)));
  value = NAN;
  CHECK(std::isnan(fid.distance(4, draw)));
}
