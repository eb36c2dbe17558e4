// Reads configs: finds the file, parses YAML with line numbers, applies --set, and writes the effective config.
#include "ditrain/config/config.hpp"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "ditrain/base/error.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/version.hpp"
#include "option_table_values.hpp"

namespace ditrain::config {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileBytes = 1 << 20;  // a full config has under 10 KiB

/// Where each key was written ("FILE:LINE: " or "--set: "), for checks that come after reading.
using Origins = std::map<std::string, std::string>;

std::vector<std::string> candidate_paths(const std::string& path) {
  std::vector<std::string> paths = {path};
  if (fs::path(path).is_absolute()) return paths;
  std::error_code ignored;  // without /proc the installed path has to do
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  if (program.has_parent_path())  // of an installation that was moved, before those of another one
    paths.push_back((program.parent_path().parent_path() / "share/ditrain/configs" / path).string());
  paths.push_back((fs::path(kInstalledConfigs) / path).string());
  return paths;
}

/// What could have been meant by the path of a config that does not exist: a config beside it, of the working folder or
/// of the installed ones, as it can be given to --config; "" if none has a similar name.
std::string nearest_config(const std::string& path) {
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
  for (const fs::path folder : {"", "configs"}) collect(folder, folder);  // "configs": a clone of the repository
  for (const std::string& candidate : candidate_paths("")) collect(candidate, "");
  std::vector<std::string> names;
  for (const auto& [name, file] : configs) names.push_back(name);
  const auto found = configs.find(nearest_word(fs::path(path).stem().string(), names));
  return found == configs.end() ? "" : "--config " + found->second;
}

std::string find_config_file(const std::string& path) {
  if (path.empty()) fail("no config file given", "", "", "--config quickstart.yaml");
  std::string looked;
  for (const std::string& candidate : candidate_paths(path)) {
    std::error_code error;
    if (fs::is_directory(candidate, error)) fail(candidate + " is a folder", "", "a YAML file");
    if (fs::exists(candidate, error)) return candidate;
    looked += (looked.empty() ? "" : ", ") + candidate;
  }
  fail("no such config file", path, "one of: " + looked, nearest_config(path));
}

/// Whether a tab is among the white space that the line (counted from 0) begins with.
bool is_indented_by_tab(const std::string& text, int line) {
  std::istringstream lines(text);
  std::string content;
  for (int i = 0; i <= line; ++i)
    if (!std::getline(lines, content)) return false;
  return line >= 0 && content.substr(0, content.find_first_not_of(" \t")).find('\t') != content.npos;
}

/// Reads over a document without building anything.
struct IgnoredEvents final : YAML::EventHandler {
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

/// Whether anything follows the first document. YAML::LoadAll would tell, but never ends on text such as ", a".
bool has_second_document(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  IgnoredEvents ignored;
  return parser.HandleNextDocument(ignored) && parser.HandleNextDocument(ignored);
}

class ConfigReader {
 public:
  ConfigReader(Config& config, std::string file_name) : config_(config), file_name_(std::move(file_name)) {}

  void read(const std::string& text) {
    check_bytes(text);
    const YAML::Node root = parse(text);
    if (!root.IsMap()) fail(at(root.Mark()) + "not a map of sections", "", "sections such as train: {steps: 100}");
    std::set<std::string> seen;
    for (const auto& section : root) read_section(section.first, section.second, seen);
  }

  const Origins& origins() const { return origins_; }

 private:
  std::string at(const YAML::Mark& mark) const {
    return mark.is_null() ? file_name_ + ": " : fmt::format("{}:{}: ", file_name_, mark.line + 1);
  }

  void check_bytes(const std::string& text) const {
    if (text.size() > kMaxFileBytes) fail(file_name_ + ": too large for a config", "", "at most 1 MiB");
    if (text.find('\0') != std::string::npos) fail(file_name_ + ": not a text file", "a zero byte", "YAML");
  }

  YAML::Node parse(const std::string& text) const {
    try {
      const YAML::Node document = YAML::Load(text);
      const bool several = has_second_document(text);
      if (several || document.IsNull())
        fail(file_name_ + ": holds " + (several ? "several documents" : "no settings"), "", "one YAML document");
      return document;
    } catch (const YAML::Exception& error) {
      if (is_indented_by_tab(text, error.mark.line)) fail(at(error.mark) + "tabs are not allowed in YAML; use spaces");
      fail(at(error.mark) + "not valid YAML: " + error.msg);
    }
  }

  std::string key_text(const YAML::Node& key, const std::string& inside, std::set<std::string>& seen) const {
    if (!key.IsScalar()) fail(at(key.Mark()) + "a key of " + inside + " is not a word");
    if (!seen.insert(key.Scalar()).second)
      fail(at(key.Mark()) + key.Scalar() + " is there twice in " + inside, "", "each key once");
    return key.Scalar();
  }

  void read_section(const YAML::Node& key, const YAML::Node& keys, std::set<std::string>& seen_sections) {
    const std::string section = key_text(key, "the file", seen_sections), origin = at(key.Mark());
    const std::vector<std::string> sections = option_sections();
    if (std::find(sections.begin(), sections.end(), section) == sections.end()) find_option(section, "", origin);
    if (keys.IsNull()) return;  // all keys commented out
    if (!keys.IsMap()) fail(origin + section + ": not a map of keys", "", section + ": {key: value}");
    std::set<std::string> seen;
    for (const auto& entry : keys) {
      const std::string name = key_text(entry.first, "section " + section, seen), line = at(entry.first.Mark());
      const Option& option = find_option(section, name, line);
      option.set(config_, value_of_node(entry.second, option, line), line);
      origins_[option.name()] = line;
    }
  }

  Config& config_;
  std::string file_name_;
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
    ConfigReader reader(config, layer.file_name);
    reader.read(layer.text);
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
    const std::string file = find_config_file(each);
    layers.push_back({files::read_text_file(file, kMaxFileBytes), file});
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
