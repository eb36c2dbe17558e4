#include "ditrain/base/temporary_folder.hpp"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "ditrain/base/error.hpp"

namespace ditrain {

namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder() {
  std::error_code unusable;  // a $TMPDIR that is not a folder
  path_ = (fs::temp_directory_path(unusable) / "ditrain_XXXXXX").string();
  if (unusable || mkdtemp(path_.data()) == nullptr)
    throw RunError({.where = "temporary folder",
                    .what = "cannot make " + path_ + ": " + (unusable ? unusable.message() : std::strerror(errno)),
                    .hint = "TMPDIR=DIR of a folder that may be written to"});
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace ditrain
