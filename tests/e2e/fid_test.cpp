// ditfid and ditimport as a person starts them.
#include <catch2/catch.hpp>

#include "ditrain/io/image.hpp"
#include "ditrain/io/npz.hpp"
#include "inputs.hpp"
#include "run.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

std::string golden(const std::string& name) { return std::string(DITRAIN_GOLDEN_DIR) + "/" + name; }

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
