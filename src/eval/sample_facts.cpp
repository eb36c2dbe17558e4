#include "ditrain/eval/sample_facts.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/files/checksum.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"

namespace ditrain::eval {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const SampleFacts& f, const diffusion::Process& process) {
  const int64_t guided = f.sampler.cfg_channels;
  return {{"program", f.program},
          {"images", f.images},
          {"sampler", diffusion::sampler_of(f.sampler, process).name},
          {"steps", f.sampler.spacing.text()},
          {"eta", f.sampler.eta},
          {"guidance", f.sampler.cfg_scale},
          {"guided_channels", guided < 0 ? Json("all") : Json(guided)},
          {"guidance_interval", {f.sampler.cfg_interval.from, f.sampler.cfg_interval.to}},
          {"labels", f.labels},
          {"label_names", f.label_names.empty() ? Json(nullptr) : Json(f.label_names)},
          {"seed", f.seed},
          {"clip", f.sampler.clip_denoised},
          {"checkpoint", f.checkpoint},
          {"step", f.step},
          {"weights", f.weights},
          {"precision", dtype_name(f.precision)},
          {"latents", f.latents},
          {"vae", f.vae.empty() ? Json(nullptr) : Json(f.vae)},
          {"metadata", f.metadata.empty() ? Json(nullptr) : Json(f.metadata)},
          {"condition", f.condition.empty() ? Json(nullptr) : Json(f.condition)},
          {"guide", f.guide.empty() ? Json(nullptr) : Json(f.guide)}};
}

std::string text_of(const Json& json) { return files::json_text(json, 1) + "\n"; }

}  // namespace

std::string sample_facts_path(const std::string& samples) {
  return std::filesystem::is_directory(samples) ? samples + "/" + kSampleFactsFile : samples + ".json";
}

std::string unfinished_facts(const SampleFacts& facts, const diffusion::Process& process,
                             const std::vector<std::string>& weights) {
  Json json = to_json(facts, process);
  for (const std::string& file : weights)
    json["checksums of weights"].push_back(files::to_hex(files::checksum_of_parts(file)));
  return text_of(json);
}

std::string difference_to_unfinished(const std::string& file, const std::string& are) try {
  const Json before = files::parse_json<Json>(files::read_text_file(file, 1 << 20)), now = files::parse_json<Json>(are);
  for (const auto& [key, value] : now.items())
    if (const Json was = before.value(key, Json()); was != value && key != "checkpoint" && key != "label_names")
      return fmt::format("{} was {}, is {}", key, files::json_text(was), files::json_text(value));
  return "";
} catch (const nlohmann::json::exception& e) {
  throw InputError({.where = file, .what = files::json_problem(e)});
}

void write_sample_facts(const std::string& samples, const SampleFacts& facts, const diffusion::Process& process) {
  files::write_file_atomically(sample_facts_path(samples), text_of(to_json(facts, process)));
  std::error_code ignored;
  std::filesystem::remove(samples + "/" + kUnfinishedFile, ignored);
}

}  // namespace ditrain::eval
