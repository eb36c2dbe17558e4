// Small JSON files that other programs wrote: configs of models, indices of shards.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace ditrain::files {

/// The object in a file of at most `max_bytes`.
/// Errors:   InputError, where = path: not a regular file, too large, not JSON, no object; else as fail_to_read
nlohmann::json read_json_object(const std::string& path, size_t max_bytes = size_t{1} << 20);

}  // namespace ditrain::files
