// Names in exported files that reader and writer share.
#pragma once

namespace ditrain::checkpoint {

inline constexpr const char* kConfigMetadata = "ditrain.config";    ///< the config as YAML
inline constexpr const char* kVersionMetadata = "ditrain.version";  ///< of the program that wrote the file
inline constexpr const char* kWeightsMetadata = "ditrain.weights";  ///< which weights, as WeightsSource
inline constexpr const char* kStepMetadata = "ditrain.step";        ///< optimiser steps done

}  // namespace ditrain::checkpoint
