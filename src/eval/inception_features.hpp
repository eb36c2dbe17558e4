// Features of the FID Inception for all images of a set.
#pragma once
#include "ditrain/eval/features.hpp"

namespace ditrain::eval {

/// As features_of(); settings.network is there.
Features inception_features(parallel::Team& team, dist::Communicator& comm, ImageSet& set,
                            const FeatureSettings& settings);

}  // namespace ditrain::eval
