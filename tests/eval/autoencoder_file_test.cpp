// Autoencoders under all names that files have for their weights, and files that are none.
#include "ditrain/eval/autoencoder_file.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/eval/latent_codec.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "support/message_of.hpp"
#include "support/pytorch_bytes.hpp"
#include "support/workers.hpp"

using namespace ditrain;
using namespace ditrain::eval;
using ditrain::test::message_of;
namespace fs = std::filesystem;

namespace {

const std::string kFolder = std::string(DITRAIN_GOLDEN_DIR) + "/vae_names/";

constexpr AutoencoderOptions kEight{.groups = 8};

/// The tensors of a file, to be written again with changes.
struct Copy {
  weights::SafetensorsFile file;
  std::vector<weights::TensorToWrite> tensors;
  explicit Copy(const std::string& path) : file(path) {
    for (const weights::TensorView& t : file.tensors()) tensors.push_back({t.name, t.dtype, t.shape, t.data});
  }
  weights::TensorToWrite& operator[](const std::string& name) {
    return *std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
  }
};

struct Folder {
  TemporaryFolder folder;
  std::string path(const std::string& name) const { return (fs::path(folder.path()) / name).string(); }
  std::string save(const Copy& copy, const std::string& name = "vae.safetensors") const {
    weights::write_safetensors(path(name), copy.tensors);
    return path(name);
  }
  void text(const std::string& name, const std::string& content) const { std::ofstream(path(name)) << content; }
};

std::string problem(const std::string& path, const AutoencoderOptions& options = kEight) {
  return message_of([&] { AutoencoderFile(path, options).scale_factor(); }, "");
}

std::vector<double> moments_of(nn::Autoencoder vae, const weights::SafetensorsFile& want, bool decoded) {
  test::Workers crew(2);
  const Tensor image = from_values({1, 3, 16, 24}, weights::to_f32(want.tensor("image"))), moments({1, 8, 8, 12});
  vae.encode(crew.ctx, image, moments);
  if (decoded) vae.decode(crew.ctx, nn::Posterior(moments).mean, image);
  const std::vector<float> values = to_vector(decoded ? image : moments);
  return {values.begin(), values.end()};
}

double largest_difference(const std::vector<double>& got, const std::vector<double>& want) {
  double worst = got.size() == want.size() ? 0 : HUGE_VAL, scale = 0;
  for (size_t i = 0; i < want.size(); ++i)
    worst = std::max(worst, std::abs(got[i] - want[i])), scale = std::max(scale, std::abs(want[i]));
  return worst / scale;
}

}  // namespace

TEST_CASE("autoencoders under all four namings give the moments and pictures of the reference") {
  const weights::SafetensorsFile want(kFolder + "vae_names_check.safetensors");
  for (const char* name : {"new", "old", "ldm", "sd"}) {
    CAPTURE(name);
    const AutoencoderFile file(kFolder + "vae_names_" + name + ".safetensors", kEight);
    CHECK(file.config().channels == std::vector<int64_t>{8, 16});
    CHECK(file.config().layers == 1);
    CHECK(largest_difference(moments_of(file.load(DType::kF32), want, false),
                             weights::to_f64(want.tensor("moments.f64"))) < 6e-6);
    CHECK(largest_difference(moments_of(file.load(DType::kF32), want, true),
                             weights::to_f64(want.tensor("decoded.f64"))) < 3e-5);
    CHECK(largest_difference(moments_of(file.load(DType::kBF16), want, false),
                             weights::to_f64(want.tensor("moments.f64"))) < 0.05);
  }
}

TEST_CASE("a folder of diffusers tells groups and scale") {
  const Folder folder;
  fs::create_directory(folder.path("vae"));
  fs::copy(kFolder + "vae_names_new.safetensors", folder.path("vae/diffusion_pytorch_model.safetensors"));
  folder.text("vae/config.json", R"({"norm_num_groups": 8, "scaling_factor": 0.5, "latent_channels": 4})");
  for (const std::string& path : {folder.path(""), folder.path("vae")}) {
    const AutoencoderFile file(path);
    CHECK(file.config().groups == 8);
    CHECK(file.scale_factor() == 0.5);
    CHECK(AutoencoderFile(path, {.scale_factor = 2}).scale_factor() == 2);
  }
  folder.text("vae/config.json", R"({"norm_num_groups": 8, "scaling_factor": "x"})");
  CHECK_THAT(problem(folder.path("")), Catch::Contains("scaling_factor") && Catch::Contains("\"x\""));
  folder.text("vae/config.json", R"({"norm_num_groups": 8, "latent_channels": 16})");
  CHECK_THAT(problem(folder.path("")), Catch::Contains("latent_channels") && Catch::Contains("got 16, expected 4"));
  folder.text("vae/config.json", R"({"norm_num_groups": 8, "scaling_factor": 0.5, "shift_factor": 0.1})");
  CHECK_THAT(problem(folder.path("")), Catch::Contains("shift_factor of config.json"));
  folder.text("vae/config.json", R"({"norm_num_groups": 8, "scaling_factor": 0.5, "latents_mean": [1, 2, 3, 4]})");
  CHECK_THAT(problem(folder.path("")), Catch::Contains("latents_mean of config.json"));
  folder.text("vae/config.json", R"({"norm_num_groups": 8, "scaling_factor": 0.5, "shift_factor": null})");
  CHECK(AutoencoderFile(folder.path("")).scale_factor() == 0.5);
  folder.text("vae/config.json", R"({"norm_num_groups": )");
  CHECK_THAT(problem(folder.path("")), Catch::Contains("config.json") && Catch::Contains("not JSON"));
  folder.text("vae/config.json", R"({"norm_num_groups": 8})");
  CHECK_THAT(problem(folder.path("")), Catch::Contains("scale factor") && Catch::Contains("scaling_factor"));
}

TEST_CASE("a checkpoint of PyTorch, with the weights in a dictionary of it, is the same autoencoder") {
  const AutoencoderFile want(kFolder + "vae_names_sd.safetensors", kEight);
  const weights::SafetensorsFile source(kFolder + "vae_names_sd.safetensors");
  const Folder folder;
  test::StateDictFile checkpoint;
  for (const weights::TensorView& t : source.tensors()) checkpoint.add(t.name, t.shape, weights::to_f32(t));
  folder.text("sd.ckpt", checkpoint.finish("state_dict"));
  const AutoencoderFile file(folder.path("sd.ckpt"), kEight);
  const weights::SafetensorsFile fixture(kFolder + "vae_names_check.safetensors");
  CHECK(moments_of(file.load(DType::kF32), fixture, true) == moments_of(want.load(DType::kF32), fixture, true));
}

TEST_CASE("a VAE whose latents have another scale than those that a model learned is refused") {
  const Folder folder;
  fs::copy(kFolder + "vae_names_new.safetensors", folder.path("vae.safetensors"));
  folder.text("config.json", R"({"norm_num_groups": 8, "scaling_factor": 0.5})");
  const LatentCodecPlan plan(folder.path("vae.safetensors"), {4, 8, 12});
  CHECK_NOTHROW(plan.expect_scale(0.5, "data.latent_scale"));
  CHECK_THROWS_WITH(plan.expect_scale(0.13025, "data.latent_scale"),
                    Catch::Contains("got scale factor 0.5, expected 0.13025 (data.latent_scale)") &&
                        Catch::Contains("config.json with {\"scaling_factor\": 0.13025}"));
  CHECK(plan.bytes(true, 2) > plan.bytes(true, 1));  // scratch of each worker
}

TEST_CASE("files that are no autoencoder, or a damaged one, are refused with what they are") {
  const Folder folder;
  const std::string good = kFolder + "vae_names_new.safetensors";
  CHECK_THAT(problem(std::string(DITRAIN_GOLDEN_DIR) + "/dit_tiny.safetensors"),
             Catch::Contains("weights of a DiT, not of an autoencoder"));
  CHECK_THAT(problem(good, {}), Catch::Contains("groups") && Catch::Contains("multiple of 32") &&
                                    Catch::Contains("{\"norm_num_groups\": N}"));
  CHECK_THAT(problem(folder.path("")), Catch::Contains("no autoencoder in this folder"));
  CHECK_FALSE(problem(folder.path("nothing.safetensors")).empty());
  {
    Copy classifier(good);
    classifier.tensors.resize(2);
    classifier.tensors[0].name = "layer1.0.conv1.weight", classifier.tensors[1].name = "fc.bias";
    CHECK_THAT(problem(folder.save(classifier)), Catch::Contains("not the weights of an autoencoder"));
    classifier.tensors[1].name = "layer4.0.conv1.weight";
    CHECK_THAT(problem(folder.save(classifier)), Catch::Contains("the weights of a ResNet, not of an autoencoder"));
  }
  {
    Copy missing(good);
    std::erase_if(missing.tensors, [](const auto& t) { return t.name == "decoder.up_blocks.1.resnets.0.conv2.bias"; });
    CHECK_THAT(problem(folder.save(missing)), Catch::Contains("decoder.up_blocks.1.resnets.0.conv2.bias"));
  }
  {
    Copy renamed(good);
    for (weights::TensorToWrite& t : renamed.tensors) t.name = "vae." + t.name;
    CHECK_THAT(problem(folder.save(renamed)), Catch::Contains("under names that are not known") &&
                                                  Catch::Contains("got names that begin with vae.") &&
                                                  Catch::Contains("without that prefix"));
  }
  CHECK_THAT(problem(std::string(DITRAIN_GOLDEN_DIR) + "/pt_files/train.pt"),
             Catch::Contains("these are the weights of a DiT, not of an autoencoder (VAE)"));
  {
    Copy shape(good);
    shape["decoder.conv_out.weight"].shape = {8, 3, 3, 3};
    CHECK_THAT(problem(folder.save(shape)),
               Catch::Contains("decoder.conv_out.weight") && Catch::Contains("got [8, 3, 3, 3]"));
  }
  {
    Copy more(good);
    more.tensors.push_back(more.tensors.front()), more.tensors.back().name = "decoder.up_blocks.0.attentions.0.x";
    CHECK_THAT(problem(folder.save(more)), Catch::Contains("does not have"));
  }
  {
    Copy type(good);
    type["quant_conv.bias"].dtype = "I32";
    CHECK_THAT(problem(folder.save(type)), Catch::Contains("quant_conv.bias") && Catch::Contains("got int32"));
  }
}
