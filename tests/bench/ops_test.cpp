#include "ditrain/bench/ops.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "ditrain/files/json.hpp"

using namespace ditrain;
using namespace ditrain::bench;
using Json = nlohmann::json;

TEST_CASE("ops: every operator has a row of the contract beside what limits it") {
  Harness harness(2, Effort::quick());
  bench_ops(harness, {.model = "S", .tokens = {16, 40}, .attention_rows = 80});
  const Json j = files::parse_json<Json>(to_json(harness.report()));
  std::set<std::string> names;
  for (const Json& row : j.at("rows")) {
    CAPTURE(files::json_text(row));
    const std::string name = row.at("name");
    names.insert(name);
    const bool attention = name.starts_with("attention");
    for (const char* key : {"median_s", "limit", "share"}) CHECK(row.at(key).get<double>() > 0);
    CHECK(row.at(attention ? "gflops" : "gb_s").get<double>() > 0);
    for (const char* key : {"rows", "cols"}) CHECK(row.contains(key) != attention);
    for (const char* key : {"tokens", "head_dim", "heads", "batch"}) CHECK(row.contains(key) == attention);
  }
  CHECK(names.size() == j.at("rows").size());
  for (const char* name :
       {"tanh-GELU forward", "tanh-GELU backward", "SiLU forward", "SiLU backward", "LayerNorm+modulate forward",
        "LayerNorm+modulate backward", "gate+residual forward", "gate+residual backward", "q_sample", "cast to bf16",
        "cast from bf16", "softmax forward", "softmax backward", "normals", "loss mse_vb and gradient", "AdamW+EMA",
        "attention forward T=16 D=64", "attention backward T=40 D=72"})
    CHECK(names.contains(name));
}

TEST_CASE("ops: the bytes of a row are those of its arrays") {
  Harness harness(1, Effort::quick());
  bench_ops(harness, {.model = "S", .tokens = {}});
  const auto words = [&](const std::string& name) {
    for (const Row& row : harness.report().rows)
      if (row.name == name) {
        const double elements =
            double(std::get<int64_t>(row.details[0].value) * std::get<int64_t>(row.details[1].value));
        return row.gb_s * 1e9 * row.time.median_s / elements / 4;
      }
    return 0.0;
  };
  CHECK(words("tanh-GELU forward") == Approx(2));   // read, write
  CHECK(words("tanh-GELU backward") == Approx(3));  // read, update
  CHECK(words("LayerNorm+modulate backward") == Approx(4));
  CHECK(words("sum of squares") == Approx(1));
  CHECK(words("cast to bf16") == Approx(1.5));
  CHECK(words("AdamW+EMA") == Approx(9));
}

TEST_CASE("ops: activations in bf16 are half the bytes") {
  Harness harness(2, Effort::quick());
  bench_ops(harness, {.model = "S", .precisions = {DType::kBF16}, .tokens = {16}, .attention_rows = 32});
  const Json j = files::parse_json<Json>(to_json(harness.report()));
  std::map<std::string, double> words;
  for (const Json& row : j.at("rows")) {
    CHECK(row.at("dtype") == "bf16");
    CHECK(row.at("share").get<double>() > 0);
    if (row.contains("rows"))
      words[row.at("name")] = row.at("gb_s").get<double>() * 1e9 * row.at("median_s").get<double>() / 4 /
                              (row.at("rows").get<double>() * row.at("cols").get<double>());
  }
  CHECK(words.at("tanh-GELU forward") == Approx(1));
  CHECK(words.at("LayerNorm+modulate forward") == Approx(1.5));
  CHECK(words.at("gate+residual forward") == Approx(2.5));
  CHECK(words.at("AdamW+EMA") == Approx(9.5));
}
