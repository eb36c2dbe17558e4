// Records how samples were made, in a file beside them. ditfid repeats it in its protocol line, because sampler,
// guidance and weights change an FID by more than most models differ.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ditrain/diffusion/diffusion.hpp"

namespace ditrain::eval {

inline constexpr const char* kSampleFactsFile = "samples.json";
inline constexpr const char* kUnfinishedFile = "unfinished.json";  ///< in a folder, until all its samples are there

struct SampleFacts {
  std::string program;
  int64_t images = 0;
  diffusion::SamplerConfig sampler = {};
  std::string labels;            ///< spec of make_labels()
  std::string label_names = {};  ///< of the classes in `labels`, where they were given by name
  uint64_t seed = 0;
  std::string checkpoint;      ///< a file, or the folder of a run
  int64_t step = -1;           ///< training step of the checkpoint; -1: unknown
  std::string weights;         ///< "ema", "model", "ema width 0.1", or "unknown" for a file that does not say
  bool latents = false;        ///< the samples are undecoded latents; pictures show some of their channels
  std::string vae = {};        ///< autoencoder that decoded the samples; "": none
  std::string metadata = {};   ///< numbers that samples were drawn for, or the file of them; "": none
  std::string condition = {};  ///< scene that conditioned the samples; "": none
  DType precision = DType::kF32;
  std::string guide = {};  ///< checkpoint of the guide (autoguidance); "": the model without labels was the guide
};

/// Path of the facts: FOLDER/samples.json for a folder of images, FILE.json for a file ("samples.npz.json").
std::string sample_facts_path(const std::string& samples);

/// The text of kUnfinishedFile: the facts, and checksums of the files of weights.
/// Errors:   as files::checksum_of_parts
std::string unfinished_facts(const SampleFacts& facts, const diffusion::Process& process,
                             const std::vector<std::string>& weights);
/// Why samples of `are` would not belong to those of the file kUnfinishedFile: "seed was 0, is 1"; "": they do. Paths
/// of a checkpoint and words for labels may differ.
/// Errors:   InputError for a file that is not such a text; as files::fail_to_read
std::string difference_to_unfinished(const std::string& file, const std::string& are);

/// Writes the facts of these samples, atomically. Call it when the samples are complete: kUnfinishedFile goes.
/// Errors:   RunError (disk full, ...)
void write_sample_facts(const std::string& samples, const SampleFacts& facts, const diffusion::Process& process);

}  // namespace ditrain::eval
