// Sorted listings of folders, the same on every machine whatever order the file system keeps.
#pragma once
#include <string>
#include <vector>

namespace ditrain::dataset {

/// The extension of a file name in lower case, without the dot ("a/B.JPeG" -> "jpeg"); "" without an extension.
std::string lower_extension(const std::string& name);

struct Listing {
  std::vector<std::string> folders, files;  ///< names, not paths, in the order of their bytes
};

/// Entries of the folder `path`. Hidden entries (".name") are left out; links count as what they point to; other things
/// (pipes, devices, broken links) are left out.
/// Errors: InputError if `path` is missing, not a folder or not readable.
Listing list_folder(const std::string& path);

/// "3 other files and 2 sub-folders"
std::string describe(const Listing& listing);

enum class FileKind { kImage, kRaster, kShard, kOther };
/// By the extension.
FileKind file_kind(const std::string& name);

/// Folders below folders are looked at to this depth, as products of Sentinel-2 have them; such products keep masks
/// under the names of bands in folders of this name.
inline constexpr int kMaxDepth = 8;
inline constexpr const char* kQualityFolder = "QI_DATA";
/// Whether a folder of this name is (part of) a product of Sentinel-2 or Landsat: no class of what lies in it.
bool is_product(const std::string& name);

/// For a path without what a data kind (folder, latents, tiles) reads: the command or key for what is there instead; ""
/// if that is nothing known, or not among the first thousands of entries.
std::string way_to_data(const std::string& path, const std::string& wanted_kind);

}  // namespace ditrain::dataset
