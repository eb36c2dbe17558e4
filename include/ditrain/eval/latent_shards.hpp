// Encodes a data set once with an autoencoder and writes the shards that data.kind: latents reads.
//
// A shard holds consecutive samples of the data set. It gets its final name when it is complete, and records how it was
// made. A killed job that is started again resumes with the missing shards; a folder whose shards were made in another
// way, or from other images, is refused. Ranks take the missing shards in turn; neither their number nor that of
// threads changes a byte.
#pragma once
#include <functional>
#include <map>
#include <string>

#include "ditrain/base/words.hpp"
#include "ditrain/dataset/dataset.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/nn/autoencoder.hpp"

namespace ditrain::eval {

/// What a shard stores of each image's posterior: one draw, the mean, or mean and log-variance, from which training
/// draws anew in every epoch.
enum class PosteriorUse { kSample, kMean, kMoments };
inline constexpr Word<PosteriorUse> kPosteriorUses[] = {
    {"sample", PosteriorUse::kSample}, {"mean", PosteriorUse::kMean}, {"moments", PosteriorUse::kMoments}};
constexpr std::span<const Word<PosteriorUse>> words_of(PosteriorUse) { return kPosteriorUses; }

struct LatentShards {
  std::string out;         ///< folder; created if it is missing
  int64_t samples = 1024;  ///< per shard
  bool flip = false;       ///< also encode the mirrored images (latents_flip; mean_flip and logvar_flip)
  PosteriorUse posterior = PosteriorUse::kSample;
  uint64_t seed = 0;                              ///< for posterior draws, which depend on it and the sample alone
  double scale_factor = 1;                        ///< recorded in the shards; the latents are not multiplied by it
  std::string vae = {};                           ///< hash of the autoencoder's weights
  std::map<std::string, std::string> tiles = {};  ///< dataset::tile_facts, if the images are tiles
};

/// Progress of this rank.
struct EncodingProgress {
  int64_t encoded = 0;  ///< images encoded so far by this call
  int64_t to_do = 0;    ///< images that this call has to encode, without shards that existed before
};

/// Writes the missing shards. Collective.
/// Files:    OUT/latents_00000.safetensors, ...: latents [n, z, h, w] F32, or mean and logvar; labels [n] I64 if the
///           data has any; the same of mirrored images if `flip`; metadata scale_factor, vae and others.
///           OUT/stats.json: number of samples, and mean and standard deviation of each channel over all latents (over
///           those that training will draw)
/// Numerics: a mirrored image draws the same noise as the image
/// Errors:   InputError [out] if the folder holds other shards, or if another process writes to it, such as a rank left
///           over from an earlier call; errors of the data set; RunError for an image whose moments are not finite,
///           and if the disk is full: complete shards stay, the unfinished one is removed
void write_latent_shards(ops::Context& ctx, nn::Autoencoder& vae, const dataset::Dataset& data,
                         const LatentShards& shards, dist::Communicator& comm,
                         const std::function<void(const EncodingProgress&)>& progress = {});

}  // namespace ditrain::eval
