#include "replace_file.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "ditrain/files/files.hpp"

namespace ditrain::report {

void replace_file(const std::string& path, std::string_view content) {
  const std::string temporary = files::temporary_beside(path);
  files::FileWriter file(temporary);
  file.write(content.data(), content.size());
  file.finish(/*synced=*/false);
  if (std::rename(temporary.c_str(), path.c_str()) == 0) return;
  const int error_number = errno;
  std::remove(temporary.c_str());
  throw RunError({.where = path, .what = "cannot replace the file", .got = std::strerror(error_number)});
}

}  // namespace ditrain::report
