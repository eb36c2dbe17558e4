// JSON from outside: text, small files that other programs wrote, and what is wrong with them.
#pragma once
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

namespace ditrain::files {

/// Parses JSON.
/// Errors:   nlohmann::json::exception, also for values that are nested deeper than 100 times: the library writes and
///           copies them by recursion
template <class Json = nlohmann::json>
Json parse_json(const std::string& text) {
  constexpr int kMostDepth = 100;
  return Json::parse(text, [](int depth, typename Json::parse_event_t, Json&) {
    if (depth > kMostDepth) throw Json::other_error::create(500, "values are nested too deeply", nullptr);
    return true;
  });
}

/// The object in a file of at most `max_bytes`, such as the config of a model or the index of shards.
/// Errors:   InputError, where = path: not a regular file, too large, not JSON, no object; else as fail_to_read
nlohmann::json read_json_object(const std::string& path, size_t max_bytes = size_t{1} << 20);

/// What is wrong with a JSON text, without the library's own tag: "not JSON at line 3, column 5: unexpected end of
/// input", "key 'step' not found". The caller names the file and says what to do.
std::string json_problem(const std::exception& error);

}  // namespace ditrain::files
