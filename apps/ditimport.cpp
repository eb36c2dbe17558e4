// ditimport: what weight files of other programs hold.
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/config/command_line.hpp"
#include "ditrain/io/files.hpp"
#include "ditrain/io/weight_list.hpp"

namespace {

using namespace ditrain;

config::CommandLine make_command_line() {
  return config::CommandLine(
      "ditimport", "list the tensors of weight files that other programs wrote",
      {{"list", "", "print the tensors of the file: type, shape, the begin of the SHA-256 of its bytes, name"},
       {"from", "FILE", "the weight file: safetensors or PyTorch (.pt, .pth), told by its content"},
       {"json", "FILE", "with --list: write names, types, shapes and hashes there as JSON"}},
      "[FILE]",
      "The file may stand behind the flags instead of --from. A file of PyTorch is read as data: it can hold tensors,\n"
      "dictionaries, lists, numbers, texts and an argparse.Namespace. Anything else in it is refused by its name, and\n"
      "nothing in it is ever executed.\n"
      "Exit codes: 0 done, 2 bad usage or a file that is refused.\n");
}

std::string weight_file(const config::CommandLine& line) {
  const size_t named = line.positional().size() + (line.has("from") ? 1 : 0);
  if (!line.has("list") || named != 1) {
    throw InputError({.where = "command line",
                      .what = "--list and one weight file are needed",
                      .hint = "ditimport --list --from FILE"});
  }
  return line.has("from") ? line.get_path("from") : line.positional()[0];
}

int run(int argc, char** argv) {
  config::CommandLine line = make_command_line();
  if (!line.parse(argc, argv)) return kExitDone;
  const std::string path = weight_file(line);
  if (line.has("json")) io::check_output_file(line.get_path("json"));
  const std::vector<io::ListedWeight> weights = io::list_weights(path);
  for (const io::ListedWeight& w : weights) {
    log::info("{:<9} {:<22} {}  {}", w.dtype, fmt::format("[{}]", fmt::join(w.shape, ", ")), w.sha256.substr(0, 12),
              nlohmann::json(w.name).dump());  // quoted: control characters of a hostile name stay in the file
  }
  log::info("{} tensors in {}", weights.size(), path);
  if (line.has("json")) io::write_file_atomically(line.get_path("json"), io::to_json(weights));
  return kExitDone;
}

}  // namespace

int main(int argc, char** argv) {
  return config::run_program("ditimport", [&] { return run(argc, argv); });
}
