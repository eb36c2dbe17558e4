// Settings of the section `data` of a config file. Fields that a kind does not use are ignored by it.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "ditrain/base/words.hpp"

namespace ditrain::dataset {

struct Kind;  // kinds.hpp
/// All kinds, in the order of the documentation; the first is the default.
std::span<const Kind> rows_of(const Kind*);
const Kind* default_kind();

/// Stop at the first unreadable sample, or count it and take the next one.
enum class OnBadFile { kError, kSkip };
inline constexpr Word<OnBadFile> kOnBadFile[] = {{"error", OnBadFile::kError}, {"skip", OnBadFile::kSkip}};
constexpr std::span<const Word<OnBadFile>> words_of(OnBadFile) { return kOnBadFile; }

struct Config {
  const Kind* kind = default_kind();
  std::string path;  ///< folder (folder, latents) or one .safetensors file (latents)
  std::string vae;   ///< autoencoder whose latents of the pictures are learnt; empty: what the kind gives
  OnBadFile on_bad_file = OnBadFile::kError;
  bool random_flip = true;     ///< mirror half of the samples (folder; latents that hold flipped copies)
  double latent_scale = 1.0;   ///< latents are multiplied by it (1: the files already hold scaled latents)
  int64_t num_images = 50000;  ///< shapes: images per epoch
  int64_t loader_threads = 1;  ///< threads that read and decode, 1 to 1024
  int64_t queue_batches = 4;   ///< batches kept ready ahead of the step, 1 to 1024
};

}  // namespace ditrain::dataset
