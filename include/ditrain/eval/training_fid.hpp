// The Frechet distance between the samples of a model in training and a reference, for curves over the steps: few
// samples, one protocol for the whole run. Ranks share the images; any number of them gives the same number.
//
//   TrainingFid fid(setup, data, team, comm);                  // features of the reference, once
//   const double value = fid.distance(mine, shape);            // of this rank's samples; the same on all ranks
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ditrain/dataset/dataset.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/eval/feature_statistics.hpp"
#include "ditrain/eval/features.hpp"

namespace ditrain::eval {

class TrainingFid {
 public:
  struct Setup {
    FeatureSettings features = {};
    std::string reference = {};  ///< images or statistics, as ditfid --real; "": images of the data
    int64_t most_of_data = 10000;
  };
  /// Collective. `data` is used by the constructor alone; team and comm outlive the object.
  /// Errors:   InputError: weights, a reference that cannot be read
  TrainingFid(const Setup& setup, const dataset::Dataset& data, parallel::Team& team, dist::Communicator& comm);

  /// Collective: `mine` are images [n, shape] in about [-1, 1], those of rank 0 first. One or three channels are
  /// rounded to eight bits first, as in a file.
  /// Errors:   InputError: fewer than two images, or images of other dimensions than the reference
  double distance(const std::vector<float>& mine, const dataset::SampleShape& shape);

  /// "fid", or "fid_pixels", which is not comparable with published values.
  std::string name() const { return settings_.kind == FeatureKind::kPixels ? "fid_pixels" : "fid"; }
  const std::string& description() const { return description_; }  ///< of the reference, on rank 0

 private:
  Features features_of_all(ImageSet* mine);

  FeatureSettings settings_;
  parallel::Team& team_;
  dist::Communicator& comm_;
  FeatureStatistics reference_;  // on rank 0
  std::string description_;
};

}  // namespace ditrain::eval
