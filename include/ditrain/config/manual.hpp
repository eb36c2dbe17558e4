// Man pages and shell completion, generated from a program's table of flags and the table of config keys.
#pragma once
#include <string>

#include "ditrain/config/command_line.hpp"

namespace ditrain::config {

/// The man page PROGRAM.1, in roff with the macros of man(7). With `explains_keys` it describes every config key.
std::string man_page(const Usage& usage);

/// A script for bash that completes flags, words of flags, files, and for --set the names of keys and their words.
std::string bash_completion(const Usage& usage);

}  // namespace ditrain::config
