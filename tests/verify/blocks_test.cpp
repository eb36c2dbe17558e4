// The fixture of single blocks: what is compared, what is left out, and that its inputs matter.
#include <catch2/catch.hpp>
#include <set>
#include <sstream>

#include "ditrain/base/error.hpp"
#include "ditrain/verify/verify.hpp"
#include "editable_fixture.hpp"

using namespace ditrain;
using namespace ditrain::verify;
using test::EditableFixture;
using test::run;

namespace {

bool begins_with_one_of(const std::string& name, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const std::string& p) { return name.starts_with(p); });
}

}  // namespace

TEST_CASE("blocks: the variants that we have are compared in full, the others are named") {
  const EditableFixture fixture(test::golden_path("blocks"));
  const Report report = run(fixture);
  CHECK(report.passed);
  std::set<std::string> compared, expected;
  for (const Comparison& c : report.comparisons) compared.insert(c.tensor);
  for (const auto& [name, entry] : fixture.tensors)
    if (begins_with_one_of(name, {"base.", "qknorm_ln.", "qknorm_rms.", "rmsnorm.", "swiglu.", "rope.out", "rope.d",
                                  "rope.grad.", "all."}))
      expected.insert(name);
  CHECK(expected.size() == 2 * (7 * 3 + 10 + 14 + 12 + 12 + 10 + 10 + 14));
  CHECK(compared == expected);
  REQUIRE(report.left_out.size() == 4);
  std::ostringstream text;
  print(text, report);
  for (const char* part : {"rope.cos* (1 tensors)", "rope.sin*", "cfg.hidden* (1", "wo_shift.*"})
    CHECK_THAT(text.str(), Catch::Contains(std::string("left out: ") + part));
  CHECK_THAT(to_json({report}), Catch::Contains("\"left_out\": ["));
}

TEST_CASE("blocks: a changed input, seed or number of heads is found") {
  for (const char* input : {"x", "c", "dout"}) {
    EditableFixture fixture(test::golden_path("blocks"));
    fixture.shift(input, 7, 0.25);
    INFO(input);
    CHECK_FALSE(run(fixture).passed);
  }
  EditableFixture seed(test::golden_path("blocks"));
  seed.metadata["key_suffix"] = ".7";
  CHECK_FALSE(run(seed).passed);
  EditableFixture heads(test::golden_path("blocks"));
  heads.put_setting("cfg.heads", 4);
  CHECK_THROWS_WITH(run(heads), Catch::Contains("qknorm_ln.grad.attn.q_norm.weight has an unexpected shape"));
  heads.put_setting("cfg.heads", 3);
  CHECK_THROWS_AS(run(heads), InputError);
}

TEST_CASE("blocks: a tensor that belongs to no variant is an error") {
  EditableFixture fixture(test::golden_path("blocks"));
  fixture.put<float>("qknorm_l2.out", "F32", {2}, {1, 2});
  CHECK_THROWS_WITH(run(fixture), Catch::Contains("unknown tensor") && Catch::Contains("qknorm_l2.out"));
}
