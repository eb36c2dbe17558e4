// Small JSON files that other programs wrote: configs of models, indices of shards.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace ditrain::files {

/// The object in a file of at most `max_bytes`. Errors: InputError, where = path: unreadable, too large, no object
nlohmann::json read_json_object(const std::string& path, size_t max_bytes = size_t{1} << 20);

}  // namespace ditrain::files
