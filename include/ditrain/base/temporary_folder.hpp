// A folder for files that nothing needs later: a bench's runs, what a test writes.
#pragma once
#include <string>
#include <string_view>

namespace ditrain {

/// A new folder below $TMPDIR (or /tmp), which the destructor removes with all it holds.
/// Errors:   RunError, if it cannot be made
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
