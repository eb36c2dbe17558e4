// Records how samples were made, in a file beside them: ditfid states it in its protocol line, because sampler,
// guidance and weights change an FID more than most models differ.
#pragma once
#include <cstdint>
#include <string>

#include "ditrain/diffusion/diffusion.hpp"

namespace ditrain::eval {

inline constexpr const char* kSampleFactsFile = "samples.json";

struct SampleFacts {
  std::string program;
  int64_t images = 0;
  diffusion::SamplerConfig sampler = {};
  std::string labels;  ///< as make_labels() takes them
  uint64_t seed = 0;
  std::string checkpoint;      ///< a file, or the folder of a run
  int64_t step = -1;           ///< of the training; -1: unknown
  std::string weights;         ///< ema or model
  bool latents = false;        ///< the samples are latents, of which pictures show channels
  std::string vae = {};        ///< that decoded them; "": none
  std::string metadata = {};   ///< as ditsample takes it; "": none
  std::string condition = {};  ///< the scene that they were drawn for; "": none
  std::string guide = {};      ///< checkpoint that guidance led away from; "": it was the absence of the label
};

/// Where the facts of samples lie: in the folder of images, or beside a file of them ("samples.npz.json").
std::string sample_facts_path(const std::string& samples);

/// Writes the file of these samples, atomically. Call when they are complete.
/// Errors:   RunError (disk full, ...)
void write_sample_facts(const std::string& samples, const SampleFacts& facts, const diffusion::Process& process);

}  // namespace ditrain::eval
