// Reads configs: finds the file, parses YAML with line numbers, applies --set, and writes the effective config.
#include "ditrain/config/config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "ditrain/base/error.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/version.hpp"
#include "option_table_values.hpp"
#include "yaml_document.hpp"

namespace ditrain::config {
namespace {

namespace fs = std::filesystem;

/// Where each key was written ("FILE:LINE: " or "--set: "), for checks that come after reading.
using Origins = std::map<std::string, std::string>;

std::vector<std::string> candidate_paths(const std::string& path) {
  std::vector<std::string> paths = {path};
  if (fs::path(path).is_absolute()) return paths;
  paths.push_back((fs::path("configs") / path).string());  // of a clone
  std::error_code ignored;                                 // without /proc the installed path has to do
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  if (program.has_parent_path())  // of an installation that was moved, before those of another one
    paths.push_back((program.parent_path().parent_path() / "share/ditrain/configs" / path).string());
  paths.push_back((fs::path(kInstalledConfigs) / path).string());
  return paths;
}

/// What could have been meant by the path of a config that does not exist: a config beside it, of the working folder or
/// of the installed ones, as it can be given to the flag; "" if none has a similar name.
std::string nearest_config(const std::string& path, const std::string& flag) {
  std::map<std::string, std::string> configs;  // name without extension, path
  const auto collect = [&](const fs::path& folder, const fs::path& as_given) {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder.empty() ? "." : folder, error)) {
      const fs::path name = entry.path().filename();
      if (name.extension() == ".yaml" || name.extension() == ".yml") configs.emplace(name.stem(), as_given / name);
    }
  };
  const fs::path parent = fs::path(path).parent_path();
  for (const std::string& candidate : candidate_paths(path)) collect(fs::path(candidate).parent_path(), parent);
  for (const fs::path folder : {"", flag == "--platform" ? "platforms" : "recipes"})
    for (const std::string& candidate : candidate_paths(folder)) collect(candidate, folder);
  std::vector<std::string> names;
  for (const auto& [name, file] : configs) names.push_back(name);
  const auto found = configs.find(nearest_word(fs::path(path).stem().string(), names));
  return found == configs.end() ? "" : flag + " " + found->second;
}

class ConfigReader {
 public:
  explicit ConfigReader(Config& config) : config_(config) {}

  void read(const std::string& text, const std::string& file_name) {
    const YamlDocument document(text, file_name, "sections such as train: {steps: 100}");
    std::set<std::string> seen;
    for (const auto& section : document.root()) read_section(document, section.first, section.second, seen);
  }

  const Origins& origins() const { return origins_; }

 private:
  void read_section(const YamlDocument& document, const YAML::Node& key, const YAML::Node& keys,
                    std::set<std::string>& seen_sections) {
    const std::string section = document.key_text(key, "the file", seen_sections), origin = document.at(key.Mark());
    const std::vector<std::string> sections = option_sections();
    if (std::find(sections.begin(), sections.end(), section) == sections.end()) find_option(section, "", origin);
    if (keys.IsNull()) return;  // all keys commented out
    if (!keys.IsMap()) fail(origin + section + ": not a map of keys", "", section + ": {key: value}");
    std::set<std::string> seen;
    for (const auto& entry : keys) {
      const std::string name = document.key_text(entry.first, "section " + section, seen);
      const std::string line = document.at(entry.first.Mark());
      const Option& option = find_option(section, name, line);
      option.set(config_, value_of_node(entry.second, option, line), line);
      origins_[option.name()] = line;
    }
  }

  Config& config_;
  Origins origins_;
};

/// Fills the sizes of model.name; sizes that were written beside it have to be the same.
void fill_model_sizes(Config& config, const Origins& origins) {
  const Config written = config;
  nn::apply_name(config.model);
  for (const char* name : {"hidden_size", "depth", "num_heads", "patch_size"}) {
    const Option& option = find_option("model", name, "");
    const auto origin = origins.find(option.name());
    if (origin == origins.end() || option.get(written) == option.get(config)) continue;
    fail(origin->second + option.name() + " contradicts model.name: " + config.model.name, option.get(written),
         option.get(config), "model.name: custom");
  }
}

struct NamedText {
  std::string text, file_name;
};

Config parse_layers(const std::vector<NamedText>& layers, const std::vector<std::string>& sets) {
  Config config = default_config();
  Origins origins;
  for (const NamedText& layer : layers) {
    ConfigReader reader(config);
    reader.read(layer.text, layer.file_name);
    for (const auto& [key, origin] : reader.origins()) origins[key] = origin;
  }
  for (const std::string& assignment : sets) {
    apply_set(config, assignment);
    origins[assignment.substr(0, assignment.find('='))] = "--set: ";
  }
  fill_model_sizes(config, origins);
  return config;
}

}  // namespace

std::string find_config_file(const std::string& path, const std::string& flag) {
  if (path.empty()) fail("no config file given", "", "", "--config quickstart.yaml");
  const std::vector<std::string> candidates = candidate_paths(path);
  for (const std::string& candidate : candidates) {
    std::error_code error;
    if (fs::is_directory(candidate, error)) fail(candidate + " is a folder", "", "a YAML file");
    if (fs::exists(candidate, error)) return candidate;
  }
  fail("no such config file", path, candidates.size() > 1 ? fmt::format("one of: {}", fmt::join(candidates, ", ")) : "",
       nearest_config(path, flag));
}

Config default_config() {
  Config config;
  config.model.num_classes = nn::kClassesOfData;
  return config;
}

Config parse_config(const std::string& text, const std::string& file_name, const std::vector<std::string>& sets) {
  return parse_layers({{text, file_name}}, sets);
}

Config load_config(const std::string& path, const std::vector<std::string>& sets,
                   const std::vector<std::string>& overlays) {
  std::vector<std::string> paths = {path};
  paths.insert(paths.end(), overlays.begin(), overlays.end());
  std::vector<NamedText> layers;
  for (const std::string& each : paths) {
    const std::string file = find_config_file(each, layers.empty() ? "--config" : "--recipe");
    layers.push_back({files::read_text_file(file, kMaxYamlBytes), file});
  }
  return parse_layers(layers, sets);
}

std::string to_yaml(const Config& config) {
  std::string text, section;
  for (const Option& o : option_table()) {
    if (o.section != section) text += (text.empty() ? "" : "\n") + (section = o.section) + ":\n";
    text += fmt::format("  {:<28}  # {}\n", o.key + ": " + o.get(config), o.help);
  }
  return text;
}

}  // namespace ditrain::config
