// Sorted listings of folders: the same on every machine, whatever the order in the file system.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace ditrain::dataset {

/// The extension of a file name in lower case, without the dot ("a/B.JPeG" -> "jpeg"); "" without an extension.
std::string lower_extension(const std::string& name);

struct Listing {
  std::vector<std::string> folders, files;  ///< names, not paths, in the order of their bytes
};

/// Lists the folder `path`. A link counts as what it points to. Hidden entries (".name"), pipes and devices are left
/// out, and links to nothing, of which a warning tells.
/// Errors: InputError with this hint if `path` is missing, not a folder or not readable.
Listing list_folder(const std::string& path, const std::string& hint = "another folder");

/// The folders of a walk through folders in folders: a link may lead to one of them again.
class VisitedFolders {
 public:
  /// Whether the walk gets to this folder for the first time; a warning tells of other times.
  bool enter(const std::string& path);

 private:
  std::set<std::string> visited_;
};

/// "3 other files and 2 sub-folders"
std::string describe(const Listing& listing);

/// Counts files that are left out of a set.
class IgnoredFiles {
 public:
  void add(const std::string& name);
  /// By extension: "ignored 12 files (.txt 10, .xml 2)"; "" if there are none.
  std::string describe() const;

 private:
  std::map<std::string, int64_t> kinds_;  // by extension with its dot
};

enum class FileKind { kImage, kRaster, kShard, kOther };
/// The kind of a file, by its extension.
FileKind file_kind(const std::string& name);
/// Whether a file is one of those in which data are downloaded, by its extension.
bool is_archive(const std::string& name);

/// Searches of a folder descend to this depth, which products of Sentinel-2 need. Such products have folders of the
/// second name, whose masks are named as bands and are skipped.
inline constexpr int kMaxDepth = 8;
inline constexpr const char* kQualityFolder = "QI_DATA";
/// Whether a folder of this name is (part of) a Sentinel-2 or Landsat product. Such a folder is not a class.
bool is_product(const std::string& name);

/// Advice for an error: `path` lacks what data kind `wanted_kind` (folder, latents, tiles) reads; returns the command
/// or key that reads what is there instead. "" if the first 5,000 entries hold nothing known.
std::string way_to_data(const std::string& path, const std::string& wanted_kind);

}  // namespace ditrain::dataset
