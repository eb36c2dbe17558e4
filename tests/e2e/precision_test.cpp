// train.precision and section kernels as a person uses them: what a run says of its products, that bf16 learns like
// f32, what may change when a run goes on, and tuning files.
#include <algorithm>
#include <catch2/catch.hpp>

#include "ditrain/base/dtype.hpp"
#include "ditrain/base/pattern.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/images/image.hpp"
#include "ditrain/platform/cpu.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "learning.hpp"
#include "run.hpp"
#include "support/skip.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

bool has_bf16_products() {
  const auto& cpu = ditrain::platform::cpu_features();
  return cpu.avx512_bf16 || cpu.amx_bf16 || cpu.sve2;
}

Args precision(const std::string& name) { return sets({"train.precision=" + name}); }

/// The first line of the file that begins with `start`; "" if none does.
std::string line_of(const std::string& path, const std::string& start) {
  const std::string text = "\n" + read_file(path);
  const size_t at = text.find("\n" + start);
  return at == text.npos ? "" : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
}

/// {type, GFLOP/s} of the log's "FMA peak (TYPE) of N thread(s): X GFLOP/s".
std::pair<std::string, double> logged_peak(const std::string& log) {
  const ditrain::Pattern pattern(R"(FMA peak \(([a-z0-9]+)\) of [0-9]+ thread\(s\): ([0-9.]+) GFLOP/s)");
  const ditrain::Pattern::Match match = pattern.find(log);
  return match ? std::pair{match.groups[1], std::stod(match.groups[2])} : std::pair{std::string(), 0.0};
}

}  // namespace

TEST_CASE("a run says which kernels and products it uses, in its log and in topology.txt") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const RunOptions no_tuning{.environment = {"DITRAIN_TUNING=" + scratch / "none.json"}};
  REQUIRE_EXIT(run(tiny_ditrain(out, 1), no_tuning), 0);
  for (const std::string file : {"/log.txt", "/topology.txt"}) {
    const std::string text = read_file(out + file);
    INFO(file << ":\n" << text);
    for (const char* part : {"kernels: ", "gemm: ", "attention: ", "elementwise: ", "products: own, fused; blocks ",
                             " derived from caches (no tuning file "})
      CHECK_THAT(text, Contains(part));
  }
  const std::string plain = scratch / "plain";
  REQUIRE_EXIT(run(tiny_ditrain(plain, 1, sets({"kernels.gemm=ref", "kernels.tuned=off"}))), 0);
  CHECK_THAT(line_of(plain + "/topology.txt", "products: "),
             Contains("products: ref, passes around them; blocks ") && Contains("(kernels.tuned: off)"));
}

TEST_CASE("mfu is a share of the peak of the precision in use") {
  const TemporaryFolder scratch;
  for (const std::string type : {"f32", "bf16"}) {
    const std::string out = scratch / type;
    REQUIRE_EXIT(run(tiny_ditrain(out, 3, precision(type))), 0);
    const auto [peak_type, gflops] = logged_peak(read_file(out + "/log.txt"));
    CHECK(peak_type == (has_bf16_products() ? type : "f32"));
    const auto metrics = read_metrics(out);
    CHECK(steps_are_complete(metrics, 3));
    for (const auto& line : metrics)
      CHECK(line.at("tflops").get<double>() / line.at("mfu").get<double>() == Approx(1e-3 * gflops).epsilon(1e-3));
  }
}

TEST_CASE("bf16 where f32 would be faster: a warning, with --strict an error") {
  if (!ditrain::platform::cpu_features().avx2_fma) SKIP("this CPU lacks avx2");
  const TemporaryFolder scratch;
  const RunOptions avx2{.environment = {"DITRAIN_ISA=avx2"}};
  const std::string warning = "this CPU has no bf16 products: less memory, but f32 would be faster";
  const Result warned = require_ok(tiny_ditrain(scratch / "warned", 2, precision("bf16")), avx2);
  CHECK_THAT(warned.out + warned.err, Contains(warning));
  CHECK_THAT(read_file(scratch / "warned" + "/topology.txt"), Contains("note: ") && Contains(warning));
  CHECK(logged_peak(read_file(scratch / "warned" + "/log.txt")).first == "f32");

  const Result strict = run(tiny_ditrain(scratch / "strict", 2, precision("bf16") + Args{"--strict"}), avx2);
  REQUIRE_EXIT(strict, 2);
  CHECK_THAT(strict.err, Contains("[strict] fallbacks are not allowed") && Contains(warning));
  const Result f32 = require_ok(tiny_ditrain(scratch / "f32", 2, precision("f32")), avx2);
  CHECK_THAT(f32.out + f32.err, !Contains("would be faster"));
}

TEST_CASE("resume: a run in bf16 goes on bit for bit, and its checkpoints hold f32 and may be sampled") {
  const TemporaryFolder scratch;
  const std::string whole = scratch / "whole", parts = scratch / "parts";
  const Args bf16 = precision("bf16");
  REQUIRE_EXIT(run(tiny_ditrain(whole, 10, bf16)), 0);
  REQUIRE_EXIT(run(tiny_ditrain(parts, 5, bf16)), 0);
  REQUIRE_EXIT(run(tiny_ditrain(parts, 10, bf16 + Args{"--resume", "auto"})), 0);
  CHECK(different_files(checkpoint_of(parts, 10), checkpoint_of(whole, 10)).empty());
  CHECK(column(read_metrics(parts), "loss") == column(read_metrics(whole), "loss"));

  bool beyond_bf16 = false;  // a weight that bf16 could not hold
  const ditrain::weights::SafetensorsFile model(checkpoint_of(whole, 10) + "/model.safetensors");
  for (const auto& tensor : model.tensors()) {
    CHECK(tensor.dtype == "F32");
    for (const float v : ditrain::weights::to_f32(tensor)) beyond_bf16 |= ditrain::to_f32(ditrain::to_bf16(v)) != v;
  }
  CHECK(beyond_bf16);
  REQUIRE_EXIT(
      run(program("ditsample", {"--checkpoint", whole, "--out", scratch / "samples", "--num", "2", "--steps", "2"})),
      0);
  CHECK(fs::exists(scratch / "samples/000001.png"));
}

TEST_CASE("samples in bf16 are those in f32 but for roundings, whatever guides them") {
  const TemporaryFolder scratch;
  const std::string whole = scratch / "run";
  REQUIRE_EXIT(run(tiny_ditrain(whole, 60,
                                sets({"model.depth=4", "train.routing=[{ratio: 0.5, from: 1, to: 3}]",
                                      "checkpoint.every_steps=30", "checkpoint.keep_last=2"}))),
               0);
  std::vector<std::vector<uint8_t>> exact, rounded;  // of each guide
  for (const std::string& guide : {std::string("none"), std::string("routed"), checkpoint_of(whole, 30)})
    for (auto* drawn : {&exact, &rounded}) {
      const std::string out = scratch / "samples";
      fs::remove_all(out);
      REQUIRE_EXIT(
          run(program("ditsample", {"--checkpoint", whole, "--guide", guide, "--cfg-scale", "3", "--precision",
                                    drawn == &rounded ? "bf16" : "f32", "--num", "2", "--steps", "4", "--out", out})),
          0);
      drawn->push_back(ditrain::images::read_image(out + "/000001.png").pixels);
    }
  const auto difference = [](const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {  // in levels, the mean
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += std::abs(int(a[i]) - int(b[i]));
    return sum / double(a.size());
  };
  for (size_t i = 0; i < exact.size(); ++i) {
    const double own = difference(rounded[i], exact[i]);
    CHECK(own > 0);
    CHECK(own < 2);
    for (size_t other = 0; other < exact.size(); ++other) {
      CAPTURE(i, other, own, difference(rounded[i], exact[other]));
      if (other != i) CHECK(difference(rounded[i], exact[other]) > 5 * own);
    }
  }
}

TEST_CASE(
    "resume: tuning and fusing may change, in f32 without a bit of difference, and precision and products may not") {
  const TemporaryFolder scratch;
  const std::string whole = scratch / "whole", parts = scratch / "parts";
  REQUIRE_EXIT(run(tiny_ditrain(whole, 6)), 0);
  REQUIRE_EXIT(run(tiny_ditrain(parts, 3)), 0);
  const auto before = folder_content(parts);
  for (const std::string set : {"train.precision=bf16", "kernels.gemm=ref"}) {
    require_error(tiny_ditrain(parts, 6, sets({set}) + Args{"--resume", "auto"}),
                  {"[resume] ", set.substr(0, set.find('=')) + ": was "});
  }
  CHECK(folder_content(parts) == before);
  const Args other = sets({"kernels.fuse=false", "kernels.tuned=off"}) + Args{"--resume", "auto"};
  const Result resumed = require_ok(tiny_ditrain(parts, 6, other));
  CHECK_THAT(resumed.out, Contains("products: own, passes around them"));
  CHECK(different_files(checkpoint_of(parts, 6), checkpoint_of(whole, 6)).empty());

  const std::string bf16 = scratch / "bf16";
  REQUIRE_EXIT(run(tiny_ditrain(bf16, 2, precision("bf16"))), 0);
  const Result moved = require_ok(tiny_ditrain(bf16, 4, precision("bf16") + other));
  CHECK_THAT(moved.out + moved.err, Contains("kernels.fuse was true before") && Contains("not continue bit for bit"));
}

TEST_CASE(
    "resume: a checkpoint of a run with another library's products is refused, and the message says what is left") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run", state = checkpoint_of(out, 2) + "/state.json";
  REQUIRE_EXIT(run(tiny_ditrain(out, 2)), 0);
  auto json = read_json(state);
  std::string config = json.at("config");
  const size_t at = config.find("gemm: own");
  REQUIRE(at != config.npos);
  json["config"] = config.replace(at, 9, "gemm: onednn");
  for (const char* key : {"format", "files", "checksum"}) json.erase(key);  // as versions before checksums
  write_file(state, ditrain::files::json_text(json, 2));
  const auto before = folder_content(out);
  require_error(
      tiny_ditrain(out, 4, {"--resume", "auto"}),
      {"[config] " + checkpoint_of(out, 2) + ":", "kernels.gemm: bad value; got 'onednn', expected own or ref"});
  CHECK(folder_content(out) == before);
}

TEST_CASE("ditbench tune writes a file that the next run uses, and other blocks give the same bits") {
  const TemporaryFolder scratch;
  const std::string file = scratch / "config/tuning.json", other = scratch / "other.json";
  const RunOptions here{.environment = {"DITRAIN_TUNING=" + file}};
  const Result tuned =
      require_ok(program("ditbench", {"tune", "--model", "S", "--batch", "1", "--quick", "--threads", "2"}), here);
  CHECK_THAT(tuned.out, Contains("fastest: blocks ") &&
                            Contains("written to " + file + ": ditrain takes it from there (kernels.tuned: auto)"));
  auto json = read_json(file);
  const std::string blocks = "blocks " + std::to_string(json.at("gemm").at("block_rows").get<int>()) + " x " +
                             std::to_string(json.at("gemm").at("block_cols").get<int>());
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "tuned", 3), here), 0);
  CHECK_THAT(line_of(scratch / "tuned" + "/topology.txt", "products: "), Contains(blocks + " from " + file));

  json["gemm"] = {{"block_rows", 17}, {"block_cols", 33}};
  write_file(other, ditrain::files::json_text(json));
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "odd", 3, sets({"kernels.tuned=" + other}))), 0);
  CHECK_THAT(line_of(scratch / "odd" + "/topology.txt", "products: "), Contains("blocks 17 x 33 from " + other));
  CHECK(different_files(checkpoint_of(scratch / "odd", 3), checkpoint_of(scratch / "tuned", 3)).empty());

  write_file(other, "{");
  require_error(tiny_ditrain(scratch / "damaged", 3, sets({"kernels.tuned=" + other})),
                {"[tuning] " + other, "ditbench tune"});
}

TEST_CASE("a run in bf16 learns like one in f32", "[long]") {
  const TemporaryFolder scratch;
  // Curves drift apart after any change, the faster the higher the rate: measured over these steps, smoothed, bf16 is
  // within 0.4 % (and at a rate of 1e-3 within 2.3 %); an f32 run whose first weights were rounded to bf16 once is
  // within 1.0 % (1.7 %).
  const Args calm = sets({"model.hidden_size=64", "model.num_heads=4", "train.global_batch=16", "optimizer.lr=3e-4"});
  for (const std::string type : {"f32", "bf16"})
    REQUIRE_EXIT(run(tiny_ditrain(scratch / type, 300, calm + precision(type)), {.timeout_s = 250}), 0);
  const std::vector<double> f32 = smoothed_loss(scratch / "f32", 25), bf16 = smoothed_loss(scratch / "bf16", 25);
  CHECK(f32.back() < 0.2 * f32.front());  // there is something to follow
  const double apart = largest_relative_difference(bf16, f32);
  CHECK(apart > 0);
  CHECK(apart < 0.02);
  WARN("loss " << f32.front() << " -> " << f32.back() << "; bf16 within " << 100 * apart << " %");
}
