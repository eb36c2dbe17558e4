// A YAML file as one map, with the line of everything in it. The file comes from outside: size, tabs, several documents
// and keys that are there twice are refused.
#pragma once
#include <yaml-cpp/yaml.h>

#include <set>
#include <string>

namespace ditrain::config {

inline constexpr size_t kMaxYamlBytes = 1 << 20;  // a full config has under 10 KiB

class YamlDocument {
 public:
  /// `expected` is what the file should look like, for a file that is no map.
  /// Errors:   InputError "[config] FILE:LINE: ..."
  YamlDocument(const std::string& text, std::string file_name, const std::string& expected);

  const YAML::Node& root() const { return root_; }
  /// "FILE:LINE: ", or "FILE: " where the line is not known.
  std::string at(const YAML::Mark& mark) const;
  /// The text of a key. Errors: InputError if it is not a word, or `seen` has it already
  std::string key_text(const YAML::Node& key, const std::string& inside, std::set<std::string>& seen) const;

 private:
  void check_bytes(const std::string& text) const;
  YAML::Node parse(const std::string& text) const;

  std::string file_name_;
  YAML::Node root_;
};

/// The path of a file that a flag names: as it is given, or among the installed configs.
/// Errors:   InputError with the places looked at, and the nearest name as a value of the flag
std::string find_config_file(const std::string& path, const std::string& flag);

}  // namespace ditrain::config
