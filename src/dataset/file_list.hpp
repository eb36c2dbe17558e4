// Sorted listings of folders, the same on every machine whatever order the file system keeps.
#pragma once
#include <string>
#include <vector>

namespace ditrain::dataset {

/// The extension of a file name in lower case, without the dot ("a/B.JPeG" -> "jpeg"); "" if there is none.
std::string lower_extension(const std::string& name);

struct Listing {
  std::vector<std::string> folders, files;  ///< names, not paths, in the order of their bytes
};

/// Entries of the folder `path`. Hidden entries (".name") are left out; links count as what they point to; other things
/// (pipes, devices, broken links) are left out.
/// Errors: InputError if `path` is missing, not a folder or not readable.
Listing list_folder(const std::string& path);

}  // namespace ditrain::dataset
