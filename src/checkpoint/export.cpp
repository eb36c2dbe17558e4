#include "ditrain/checkpoint/export.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/diffusion/registry.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/nn/block.hpp"
#include "ditrain/nn/patch_embed.hpp"
#include "ditrain/version.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "export_names.hpp"
#include "new_path.hpp"

namespace ditrain::checkpoint {
namespace {

namespace fs = std::filesystem;
using autograd::Parameter;
using nlohmann::ordered_json;

[[noreturn]] void refuse(const std::string& what, const std::string& got, const std::string& expected,
                         const std::string& hint = "--format dit") {
  throw InputError({.where = "export",
                    .what = "diffusers' DiTTransformer2DModel has no place for " + what,
                    .got = got,
                    .expected = expected,
                    .hint = hint});
}

// The tensors of a file, taken from parameters whose memory is held in place meanwhile.
class TensorList {
 public:
  explicit TensorList(DType dtype) : dtype_(dtype) {
    DITRAIN_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "a floating type");
  }

  void add(const std::string& name, const Parameter& p) { add(name, p.value); }
  void add(const std::string& name, const Tensor& value) {
    pins_.push_back(std::make_unique<Pin<float>>(value));
    const bool half = dtype_ == DType::kBF16;
    list_.push_back({name, half ? "BF16" : "F32", value.shape(), pins_.back()->get(), half});
  }
  void write(const std::string& path, const std::map<std::string, std::string>& metadata) {
    weights::write_safetensors(path, list_, metadata);
  }

 private:
  DType dtype_;
  std::vector<std::unique_ptr<Pin<float>>> pins_;
  std::vector<weights::TensorToWrite> list_;
};

// `name`, or, where it has a '*', a name for each block.
std::vector<std::string> copies(const std::string& name, int64_t depth) {
  const size_t star = name.find('*');
  if (star == name.npos) return {name};
  std::vector<std::string> names;
  for (int64_t i = 0; i < depth; ++i) names.push_back(name.substr(0, star) + std::to_string(i) + name.substr(star + 1));
  return names;
}

// The state dict under the names of diffusers that the parameters declare; its position table is computed there.
TensorList diffusers_tensors(nn::Model& model, DType dtype) {
  TensorList list(dtype);
  for (const Parameter* p : model.parameters().state_dict()) {
    DITRAIN_CHECK(!p->trainable || !p->diffusers.empty(), p->name + " has no name in files of diffusers");
    const auto parts = int64_t(p->diffusers.size());
    for (int64_t k = 0; k < parts; ++k) {
      const int64_t rows = p->value.dim(0) / parts;
      const Tensor part = parts == 1 ? p->value : p->value.rows(k * rows, (k + 1) * rows);
      for (const std::string& name : copies(p->diffusers[size_t(k)], model.config().depth)) list.add(name, part);
    }
  }
  return list;
}

ordered_json transformer_config(const nn::ModelConfig& m) {
  return {{"_class_name", "DiTTransformer2DModel"},
          {"activation_fn", "gelu-approximate"},
          {"attention_bias", true},
          {"attention_head_dim", m.head_dim()},
          {"dropout", 0.0},
          {"in_channels", m.in_channels},
          {"norm_elementwise_affine", false},
          {"norm_eps", 1e-6},
          {"norm_num_groups", 32},
          {"norm_type", "ada_norm_zero"},
          {"num_attention_heads", m.num_heads},
          {"num_embeds_ada_norm", m.num_classes},
          {"num_layers", m.depth},
          {"out_channels", m.out_channels()},
          {"patch_size", m.patch_size},
          {"sample_size", m.input_width},
          {"upcast_attention", false}};
}

ordered_json scheduler_config(const diffusion::Config& d) {
  const double scale = 1000.0 / double(d.num_steps);  // the linear schedule keeps its total noise
  return {{"_class_name", "DDIMScheduler"},
          {"beta_end", 0.02 * scale},
          {"beta_schedule", d.schedule->name},
          {"beta_start", 1e-4 * scale},
          {"clip_sample", false},
          {"num_train_timesteps", d.num_steps},
          {"prediction_type", diffusion::prediction_of(d).diffusers_name},
          {"set_alpha_to_one", true},
          {"steps_offset", 0}};
}

ordered_json pipeline_index(int64_t num_classes) {
  ordered_json labels = ordered_json::object();
  for (int64_t i = 0; i < num_classes; ++i) labels[std::to_string(i)] = std::to_string(i);
  return {{"_class_name", "DiTPipeline"},
          {"id2label", labels},
          {"scheduler", {"diffusers", "DDIMScheduler"}},
          {"transformer", {"diffusers", "DiTTransformer2DModel"}},
          {"vae", {"diffusers", "AutoencoderKL"}}};
}

// DiTPipeline's VAE decodes 4 channels, and its label without a class is 1000, whatever the model has.
bool fits_pipeline(const nn::ModelConfig& m) { return m.in_channels == 4 && m.num_classes == 1000; }

void write_json(const std::string& path, const ordered_json& content) {
  files::write_file_atomically(path, files::json_text(content, 2) + "\n");
}

// diffusers computes the table itself; weights trained with another one would be read wrongly.
void check_position_table(nn::Model& model) {
  constexpr float kBf16Rounding = 0x1p-8f;  // of values up to 1, with room for one more rounding
  const nn::ModelConfig& m = model.config();
  const std::vector<float> table = nn::sincos_position_table(m.hidden_size, m.grid_height(), m.grid_width());
  const Pin<float> pos_embed(model.parameters().find("pos_embed").value);
  for (size_t i = 0; i < table.size(); ++i)
    if (!(std::fabs(pos_embed[i] - table[i]) <= kBf16Rounding))
      refuse("a position table of its own",
             "pos_embed element " + std::to_string(i) + " = " + std::to_string(pos_embed[i]), std::to_string(table[i]));
}

// The user's paths stay at home.
std::string public_yaml(config::Config config) {
  if (!config::learns_pixels(config)) config.data.kind = dataset::find_kind("latents");
  for (const config::Option& option : config::option_table())
    if (option.expected == "a path") option.set(config, {{""}}, "");
  config.log.prometheus.clear();
  if (!config.kernels.tuning_file.empty())
    config.kernels.tuned = config::TunedFrom::kAuto, config.kernels.tuning_file.clear();
  config.eval.fid_every_steps = 0;  // which may need files
  if (config.sample.guide != config::kRoutedGuide) config.sample.guide.clear();
  config.data.condition = dataset::condition_names(config.data);
  return config::to_yaml(config);
}

}  // namespace

void export_public(const std::string& path, nn::Model& model, const config::Config& config, DType dtype,
                   const WeightsSource& origin) {
  NewPath target(path, "export");
  TensorList list(dtype);
  for (const Parameter* p : model.parameters().state_dict()) list.add(p->name, *p);
  std::map<std::string, std::string> metadata = {{kConfigMetadata, public_yaml(config)}, {kVersionMetadata, kVersion}};
  if (!origin.weights.empty()) metadata[kWeightsMetadata] = origin.weights;
  if (origin.step >= 0) metadata[kStepMetadata] = std::to_string(origin.step);
  list.write(target.temporary(), metadata);
  target.commit();
}

std::vector<std::string> obstacles_of_reference(const nn::ModelConfig& m) {
  std::vector<std::string> all;
  if (m.kind != nn::ModelKind::kDit) return all;
  const auto key = [&](bool differs, const std::string& name, const auto& value, const char* loadable) {
    if (differs)
      all.push_back(fmt::format("model.{} {} ({} before training makes it loadable)", name, value, loadable));
  };
  key(m.patch_overlap > 0, "patch_overlap", m.patch_overlap, "0");
  key(m.patch_bottleneck > 0, "patch_bottleneck", m.patch_bottleneck, "0");
  key(m.qk_norm != nn::QkNorm::kNone, "qk_norm", word_of(m.qk_norm), "none");
  key(m.norm != nn::Norm::kLayer, "norm", word_of(m.norm), "layer");
  key(m.mlp != nn::Mlp::kGelu, "mlp", word_of(m.mlp), "gelu");
  key(m.position != nn::Position::kSincos, "position", word_of(m.position), "sincos");
  key(m.num_classes == 0, "num_classes", 0, "1 or more");
  key(!m.metadata.empty(), "metadata", fmt::format("[{}]", fmt::join(m.metadata, ", ")), "none");
  if (m.condition_channels > 0)
    all.push_back(fmt::format("model.condition_channels {}, which are given beside the image", m.condition_channels));
  if (m.input_height != m.input_width)
    all.push_back(fmt::format("images of {} x {}, which are not square", m.input_height, m.input_width));
  return all;
}

std::string describe_calls(const diffusion::Config& d) {
  const bool discrete = d.process == diffusion::default_row<diffusion::ProcessKind>();
  return fmt::format("{}: t from {}, predicts {}", d.process->name,
                     discrete ? fmt::format("0 to {}", d.num_steps - 1) : "0 (noise) to 1 (data)",
                     diffusion::prediction_of(d).name);
}

void check_diffusers(const nn::ModelConfig& m) {
  const auto text = [](auto v) { return std::to_string(v); };
  nn::Model layout(m);
  const std::vector<Parameter*> all = layout.parameters().state_dict();
  const std::string kind(word_of(m.kind));
  if (std::all_of(all.begin(), all.end(), [](const Parameter* p) { return p->diffusers.empty(); }))
    refuse("this architecture", "model.kind: " + kind, "one with names of diffusers", "--format " + kind);
  if (m.input_height != m.input_width)
    refuse("images that are not square", text(m.input_height) + " x " + text(m.input_width), "height = width");
  if (m.condition_channels > 0)
    refuse("channels that are given and not predicted", "model.condition_channels " + text(m.condition_channels), "0");
  if (!m.metadata.empty()) refuse("numbers that condition the model", "model.metadata", "model.metadata: none");
  if (m.num_classes == 0) refuse("a model without classes", "model.num_classes 0", "at least 1 class");
  if (m.label_rows() != m.num_classes + 1)
    refuse("a label table without a row for dropped labels", "model.class_dropout 0", "class_dropout above 0");
  if (m.patch_overlap > 0) refuse("patches that overlap", text(m.patch_overlap), "model.patch_overlap: 0");
  if (m.position != nn::Position::kSincos) refuse("rotary embedding", "model.position: rope", "model.position: sincos");
  for (const Parameter* p : all)
    if (p->trainable && p->diffusers.empty()) refuse("tensor " + p->name, "", nn::advice_on_tensor(p->name, true));
  if (m.mlp_size() != 4 * m.hidden_size) refuse("this width of the MLP", text(m.mlp_size()), text(4 * m.hidden_size));
}

void check_diffusers(const diffusion::Config& d) {
  if (d.process == diffusion::default_row<diffusion::ProcessKind>()) return;
  throw InputError({.where = "export",
                    .what = "diffusers' flow schedulers give the model 1000 (1 - t) where this one was trained on t",
                    .got = "process " + std::string(d.process->name),
                    .expected = "process ddpm",
                    .hint = "--format dit"});
}

void export_diffusers(const std::string& folder, nn::Model& model, const config::Config& config, DType dtype) {
  check_diffusers(model.config());
  check_diffusers(config.diffusion);
  check_position_table(model);
  NewPath target(folder, "export");
  const std::string transformer = target.temporary() + "/transformer", scheduler = target.temporary() + "/scheduler";
  files::make_output_folder(transformer);
  files::make_output_folder(scheduler);
  diffusers_tensors(model, dtype)
      .write(transformer + "/diffusion_pytorch_model.safetensors", {{kVersionMetadata, kVersion}});
  write_json(transformer + "/config.json", transformer_config(model.config()));
  write_json(scheduler + "/scheduler_config.json", scheduler_config(config.diffusion));
  if (fits_pipeline(model.config()))
    write_json(target.temporary() + "/model_index.json", pipeline_index(model.config().num_classes));
  target.commit();
}

}  // namespace ditrain::checkpoint
