// Help texts on config keys: a short list of the keys that most runs set, sections and single keys in full, and the
// reference page configs/KEYS.md. All of it is generated from the option table.
#pragma once
#include <string>

#include "ditrain/config/option_table.hpp"

namespace ditrain::config {

enum class Audience { kEveryRun, kSomeRuns, kExperts };
/// Who sets the key: most runs, some kinds of runs, or experts.
Audience audience_of(const Option& option);
/// The keys that are listed by name for this: those of kEveryRun, then those of kExperts.
std::vector<std::string> keys_with_audience();

/// The keys that most runs set, one short text each: the help text up to its first semicolon or bracket.
/// Units:    `width` in columns
std::string common_keys(size_t width);

/// The text of `--help TOPIC`. `topic` is "all", a section, "section.key", or a key, in each section that has it.
/// Errors:   InputError "[command line] --help: ..." that names the nearest topic
std::string help_on_keys(const std::string& topic, size_t width);

/// The page configs/KEYS.md: a table per section, in Markdown.
std::string keys_page();

}  // namespace ditrain::config
