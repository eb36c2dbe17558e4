// JSON from outside: text, small files that other programs wrote, and what is wrong with them.
#pragma once
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace ditrain::files {

/// Parses JSON, to nlohmann::json or nlohmann::ordered_json. The library's own functions take seconds to compile in
/// each file that calls them.
/// Errors:   nlohmann::json::exception, also for values that are nested deeper than 100 times: the library writes and
///           copies them by recursion
template <class Json = nlohmann::json>
Json parse_json(std::string_view text);
/// The same; is_discarded() where parse_json has an error.
template <class Json = nlohmann::json>
Json parse_json_or_discard(std::string_view text);

/// As text: in one line, or `indent` spaces per level. Bytes that are no UTF-8, as paths may have, become U+FFFD.
std::string json_text(const nlohmann::json& json, int indent = -1);
std::string json_text(const nlohmann::ordered_json& json, int indent = -1);

/// The object in a file of at most `max_bytes`, such as the config of a model or the index of shards.
/// Errors:   InputError, where = path: not a regular file, too large, not JSON, no object; else as fail_to_read
nlohmann::json read_json_object(const std::string& path, size_t max_bytes = size_t{1} << 20);

/// What is wrong with a JSON text, without the library's own tag: "not JSON at line 3, column 5: unexpected end of
/// input", "key 'step' not found". The caller names the file and says what to do.
std::string json_problem(const std::exception& error);

}  // namespace ditrain::files
