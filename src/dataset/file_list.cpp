#include "ditrain/dataset/file_list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/base/pattern.hpp"
#include "ditrain/base/text.hpp"

namespace ditrain::dataset {
namespace fs = std::filesystem;

std::string lower_extension(const std::string& name) {
  std::string ext = fs::path(name).extension().string();
  if (!ext.empty()) ext.erase(0, 1);
  // Not std::tolower: file names do not depend on the locale.
  for (char& c : ext)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return ext;
}

Listing list_folder(const std::string& path, const std::string& hint) {
  std::error_code ec;
  fs::directory_iterator it(path, ec);
  if (ec)
    throw InputError(
        {.where = "data", .what = "cannot list the folder '" + path + "'", .got = ec.message(), .hint = hint});
  Listing listing;
  int64_t num_broken = 0;
  std::string broken;  // the first in the order of their bytes
  for (; it != fs::directory_iterator(); it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with('.')) continue;
    std::error_code kind_ec;
    if (it->is_directory(kind_ec))
      listing.folders.push_back(name);
    else if (it->is_regular_file(kind_ec))
      listing.files.push_back(name);
    else if (it->is_symlink(kind_ec) && !it->exists(kind_ec) && (num_broken++ == 0 || name < broken))
      broken = name;
  }
  if (ec) throw InputError({.where = "data", .what = "the folder '" + path + "' broke off", .got = ec.message()});
  if (num_broken > 0 && log::of_rank().empty())
    log::warn("'{}': {} link(s) lead to nothing and are left out, such as '{}'", path, num_broken, broken);
  std::sort(listing.folders.begin(), listing.folders.end());
  std::sort(listing.files.begin(), listing.files.end());
  return listing;
}

bool VisitedFolders::enter(const std::string& path) {
  std::error_code unreadable;  // list_folder tells why
  const fs::path real = fs::canonical(path, unreadable);
  if (unreadable || visited_.insert(real.string()).second) return true;
  log::warn("{} is left out: it is a link to {}, which is read already", path, real.string());
  return false;
}

std::string describe(const Listing& listing) {
  return fmt::format("{} other files and {} sub-folders", listing.files.size(), listing.folders.size());
}

namespace {
constexpr size_t kMaxExtension = 12, kMaxKindsShown = 5;
constexpr const char* kOtherFiles = "others";
}  // namespace

void IgnoredFiles::add(const std::string& name) {
  const std::string extension = lower_extension(name);
  const bool odd = extension.size() > kMaxExtension || !std::all_of(extension.begin(), extension.end(), [](char c) {
                     return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z');
                   });
  ++kinds_[odd ? kOtherFiles : extension.empty() ? "without extension" : "." + extension];
}

std::string IgnoredFiles::describe() const {
  int64_t all = 0, others = 0;
  std::vector<std::pair<std::string, int64_t>> kinds;
  for (const auto& [kind, files] : kinds_) {
    all += files;
    if (kind == kOtherFiles)
      others += files;
    else
      kinds.emplace_back(kind, files);
  }
  std::stable_sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  for (; kinds.size() > kMaxKindsShown; kinds.pop_back()) others += kinds.back().second;
  if (others > 0) kinds.emplace_back(kOtherFiles, others);
  std::string list;
  for (const auto& [kind, files] : kinds) list += (list.empty() ? "" : ", ") + kind + " " + std::to_string(files);
  return all == 0 ? "" : "ignored " + std::to_string(all) + (all == 1 ? " file (" : " files (") + list + ")";
}

FileKind file_kind(const std::string& name) {
  const std::string ext = lower_extension(name);
  const auto is = [&](std::initializer_list<const char*> all) {
    return std::any_of(all.begin(), all.end(), [&](const char* e) { return ext == e; });
  };
  if (is({"tif", "tiff", "jp2", "vrt"})) return FileKind::kRaster;
  if (is({"jpg", "jpeg", "png", "bmp"})) return FileKind::kImage;
  return is({"safetensors"}) ? FileKind::kShard : FileKind::kOther;
}

bool is_archive(const std::string& name) {
  const std::string ext = lower_extension(name);
  return ext == "zip" || ext == "tar" || ext == "tgz" || ext == "gz" || ext == "bz2" || ext == "7z";
}

bool is_product(const std::string& name) {
  static const Pattern product("^(S2[A-Z]_MSIL|L[COTEM]0[0-9]_)");  // with and without .SAFE; Landsat's
  return name.ends_with(".SAFE") || name == "GRANULE" || product.is_in(name);
}

namespace {

// The first data file of a folder, or below it, among the first `entries`: a hint is not worth a walk over a home.
FileKind first_kind(const std::string& folder, int depth, int64_t& entries) {
  const Listing listing = list_folder(folder);
  entries -= int64_t(listing.files.size() + listing.folders.size());
  for (const std::string& name : listing.files)
    if (file_kind(name) != FileKind::kOther) return file_kind(name);
  if (depth == kMaxDepth) return FileKind::kOther;
  for (const std::string& name : listing.folders) {
    if (entries <= 0) return FileKind::kOther;
    if (const FileKind kind = first_kind(folder + "/" + name, depth + 1, entries); kind != FileKind::kOther)
      return kind;
  }
  return FileKind::kOther;
}

}  // namespace

std::string way_to_data(const std::string& path, const std::string& wanted_kind) try {
  const bool latents = wanted_kind == "latents";
  int64_t entries = 5000;
  switch (first_kind(path, 0, entries)) {
    case FileKind::kImage:
      if (wanted_kind == "folder") return "";
      return latents ? fmt::format(
                           "ditdata encode --from {} --vae FILE --out LATENTS and data.path: LATENTS, or "
                           "data.kind: folder with data.vae: FILE",
                           path)
                     : "data.kind: folder, which reads the images that are there";
    case FileKind::kRaster:
      return fmt::format(
                 "ditdata inspect {}, which prints the line of ditdata make for these files, then data.kind: tiles "
                 "with data.path: TILES",
                 quoted_word(path)) +
             (latents ? ", of which ditdata encode --from TILES makes latents" : "");
    case FileKind::kShard:
      return "data.path with the folder of the .safetensors files, data.kind: tiles or latents";
    case FileKind::kOther:
      return "";
  }
  return "";
} catch (const InputError&) {  // a sub-folder that cannot be read
  return "";
}

}  // namespace ditrain::dataset
