// Converts errors of the JSON library to messages of ditrain, for all modules that read JSON.
#pragma once
#include <exception>
#include <string>

namespace ditrain::files {

/// What is wrong with a JSON text, without the library's own tag: "not JSON at line 3, column 5: unexpected end of
/// input", "key 'step' not found". The caller names the file and says what to do.
std::string json_problem(const std::exception& error);

}  // namespace ditrain::files
