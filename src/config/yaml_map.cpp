#include "ditrain/config/yaml_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ditrain/files/files.hpp"
#include "option_table_values.hpp"
#include "yaml_document.hpp"

namespace ditrain::config {

struct YamlMap::Node {
  std::shared_ptr<const YamlDocument> document;
  std::string path;    // "die.", "" for the file itself
  std::string origin;  // FILE:LINE of the map
  std::map<std::string, YAML::Node> values = {};
  std::map<std::string, std::string> origins = {};

  Node(std::shared_ptr<const YamlDocument> of, const YAML::Node& yaml, std::string at,
       const std::vector<std::string>& keys)
      : document(std::move(of)), path(std::move(at)), origin(document->at(yaml.Mark())) {
    std::set<std::string> seen;
    const std::string inside = path.empty() ? "the file" : path.substr(0, path.size() - 1);
    for (const auto& entry : yaml) {
      const std::string key = document->key_text(entry.first, inside, seen);
      const std::string line = document->at(entry.first.Mark());
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        fail(line + "unknown key " + path + key, "", "one of: " + fmt::format("{}", fmt::join(keys, ", ")),
             nearest_word(key, keys));
      values[key] = entry.second, origins[key] = line;
    }
  }

  const YAML::Node& value(const std::string& key) const {
    const auto found = values.find(key);
    if (found == values.end()) fail(origin + path + key + " is missing");
    return found->second;
  }
};

namespace {

OptionValue scalar_of(const YAML::Node& node) {
  if (node.IsScalar()) return {{node.Scalar()}};
  return {{node.IsNull() ? "nothing" : node.IsMap() ? "a map" : "a list"}, true};
}

}  // namespace

YamlMap::YamlMap(const std::string& text, const std::string& file_name, const std::vector<std::string>& keys) {
  const auto document =
      std::make_shared<const YamlDocument>(text, file_name, fmt::format("keys {}", fmt::join(keys, ", ")));
  node_ = std::make_shared<const Node>(document, document->root(), "", keys);
}

YamlMap YamlMap::load(const std::string& path, const std::string& flag, const std::vector<std::string>& keys) {
  const std::string file = find_config_file(path, flag);
  return YamlMap(files::read_text_file(file, kMaxYamlBytes), file, keys);
}

bool YamlMap::has(const std::string& key) const { return node_->values.contains(key); }

std::string YamlMap::origin(const std::string& key) const {
  const auto found = node_->origins.find(key);
  return found == node_->origins.end() ? node_->origin : found->second;
}

std::string YamlMap::path(const std::string& key) const { return node_->path + key; }

std::string YamlMap::text(const std::string& key) const {
  return read_text(scalar_of(node_->value(key)), origin(key), path(key));
}

int64_t YamlMap::integer(const std::string& key, int64_t low, int64_t high, std::optional<int64_t> fallback) const {
  if (fallback && !has(key)) return *fallback;
  return read_integer(scalar_of(node_->value(key)), {low, high}, origin(key), path(key));
}

double YamlMap::number(const std::string& key, double low, double high, std::optional<double> fallback) const {
  if (fallback && !has(key)) return *fallback;
  return read_number(scalar_of(node_->value(key)), {low, high}, origin(key), path(key));
}

YamlMap YamlMap::map(const std::string& key, const std::vector<std::string>& keys) const {
  const YAML::Node& value = node_->value(key);
  if (!value.IsMap()) refuse(key, shown(scalar_of(value)), fmt::format("a map of {}", fmt::join(keys, ", ")));
  return YamlMap(std::make_shared<const Node>(node_->document, value, path(key) + ".", keys));
}

std::vector<YamlMap> YamlMap::maps(const std::string& key, const std::vector<std::string>& keys) const {
  const YAML::Node& value = node_->value(key);
  const std::string expected = fmt::format("a list of maps of {}", fmt::join(keys, ", "));
  if (!value.IsSequence() || value.size() == 0) refuse(key, shown(scalar_of(value)), expected);
  std::vector<YamlMap> all;
  for (const YAML::Node& item : value) {
    if (!item.IsMap()) refuse(key, shown(scalar_of(item)), expected);
    all.push_back(YamlMap(
        std::make_shared<const Node>(node_->document, item, fmt::format("{}[{}].", path(key), all.size()), keys)));
  }
  return all;
}

void YamlMap::refuse(const std::string& key, const std::string& got, const std::string& expected,
                     const std::string& hint) const {
  config::refuse(origin(key), path(key), got, expected, hint);
}

}  // namespace ditrain::config
