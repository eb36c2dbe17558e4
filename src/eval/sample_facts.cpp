#include "ditrain/eval/sample_facts.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "ditrain/files/files.hpp"

namespace ditrain::eval {

std::string sample_facts_path(const std::string& samples) {
  return std::filesystem::is_directory(samples) ? samples + "/" + kSampleFactsFile : samples + ".json";
}

void write_sample_facts(const std::string& samples, const SampleFacts& f, const diffusion::Process& process) {
  using Json = nlohmann::ordered_json;
  const int64_t guided = f.sampler.cfg_channels;
  const Json json = {{"program", f.program},
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
  const std::string text = json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  files::write_file_atomically(sample_facts_path(samples), text);
}

}  // namespace ditrain::eval
