// ditexport: a checkpoint as safetensors files for other programs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <optional>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/checkpoint/dit_file.hpp"
#include "ditrain/checkpoint/snapshots.hpp"
#include "ditrain/config/command_line.hpp"
#include "ditrain/eval/autoencoder_file.hpp"
#include "ditrain/optim/power_average.hpp"
#include "ditrain/weights/safetensors.hpp"

namespace {

using namespace ditrain;

constexpr const char* kDiffusers = "diffusers";

std::vector<std::string> formats() {
  std::vector<std::string> words = all_words<nn::ModelKind>();
  words.emplace_back(kDiffusers);
  return words;
}

config::CommandLine make_command_line() {
  return config::CommandLine(
      "ditexport", "write the weights of a checkpoint as safetensors",
      {{"checkpoint", "DIR|FILE", "run folder, checkpoint folder (the latest is taken), or a .safetensors file"},
       {"out", "PATH", "what to write, which must not exist yet: a file, or a folder for diffusers"},
       {"format", fmt::format("{}", fmt::join(formats(), "|")),
        "one file with the public names of that model.kind (default: the checkpoint's own); diffusers: "
        "DiTTransformer2DModel, with its config",
        ""},
       {"weights", config::choices<checkpoint::Weights>(), "EMA weights, or the weights themselves", "ema"},
       {"ema-width", "SHARE",
        "instead of --weights, an average of the weights of this width, 0.01 to 0.28 of the run so far, made of the "
        "snapshots of a run with ema.snapshots_every; --checkpoint is the run folder, or RUN/snapshots/step_N for the "
        "average at that step"},
       {"dtype", config::choices<DType>(), "of all tensors", "f32"}});
}

// Whether the format is that of diffusers. Errors: InputError for the public format of another kind of model
bool is_diffusers(const std::string& format, nn::ModelKind of_model) {
  nn::ModelKind wanted = of_model;
  const std::string own(word_of(of_model));
  if (format.empty() || format == own) return false;
  if (format == kDiffusers) return true;
  const bool known = find_word(format, wanted);
  throw InputError({.where = known ? "export" : "command line",
                    .what = known ? "--format of another architecture" : "unknown --format",
                    .got = known ? format + " for weights of model.kind: " + own : "'" + format + "'",
                    .expected = known ? own : alternatives(formats())});
}

bool holds_data(const std::string& path) {
  try {
    const weights::SafetensorsFile file(path);
    return file.contains("images") || file.contains("latents") || (file.contains("mean") && file.contains("logvar"));
  } catch (const Error&) {
    return false;
  }
}

/// A model that learnt from what a VAE made of images is used with other files than its run, which have to tell the
/// scale of its latents.
void tell_scale(config::Config& config) {
  std::error_code unreadable;
  if (config.data.vae.empty() || config.data.latent_scale) return;
  std::string why = config.data.vae + " is not there";
  if (std::filesystem::exists(config.data.vae, unreadable)) try {
      config.data.latent_scale = eval::AutoencoderFile(config.data.vae, {}).scale_factor();
      return;
    } catch (const InputError& e) {  // a relative path that is something else here
      why = e.what();
    }
  log::warn("{}: what is exported does not tell the scale of the model's latents", why);
}

/// Errors: InputError for a name that other programs would read as another format, and for a folder of tiles or
/// latents, whose next reader would take the file for one of them
void check_out_file(const std::string& out) {
  const std::filesystem::path path(out);
  for (const char* ending : {".pt", ".pth", ".bin", ".ckpt"})
    if (path.extension() == ending)
      throw InputError({.where = "command line",
                        .what = "ditexport writes safetensors; load with safetensors.torch.load_file",
                        .got = "--out " + out,
                        .expected = "another ending, such as .safetensors"});
  std::error_code none;
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    if (entry.path().extension() != ".safetensors" || !holds_data(entry.path().string())) continue;
    throw InputError({.where = "command line",
                      .what = "--out lies among tiles or latents, and would be taken for one of them",
                      .got = entry.path().string(),
                      .expected = "another folder"});
  }
}

int run(int argc, char** argv) {
  config::CommandLine line = make_command_line();
  if (!line.parse(argc, argv)) return kExitDone;
  line.need({"out", "checkpoint"});
  const std::string out = line.get_path("out");
  const auto dtype = line.get_word<DType>("dtype");
  const std::string path = line.get_path("checkpoint");
  if (line.has("ema-width") && line.has("weights"))
    throw InputError({.where = "command line",
                      .what = "--ema-width makes an average of its own, which --weights does not choose",
                      .hint = "one of the two"});
  if (line.has("weights") && std::filesystem::is_regular_file(path))
    throw InputError({.where = "command line",
                      .what = "--weights chooses a file of a checkpoint, and --checkpoint names one",
                      .got = path,
                      .hint = "the folder of the checkpoint, or no --weights"});
  std::optional<checkpoint::Snapshots> snapshots;
  if (line.has("ema-width")) snapshots = checkpoint::find_snapshots(path);
  checkpoint::WeightsSource source =
      snapshots ? snapshots->newest : checkpoint::find_weights(path, line.get_word<checkpoint::Weights>("weights"));
  const bool diffusers = is_diffusers(line.get("format"), source.config.model.kind);
  if (diffusers)
    checkpoint::check_diffusers(source.config.model), checkpoint::check_diffusers(source.config.diffusion);
  else
    check_out_file(out);
  const auto model = snapshots ? checkpoint::load_average(*snapshots, line.get_double("ema-width", optim::kLeastWidth,
                                                                                      optim::kGreatestWidth))
                               : checkpoint::load_model(source);
  if (snapshots) source.weights = fmt::format("ema width {}", line.get("ema-width"));
  if (diffusers) {
    checkpoint::export_diffusers(out, *model, source.config, dtype);
  } else {
    tell_scale(source.config);
    checkpoint::export_public(out, *model, source.config, dtype, source);
  }
  log::info("{}: {} parameters of {} as {} in {}", out, model->parameters().num_parameters(), source.file, dtype,
            diffusers ? "the layout of diffusers" : "the public layout");
  log::info("{}", checkpoint::describe_calls(source.config.diffusion));
  if (diffusers) log::info("{}", checkpoint::kDiffusersDiffers);
  const std::vector<std::string> obstacles = checkpoint::obstacles_of_reference(source.config.model);
  if (!diffusers && !obstacles.empty())
    log::info("models.py of the reference cannot load this: {}", fmt::join(obstacles, "; "));
  return kExitDone;
}

}  // namespace

int main(int argc, char** argv) {
  return config::run_program("ditexport", [&] { return run(argc, argv); });
}
