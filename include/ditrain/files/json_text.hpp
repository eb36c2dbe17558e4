// Text of JSON from outside.
#pragma once
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

}  // namespace ditrain::files
