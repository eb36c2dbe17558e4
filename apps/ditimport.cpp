// ditimport: weights that other programs published, as a checkpoint; or a list of what their files hold.
#include <fmt/ranges.h>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/checkpoint/import.hpp"
#include "ditrain/config/command_line.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/weights/weight_list.hpp"

namespace {

using namespace ditrain;

config::CommandLine make_command_line() {
  return config::CommandLine(
      "ditimport", "make a checkpoint of weights that other programs published",
      {{"from", "PATH",
        "a file of weights (safetensors, or PyTorch's .pt, .pth, .bin: told by the content), a folder of diffusers, or "
        "a checkpoint of ditrain"},
       {"out", "DIR", "the checkpoint to write, a new folder: for ditsample, or train.init_from"},
       {"weights", config::choices<checkpoint::Weights>(),
        "EMA weights, or the weights themselves, of files that hold both", "ema"},
       {"set", "model.key=value", "config key of the checkpoint; repeat it for several", "", true},
       {"list", "", "only list the tensors: type, shape, the begin of the SHA-256 of its bytes, name"},
       {"json", "FILE", "with --list: write names, types, shapes and hashes there as JSON"}},
      "[PATH]",
      "The file may stand behind the flags instead of --from. Sizes follow from the shapes of the weights, heads from\n"
      "the widths of the published models; --set model.num_heads=N tells others. A key that differs from the file\n"
      "(classes, channels, size of the input) adapts the weights, which is printed. A file of PyTorch is read as "
      "data:\n"
      "it can hold tensors, dictionaries, lists, numbers, texts and an argparse.Namespace. Anything else in it is\n"
      "refused by its name, and nothing in it is ever executed.\n"
      "Exit codes: 0 done, 1 failed while writing, 2 bad usage or a file that is refused.\n");
}

std::string weight_file(const config::CommandLine& line) {
  const size_t named = line.positional().size() + (line.has("from") ? 1 : 0);
  if (named != 1)
    throw InputError({.where = "command line",
                      .what = "one source of weights is needed",
                      .hint = "ditimport --from FILE --out DIR, or ditimport --list FILE"});
  return line.has("from") ? line.get_path("from") : line.positional()[0];
}

void list(const std::string& path, const config::CommandLine& line) {
  if (line.has("json")) files::check_output_file(line.get_path("json"));
  const std::vector<weights::ListedWeight> weights = weights::list_weights(path);
  for (const weights::ListedWeight& w : weights) {
    log::info(
        "{:<9} {:<22} {}  {}", w.dtype, fmt::format("[{}]", fmt::join(w.shape, ", ")), w.sha256.substr(0, 12),
        files::json_text(nlohmann::json(w.name)));  // quoted: control characters of a hostile name stay in the file
  }
  log::info("{} tensors in {}", weights.size(), path);
  if (line.has("json")) files::write_file_atomically(line.get_path("json"), weights::to_json(weights));
}

void import(const std::string& path, const config::CommandLine& line) {
  const auto weights = line.get_word<checkpoint::Weights>("weights");
  const checkpoint::Imported imported = checkpoint::import_weights(
      {.from = path, .out = line.get_path("out"), .weights = weights, .sets = line.get_all("set")});
  for (const std::string& note : imported.notes) log::info("{}", note);
  const nn::ModelConfig& m = imported.config.model;
  log::info("{}: {} with {} blocks of width {}, {} heads, patch {}, input {} x {} x {}, {} classes", line.get("out"),
            m.name, m.depth, m.hidden_size, m.num_heads, m.patch_size, m.in_channels, m.input_height, m.input_width,
            m.num_classes);
  log::info("{} parameters of {}", imported.num_parameters, imported.file);
}

void refuse_beside(const config::CommandLine& line, const std::string& mode, const std::vector<std::string>& flags) {
  for (const std::string& flag : flags)
    if (line.has(flag)) throw InputError({.where = "command line", .what = "--" + flag + " has no meaning " + mode});
}

int run(int argc, char** argv) {
  config::CommandLine line = make_command_line();
  if (!line.parse(argc, argv)) return kExitDone;
  const std::string path = weight_file(line);
  if (line.has("list")) {
    refuse_beside(line, "with --list", {"out", "weights", "set"});
    list(path, line);
    return kExitDone;
  }
  refuse_beside(line, "without --list", {"json"});
  if (!line.has("out"))
    throw InputError({.where = "command line",
                      .what = "--out is needed: the folder of the checkpoint; or --list",
                      .hint = "ditimport --from FILE --out DIR"});
  import(path, line);
  return kExitDone;
}

}  // namespace

int main(int argc, char** argv) {
  return config::run_program("ditimport", [&] { return run(argc, argv); });
}
