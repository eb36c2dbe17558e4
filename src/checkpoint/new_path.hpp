// A file or folder that gets its name only when it is complete.
#pragma once
#include <filesystem>
#include <string>

namespace ditrain::checkpoint {

/// What fails before commit() leaves nothing behind.
/// Errors:   InputError, where = `where`: the path exists, or its folder cannot be written to; RunError from commit()
class NewPath {
 public:
  NewPath(const std::string& path, std::string where);
  ~NewPath();
  NewPath(const NewPath&) = delete;
  NewPath& operator=(const NewPath&) = delete;

  std::string temporary() const { return temporary_.string(); }
  void commit() { commit(temporary()); }
  /// Gives the name to something else, a folder within temporary(); the rest of that goes.
  void commit(const std::string& what);

 private:
  std::string where_;
  std::filesystem::path path_, parent_, temporary_;
};

}  // namespace ditrain::checkpoint
