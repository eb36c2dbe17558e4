// What the trainer looks at on the way: sample grids and the validation loss, split over ranks.
#pragma once
#include <map>
#include <string>

#include "ditrain/config/config.hpp"
#include "ditrain/dataset/dataset.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/eval/latent_codec.hpp"
#include "ditrain/eval/training_fid.hpp"
#include "ditrain/nn/dit.hpp"

namespace ditrain::train {

/// Collective. Results are added to `extra`, which goes into metrics.jsonl.
struct Evaluation {
  const config::Config& config;
  nn::Dit& model;
  const dataset::Dataset& data;
  dist::Communicator& comm;
  ops::Context& ctx;
  const Tensor& ema;                       ///< the weights that are used, a whole arena
  eval::LatentCodec* decoder = nullptr;    ///< of the samples, for the picture; null: they are shown as they are
  eval::EncodedImages* encoded = nullptr;  ///< of `data`, if the model learns latents of it

  /// Draws sample.num_images images, classes in turn, and writes a grid PNG and beside it what ditsample writes of
  /// samples (eval/sample_facts.hpp), of the training's `step` (rank 0; `path` is ignored elsewhere).
  /// With `compare`: the share of images whose nearest neighbour among 4,000 data images has their own class (not
  /// where the data has to be encoded first).
  void sample_grid(const std::string& path, int64_t step, bool compare, std::map<std::string, double>& extra);
  /// Frechet distance of eval.fid_samples samples, classes in turn; the same on all ranks.
  double fid(eval::TrainingFid& measure, std::map<std::string, double>& extra);
  /// Loss on eval.num_images fixed (image, t, noise): with the right label and with a wrong one.
  void validation(std::map<std::string, double>& extra);
};

}  // namespace ditrain::train
