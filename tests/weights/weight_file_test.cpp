#include "ditrain/weights/weight_file.hpp"

#include <catch2/catch.hpp>
#include <sstream>

#include "ditrain/base/error.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "support/files.hpp"

using namespace ditrain;
using namespace ditrain::weights;
using Catch::Contains;

namespace {

std::string golden(const std::string& name) { return std::string(DITRAIN_GOLDEN_DIR "/") + name; }

void save(const std::string& path, const std::vector<std::string>& names, float value) {
  const std::vector<float> data(2, value);
  std::vector<TensorToWrite> tensors;
  for (const std::string& name : names) tensors.push_back({name, "F32", {2}, data.data()});
  write_safetensors(path, tensors);
}

}  // namespace

TEST_CASE("weights of any format are read as f32") {
  const WeightFile old(golden("pt_files/train_legacy.pt")), zip(golden("pt_files/train.pt"));
  REQUIRE(old.find("ema/x_embedder.proj.bias") != nullptr);
  const WeightTensor& bias = *zip.find("ema/x_embedder.proj.bias");
  CHECK(bias.shape == std::vector<int64_t>{16});
  CHECK(zip.read(bias) == old.read(*old.find(bias.name)));
  CHECK(zip.find("x_embedder.proj.bias") == nullptr);
  CHECK(std::get<int64_t>(*zip.scalar("args/num_classes")) == 1000);
  CHECK_FALSE(zip.is_safetensors());
  const WeightFile types(golden("pt_files/dtypes.pt"));
  for (const char* type : {"float64", "float16", "bfloat16"}) {
    INFO(type);
    CHECK(types.read(*types.find(type)) == types.read(*types.find("float32")));
  }
  CHECK_THROWS_WITH(types.read(*types.find("int64")), Contains("int64"));
}

TEST_CASE("shards are one file, and an index that lies is refused") {
  const TemporaryFolder folder;
  save(folder / "a.safetensors", {"one", "two"}, 1);
  save(folder / "b.safetensors", {"three"}, 2);
  const std::string index = folder / "model.safetensors.index.json";
  put_file(index, R"({"weight_map": {"one": "a.safetensors", "two": "a.safetensors", "three": "b.safetensors"}})");
  const WeightFile file(index);
  CHECK(file.tensors().size() == 3);
  CHECK(file.read(*file.find("three")) == std::vector<float>{2, 2});
  CHECK(file.metadata().empty());

  const auto refused = [&](const std::string& text, const std::string& message) {
    put_file(index, text);
    CHECK_THROWS_AS(WeightFile(index), InputError);
    CHECK_THROWS_WITH(WeightFile(index), Contains(message));
  };
  refused(R"({"weight_map": {"four": "a.safetensors"}})", "tensor four is missing");
  refused(R"({"weight_map": {"one": "../a.safetensors"}})", "outside its folder");
  refused(R"({"weight_map": {"one": 3}})", "outside its folder");
  refused(R"({"weight_map": {"one": "c.safetensors"}})", "cannot open");
  refused(R"({"weight_map": {}})", "no weight_map");
  refused(R"({"weight_map": )", "not JSON");
  save(folder / "b.safetensors", {"one"}, 2);
  refused(R"({"weight_map": {"two": "a.safetensors", "one": "b.safetensors"}})", "in several shards");
}

TEST_CASE("networks are known by the names of their weights") {
  const auto check = [](const std::string& network, const std::string& line) {
    std::istringstream words(line);
    const std::vector<std::string> names(std::istream_iterator<std::string>(words), {});
    CHECK(network_of(names) == network);
  };
  check("a DiT", "blocks.0.adaLN_modulation.1.weight x_embedder.proj.weight");
  check("an SD3 MMDiT", "model.diffusion_model.joint_blocks.0.x_block.attn.qkv.weight x_embedder.proj.weight");
  check("an SD3 MMDiT, as diffusers writes it",
        "transformer_blocks.0.attn.add_q_proj.weight time_text_embed.timestep_embedder.linear_1.weight");
  check("a UNet of diffusers", "time_embedding.linear_1.weight down_blocks.0.resnets.0.conv1.weight");
  check("an autoencoder (VAE)", "encoder.conv_in.weight decoder.conv_in.weight");
  check("a Vision Transformer (ViT)", "cls_token patch_embed.proj.weight blocks.0.attn.qkv.weight");
  check("a Vision Transformer (ViT) of torchvision", "class_token encoder.layers.encoder_layer_0.ln_1.weight");
  check("an Inception v3", "Conv2d_1a_3x3.conv.weight Mixed_5b.branch1x1.conv.weight");
  check("a ResNet", "layer1.0.conv1.weight layer4.0.conv1.weight");
  check("", "w b");
  check("", "");
}
