// Latents of a data set, made once by an autoencoder and written as the shards that data.kind: latents reads.
//
// A shard holds a run of samples of the data set. It appears under its name when it is whole, and says how it was made:
// started again after it was killed, the work goes on with the shards that are missing, and a folder of shards that
// were made in another way, or of other images, is refused. Ranks take those that are missing in turn; neither their
// number nor that of threads changes a byte.
#pragma once
#include <functional>
#include <map>
#include <string>

#include "ditrain/base/words.hpp"
#include "ditrain/dataset/dataset.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/nn/autoencoder.hpp"

namespace ditrain::eval {

/// What a shard holds of the posterior of each image: one draw, its mean, or mean and log-variance, from which training
/// draws at every visit.
enum class PosteriorUse { kSample, kMean, kMoments };
inline constexpr Word<PosteriorUse> kPosteriorUses[] = {
    {"sample", PosteriorUse::kSample}, {"mean", PosteriorUse::kMean}, {"moments", PosteriorUse::kMoments}};
constexpr std::span<const Word<PosteriorUse>> words_of(PosteriorUse) { return kPosteriorUses; }

struct LatentShards {
  std::string out;         ///< folder; created if it is missing
  int64_t samples = 1024;  ///< of a shard
  bool flip = false;       ///< also those of the mirrored images (latents_flip; mean_flip and logvar_flip)
  PosteriorUse posterior = PosteriorUse::kSample;
  uint64_t seed = 0;                              ///< of that: sample i draws the same whatever the rank
  double scale_factor = 1;                        ///< written beside the latents, which are not multiplied by it
  std::string vae = {};                           ///< hash of the weights
  std::map<std::string, std::string> tiles = {};  ///< dataset::tile_facts of images that are tiles
};

/// How far this rank is.
struct EncodingProgress {
  int64_t encoded = 0;  ///< images of this call
  int64_t to_do = 0;    ///< images of this call in all, those of shards that were there already left out
};

/// Files:    OUT/latents_00000.safetensors, ...: latents [n, z, h, w] F32, or mean and logvar, labels [n] I64 if the
///           data has any, the same of mirrored images if asked for; metadata scale_factor, vae and others.
///           OUT/stats.json: samples, and for each channel mean and standard deviation of all latents (of those that
///           training will draw)
/// Numerics: the mirrored images draw the same noise as the images
/// Errors:   InputError [out] if the folder holds other shards or another process writes to it, also a rank that has
///           outlived an earlier call; those of the data set; RunError if the disk is full: whole shards stay, the
///           unfinished one is removed
/// Collective.
void write_latent_shards(ops::Context& ctx, nn::Autoencoder& vae, const dataset::Dataset& data,
                         const LatentShards& shards, dist::Communicator& comm,
                         const std::function<void(const EncodingProgress&)>& progress = {});

}  // namespace ditrain::eval
