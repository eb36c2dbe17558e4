// The Frechet distance between the samples of a model in training and a reference, for curves over the steps: few
// samples, one protocol for the whole run. Ranks share the images; any number of them gives the same number.
//
//   TrainingFid fid(setup, data, team, comm);                  // features of the reference, once
//   const double value = fid.distance(num_mine, draw);         // of this rank's samples; the same on all ranks
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ditrain/dataset/dataset.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/eval/feature_statistics.hpp"
#include "ditrain/eval/features.hpp"

namespace ditrain::eval {

/// The network sees the three channels of a model as red, green and blue: bands of tiles have to lie in this order. A
/// warning where their names do not tell colours.
/// Errors:   InputError that names the order; where: data.bands
void expect_colours_in_order(const dataset::Config& settled);

class TrainingFid {
 public:
  struct Setup {
    FeatureSettings features = {};
    std::string reference = {};  ///< images or statistics, as ditfid --real; "": images of the data
    int64_t most_of_data = kMostOfData;
    dataset::SampleShape samples = {};  ///< whose distance is wanted
  };
  static constexpr int64_t kMostOfData = 10000;
  static constexpr int64_t kSamplesAtOnce = 64;

  /// Collective. `data` is used by the constructor alone; team and comm outlive the object.
  /// Errors:   InputError: weights, a reference that cannot be read or has other dimensions than the samples
  TrainingFid(const Setup& setup, const dataset::Dataset& data, parallel::Team& team, dist::Communicator& comm);

  /// Samples first ... first + n - 1 of those of this rank, in a row, in about [-1, 1].
  using Draw = std::function<std::vector<float>(int64_t first, int64_t n)>;
  /// Collective: the samples of rank 0 come first. They are drawn kSamplesAtOnce at a time. One or three channels are
  /// rounded to eight bits first, as in a file.
  /// Errors:   InputError: fewer than two images
  double distance(int64_t num_mine, const Draw& draw);

  /// The most that the object and distance() take on rank 0, which has most to do, without the network.
  static size_t bytes(FeatureKind kind, const dataset::SampleShape& samples, int64_t num_samples, int64_t most_of_data);

  /// "fid", or "fid_pixels", which is not comparable with published values.
  std::string name() const { return settings_.kind == FeatureKind::kPixels ? "fid_pixels" : "fid"; }
  const std::string& description() const { return description_; }  ///< of the reference, on rank 0

 private:
  FeatureStatistics statistics_of_all(std::vector<float> mine);

  FeatureSettings settings_;
  const dataset::SampleShape shape_;
  parallel::Team& team_;
  dist::Communicator& comm_;
  FeatureStatistics reference_;  // on rank 0
  std::string description_;
};

}  // namespace ditrain::eval
