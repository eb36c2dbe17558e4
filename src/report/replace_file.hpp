// Files that are replaced again and again while a run goes on.
#pragma once
#include <string>
#include <string_view>

namespace ditrain::report {

/// Replaces (or creates) `path` by a rename: a reader sees the old content or the new one. Not synced: after a power
/// cut the file may be empty. Errors: RunError; the old file stays
void replace_file(const std::string& path, std::string_view content);

}  // namespace ditrain::report
