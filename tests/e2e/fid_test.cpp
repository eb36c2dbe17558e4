// ditfid and ditimport as a person starts them.
#include <catch2/catch.hpp>

#include "ditrain/io/image.hpp"
#include "ditrain/io/npz.hpp"
#include "inputs.hpp"
#include "run.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

std::string golden(const std::string& name) { return DITRAIN_GOLDEN_DIR "/" + name; }

void write_images(const std::string& path, int64_t n, uint32_t seed) {
  ditrain::io::NpzU8Writer writer(path, "arr_0", {n, 4, 4, 3});
  std::vector<uint8_t> data;
  for (int64_t i = 0; i < n * 48; ++i) data.push_back(uint8_t((seed = seed * 1664525u + 1013904223u) >> 24));
  writer.append(data.data(), data.size());
  writer.finish();
}

}  // namespace

TEST_CASE("ditimport: lists the tensors of files of PyTorch and of safetensors, and refuses programs by their name") {
  const TemporaryFolder scratch;
  const std::string json = scratch / "list.json";
  const Result listed = run(program("ditimport", {"--from", golden("pt_files/train.pt"), "--list", "--json", json}));
  REQUIRE_EXIT(listed, 0);
  CHECK_THAT(listed.out,
             Contains("[16, 3, 2, 2]") && Contains("\"model/x_embedder.proj.weight\"") && Contains("107 tensors in "));
  const auto tensors = nlohmann::json::parse(read_file(json)).at("tensors");
  const auto expected = nlohmann::json::parse(read_file(golden("pt_files/expected.json")));
  CHECK(tensors == expected.at("files").at("train.pt").at("tensors"));
  REQUIRE_EXIT(run(program("ditimport", {"--list", golden("pos_embed.safetensors")})), 0);

  const Result refused =
      run(program("ditimport", {"--list", golden("pt_files/hostile/os_system.pt"), "--json", scratch / "no.json"}));
  REQUIRE_EXIT(refused, 2);
  CHECK_THAT(refused.err, Contains("ditimport: error: [") && Contains("the global 'os.system', which is not data"));
  CHECK(!fs::exists(scratch / "no.json"));
  const Result usage = run(program("ditimport", {"--from", golden("pos_embed.safetensors")}));
  REQUIRE_EXIT(usage, 2);
  CHECK_THAT(usage.err, Contains("--out is needed"));
}

TEST_CASE("ditfid: measures pixels, says by which protocol, and refuses what would be no honest number") {
  const TemporaryFolder scratch;
  write_images(scratch / "a.npz", 200, 1);
  write_images(scratch / "b.npz", 200, 2);
  const Args sides = {"--real", scratch / "a.npz", "--generated", scratch / "b.npz"};
  const Result measured = run(program("ditfid", sides + Args{"--features", "pixels", "--metrics", "fid,kid,pr",
                                                             "--json", scratch / "fid.json", "--threads", "2"}));
  REQUIRE_EXIT(measured, 0);
  CHECK_THAT(measured.out, Contains("fid/pixels") && Contains("not comparable with published FIDs"));
  const auto json = nlohmann::json::parse(read_file(scratch / "fid.json"));
  CHECK(json.at("fid") > 0);
  CHECK(json.at("sfid").is_null());
  CHECK(json.at("precision") > 0);
  CHECK_THAT(std::string(json.at("protocol")), Contains("features pixels (48 values of 4x4x3 pixels"));

  const Result inception = run(program("ditfid", sides));
  REQUIRE_EXIT(inception, 2);
  CHECK_THAT(inception.err, Contains("ditfid: error: [features] features of the Inception network need its weights"));
  write_images(scratch / "few.npz", 20, 3);
  const Args few = {"--real", scratch / "a.npz", "--generated", scratch / "few.npz", "--features", "pixels"};
  const Result small = run(program("ditfid", few));
  REQUIRE_EXIT(small, 2);
  CHECK_THAT(small.err, Contains("too few generated images for 48 dimensions") && Contains("--allow-small"));
  const Result allowed = run(program("ditfid", few + Args{"--allow-small"}));
  REQUIRE_EXIT(allowed, 0);
  CHECK_THAT(allowed.err, Contains("20 generated images for 48 dimensions"));
  const Result metric = run(program("ditfid", sides + Args{"--features", "pixels", "--metrics", "fid,kdi"}));
  REQUIRE_EXIT(metric, 2);
  CHECK_THAT(metric.err, Contains("'kdi'") && Contains("try kid"));
}

TEST_CASE("eval.fid_every_steps: the same distances on any number of ranks, and a link to the best checkpoint") {
  const TemporaryFolder scratch;
  const Args fid =
      sets({"eval.fid_every_steps=2", "eval.fid_samples=12", "sample.steps=2", "data.num_images=40",
            "checkpoint.keep_last=1", "model.input_size=8", "dist.reproducible=true", "train.micro_batch=4"});
  const std::string one = scratch / "one", two = scratch / "two";
  const Result alone = run(tiny_ditrain(one, 6, fid));
  REQUIRE_EXIT(alone, 0);
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
  const double last = read_metrics(one)[7].at("fid_pixels");
  CHECK(fs::read_symlink(link).string() ==
        fs::path(checkpoint_of(one, last < best ? 8 : best_step)).filename().string());

  const Result no_weights = run(tiny_ditrain(scratch / "no", 2, fid + sets({"eval.features=inception"})));
  REQUIRE_EXIT(no_weights, 2);
  CHECK_THAT(no_weights.err, Contains("--set eval.weights=FILE"));
  const std::string small = scratch / "small.npz";
  write_images(small, 20, 1);
  const Args reference = {"--set", "eval.reference=" + small};
  const Result other_size = run(tiny_ditrain(scratch / "other", 2, fid + reference));
  CHECK(other_size.exit_code != 0);
  CHECK_THAT(other_size.err, Contains("features of other dimensions"));
}
