#include "file_list.hpp"

#include <algorithm>
#include <filesystem>

#include "ditrain/base/error.hpp"

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

Listing list_folder(const std::string& path) {
  std::error_code ec;
  fs::directory_iterator it(path, ec);
  if (ec)
    throw InputError({.where = "data",
                      .what = "cannot list the folder '" + path + "'",
                      .got = ec.message(),
                      .hint = "another data.path"});
  Listing listing;
  for (; it != fs::directory_iterator(); it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with('.')) continue;
    std::error_code kind_ec;  // a broken link is neither file nor folder
    if (it->is_directory(kind_ec))
      listing.folders.push_back(name);
    else if (it->is_regular_file(kind_ec))
      listing.files.push_back(name);
  }
  if (ec) throw InputError({.where = "data", .what = "the folder '" + path + "' broke off", .got = ec.message()});
  std::sort(listing.folders.begin(), listing.folders.end());
  std::sort(listing.files.begin(), listing.files.end());
  return listing;
}

}  // namespace ditrain::dataset
