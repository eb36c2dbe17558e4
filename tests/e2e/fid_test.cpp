// ditfid and ditimport as a person starts them.
#include <catch2/catch.hpp>

#include "ditrain/images/image.hpp"
#include "ditrain/weights/npz.hpp"
#include "inputs.hpp"
#include "run.hpp"
#include "support/inception_weights.hpp"
#include "support/npz.hpp"
#include "weights/zip_bytes.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

std::string golden(const std::string& name) { return DITRAIN_GOLDEN_DIR "/" + name; }

void write_images(const std::string& path, int64_t n, const std::string& key) {
  ditrain::test::write_noise(path, n, 127.5, 127.5, key);
}

/// A header, and 48 bytes.
void write_npy(const std::string& path, const std::string& type, const std::string& shape) {
  std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  header.append(117 - header.size(), ' ');
  write_file(path, std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + "\n" + std::string(48, 'x'));
}

}  // namespace

TEST_CASE("ditimport: lists the tensors of files of PyTorch and of safetensors, and refuses programs by their name") {
  const TemporaryFolder scratch;
  const std::string json = scratch / "list.json";
  const Result listed =
      require_ok(program("ditimport", {"--from", golden("pt_files/train.pt"), "--list", "--json", json}));
  CHECK_THAT(listed.out,
             Contains("[16, 3, 2, 2]") && Contains("\"model/x_embedder.proj.weight\"") && Contains("107 tensors in "));
  const auto tensors = read_json(json).at("tensors");
  const auto expected = read_json(golden("pt_files/expected.json"));
  CHECK(tensors == expected.at("files").at("train.pt").at("tensors"));
  REQUIRE_EXIT(run(program("ditimport", {"--list", golden("pos_embed.safetensors")})), 0);

  require_error(
      program("ditimport", {"--list", golden("pt_files/hostile/os_system.pt"), "--json", scratch / "no.json"}),
      {"ditimport: error: [", "the global 'os.system', which is not data"});
  CHECK(!fs::exists(scratch / "no.json"));
  require_error(program("ditimport", {"--from", golden("pos_embed.safetensors")}), {"--out is needed"});
}

TEST_CASE("ditfid: measures pixels, says by which protocol, and refuses what would be no honest number") {
  const TemporaryFolder scratch;
  write_images(scratch / "a.npz", 200, "1");
  write_images(scratch / "b.npz", 200, "2");
  const Args sides = {"--real", scratch / "a.npz", "--generated", scratch / "b.npz"};
  const Result measured = require_ok(program("ditfid", sides + Args{"--features", "pixels", "--metrics", "fid,kid,pr",
                                                                    "--json", scratch / "fid.json", "--threads", "2"}));
  CHECK_THAT(measured.out, Contains("fid/pixels") && Contains("not comparable with published FIDs"));
  const auto json = read_json(scratch / "fid.json");
  CHECK(json.at("fid") > 0);
  CHECK(json.at("sfid").is_null());
  CHECK(json.at("precision") > 0);
  CHECK_THAT(std::string(json.at("protocol")), Contains("features pixels (48 values of 4x4x3 pixels"));

  require_error(program("ditfid", sides + Args{"--features", "inception"}),
                {"ditfid: error: [features] features of the Inception network need its weights"});
  write_images(scratch / "few.npz", 20, "3");
  const Args few = {"--real", scratch / "a.npz", "--generated", scratch / "few.npz", "--features", "pixels"};
  require_error(program("ditfid", few), {"too few generated images for 48 dimensions", "--allow-small"});
  const Result allowed = require_ok(program("ditfid", few + Args{"--allow-small"}));
  CHECK_THAT(allowed.err, Contains("20 generated images for 48 dimensions"));
  require_error(program("ditfid", sides + Args{"--features", "pixels", "--metrics", "fid,kdi"}), {"'kdi'", "try kid"});
  require_error(program("ditfid", sides + Args{"--metrics", "bands", "--weights", "w.pth"}),
                {"got --metrics bands, which needs no features"});
}

TEST_CASE("ditfid: --features auto measures pixels and says so, but not in place of what needs the network") {
  const TemporaryFolder scratch;
  write_images(scratch / "a.npz", 200, "1");
  write_images(scratch / "b.npz", 200, "2");
  const Args sides = {"--real", scratch / "a.npz", "--generated", scratch / "b.npz"};
  const Result pixels = require_ok(program("ditfid", sides + Args{"--save-statistics", scratch / "statistics.npz"}));
  CHECK_THAT(pixels.out, Contains("features: pixels, because no --weights are given") && Contains("fid/pixels") &&
                             Contains("not comparable with published FIDs"));
  const std::vector<Args> of_the_network = {
      {"--preset", "adm"}, {"--precision", "bf16"}, {"--metrics", "fid,is"}, {"--metrics", "sfid"}};
  for (const Args& more : of_the_network) {
    require_error(program("ditfid", sides + more), {"features of the Inception network need its weights"});
  }
  const Result own =
      require_ok(program("ditfid", {"--real", scratch / "statistics.npz", "--generated", scratch / "b.npz"}));
  CHECK_THAT(own.out, Contains("features: pixels") && Contains("fid/pixels"));
  // Those of another tool do not say what they are of.
  const double mu[2] = {0, 0}, sigma[4] = {1, 0, 0, 1};
  ditrain::weights::write_npz_f64(scratch / "published.npz", {{"mu", {2}, mu}, {"sigma", {2, 2}, sigma}});
  require_error(program("ditfid", {"--real", scratch / "published.npz", "--generated", scratch / "b.npz"}),
                {"features of the Inception network need its weights"});
  require_error(program("ditfid", sides + Args{"--features", "pixel"}),
                {"--features", "inception, pixels or auto; try pixels"});
}

TEST_CASE("ditfid: bad files are exit 2 with a message that names them") {
  const TemporaryFolder scratch;
  const std::string good = scratch / "good.npz", two = scratch / "two.npz", asymmetric = scratch / "asymmetric.npz";
  write_images(good, 60, "1");
  const double mu[] = {1, 2}, sigma[] = {1, 0, 0, 1}, other[] = {1, 0.5, 0.1, 1}, nan[] = {1, NAN, NAN, 1};
  ditrain::weights::write_npz_f64(two, {{"mu", {2}, mu}, {"sigma", {2, 2}, sigma}});
  ditrain::weights::write_npz_f64(asymmetric, {{"mu", {2}, mu}, {"sigma", {2, 2}, other}});
  ditrain::weights::write_npz_f64(scratch / "nan.npz", {{"mu", {2}, mu}, {"sigma", {2, 2}, nan}});
  ditrain::weights::write_npz_f64(scratch / "keys.npz", {{"images", {2}, mu}});
  ditrain::weights::write_npz_f64(scratch / "mu.npz", {{"mu", {2}, mu}});
  write_npy(scratch / "object.npy", "|O", "1, 4, 4, 3"), write_npy(scratch / "short.npy", "|u1", "2, 4, 4, 3");
  const std::string mixed = scratch / "mixed";
  for (const char* name : {"classes", "classes/a", "classes/b", "mixed"}) fs::create_directory(scratch / name);
  for (int64_t i = 0; i < 3; ++i) {
    const ditrain::images::ImageU8 image{8, 8 + i, 3, std::vector<uint8_t>(size_t(24 * (8 + i)), uint8_t(i))};
    ditrain::images::write_png(mixed + "/" + std::to_string(i) + ".png", image);
  }
  fs::copy(mixed + "/0.png", scratch / "classes/a/0.png");
  const std::vector<std::array<std::string, 3>> cases = {
      {good, scratch / "keys.npz", "keys.npz] there is no array 'arr_0'; got 'images'"},
      {scratch / "mu.npz", good, "mu.npz] there is no array 'sigma'; got 'mu'"},
      {good, scratch / "object.npy", "objects are not read: only a pickle could"},
      {good, scratch / "short.npy", "more or fewer bytes than its shape says; got 48, expected 96"},
      {two, good, "good.npz] the two sides have features of different dimensions; got 48, expected 2"},
      {two, asymmetric, "asymmetric.npz] 'sigma' is no covariance: it is not symmetric"},
      {two, scratch / "nan.npz", "nan.npz] 'sigma' holds numbers that are not finite"},
      {good, scratch / "classes", "classes] the class 'b' has no images"},
      {mixed, mixed, "features of pixels need images of one size"},
      {good, scratch / "nowhere", "nowhere] there is no such folder or file"}};
  for (const auto& [real, generated, message] : cases) {
    CAPTURE(message);
    require_error(program("ditfid", {"--real", real, "--generated", generated, "--features", "pixels", "--allow-small",
                                     "--threads", "1"}),
                  {"ditfid: error: [", message});
  }
  require_error(program("ditfid", {"--real", good, "--generated", good, "--features", "pixels", "--precision", "bf16"}),
                {"--precision are of inception features"});
}

TEST_CASE("ditfid: memory for the images that a small file claims is refused before it is taken") {
  const TemporaryFolder scratch;
  const std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000, 1, 1, 3), }";
  ditrain::test::ZipPart part =
      ditrain::test::packed("arr_0.npy", std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header +
                                             std::string(117 - header.size(), ' ') + "\n" + std::string(1 << 16, '\0'));
  part.bytes = 128 + 3'000'000'000;
  part.packed.resize(part.bytes / 1032 + 1);  // so small may it be when it is compressed
  write_file(scratch / "many.npz", ditrain::test::make_zip({part}));
  write_images(scratch / "few.npz", 60, "1");
  for (const char* real : {"few.npz", "many.npz"}) {
    const Result refused = run(program("ditfid", {"--real", scratch / real, "--generated", scratch / "many.npz",
                                                  "--features", "pixels", "--allow-small", "--threads", "1"}),
                               {.max_data_bytes = int64_t{4} << 30});
    CAPTURE(real, refused.text());
    CHECK(refused.exit_code == 2);
    CHECK_THAT(refused.err, Contains("many.npz") && Contains("1000000000 images") && Contains("RLIMIT_DATA"));
    CHECK(refused.peak_bytes < int64_t{1} << 30);
  }
}

TEST_CASE("ditfid: ranks share the images of the network, and any number of them gives the same numbers") {
  const TemporaryFolder scratch;
  ditrain::test::write_inception_weights(scratch / "weights.safetensors");
  uint32_t seed = 1;
  for (const char* side : {"real", "fake"}) {
    fs::create_directory(scratch / side);
    for (int64_t i = 0; i < 5; ++i) {  // of several sizes: the preset resizes
      ditrain::images::ImageU8 image{20 + 7 * i, 33 - i, 3, {}};
      for (int64_t k = 0; k < image.width * image.height * 3; ++k)
        image.pixels.push_back(uint8_t((seed = seed * 1664525u + 1013904223u) >> 24));
      ditrain::images::write_png(scratch / (side + ("/" + std::to_string(i) + ".png")), image);
    }
  }
  const auto measure = [&](const std::string& json) {
    return program("ditfid", {"--real", scratch / "real", "--generated", scratch / "fake", "--weights",
                              scratch / "weights.safetensors", "--metrics", "kid,is,pr", "--threads", "1", "--json",
                              scratch / json});
  };
  const Result alone = require_ok(measure("one.json"));
  CHECK_THAT(alone.out, Contains("kid ") && Contains("precision ") && Contains("5 images in the folder"));
  REQUIRE_EXIT(run(mpirun(2, measure("two.json"))), 0);
  CHECK(same_file(scratch / "two.json", scratch / "one.json"));
}

TEST_CASE("eval.fid_every_steps: the same distances on any number of ranks, and a link to the best checkpoint") {
  const TemporaryFolder scratch;
  const Args fid =
      sets({"eval.fid_every_steps=2", "eval.fid_samples=12", "sample.steps=2", "data.num_images=40",
            "checkpoint.keep_last=1", "model.input_size=8", "dist.reproducible=true", "train.micro_batch=4"});
  const std::string one = scratch / "one", two = scratch / "two";
  const Result alone = require_ok(tiny_ditrain(one, 6, fid));
  const auto metrics = read_metrics(one);
  REQUIRE(metrics.size() == 6);
  double best = 1e30;
  int64_t best_step = 0;
  for (size_t i = 0; i < 6; ++i) {
    CHECK(metrics[i].contains("fid_pixels") == (i % 2 == 1));
    if (i % 2 == 0) continue;
    const double value = metrics[i].at("fid_pixels");
    CHECK(value > 0);
    if (value < best) best = value, best_step = int64_t(i) + 1;
  }
  const std::string link = one + "/checkpoints/best";
  CHECK(fs::read_symlink(link).string() == fs::path(checkpoint_of(one, best_step)).filename().string());
  CHECK(fs::exists(link + "/ema.safetensors"));
  CHECK_THAT(alone.out, Contains("samples are compared with 40 images of the data") && Contains("best fid_pixels: "));

  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(two, 6, fid))), 0);
  for (const size_t i : {1, 3, 5}) CHECK(read_metrics(two)[i].at("fid_pixels") == metrics[i].at("fid_pixels"));

  REQUIRE_EXIT(run(tiny_ditrain(one, 8, fid + Args{"--resume", "auto"})), 0);
  CHECK(read_metrics(one).size() == 8);
  CHECK(checkpoints(one).back() == 8);
  const double last = read_metrics(one)[7].at("fid_pixels");
  CHECK(fs::read_symlink(link).string() ==
        fs::path(checkpoint_of(one, last < best ? 8 : best_step)).filename().string());

  // A distance takes long: the steps before it are on disk when it begins.
  REQUIRE_EXIT(
      run(tiny_ditrain(scratch / "kept", 6, fid + sets({"checkpoint.every_steps=0", "checkpoint.keep_last=9"}))), 0);
  CHECK(checkpoints(scratch / "kept") == std::vector<int64_t>{2, 4, 6});

  const Result other =
      require_ok(tiny_ditrain(one, 10, fid + sets({"eval.fid_samples=10"}) + Args{"--resume", "auto"}));
  CHECK_THAT(other.out, Contains("the best checkpoint is chosen anew"));  // distances of other samples
  CHECK(fs::read_symlink(link).string() == fs::path(checkpoint_of(one, 10)).filename().string());

  const Result done = require_ok(tiny_ditrain(one, 10, fid + sets({"eval.fid_samples=10"}) + Args{"--resume", "auto"}));
  CHECK_THAT(done.out, Contains("nothing to do") && Contains("best fid_pixels: ") && !Contains("are compared with"));

  require_error(tiny_ditrain(scratch / "no", 2, fid + sets({"eval.features=inception"})), {"--set eval.weights=FILE"});
  const std::string small = scratch / "small.npz";
  write_images(small, 20, "1");
  const Args reference = {"--set", "eval.reference=" + small};
  require_error(tiny_ditrain(scratch / "other", 2, fid + reference), {"features of other dimensions"});
  const std::string lines = scratch / "other" + "/metrics.jsonl";
  CHECK((!fs::exists(lines) || fs::file_size(lines) == 0));  // refused before the first step
}
