// Files that are no fixtures, or that ask for something impossible.
#include <catch2/catch.hpp>
#include <fstream>

#include "ditrain/base/error.hpp"
#include "ditrain/verify/verify.hpp"
#include "editable_fixture.hpp"

using namespace ditrain;
using namespace ditrain::verify;
using test::EditableFixture;

namespace {

/// The message with which a fixture is refused.
std::string refusal(const EditableFixture& fixture) {
  try {
    test::run(fixture, 1);
  } catch (const InputError& e) {
    CHECK(e.exit_code() == kExitBadInput);
    return e.what();
  }
  return "accepted";
}

/// Things of fixture flow that ditrain does not offer.
bool is_left_out(const std::string& name) {
  for (const char* beginning :
       {"gvp.", "vp.", "pred.", "stub", "sde.", "weight.", "snr.scaled", "v.scaled", "snr.zero"})
    if (name.starts_with(beginning)) return true;
  return false;
}

}  // namespace

TEST_CASE("every tensor of a fixture has to be there") {
  for (const char* kind : {"ops", "dit_tiny", "diffusion", "sample_traj", "dit_init_stats", "flow"}) {
    const EditableFixture whole(test::golden_path(kind));
    int64_t number = 0;
    for (const auto& [name, entry] : whole.tensors) {
      // Removing a whole table, a further EMA decay or a latent on the way leaves a smaller fixture, which is no error.
      const bool optional = name.starts_with("pos.") || name.starts_with("ema.d") || name.find(".step") != name.npos ||
                            name.starts_with("respace.") || name.starts_with("timestep_embedding.") ||
                            name.starts_with("shift.") || name.starts_with("density.") || is_left_out(name);
      if (optional || number++ % 7 != 0) continue;
      EditableFixture fixture = whole;
      fixture.tensors.erase(name);
      INFO(kind << " without " << name);
      CHECK_THAT(refusal(fixture), Catch::Contains(name));
    }
    CHECK(number > 0);
  }
}

TEST_CASE("a tensor that nothing is compared with is an error") {
  for (const char* kind : {"ops", "dit_tiny", "pos_embed", "diffusion", "sample_traj", "dit_init_stats", "train_traj",
                           "flow", "samplers"}) {
    EditableFixture fixture(test::golden_path(kind));
    fixture.put<float>("extra.y", "F32", {2}, {1, 2});
    INFO(kind);
    CHECK_THAT(refusal(fixture), Catch::Contains("unknown tensor") && Catch::Contains("extra.y"));
  }
  EditableFixture latents(test::golden_path("sample_traj"));
  latents.tensors["ddpm.step10"] = latents.tensors["ddpm.step8"];
  CHECK_THAT(refusal(latents), Catch::Contains("no such step; got ddpm.step10, expected step0 to step9"));
}

TEST_CASE("wrong dtypes and shapes are errors") {
  EditableFixture dtype(test::golden_path("dit_tiny"));
  dtype.put<double>("t", "F64", {4}, {1, 2, 3, 4});
  CHECK_THAT(refusal(dtype), Catch::Contains("t has an unexpected dtype"));
  EditableFixture half(test::golden_path("dit_tiny"));
  half.tensors["ls0.out"].dtype = "I32";
  CHECK_THAT(refusal(half), Catch::Contains("ls0.out has an unexpected dtype"));
  EditableFixture shape(test::golden_path("dit_tiny"));
  std::swap(shape.tensors["grad_x"].shape[0], shape.tensors["grad_x"].shape[2]);
  CHECK_THAT(refusal(shape), Catch::Contains("grad_x has an unexpected shape"));
  EditableFixture scalar(test::golden_path("ops"));
  scalar.put<float>("gelu_tanh.x", "F32", {}, {1});
  CHECK_THAT(refusal(scalar), Catch::Contains("gelu_tanh.x has an unexpected shape"));
}

TEST_CASE("absurd settings are refused before anything is allocated") {
  const int64_t huge = int64_t{1} << 60;
  for (const char* name : {"cfg.input_size", "cfg.patch_size", "cfg.in_channels", "cfg.hidden_size", "cfg.depth",
                           "cfg.num_heads", "cfg.num_classes", "cfg.learn_sigma"}) {
    for (const int64_t value : {huge, int64_t{-1}, int64_t{2000000}}) {
      EditableFixture fixture(test::golden_path("dit_tiny"));
      fixture.put_setting(name, value);
      INFO(name << " = " << value);
      CHECK_THAT(refusal(fixture), Catch::Contains(std::string(name) + " is out of range"));
    }
  }
  for (const auto& [kind, name] :
       std::vector<std::pair<std::string, std::string>>{{"train_traj", "cfg.steps"},
                                                        {"train_traj", "cfg.batch"},
                                                        {"sample_traj", "cfg.n"},
                                                        {"sample_traj", "cfg.steps"},
                                                        {"diffusion", "cfg.N"},
                                                        {"diffusion", "cfg.H"},
                                                        {"flow", "cfg.hidden_size"},
                                                        {"dit_s2_stats", "cfg.batch"},
                                                        {"dit_s2_stats", "cfg.input_size"}}) {
    EditableFixture fixture(test::golden_path(kind));
    fixture.put_setting(name, huge);
    INFO(kind << ": " << name);
    CHECK_THAT(refusal(fixture), Catch::Contains("out of range"));
  }
}

TEST_CASE("settings at their limits together are too large") {
  EditableFixture convolutions(test::golden_path("conv"));
  convolutions.put<int64_t>("p1.xshape", "I64", {4}, {4096, 4096, 4096, 4096});
  CHECK_THAT(refusal(convolutions), Catch::Contains("the array of p1.xshape is too large; got [4096, "));
  EditableFixture fixture(test::golden_path("dit_tiny"));
  const int64_t size = 8, batch = 4;
  for (const auto& [name, value] :
       std::map<std::string, int64_t>{{"hidden_size", 8192}, {"depth", 64}, {"num_heads", 16}})
    fixture.put_setting("cfg." + name, value);
  REQUIRE(fixture.tensors["x"].shape == std::vector<int64_t>{batch, 4, size, size});
  CHECK_THAT(refusal(fixture), Catch::Contains("too large a model"));
}

TEST_CASE("sizes and indices that do not fit are errors") {
  EditableFixture heads(test::golden_path("dit_tiny"));
  heads.put_setting("cfg.num_heads", 5);
  CHECK_THAT(refusal(heads), Catch::Contains("multiple of model.num_heads"));
  EditableFixture hidden(test::golden_path("dit_tiny"));
  hidden.put_setting("cfg.hidden_size", 128);
  CHECK_THAT(refusal(hidden), Catch::Contains("unexpected shape"));
  for (const char* name : {"t", "y", "force_drop_ids"}) {
    for (const int64_t value : {int64_t{-1}, int64_t{1000}}) {
      EditableFixture fixture(test::golden_path("dit_tiny"));
      fixture.data<int64_t>(name)[1] = value;
      INFO(name << " = " << value);
      CHECK_THAT(refusal(fixture), Catch::Contains("out of range"));
    }
  }
  EditableFixture scale(test::golden_path("sample_traj"));
  scale.data<double>("cfg_scale")[0] = NAN;
  CHECK_THAT(refusal(scale), Catch::Contains("cfg_scale"));
  EditableFixture table(test::golden_path("pos_embed"));
  table.tensors["pos.999999999999_3"] = table.tensors["pos.24_5"];
  CHECK_THAT(refusal(table), Catch::Contains("unknown tensor") && Catch::Contains("such as pos.#_#"));
  EditableFixture other(test::golden_path("pos_embed"));
  other.tensors["pos.65536_1024"] = other.tensors["pos.24_5"];
  CHECK_THAT(refusal(other), Catch::Contains("unexpected shape"));
}

TEST_CASE("fixtures with impossible contents are errors") {
  const auto refused = [](const char* kind, auto change, const char* text) {
    EditableFixture fixture(test::golden_path(kind));
    change(fixture);
    CHECK_THAT(refusal(fixture), Catch::Contains(text));
  };
  refused(
      "flow", [](auto& f) { f.template data<float>("t")[1] = 1.5f; }, "t is no time");
  refused(
      "flow", [](auto& f) { f.template data<float>("t_in")[1] = NAN; }, "t_in is no time");
  refused(
      "flow", [](auto& f) { f.template data<int64_t>("ode.y")[0] = 11; }, "ode.y is out of range");
  refused(
      "flow", [](auto& f) { f.template data<int64_t>("snr.t")[0] = 1000; }, "snr.t is out of range");
  refused(
      "flow", [](auto& f) { f.template data<double>("cfg_scale")[0] = NAN; }, "no guidance");
  refused(
      "flow", [](auto& f) { f.tensors["shift.-2.sigmas"] = f.tensors["shift.3.sigmas"]; }, "no shift in the name");
  refused(
      "flow", [](auto& f) { f.tensors["shift.x"] = f.tensors["shift.3.sigmas"]; },
      "such as density.logit_normal.#_#, shift.#.sigmas");
  refused(
      "flow", [](auto& f) { f.tensors["density.logit_normal.0"] = f.tensors["density.logit_normal.0_1"]; },
      "got density.logit_normal.0, expected a name of this kind");
  refused(
      "samplers", [](auto& f) { f.tensors.erase("dpm.linear.10.timesteps"); }, "dpm.linear.10.timesteps");
  refused(
      "samplers", [](auto& f) { f.tensors.erase("flow.20.x"); }, "flow.20.sigmas");
  refused(
      "samplers", [](auto& f) { f.tensors.erase("linear.abar"); }, "linear.abar");
  refused(
      "samplers", [](auto& f) { f.tensors.erase("x_T"); }, "x_T");
  refused(
      "fid_math", [](auto& f) { f.tensors.erase("fd.full8.mu2"); }, "fd.full8.mu2");
  refused(
      "fid_math", [](auto& f) { f.tensors.erase("kid.subset_y"); }, "kid.subset_y");
  refused(
      "fid_math", [](auto& f) { f.tensors.erase("fd.same.exact"); }, "unknown tensor");
  refused(
      "fid_math", [](auto& f) { f.template data<int64_t>("kid.subset_x")[3] = 40; }, "kid.subset_x is out of range");
  refused(
      "fid_math", [](auto& f) { f.tensors["pr.gen"] = f.tensors.at("kid.x"); }, "no two sets of the same features");
  const auto without_big = [](auto& f) {
    std::erase_if(f.tensors, [](const auto& entry) { return entry.first.starts_with("big."); });
  };
  for (const int64_t rows : {int64_t{-1}, int64_t{1} << 40})
    refused(
        "fid_sets", [&](auto& f) { without_big(f), f.template data<int64_t>("small.shape")[0] = rows; },
        "small.shape is out of range");
  refused(
      "fid_sets", [&](auto& f) { without_big(f), f.template data<int64_t>("small.shape")[2] = 8000; },
      "too many features");
  refused(
      "fid_sets", [&](auto& f) { without_big(f), f.tensors.erase("small.clean.rows2"); }, "small.clean.rows2");
  refused(
      "fid_sets", [&](auto& f) { without_big(f), f.tensors.erase("small.shape"); }, "unknown tensor");
}

TEST_CASE("other kinds are not passed in silence") {
  EditableFixture fixture(test::golden_path("pos_embed"));
  for (const char* kind : {"vae_names_check.safetensors", "", "ops "}) {
    fixture.metadata["file"] = kind;
    CHECK_THAT(refusal(fixture), Catch::Contains("not available in this version"));
  }
  fixture.metadata.erase("file");
  CHECK_THAT(refusal(fixture), Catch::Contains("not a reference fixture"));
  EditableFixture keyless(test::golden_path("dit_tiny"));
  keyless.metadata.erase("key_suffix");
  CHECK_THAT(refusal(keyless), Catch::Contains("key_suffix"));
  EditableFixture empty(test::golden_path("pos_embed"));
  empty.tensors.clear();
  CHECK_THAT(refusal(empty), Catch::Contains("nothing to compare"));
}

TEST_CASE("the kind is that of the header, whatever the path") {
  EditableFixture fixture(test::golden_path("ops"));
  fixture.metadata["file"] = "pos_embed.safetensors";
  CHECK_THAT(refusal(fixture), Catch::Contains("unknown tensor"));
}

TEST_CASE("broken files are errors") {
  test::Workers crew;
  CHECK_THROWS_AS(verify_fixture("/no/such/file.safetensors", crew.ctx), InputError);
  const TemporaryFolder folder;
  const std::string file = folder / "fixture.safetensors";
  std::ifstream in(test::golden_path("pos_embed"), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  for (const size_t length : {size_t{0}, size_t{5}, size_t{100}, bytes.size() / 2, bytes.size() - 1}) {
    std::ofstream(file, std::ios::binary) << bytes.substr(0, length);
    CHECK_THROWS_AS(verify_fixture(file, crew.ctx), InputError);
  }
}
