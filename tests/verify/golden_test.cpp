// Every reference fixture passes, and none passes once a value of it was changed.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <sstream>

#include "ditrain/verify/verify.hpp"
#include "editable_fixture.hpp"

using namespace ditrain;
using namespace ditrain::verify;
using test::EditableFixture;
using test::run;
using test::Workers;

namespace {

std::string text(const Report& report) {
  std::ostringstream out;
  print(out, report);
  return out.str();
}

bool failed(const Report& report, const std::string& tensor) {
  for (const Comparison& c : report.comparisons)
    if (c.tensor == tensor && !c.passed) return true;
  return false;
}

/// Compared tensors that other results are computed from: changing them makes those fail as well.
bool is_input(const std::string& kind, const std::string& tensor) {
  static const std::map<std::string, std::set<std::string>> inputs = {{"diffusion", {"q_sample.x_t"}},
                                                                      {"dit_s2_stats", {"x_start", "noise"}},
                                                                      {"sample_traj", {"z", "y", "pos_embed"}},
                                                                      {"vae_small", {"image"}},
                                                                      {"vae_rect", {"image"}},
                                                                      {"vae_sd_stats", {"image"}},
                                                                      {"samplers", {"linear.abar", "squaredcos.abar"}}};
  if (kind == "dit_tiny")
    return !tensor.starts_with("grad") &&
           (tensor.ends_with("weight") || tensor.ends_with("bias") || tensor == "pos_embed");
  const auto list = inputs.find(kind);
  return list != inputs.end() && list->second.count(tensor) != 0;
}

/// Twenty times what the loosest comparison of that tensor tolerates.
double change_for(const Report& clean, EditableFixture& fixture, const std::string& tensor) {
  double change = 0;
  for (const Comparison& c : clean.comparisons) {
    if (c.tensor != tensor) continue;
    // Small tolerances are relative to values of the tensor; the worst entry need not be in the largest piece.
    const double scale = c.tolerance < 0.01 ? std::max(c.scale, fixture.largest(tensor)) : c.scale;
    change = std::max(change, c.tolerance == 0 ? 1e-3 : 20 * c.tolerance * scale);
  }
  return change;
}

/// Parts of a fixture that take seconds and are like others of it: not computed again for changed values.
bool is_slow(const std::string& kind, const std::string& tensor) {
  return kind == "fid_sets" && tensor.starts_with("big.");
}

/// Changes one value in each of the compared tensors that are inputs, or of those that are not.
void check_changes_are_found(const std::string& kind, const Report& clean, bool inputs, int64_t round) {
  EditableFixture fixture(test::golden_path(kind));
  std::erase_if(fixture.tensors, [&](const auto& entry) { return is_slow(kind, entry.first); });
  std::set<std::string> changed;
  for (const Comparison& c : clean.comparisons) {
    if (is_slow(kind, c.tensor) || is_input(kind, c.tensor) != inputs || !changed.insert(c.tensor).second) continue;
    const int64_t n = fixture.tensors.at(c.tensor).size();
    // The labels of sample_traj are checked in their second half only, where all are the null class.
    const bool last = round == 1 || (kind == "sample_traj" && c.tensor == "y");
    const int64_t position = last ? n - 1 : round == 0 ? 0 : (int64_t(changed.size()) * 7919) % n;
    fixture.shift(c.tensor, position, change_for(clean, fixture, c.tensor) * (round == 1 ? -1 : 1));
  }
  if (changed.empty()) return;
  const Report report = run(fixture, 1);
  CHECK_FALSE(report.passed);
  for (const std::string& tensor : changed) {
    INFO(kind << ", round " << round << ": " << tensor);
    CHECK(failed(report, tensor));
  }
}

/// Every tensor of the file is compared, but for inputs and what ditrain does not offer.
void check_all_are_compared(const std::string& kind, const Report& clean) {
  static const std::map<std::string, std::set<std::string>> inputs = {
      {"dit_tiny", {"x", "t", "y", "force_drop_ids", "dout"}},
      {"tread",
       {"x", "t", "y", "dout", "route0.routes", "route0.keep0", "route1.routes", "route1.keep0", "route1.keep1"}},
      {"dit_s2_stats", {"t", "y"}},
      {"pos_embed", {}},
      {"dit_init_stats", {}},
      {"diffusion", {"x_start", "noise", "t", "stub"}},
      {"train_traj", {"x", "noise", "t", "y", "drop", "A.hyper", "B.hyper"}},
      {"sample_traj", {"noise", "cfg_scale"}},
      {"flow", {"x1", "x0", "t", "t_in", "y", "z", "ode.y", "cfg_scale", "density.z", "snr.t", "v.x", "v.noise"}},
      {"samplers", {"x_T"}},
      {"vae_small", {"latent", "eps"}},
      {"vae_rect", {"latent"}},
      {"vae_sd_stats", {"latent", "eps"}},
      {"fid_inception_stats", {}},
      {"fid_presets", {"hw"}},
      {"fid_math",
       {"stats.features", "kid.x", "kid.y", "kid.subset_x", "kid.subset_y", "pr.real", "pr.gen", "is.probs"}},
      {"fid_sets",
       {"isc.shape", "isc.permutation", "big.shape", "big.kid.subset1", "big.kid.subset2", "big.clean.rows1",
        "big.clean.rows2", "small.shape", "small.kid.subset1", "small.kid.subset2", "small.clean.rows1",
        "small.clean.rows2"}}};
  // What ditrain does not offer, by the beginnings of names.
  static const std::map<std::string, std::vector<std::string>> not_ours = {
      {"flow",
       {"gvp.", "vp.", "pred.", "stub", "sde.", "density.u", "density.mode", "weight.", "snr.scaled_linear",
        "v.scaled_linear", "snr.zero"}},
      {"samplers", {"dpm_min.", "dpm_karras.", "dpm_clip.", "ddim_clip.", "unipc.", "unipc_min."}},
      {"fid_sets", {"big.margin", "small.margin"}}};
  const auto is_ours = [&](const std::string& name) {
    const auto list = not_ours.find(kind);
    return list == not_ours.end() || std::none_of(list->second.begin(), list->second.end(),
                                                  [&](const auto& beginning) { return name.starts_with(beginning); });
  };
  if (!inputs.contains(kind)) return;
  std::set<std::string> compared, expected;
  for (const Comparison& c : clean.comparisons) compared.insert(c.tensor);
  for (const auto& [name, entry] : EditableFixture(test::golden_path(kind)).tensors) {
    const bool weight = kind == "sample_traj" && (name.ends_with(".weight") || name.ends_with(".bias"));
    const bool statistics = name.starts_with("fd.") && (name.ends_with("1") || name.ends_with("2"));
    if (!name.starts_with("cfg.") && inputs.at(kind).count(name) == 0 && !weight && !statistics && is_ours(name))
      expected.insert(name);
  }
  INFO(kind);
  CHECK(compared == expected);
}

}  // namespace

TEST_CASE("reference fixtures pass, compare all that is no input, and every changed value is found") {
  Workers workers(1);  // small models: several workers mostly wait for each other, where tests share the machine
  for (const std::string& kind : fixture_kinds()) {
    const Report clean = verify_fixture(test::golden_path(kind), workers.ctx);
    if (!clean.passed) FAIL_CHECK(text(clean));
    check_all_are_compared(kind, clean);
    const bool expensive = kind == "dit_s2_stats" || kind == "dit_init_stats" || kind == "vae_sd_stats" ||
                           (kind.starts_with("fid_") && kind != "fid_math");
    for (int64_t round = expensive ? 2 : 0; round < 3; ++round)
      for (const bool inputs : {false, true}) check_changes_are_found(kind, clean, inputs, round);
  }
}

TEST_CASE("the whole autoencoder of Stable Diffusion: means of all modules, and a changed one is found", "[long]") {
  Workers workers(2);
  const std::string path = std::string(DITRAIN_GOLDEN_DIR) + "/vae_sd_rect_stats.safetensors";
  const Report clean = verify_fixture(path, workers.ctx);
  if (!clean.passed) FAIL_CHECK(text(clean));
  const std::string changed = "mean.encoder.mid_block.attentions.0";
  EditableFixture fixture(path);
  fixture.shift(changed, 17, change_for(clean, fixture, changed));
  const Report report = run(fixture);
  CHECK_FALSE(report.passed);
  CHECK(failed(report, changed));
}

TEST_CASE("a changed input of an operation is found in its results") {
  Workers workers(2);
  const std::string path = test::golden_path("ops");
  const Report clean = verify_fixture(path, workers.ctx);
  std::set<std::string> compared;
  for (const Comparison& c : clean.comparisons) compared.insert(c.tensor);
  EditableFixture fixture(path);
  int64_t inputs = 0;
  for (auto& [name, entry] : fixture.tensors) {
    if (compared.count(name) != 0) continue;
    const std::vector<std::byte> before = entry.bytes;
    fixture.shift(name, entry.size() - 1, 0.25);
    INFO(name);
    CHECK_FALSE(run(fixture).passed);
    entry.bytes = before, ++inputs;
  }
  CHECK(inputs == 60);
}

TEST_CASE("an expected value that is not finite fails") {
  Workers workers(2);
  for (const double bad : {double(NAN), HUGE_VAL}) {
    EditableFixture fixture(test::golden_path("pos_embed"));
    fixture.data<double>("pos.24_5.f64")[7] = bad;
    const Report report = run(fixture);
    CHECK_FALSE(report.passed);
    CHECK(failed(report, "pos.24_5.f64"));
    CHECK_FALSE(failed(report, "pos.24_5"));
    CHECK_THAT(text(report), Catch::Contains("FAILED") && Catch::Contains("1 not finite"));
    CHECK_THAT(to_json({report}), Catch::Contains("\"max_abs\": null"));
  }
}

TEST_CASE("reports tell the worst error") {
  Workers workers(2);
  EditableFixture fixture(test::golden_path("pos_embed"));
  fixture.shift("pos.64_4", 100, 0.5);
  const Report report = run(fixture);
  CHECK(report.compared == 5);
  REQUIRE(worst_comparison(report) != nullptr);
  const Comparison& worst = *worst_comparison(report);
  CHECK(worst.tensor == "pos.64_4");
  CHECK(worst.index == 100);
  CHECK(worst.max_abs == Approx(0.5));
  CHECK(worst.want - worst.got == Approx(0.5));
  CHECK_THAT(text(report), Catch::Contains("FAILED, 1 of 5 comparisons over tolerance") && Catch::Contains("at [100]"));
  CHECK_THAT(to_json({report}), Catch::Contains("\"passed\": false") && Catch::Contains("\"compared\": 5") &&
                                    Catch::Contains("\"tensor\": \"pos.64_4\"") &&
                                    Catch::Contains("\"tolerance\": 1e-07"));
  CHECK_THAT(to_json({{.file = "a", .error = "why"}}),
             Catch::Contains("\"worst\": null") && Catch::Contains("\"error\": \"why\""));
}
