#include <catch2/catch.hpp>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "tile_fixture.hpp"

using namespace ditrain;
using namespace ditrain::dataset;
using Catch::Contains;

namespace {
constexpr int64_t kElements = 2 * 2 * 3;
constexpr SampleShape kShape{2, 2, 3};

// A shard whose row r holds first + r in every place, and its negative where it is flipped.
struct ShardSpec {
  int64_t rows = 0;
  float first = 0;
  std::vector<int64_t> labels = {};  // empty: none
  bool flips = false;
  std::string dtype = "F32";
  std::vector<int64_t> sample = {2, 2, 3};
  std::map<std::string, std::string> metadata = {};
};

void write_shard(const std::string& path, const ShardSpec& spec) {
  std::vector<float> plain, flipped;
  for (int64_t r = 0; r < spec.rows; ++r)
    for (int64_t e = 0; e < kElements; ++e) plain.push_back(spec.first + float(r)), flipped.push_back(-plain.back());
  std::vector<int64_t> shape{spec.rows};
  shape.insert(shape.end(), spec.sample.begin(), spec.sample.end());
  const bool bf16 = spec.dtype == "BF16";
  std::vector<weights::TensorToWrite> tensors{{"latents", spec.dtype, shape, plain.data(), bf16}};
  if (spec.flips) tensors.push_back({"latents_flip", spec.dtype, shape, flipped.data(), bf16});
  if (!spec.labels.empty()) tensors.push_back({"labels", "I64", {int64_t(spec.labels.size())}, spec.labels.data()});
  weights::write_safetensors(path, tensors, spec.metadata);
}

std::unique_ptr<Dataset> open_shards(const std::string& path, int64_t num_classes, OnBadFile on_bad = OnBadFile::kError,
                                     std::optional<double> scale = {}) {
  Config config;
  config.kind = find_kind("latents"), config.path = path, config.on_bad_file = on_bad, config.latent_scale = scale;
  return open_dataset(config, kShape, num_classes, 1);
}

Sample constant(float value, int64_t label) { return {std::vector<float>(kElements, value), label}; }
}  // namespace

TEST_CASE("latents: a deviation far from 1 is told of where shards state no factor") {
  const ScratchFolder dir;
  write_shard(dir.at("far/a.safetensors"), {.rows = 12, .first = -6});
  write_shard(dir.at("near/a.safetensors"), {.rows = 4, .first = 0});
  write_shard(dir.at("stated/a.safetensors"), {.rows = 12, .metadata = {{"scale_factor", "0.2"}}});
  const auto warns = [&](const std::string& folder) {
    log::open_file(dir / (folder + ".txt"));
    open_shards(dir / folder, 0);
    log::close_file();
    return get_file(dir / (folder + ".txt")).find("have a deviation of 3.45") != std::string::npos;
  };
  CHECK(warns("far"));  // sqrt((12 12 - 1) / 12)
  CHECK_FALSE(warns("near"));
  CHECK_FALSE(warns("stated"));
}

TEST_CASE("latents are scaled by the factor that they state, unless the config has a number") {
  const ScratchFolder dir;
  write_shard(dir.at("a.safetensors"), {.rows = 2, .first = 8, .metadata = {{"scale_factor", "0.25"}}});
  write_shard(dir.at("b.safetensors"), {.rows = 1, .first = 4, .metadata = {{"scale_factor", "0.25"}}});
  const auto data = open_shards(dir.path(), 0);
  CHECK(load(*data, 0) == constant(2, 0));
  CHECK(load(*data, 2) == constant(1, 0));
  CHECK_THAT(data->describe(), Contains(", times 0.25"));
  CHECK(load(*open_shards(dir.path(), 0, OnBadFile::kError, 0.5), 0) == constant(4, 0));
  CHECK(load(*open_shards(dir.path(), 0, OnBadFile::kError, 1), 0) == constant(8, 0));
  Config config;
  config.kind = find_kind("latents"), config.path = dir.path();
  settle(config);
  CHECK(config.latent_scale == 0.25);

  for (const char* factor : {"0.5", "none"}) {
    write_shard(dir.at("b.safetensors"), {.rows = 1, .first = 4, .metadata = {{"scale_factor", factor}}});
    CHECK_THROWS_WITH(open_shards(dir.path(), 0),
                      Contains("b.safetensors] this shard states another scale_factor than") &&
                          Contains(std::string("got ") + factor + ", expected 0.25") &&
                          Contains("--set data.latent_scale=X"));
    CHECK(load(*open_shards(dir.path(), 0, OnBadFile::kError, 0.5), 2) == constant(2, 0));
  }
  std::filesystem::remove(dir.at("b.safetensors"));
  for (const char* factor : {"1", "none", "-3", "nan", "inf", ""}) {
    write_shard(dir.at("a.safetensors"), {.rows = 2, .first = 8, .metadata = {{"scale_factor", factor}}});
    CHECK(load(*open_shards(dir.path(), 0), 0) == constant(8, 0));
  }
  write_shard(dir.at("a.safetensors"), {.rows = 2, .first = 8});
  config.latent_scale.reset();
  settle(config);
  CHECK(config.latent_scale == 1.0);
}

TEST_CASE("a path without latents tells how to make them of what is there") {
  const ScratchFolder dir;
  dir.write_grey("images/cat/a.png", 3);
  CHECK_THROWS_WITH(open_shards(dir / "images", 0),
                    Contains("no latents in") && Contains("got 0 other files and 1 sub-folders") &&
                        Contains("try ditdata encode --from " + (dir / "images") + " --vae FILE --out LATENTS"));
  dir.write("scenes/A.SAFE/GRANULE/B02.jp2", "");
  CHECK_THROWS_WITH(open_shards(dir / "scenes", 0),
                    Contains("try ditdata inspect " + (dir / "scenes") + ", which prints the line of ditdata make") &&
                        Contains("ditdata encode --from TILES"));
  const auto opened = [&](const char* kind, const std::string& path) {
    Config config;
    config.kind = find_kind(kind), config.path = path;
    open_dataset(config, {}, 0, 1);
  };
  CHECK_THROWS_WITH(opened("tiles", dir / "scenes"),
                    Contains("no tiles in") && Contains("try ditdata inspect " + (dir / "scenes") + ", "));
  CHECK_THROWS_WITH(opened("tiles", dir / "images"), Contains("try data.kind: folder"));
  CHECK_THROWS_WITH(opened("folder", dir / "scenes"), Contains("try ditdata inspect " + (dir / "scenes")));
  dir.write("none/notes.txt", "");
  CHECK_THROWS_WITH(opened("tiles", dir / "none"), Contains("try ditdata make --from SCENES --out " + (dir / "none")));
}

TEST_CASE("classes without samples are named, by number and, where they have one, by name") {
  const ScratchFolder dir;
  write_shard(dir.at("a.safetensors"), {.rows = 3, .labels = {1, 4, 1}});
  const auto data = open_shards(dir.path(), 10);
  CHECK(data->describe_unused(5) == "3 of 5 classes: 0, 2 to 3");
  CHECK(data->describe_unused(10) == "8 of 10 classes: 0, 2 to 3, 5 to 9");
  write_shard(dir.at("a.safetensors"), {.rows = 2});
  CHECK(open_shards(dir.path(), 0)->describe_unused(0).empty());
  CHECK(open_shards(dir.path(), 1)->describe_unused(1).empty());
  CHECK(open_dataset({}, {3, 32, 32}, 8, 1)->describe_unused(8).empty());
  std::vector<int64_t> every_second;
  for (int64_t i = 0; i < 10; ++i) every_second.push_back(2 * i);
  write_shard(dir.at("a.safetensors"), {.rows = 10, .labels = every_second});
  CHECK(open_shards(dir.path(), 0)->describe_unused(20) == "10 of 20 classes: 1, 3, 5, 7, 9, 11, 13, 15, ...");

  const ScratchFolder images;
  images.write_grey("ant/a.png", 1);
  images.write_grey("zebra/a.png", 1);
  std::filesystem::create_directory(images / "bee");
  Config config;
  config.kind = find_kind("folder"), config.path = images.path();
  CHECK(open_dataset(config, {3, 4, 4}, 0, 1)->describe_unused(4) == "2 of 4 classes: 1 (bee), 3");
  CHECK(open_dataset(config, {3, 4, 4}, 0, 1)->describe_unlearnt(0) ==
        "its 3 classes are not learnt (model.num_classes: 0; auto learns them)");
  CHECK(open_dataset(config, {3, 4, 4}, 3, 1)->describe_unlearnt(3).empty());
  CHECK(open_shards(dir.path(), 0)->describe_unlearnt(20).empty());
}

TEST_CASE("latent shards are numbered in the order of their names") {
  const ScratchFolder dir;
  write_shard(dir.at("b.safetensors"), {.rows = 2, .first = 10, .labels = {7, 0}, .flips = true, .dtype = "BF16"});
  write_shard(dir.at("a.safetensors"), {.rows = 3, .first = 1, .labels = {4, 5, 6}, .flips = true});
  dir.write("index.txt", "not a shard");
  const auto data = open_shards(dir.path(), 8);
  REQUIRE(data->size() == 5);
  CHECK(data->describe_ignored() == "ignored 1 file (.txt 1)");
  CHECK(data->num_classes() == 8);
  CHECK(load(*data, 0) == constant(1, 4));
  CHECK(load(*data, 2) == constant(3, 6));
  CHECK(load(*data, 3) == constant(10, 7));
  CHECK(load(*data, 4) == constant(11, 0));
  CHECK((data->label(2) == 6 && data->label(3) == 7));
  CHECK(load(*data, 1, true) == constant(-2, 5));
  CHECK(load(*data, 4, true) == constant(-11, 0));
  CHECK_THAT(data->describe(), Contains("5 samples in 2 shards") && Contains(" flipped copies"));
  CHECK_THROWS_WITH(open_shards(dir.path(), 7), Contains("label out of range") && Contains("model.num_classes: 8"));
}

TEST_CASE("one file, no labels, no flipped copies, and a scale") {
  const ScratchFolder dir;
  write_shard(dir.at("only.safetensors"), {.rows = 2, .first = 4});
  const auto data = open_shards(dir.at("only.safetensors"), 0, OnBadFile::kError, 0.5);
  CHECK(data->num_classes() == 0);
  CHECK(load(*data, 1) == constant(2.5f, 0));
  CHECK(load(*data, 1, true) == constant(2.5f, 0));
  CHECK_THROWS_WITH(open_shards(dir.at("only.safetensors"), 10), Contains("no labels"));
}

TEST_CASE("f16 latents, 32-bit labels and an empty shard are read") {
  const ScratchFolder dir;
  write_shard(dir.at("a.safetensors"), {.rows = 0});
  const std::vector<uint16_t> half(kElements, 0x3e00);  // 1.5
  weights::write_safetensors(dir.at("b.safetensors"), {{"latents", "F16", {1, 2, 2, 3}, half.data()}});
  CHECK(load(*open_shards(dir.path(), 0), 0) == constant(1.5f, 0));

  const ScratchFolder labelled;
  const std::vector<int32_t> labels{3};
  weights::write_safetensors(labelled.at("a.safetensors"),
                             {{"latents", "F16", {1, 2, 2, 3}, half.data()}, {"labels", "I32", {1}, labels.data()}});
  CHECK(load(*open_shards(labelled.path(), 4), 0) == constant(1.5f, 3));
}

TEST_CASE("shards that do not go with the model or with each other are refused by name") {
  const ScratchFolder dir;
  CHECK_THROWS_WITH(open_shards(dir.path(), 0), Contains("no latents in"));
  write_shard(dir.at("a.safetensors"), {.rows = 0});
  CHECK_THROWS_WITH(open_shards(dir.path(), 0), Contains("0 samples"));
  write_shard(dir.at("a.safetensors"), {.rows = 2, .labels = {0, 1}});

  const auto refused = [&](const ShardSpec& bad, const std::string& why) {
    write_shard(dir.at("b.safetensors"), bad);
    CHECK_THROWS_AS(open_shards(dir.path(), 2), InputError);
    CHECK_THROWS_WITH(open_shards(dir.path(), 2), Contains("b.safetensors") && Contains(why));
  };
  refused({.rows = 2, .labels = {0, 1}, .sample = {2, 3, 2}}, "[2, 2, 3, 2]");
  refused({.rows = 2, .labels = {0, 1}, .sample = {12}}, "[2, 12]");
  refused({.rows = 1, .labels = {0}, .sample = {2, 3, 2}}, "try model.in_channels and model.input_size");
  refused({.rows = 2}, "`labels` must be in all shards or in none");
  refused({.rows = 2, .labels = {0, 1}, .flips = true}, "`latents_flip` must be in all shards");
  refused({.rows = 2, .labels = {0}}, "`labels` does not go with");
  refused({.rows = 2, .labels = {0, -1}}, "label out of range at row 1; got -1");
  refused({.rows = 2, .labels = {0, int64_t{1} << 40}}, "label out of range at row 1");
  refused({.rows = 1, .labels = {0}, .dtype = "I32"}, "got I32");
  const std::vector<float> some(32);
  weights::write_safetensors(dir.at("b.safetensors"), {{"latents", "F32", {1, 4, 4, 2}, some.data()}}, {});
  CHECK_THROWS_WITH(open_shards(dir.path(), 2), Contains("[N, C, H, W], the channels before the pixels"));
  weights::write_safetensors(dir.at("b.safetensors"), {{"latent", "F32", {1, 2, 2, 3}, some.data()}}, {});
  CHECK_THROWS_WITH(open_shards(dir.path(), 2), Contains("no tensor 'latents'") && Contains("latents for latent"));
  dir.write("b.safetensors", "garbage");
  CHECK_THROWS_AS(open_shards(dir.path(), 2), InputError);
}

TEST_CASE("non-finite latents follow on_bad_file") {
  const ScratchFolder dir;
  write_shard(dir.at("a.safetensors"), {.rows = 1, .first = NAN});
  write_shard(dir.at("b.safetensors"), {.rows = 2, .first = 5});
  write_shard(dir.at("c.safetensors"), {.rows = 1, .first = INFINITY});
  CHECK_THROWS_WITH(load(*open_shards(dir.path(), 0), 0),
                    Contains("a.safetensors") && Contains("non-finite") && Contains("data.on_bad_file: skip"));
  const auto data = open_shards(dir.path(), 0, OnBadFile::kSkip);
  CHECK(load(*data, 0) == constant(5, 0));
  CHECK(load(*data, 3) == constant(5, 0));
  CHECK(data->bad_files() == 2);
}

TEST_CASE("mean and logvar are drawn anew by step and sample, and once by the number of the sample") {
  const ScratchFolder dir;
  const auto write = [&](const char* name, std::vector<float> logvar, const std::vector<std::string>& names) {
    std::vector<float> mean(2 * kElements);
    for (size_t i = 0; i < mean.size(); ++i) mean[i] = i < size_t(kElements) ? 1.f : 2.f;
    logvar.resize(mean.size(), logvar.back());
    std::vector<weights::TensorToWrite> tensors;
    for (const std::string& n : names)
      tensors.push_back({n, "F32", {2, 2, 2, 3}, n.starts_with("logvar") ? logvar.data() : mean.data()});
    weights::write_safetensors(dir.at(name), tensors);
    return open_shards(dir.at(name), 0, OnBadFile::kError, 2);
  };
  const auto drawn = [](const Dataset& data, int64_t index, const RandomKey& key) {
    Sample s;
    s.chw.resize(kElements);
    Condition condition;
    data.load(index, false, key, s.chw.data(), &condition);
    s.label = condition.label;
    return s.chw;
  };
  const auto data = write("a.safetensors", {std::log(9.f)}, {"mean", "logvar", "mean_flip", "logvar_flip"});
  CHECK_THAT(data->describe(), Contains(", flipped copies, drawn from mean and logvar"));
  const RandomKey key(7, Stream::kPosterior, 3, 5), other(7, Stream::kPosterior, 4, 5);
  const std::vector<float> x = drawn(*data, 1, key);
  for (int64_t i = 0; i < kElements; ++i) CHECK(x[size_t(i)] == Approx(2 * (2 + 3 * key.normal(uint64_t(i)))));
  CHECK(drawn(*data, 1, key) == x);
  CHECK(drawn(*data, 1, other) != x);
  CHECK(load(*data, 1) == load(*data, 1));
  CHECK(load(*data, 1).chw != x);
  // The clamp of the posterior: no deviation is left, or the largest one.
  CHECK(drawn(*write("b.safetensors", {-1e30f}, {"mean", "logvar"}), 0, key)[0] == Approx(2).epsilon(1e-5));
  CHECK(std::isfinite(drawn(*write("c.safetensors", {1e30f}, {"mean", "logvar"}), 0, key)[0]));

  CHECK_THROWS_WITH(write("d.safetensors", {0}, {"mean", "logvar", "latents"}), Contains("both `latents` and `mean`"));
  CHECK_THROWS_WITH(write("e.safetensors", {0}, {"mean"}), Contains("logvar"));
  CHECK_THROWS_WITH(write("f.safetensors", {0}, {"mean", "logvar", "mean_flip"}), Contains("go together"));
  CHECK_THROWS_WITH(drawn(*write("g.safetensors", {NAN}, {"mean", "logvar"}), 0, key),
                    Contains("non-finite value in `logvar`"));
  write_shard(dir.at("h.safetensors"), {.rows = 1});
  CHECK_THROWS_WITH(open_shards(dir.path(), 0), Contains("must be in all shards or in none"));
}

TEST_CASE("a factor of the config that the shards contradict is taken, with a warning") {
  const ScratchFolder dir;
  write_shard(dir.at("a.safetensors"), {.rows = 2, .metadata = {{"scale_factor", "0.18215"}}});
  const auto warnings_of = [&](std::optional<double> scale) {
    Config config;
    config.kind = find_kind("latents"), config.path = dir.path(), config.latent_scale = scale;
    log::open_file(dir / "log.txt");
    settle(config);
    open_dataset(config, kShape, 0, 0);
    log::close_file();
    const std::string text = get_file(dir / "log.txt");
    std::filesystem::remove(dir / "log.txt");
    return text;
  };
  const std::string text = warnings_of(1);
  CHECK_THAT(text, Contains("data.latent_scale is 1, but") && Contains("states the factor 0.18215"));
  CHECK(text.find("data.latent_scale is") == text.rfind("data.latent_scale is"));
  CHECK(warnings_of(0.18215).empty());
  CHECK(warnings_of({}).empty());
}

TEST_CASE("latents: bands of the config need shards that say of which tiles they are, and tiles are no latents") {
  const ScratchFolder scratch;
  write_shard(scratch.at("latents/a.safetensors"), {.rows = 2});
  Config config;
  config.kind = find_kind("latents"), config.path = scratch / "latents";
  config.bands = {"B2", "B3"}, config.scale_low = {0, 0}, config.scale_high = {1, 1};
  refused([&] { open_dataset(config, kShape, 0, 0); }, "data.number_type is not settled");
  refused([&] { settle(config); }, "data.bands is for latents of tiles");
  config.bands.clear();
  refused([&] { settle(config); }, "data.scale_low is for latents of tiles");

  Config tiles;
  tiles.kind = config.kind, tiles.path = scratch / "tiles";
  TestTiles().write(scratch.at("tiles/a.safetensors"));
  refused([&] { settle(tiles); },
          "a.safetensors] these are tiles, not latents; try data.kind: tiles, or ditdata encode "
          "--from " +
              tiles.path);
}

TEST_CASE("latents of tiles: a config learns from the shards what the tiles were, and others are refused") {
  const ScratchFolder scratch;
  TestTiles tiles{.metadata = {{"scale", "[1e-4, 1, 2]"}, {"offset", "[-0.1, 0, 0]"}, {"nodata", "[0, null, 7]"}}};
  tiles.write(scratch.at("tiles/a.safetensors"));
  Config of_tiles;
  of_tiles.kind = find_kind("tiles"), of_tiles.path = scratch / "tiles", of_tiles.bands = {"b04", "B2"};
  of_tiles.scaling = {ScalingFrom::kRange, 0.1, 400};
  settle_tiles(of_tiles);
  const std::map<std::string, std::string> facts = tile_facts(of_tiles);
  CHECK(facts.at("bands") == R"(["B4","B2"])");
  CHECK(facts.at("scale") == "[2.0,0.0001]");
  CHECK(facts.at("offset") == "[0.0,-0.1]");
  CHECK(facts.at("nodata") == "[7.0,0.0]");

  Config config;
  config.kind = find_kind("latents"), config.path = scratch / "latents";
  settle_tiles(config);  // what is not there, whoever opens it says
  write_shard(scratch.at("latents/a.safetensors"), {.rows = 2, .metadata = facts});
  CHECK_FALSE(has_scaling(config));
  settle_tiles(config);
  REQUIRE(has_scaling(config));
  CHECK(config.bands == of_tiles.bands);
  CHECK(config.scale_low == of_tiles.scale_low);
  CHECK(config.scale_high == of_tiles.scale_high);
  CHECK(config.number_type == images::PixelType::kU16);
  CHECK(config.number_scale == std::vector<double>{2, 1e-4});
  CHECK(config.number_offset == std::vector<double>{0, -0.1});
  settle_tiles(config);
  const auto data = open_dataset(config, kShape, 0, 0);
  CHECK_THAT(data->describe(), Contains("of tiles with digital numbers (u16): B4 0.1..400"));

  Config other = config;
  other.scale_high = {400, 401};
  refused([&] { settle_tiles(other); }, "tiles with another data.scale_high than the config has");
  other = config, other.bands = {"b4", "B02"};
  settle_tiles(other);
  CHECK(other.bands == of_tiles.bands);
  other.bands = {"B2", "B4"};
  refused([&] { settle_tiles(other); }, "another data.bands than the config has; got B2, B4, expected B4, B2");
  const auto refuse_shard = [&](const std::string& key, const std::string& value, const std::string& text) {
    auto changed = facts;
    changed[key] = value;
    write_shard(scratch.at("latents/a.safetensors"), {.rows = 2, .metadata = changed});
    Config fresh;
    fresh.kind = config.kind, fresh.path = config.path;
    refused([&] { settle_tiles(fresh); }, text);
  };
  refuse_shard("scale_low", R"([0, "x"])", "`scale_low` of latents of tiles is missing or damaged");
  refuse_shard("scale_low", "[0]", "1 and 2 numbers");
  refuse_shard("scale_low", "[400, 400]", "no width");
  refuse_shard("bands", R"(["B4", "B4"])", "two bands of one name");
  refuse_shard("bands", "{", "`bands` of latents of tiles is missing or damaged; got {");
  refuse_shard("number_type", R"("f64")", "no type of tiles");

  write_shard(scratch.at("latents/a.safetensors"), {.rows = 2, .metadata = facts});
  write_shard(scratch.at("latents/b.safetensors"), {.rows = 2});
  refused([&] { open_dataset(config, kShape, 0, 0); }, "b.safetensors] latents of other tiles: metadata `bands`");
}
