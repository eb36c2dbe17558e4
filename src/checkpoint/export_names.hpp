// Names in exported files that reader and writer share.
#pragma once

namespace ditrain::checkpoint {

inline constexpr const char* kConfigMetadata = "ditrain.config";    ///< the config as YAML
inline constexpr const char* kVersionMetadata = "ditrain.version";  ///< of the program that wrote the file

}  // namespace ditrain::checkpoint
