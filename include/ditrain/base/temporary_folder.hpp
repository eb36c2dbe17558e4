// A temporary folder, for example for the runs of a bench or the files of a test.
#pragma once
#include <string>
#include <string_view>

namespace ditrain {

/// A new folder below $TMPDIR (or /tmp), which the destructor removes with its contents.
/// Errors:   RunError if it cannot be created
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

}  // namespace ditrain
