// ditexport: a checkpoint as safetensors files for other programs.
#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/checkpoint/dit_file.hpp"
#include "ditrain/config/command_line.hpp"

namespace {

using namespace ditrain;

config::CommandLine make_command_line() {
  return config::CommandLine(
      "ditexport", "write the weights of a checkpoint as safetensors",
      {{"checkpoint", "DIR|FILE", "run folder, checkpoint folder (the latest is taken), or a .safetensors file"},
       {"out", "PATH", "what to write, which must not exist yet: a file for dit, a folder for diffusers"},
       {"format", "dit|diffusers",
        "dit: one file with the public DiT names; diffusers: DiTTransformer2DModel, with its config", "dit"},
       {"weights", config::choices<checkpoint::Weights>(), "EMA weights, or the weights themselves", "ema"},
       {"dtype", config::choices<DType>(), "of all tensors", "f32"}});
}

enum class Format { kDit, kDiffusers };
constexpr Word<Format> kFormats[] = {{"dit", Format::kDit}, {"diffusers", Format::kDiffusers}};
constexpr std::span<const Word<Format>> words_of(Format) { return kFormats; }

std::string required(const config::CommandLine& line, const std::string& flag) {
  if (!line.has(flag))
    throw InputError({.where = "command line", .what = "--" + flag + " is needed", .hint = "ditexport --help"});
  return line.get_path(flag);
}

int run(int argc, char** argv) {
  config::CommandLine line = make_command_line();
  if (!line.parse(argc, argv)) return kExitDone;
  const std::string out = required(line, "out");
  const bool diffusers = line.get_word<Format>("format") == Format::kDiffusers;
  const auto dtype = line.get_word<DType>("dtype");
  const checkpoint::WeightsSource source =
      checkpoint::find_weights(required(line, "checkpoint"), line.get_word<checkpoint::Weights>("weights"));
  if (diffusers) checkpoint::check_diffusers(source.config.model), checkpoint::check_diffusers(source.config.diffusion);
  const auto model = checkpoint::load_model(source);
  (diffusers ? checkpoint::export_diffusers : checkpoint::export_dit)(out, *model, source.config, dtype);
  log::info("{}: {} parameters of {} as {} in {}", out, model->parameters().num_parameters(), source.file, dtype,
            diffusers ? "the layout of diffusers" : "the public layout");
  if (diffusers) log::info("{}", checkpoint::kDiffusersDiffers);
  return kExitDone;
}

}  // namespace

int main(int argc, char** argv) {
  return config::run_program("ditexport", [&] { return run(argc, argv); });
}
