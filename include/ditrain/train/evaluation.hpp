// The evaluations that a run makes between steps: sample grids, Frechet distances and the validation loss, split over
// ranks.
#pragma once
#include <map>
#include <string>

#include "ditrain/config/config.hpp"
#include "ditrain/dataset/dataset.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/eval/latent_codec.hpp"
#include "ditrain/eval/sampling.hpp"
#include "ditrain/eval/training_fid.hpp"
#include "ditrain/nn/model.hpp"

namespace ditrain::train {

/// All functions are collective and add their results to `extra`, which goes into metrics.jsonl.
struct Evaluation {
  const config::Config& config;
  nn::Model& model;
  const dataset::Dataset &data, &validation_data;
  dist::Communicator& comm;
  ops::Context& ctx;
  Tensor ema;                              ///< the EMA weights, a whole arena
  nn::Model* guide = nullptr;              ///< sample.guide; null: not set
  eval::LatentCodec* decoder = nullptr;    ///< decodes samples for the grid; null: not decoded
  eval::EncodedImages* encoded = nullptr;  ///< latents of `validation_data`, if the model learns those

  /// Samples sample.num_images images, classes in turn (with given images or numbers: those of images of the data, with
  /// their labels). Rank 0 writes a grid PNG to `path` (ignored elsewhere), and
  /// beside it the facts that ditsample writes (eval/sample_facts.hpp), with the training's `step`. With `compare` it
  /// also computes the share of images whose nearest neighbour among 4,000 data images has their own class (not if the
  /// data has to be encoded first).
  void sample_grid(const std::string& path, int64_t step, bool compare, std::map<std::string, double>& extra);
  /// Frechet distance of eval.fid_samples samples with the labels of the data in a random order; the same on all
  /// ranks.
  double fid(eval::TrainingFid& measure, std::map<std::string, double>& extra);
  /// Computes the loss on eval.num_images fixed (image, t, noise), with the right label and with a wrong one.
  void validation(std::map<std::string, double>& extra);

 private:
  bool gives_images() const;
  void give_images(eval::GenerateRequest& request) const;
  void give_labels(eval::GenerateRequest& request) const;
};

}  // namespace ditrain::train
