// Shards of latents: what is in them, and that work that was cut off goes on where it was.
#include "ditrain/eval/latent_shards.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/eval/autoencoder_file.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/images/image.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "files/file_size_limit.hpp"

using namespace ditrain;
using namespace ditrain::eval;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kImages = 7, kSide = 16;

/// A folder with images of two classes, an autoencoder, a team and what encodes with them.
struct Bench {
  TemporaryFolder folder;
  parallel::Team team;
  ops::Context ctx;
  nn::Autoencoder vae;
  std::unique_ptr<dist::Communicator> comm = dist::make_null_communicator();
  std::unique_ptr<dataset::Dataset> data;
  dataset::Config config;

  explicit Bench(int workers = 2)
      : team({.num_workers = workers}),
        ctx(team),
        vae(AutoencoderFile(std::string(DITRAIN_GOLDEN_DIR) + "/vae_names/vae_names_new.safetensors", {.groups = 8})
                .load(DType::kF32)) {
    for (int64_t i = 0; i < kImages; ++i) {
      const std::string name = folder / (i < 3 ? "images/a" : "images/b");
      fs::create_directories(name);
      images::ImageU8 image{kSide, kSide, 3, std::vector<uint8_t>(size_t(3 * kSide * kSide))};
      for (size_t j = 0; j < image.pixels.size(); ++j) image.pixels[j] = uint8_t((j * size_t(7 * i + 3)) % 251);
      images::write_png(name + "/" + std::to_string(i) + ".png", image);
    }
    config.kind = dataset::find_kind("folder"), config.path = folder / "images";
    data = dataset::open_dataset(config, {3, kSide, kSide}, 0, 0);
  }
  LatentShards request(const std::string& name) const {
    return {.out = folder / name, .samples = 3, .scale_factor = 0.25, .vae = "cafe"};
  }
  int64_t encode(const LatentShards& shards) {
    int64_t encoded = 0;
    write_latent_shards(ctx, vae, *data, shards, *comm, [&](const EncodingProgress& p) { encoded = p.encoded; });
    return encoded;
  }
};

std::map<std::string, std::string> content(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    if (entry.path().filename() != ".lock")
      files[entry.path().filename().string()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return files;
}

}  // namespace

TEST_CASE("latent shards: every image once, labels, mirrored copies, statistics, as the data set reads them") {
  Bench bench;
  LatentShards request = bench.request("out");
  request.flip = true, request.posterior = PosteriorUse::kMean;
  CHECK(bench.encode(request) == kImages);
  CHECK(content(request.out).size() == 4);  // three shards, stats.json
  const nlohmann::json stats = files::parse_json(content(request.out).at("stats.json"));
  dataset::Config config;
  config.kind = dataset::find_kind("latents"), config.path = request.out;
  config.latent_scale = 0.25;  // a power of two, so that it changes no bits
  const auto latents = dataset::open_dataset(config, {4, kSide / 2, kSide / 2}, 0, 0);
  REQUIRE(latents->size() == kImages);
  REQUIRE(latents->num_classes() == 2);
  const Tensor image({1, 3, kSide, kSide}), moments({1, 8, kSide / 2, kSide / 2});
  std::vector<float> got(size_t(4 * kSide * kSide / 4));
  std::vector<double> sum(4);
  for (int64_t i = 0; i < kImages; ++i)
    for (const bool flip : {false, true}) {
      Condition label, want;
      latents->load(i, flip, got.data(), &label);
      for (float& value : got) value /= 0.25f;
      bench.data->load(i, flip, Pin<float>(image), &want);
      bench.vae.encode(bench.ctx, image, moments);
      CHECK(got == to_vector(nn::Posterior(moments).mean));
      CHECK(label.label == want.label);
      for (size_t j = 0; j < got.size() && !flip; ++j) sum[j / (got.size() / 4)] += double(got[j]);
    }
  for (size_t c = 0; c < 4; ++c)
    CHECK(stats.at("mean").at(c).get<double>() == Approx(sum[c] / double(kImages * kSide * kSide / 4)));
  CHECK(stats.at("samples") == kImages);
  const weights::SafetensorsFile shard(request.out + "/latents_00002.safetensors");
  CHECK(shard.metadata().at("scale_factor") == "0.25");
  CHECK(shard.metadata().at("vae") == "cafe");
  CHECK(shard.tensor("latents").shape == std::vector<int64_t>{1, 4, kSide / 2, kSide / 2});
}

TEST_CASE("latent shards: mean and log-variance of the posterior, and statistics of what is drawn from them") {
  Bench bench;
  LatentShards request = bench.request("out");
  request.flip = true, request.posterior = PosteriorUse::kMoments;
  bench.encode(request);
  const Tensor image({1, 3, kSide, kSide}), moments({1, 8, kSide / 2, kSide / 2});
  const auto same = [](const weights::TensorView& rows, int64_t row, const Tensor& want) {
    return weights::to_f32(weights::row_range(rows, row, 1)) == to_vector(want);
  };
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < kImages; ++i)
    for (const bool flip : {false, true}) {
      Condition condition;
      bench.data->load(i, flip, Pin<float>(image), &condition);
      bench.vae.encode(bench.ctx, image, moments);
      const nn::Posterior want(moments);
      const weights::SafetensorsFile shard(request.out + "/latents_0000" + std::to_string(i / 3) + ".safetensors");
      CHECK_FALSE(shard.contains("latents"));
      CHECK(same(shard.tensor(flip ? "mean_flip" : "mean"), i % 3, want.mean));
      CHECK(same(shard.tensor(flip ? "logvar_flip" : "logvar"), i % 3, want.logvar));
      const std::vector<float> mean = to_vector(want.mean), logvar = to_vector(want.logvar);
      for (size_t j = 0; j < mean.size() / 4 && !flip; ++j)  // the first channel
        sum += double(mean[j]), squares += double(mean[j]) * double(mean[j]) + std::exp(double(logvar[j]));
    }
  const double n = double(kImages * kSide * kSide / 4);
  const nlohmann::json stats = files::parse_json(content(request.out).at("stats.json"));
  CHECK(stats.at("mean").at(0).get<double>() == Approx(sum / n));
  CHECK(stats.at("std").at(0).get<double>() == Approx(std::sqrt(squares / n - sum / n * sum / n)));
}

TEST_CASE("latent shards: what is drawn depends on seed and sample alone") {
  Bench one(1), three(3);
  LatentShards request = one.request("out");
  one.encode(request);
  LatentShards other = three.request("out");
  three.encode(other);
  auto a = content(request.out), b = content(other.out);
  CHECK(a.at("stats.json") == b.at("stats.json"));
  const auto values = [](const std::string& folder) {
    return weights::to_f32(weights::SafetensorsFile(folder + "/latents_00001.safetensors").tensor("latents"));
  };
  CHECK(values(request.out) == values(other.out));
  other.out = three.folder / "seed", other.seed = 1;
  three.encode(other);
  CHECK(values(request.out) != values(other.out));
}

TEST_CASE("latent shards: work that was cut off goes on with what is missing, to the same bytes") {
  Bench bench;
  const LatentShards request = bench.request("out");
  bench.encode(request);
  const auto whole = content(request.out);
  fs::remove(request.out + "/latents_00001.safetensors");
  fs::remove(request.out + "/stats.json");
  std::ofstream(request.out + "/.latents_00001.safetensors.tmp_0123456789abcdef") << "half";
  CHECK(bench.encode(request) == 3);
  CHECK(content(request.out) == whole);
  CHECK(bench.encode(request) == 0);
}

TEST_CASE("latent shards: other work in the same folder is refused") {
  Bench bench;
  LatentShards request = bench.request("out");
  bench.encode(request);
  const auto whole = content(request.out);
  request.seed = 5;
  CHECK_THROWS_WITH(bench.encode(request), Catch::Contains("made in another way: posterior"));
  request = bench.request("out"), request.scale_factor = 1;
  CHECK_THROWS_WITH(bench.encode(request), Catch::Contains("scale_factor; got 0.25, expected 1"));
  CHECK(content(request.out) == whole);
  fs::rename(bench.folder / "images/a/0.png", bench.folder / "images/a/4.png");  // as many, in another order
  bench.data = dataset::open_dataset(bench.config, {3, kSide, kSide}, 0, 0);
  CHECK_THROWS_WITH(bench.encode(bench.request("out")), Catch::Contains("made in another way: origin"));
  fs::rename(bench.folder / "images/a/4.png", bench.folder / "images/a/0.png");
  bench.data = dataset::open_dataset(bench.config, {3, kSide, kSide}, 0, 0);
  fs::create_directory(bench.folder / "images/aa");  // its label moves those behind it
  bench.data = dataset::open_dataset(bench.config, {3, kSide, kSide}, 0, 0);
  CHECK_THROWS_WITH(bench.encode(bench.request("out")), Catch::Contains("made in another way: origin"));
  fs::remove(bench.folder / "images/aa");
  bench.data = dataset::open_dataset(bench.config, {3, kSide, kSide}, 0, 0);
  const nn::Autoencoder other_groups =
      AutoencoderFile(std::string(DITRAIN_GOLDEN_DIR) + "/vae_names/vae_names_new.safetensors", {.groups = 4})
          .load(DType::kF32);
  CHECK_THROWS_WITH(write_latent_shards(bench.ctx, const_cast<nn::Autoencoder&>(other_groups), *bench.data,
                                        bench.request("out"), *bench.comm),
                    Catch::Contains("made in another way: groups; got 8, expected 4"));
  request = bench.request("out"), request.samples = 4;
  CHECK_THROWS_WITH(bench.encode(request), Catch::Contains("latents_00002.safetensors] a shard that these images do "
                                                           "not have; expected 2 shards of 4 images"));
  CHECK(content(request.out) == whole);
  std::ofstream(request.out + "/latents_00002.safetensors") << "no shard";
  CHECK_THROWS_WITH(bench.encode(bench.request("out")),
                    Catch::Contains("this shard is damaged") && Catch::Contains("try removing it"));
}

TEST_CASE("latent shards: other images under the same names are other work") {
  Bench bench;
  const LatentShards request = bench.request("out");
  bench.encode(request);
  const std::string file = bench.folder / "images/b/4.png";  // of the second shard
  const images::ImageU8 image = images::read_image(file);
  fs::remove(request.out + "/latents_00002.safetensors");
  images::ImageU8 other = image;
  other.pixels[size_t(3 * kSide * kSide / 2)] ^= 1;
  images::write_png(file, other);
  CHECK_THROWS_WITH(bench.encode(request), Catch::Contains("latents_00001.safetensors] this shard was made in another "
                                                           "way: origin"));
  images::write_png(file, image);
  CHECK(bench.encode(request) == 1);
}

TEST_CASE("latent shards: numbers that are not finite are refused with the image, before anything is written") {
  Bench bench;
  const AutoencoderFile file(std::string(DITRAIN_GOLDEN_DIR) + "/vae_names/vae_names_new.safetensors", {.groups = 8});
  nn::Autoencoder broken(file.config(), DType::kF32, [](const std::string& name, const Shape& shape) {
    std::vector<float> values(size_t(num_elements(shape)), 0.01f);
    if (name == "quant_conv.bias") values.back() = std::numeric_limits<float>::quiet_NaN();  // of a log-variance
    return values;
  });
  LatentShards request = bench.request("out");
  request.posterior = PosteriorUse::kMoments;
  CHECK_THROWS_WITH(write_latent_shards(bench.ctx, broken, *bench.data, request, *bench.comm),
                    Catch::Contains("no finite numbers for image 0; got nan"));
  CHECK(content(request.out).empty());
}

TEST_CASE("latent shards: another folder of as many tiles, or other scaling, is other work") {
  const TemporaryFolder scratch;
  const auto checksum = [&](const std::string& name, int first, double high) {
    fs::create_directories(scratch / name);
    std::vector<uint16_t> numbers(size_t(4 * 3 * 8 * 8));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = uint16_t(int(i) + first);
    weights::write_safetensors((scratch / name) + "/a.safetensors", {{"images", "U16", {4, 3, 8, 8}, numbers.data()}},
                               {{"bands", R"(["B2", "B3", "B4"])"}});
    dataset::Config config;
    config.kind = dataset::find_kind("tiles"), config.path = scratch / name;
    config.scaling = {.from = dataset::ScalingFrom::kRange, .low = 0, .high = high};
    return dataset::open_dataset(config, {3, 8, 8}, 0, 0)->samples_checksum();
  };
  const std::string one = checksum("one", 0, 1000);
  CHECK(one == checksum("copy", 0, 1000));
  CHECK(one != checksum("two", 1, 1000));
  CHECK(one != checksum("one", 0, 2000));
}

TEST_CASE("latent shards: a disk that is full in the middle of one leaves no part of it") {
  Bench bench;
  const LatentShards request = bench.request("out");
  {
    const FileSizeLimit full(2000);  // a shard of three has 3,072 bytes of latents
    CHECK_THROWS_AS(bench.encode(request), RunError);
  }
  CHECK(content(request.out).empty());
  CHECK(bench.encode(request) == kImages);
}

TEST_CASE("latent shards: sizes that do not fit the autoencoder are refused") {
  Bench bench;
  bench.data = dataset::open_dataset(bench.config, {3, 15, 16}, 0, 0);
  CHECK_THROWS_WITH(bench.encode(bench.request("out")), Catch::Contains("multiples of 2; try --size 16"));
  LatentShards of_tiles = bench.request("out");
  of_tiles.tiles = {{"bands", R"(["B2"])"}};
  CHECK_THROWS_WITH(bench.encode(of_tiles), Catch::Contains("try ditdata make --tile 16"));
}
