#include "new_path.hpp"

#include "ditrain/base/error.hpp"
#include "ditrain/files/files.hpp"

namespace ditrain::checkpoint {

namespace fs = std::filesystem;

NewPath::NewPath(const std::string& path, std::string where)
    : where_(std::move(where)), path_(fs::path(path).lexically_normal()) {
  if (!path_.has_filename()) path_ = path_.parent_path();  // "out/"
  if (fs::exists(fs::symlink_status(path_)))
    throw InputError({.where = where_, .what = path_.string() + " exists already", .expected = "a new path"});
  parent_ = path_.has_parent_path() ? path_.parent_path() : fs::path(".");
  files::make_output_folder(parent_.string());
  temporary_ = files::temporary_beside(path_.string());
}

NewPath::~NewPath() {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void NewPath::commit(const std::string& what) {
  if (fs::is_directory(what)) files::fsync_directory(what);
  std::error_code error;
  fs::rename(what, path_, error);
  if (error) throw RunError({.where = where_, .what = "cannot create " + path_.string() + ": " + error.message()});
  files::fsync_directory(parent_.string());
}

}  // namespace ditrain::checkpoint
