// The Frechet distance between samples of a model in training and a reference, for a curve over the steps: few samples,
// one protocol for the whole run. Ranks share the images; the result does not depend on their number.
//
//   TrainingFid fid(setup, data, team, comm);                  // features of the reference, once
//   const double value = fid.distance(num_mine, draw);         // of the samples that `draw` makes on all ranks
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/dataset/dataset.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/eval/feature_statistics.hpp"
#include "ditrain/eval/features.hpp"

namespace ditrain::eval {

/// Checks that data.bands has red, green and blue in this order, because the network takes the three channels as such.
/// Logs a warning if the names of the bands tell no colours.
/// Errors:   InputError, where = data.bands, that gives the right order
void expect_colours_in_order(const dataset::Config& settled);

class TrainingFid {
 public:
  struct Setup {
    FeatureSettings features = {};
    std::string reference = {};  ///< images or statistics, as ditfid --real takes; "": images of the training data
    int64_t most_of_data = kMostOfData;       ///< most images to take of the training data
    dataset::SampleShape samples = {};        ///< shape of the generated samples
    bool is_latent = false;                   ///< samples and data are latents,
    std::optional<double> latent_scale = {};  ///< and what those of a reference are multiplied by; none: as it states
  };
  static constexpr int64_t kMostOfData = 10000;
  static constexpr int64_t kSamplesAtOnce = 64;

  /// Collective. Only the constructor uses `data`; team and comm must outlive the object.
  /// Errors:   InputError: weights or a reference that cannot be read, or a reference with other dimensions than the
  ///           samples, or with pixels of another shape or range
  TrainingFid(const Setup& setup, const dataset::Dataset& data, parallel::Team& team, dist::Communicator& comm);

  /// Returns samples first ... first + n - 1 of this rank, one behind the other, in about [-1, 1].
  using Draw = std::function<std::vector<float>(int64_t first, int64_t n)>;
  /// Collective. Draws num_mine samples on each rank, kSamplesAtOnce at a time, and returns the distance of all to the
  /// reference; NaN if a feature is not finite. Pictures of one or three channels are rounded to 8 bits first, as in a
  /// file.
  /// Errors:   InputError: fewer than two images
  double distance(int64_t num_mine, const Draw& draw);

  /// Peak bytes of the object and distance() on rank 0, which takes the most, without the network.
  static size_t bytes(FeatureKind kind, const dataset::SampleShape& samples, int64_t num_samples, int64_t most_of_data);

  /// "fid", or "fid_pixels", which is not comparable with published values.
  static std::string name_of(FeatureKind kind) { return kind == FeatureKind::kPixels ? "fid_pixels" : "fid"; }
  std::string name() const { return name_of(settings_.kind); }
  const std::string& description() const { return description_; }  ///< of the reference; "" on all ranks but 0

 private:
  FeatureStatistics statistics_of_all(std::vector<float> mine);
  void expect_pixels(const std::string& where, const std::string& input) const;

  FeatureSettings settings_;
  const dataset::SampleShape shape_;
  const bool is_latent_;
  parallel::Team& team_;
  dist::Communicator& comm_;
  FeatureStatistics reference_;  // on rank 0
  std::string description_;
};

}  // namespace ditrain::eval
