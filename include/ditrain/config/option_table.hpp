// The one table of config keys. The YAML reader, `--set a.b=v`, `--help` with reference page, man page and completion
// (key_help.hpp, manual.hpp), the dump of the effective config and the check on resume all walk it; a key that is not
// in it does not exist.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "ditrain/config/config.hpp"

namespace ditrain::config {

/// A value as written: one scalar, or the scalars of a list or a map, or a list of maps.
struct OptionValue {
  std::vector<std::string> items;
  bool is_list = false;                ///< or a map
  std::vector<std::string> keys = {};  ///< of a map, one for each item
  std::vector<OptionValue> maps = {};  ///< of a list of maps, which has no items
};

struct Option {
  std::string section, key;
  std::string help;                     ///< what it does, with its unit; the first clause says it alone (key_help.hpp)
  std::string expected;                 ///< the values that are accepted, for messages and the reference
  std::vector<std::string> words = {};  ///< the words among them, for completion
  std::string process = {};             ///< the diffusion process that alone reads the key; "": all
  bool may_change_on_resume = false;
  bool takes_map = false, takes_maps = false;  ///< one, or a list of them
  /// Stores `value`. Errors: InputError "[config] ORIGINsection.key: ..."; `origin` is "FILE:LINE: ", "--set: " or "".
  std::function<void(Config&, const OptionValue& value, const std::string& origin)> set;
  /// The value as YAML text, which `set` reads back bit-identically.
  std::function<std::string(const Config&)> get;

  std::string name() const { return section + "." + key; }
};

/// All options, grouped by section in the order in which they are written.
const std::vector<Option>& option_table();

/// The sections, in order.
std::vector<std::string> option_sections();
/// What sets keys of this name or section, or the key that the reference implementations call so; words may be joined
/// by '-': "--set train.steps=..."; "" if there is none.
std::string settings_called(std::string word);

/// The option `section.key`, for messages prefixed with `origin`.
/// Errors:   InputError for an unknown section or key; names the nearest
const Option& find_option(const std::string& section, const std::string& key, const std::string& origin);

/// Applies one "a.b=v"; v is a scalar, taken as it is, or a list or map in YAML's flow style, as "[1, 2]".
/// Errors:   InputError "[config] --set: ..."
void apply_set(Config& config, const std::string& assignment);

}  // namespace ditrain::config
