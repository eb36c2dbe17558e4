// Maps of YAML files that are not configs (descriptions of clusters), read as strictly as configs: each key and each
// number is checked, and messages name file and line.
//
//   const YamlMap cluster = YamlMap::load("cluster.yaml", "--platform", {"nodes", "die"});
//   const int64_t nodes = cluster.integer("nodes", 1, 1 << 20);
//   const YamlMap die = cluster.map("die", {"cores"});
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ditrain::config {

class YamlMap {
 public:
  /// Parses `text`, which must be a map; `keys` are the keys that it may have.
  /// Errors:   InputError "[config] FILE:LINE: ..." for what is not YAML, and for unknown keys; names the nearest
  YamlMap(const std::string& text, const std::string& file_name, const std::vector<std::string>& keys);

  /// Loads the file that a flag names, from the path itself or from the installed configs.
  /// Errors:   the same, and InputError with the places looked at and the nearest name as a value of the flag
  static YamlMap load(const std::string& path, const std::string& flag, const std::vector<std::string>& keys);

  bool has(const std::string& key) const;
  /// Return the values of keys. A key without a `fallback` must be present.
  /// Errors:   InputError that names the line, the key and what is expected
  std::string text(const std::string& key) const;
  int64_t integer(const std::string& key, int64_t low, int64_t high, std::optional<int64_t> fallback = {}) const;
  double number(const std::string& key, double low, double high, std::optional<double> fallback = {}) const;
  YamlMap map(const std::string& key, const std::vector<std::string>& keys) const;
  std::vector<YamlMap> maps(const std::string& key, const std::vector<std::string>& keys) const;  ///< of a list
  /// Refuses the value of a key by a rule of the caller.
  [[noreturn]] void refuse(const std::string& key, const std::string& got, const std::string& expected,
                           const std::string& hint = "") const;

 private:
  struct Node;
  explicit YamlMap(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  std::string origin(const std::string& key) const;
  std::string path(const std::string& key) const;

  std::shared_ptr<const Node> node_;
};

}  // namespace ditrain::config
