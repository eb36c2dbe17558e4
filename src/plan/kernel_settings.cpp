#include "ditrain/plan/kernel_settings.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/kernels/dispatch.hpp"
#include "ditrain/platform/cpu.hpp"

namespace ditrain::plan {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTuningBytes = 1 << 16;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

InputError bad_tuning(const std::string& what) {
  return InputError(
      {.where = "tuning", .what = what, .hint = "ditbench tune, which writes such a file, or --set kernels.tuned=off"});
}

// Why a tuning is not for this process; empty if it is.
std::string misfit(const Tuning& t, const kernels::GemmBlocking& derived) {
  if (t.cpu != platform::cpu_model_name()) return "was made on " + t.cpu + ", not " + platform::cpu_model_name();
  if (t.isa != kernels::chosen_isa()) return "was made for " + t.isa + " kernels, not " + kernels::chosen_isa();
  if (t.derived.rows == 0) return "does not say for which caches it was made";
  if (t.derived != derived)
    return fmt::format("was made where the caches give blocks {} x {}, not {} x {}", t.derived.rows, t.derived.cols,
                       derived.rows, derived.cols);
  return "";
}

Tuning tuning_of(const nlohmann::json& json) {
  const auto blocks = [&](const char* name) {
    const auto size = [&](const char* side) {
      const nlohmann::json& value = json.at(name).at(side);
      return value.is_number_integer() ? value.get<int64_t>() : int64_t{0};  // 0 is out of range
    };
    return kernels::GemmBlocking{size("block_rows"), size("block_cols")};
  };
  const auto derived = json.contains("derived") ? blocks("derived") : kernels::GemmBlocking{0, 0};
  return {json.at("cpu"), json.at("isa"), derived, blocks("gemm")};
}

}  // namespace

std::string set_blocking(const config::KernelsConfig& kernels, const platform::Topology& topology) {
  const bool automatic = kernels.tuned == config::TunedFrom::kAuto;
  std::error_code ignored;
  const std::string path = automatic ? default_tuning_path() : kernels.tuning_file;
  std::string why;
  kernels::GemmBlocking blocking = derived_blocking(topology);
  if (kernels.tuned == config::TunedFrom::kOff) {
    why = "kernels.tuned: off";
  } else if (automatic && (path.empty() || !fs::exists(path, ignored))) {
    why = path.empty() ? "no folder for a tuning file" : "no tuning file " + path;
  } else {
    const Tuning t = read_tuning(path);
    const std::string wrong = misfit(t, blocking);
    if (!wrong.empty() && !automatic) throw bad_tuning(path + " " + wrong);
    if (!wrong.empty()) why = path + " " + wrong;
    if (wrong.empty()) blocking = t.blocking;
  }
  kernels::set_gemm_blocking(blocking);
  return why.empty() ? "from " + path : "derived from caches (" + why + ")";
}

kernels::GemmBlocking derived_blocking(const platform::Topology& t) {
  const auto share = [&](size_t bytes, int caches) {  // of one core
    return bytes / size_t(std::max(1, t.cores / std::max(1, caches)));
  };
  return kernels::derived_gemm_blocking(share(t.l2_bytes, t.l2_caches), share(t.l3_bytes, t.l3_caches));
}

std::string default_tuning_path() {
  if (const std::string path = environment("DITRAIN_TUNING"); !path.empty()) return path;
  if (const std::string config = environment("XDG_CONFIG_HOME"); !config.empty())
    return config + "/ditrain/tuning.json";
  const std::string home = environment("HOME");
  return home.empty() ? "" : home + "/.config/ditrain/tuning.json";
}

Tuning read_tuning(const std::string& path) {
  std::string text;
  try {
    text = files::read_text_file(path, kMaxTuningBytes);
  } catch (const InputError& e) {  // names the file
    throw bad_tuning(e.what());
  }
  try {
    const Tuning t = tuning_of(files::parse_json(text));
    kernels::check_gemm_blocking(t.blocking);
    return t;
  } catch (const nlohmann::json::exception& e) {
    throw bad_tuning(path + " is not a tuning: " + files::json_problem(e));
  } catch (const InputError& e) {
    throw bad_tuning(path + ": " + e.what());
  }
}

void write_tuning(const Tuning& tuning, const std::string& path) {
  const auto blocks = [](const kernels::GemmBlocking& b) {
    return nlohmann::json{{"block_rows", b.rows}, {"block_cols", b.cols}};
  };
  const nlohmann::json json = {
      {"cpu", tuning.cpu}, {"isa", tuning.isa}, {"derived", blocks(tuning.derived)}, {"gemm", blocks(tuning.blocking)}};
  if (const fs::path folder = fs::path(path).parent_path(); !folder.empty()) files::make_output_folder(folder);
  files::write_file_atomically(path, files::json_text(json, 2) + "\n");
}

std::string apply_kernel_settings(const config::Config& config, const platform::Topology& topology, ops::Context& ctx) {
  const std::string origin = set_blocking(config.kernels, topology);
  const bool reference = config.kernels.gemm == config::Gemm::kRef;
  ctx.gemm_settings = {reference ? ops::GemmBackend::kReference : ops::GemmBackend::kOwn, config.kernels.fuse};
  const kernels::GemmBlocking b = kernels::gemm_blocking();
  return fmt::format("products: {}, {}; blocks {} x {} {}", config.kernels.gemm,
                     ctx.gemm_settings.fused() ? "fused" : "passes around them", b.rows, b.cols, origin);
}

}  // namespace ditrain::plan
