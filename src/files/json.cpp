#include "ditrain/files/json.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"
#include "ditrain/files/files.hpp"

namespace ditrain::files {

namespace {

// How deep arrays and objects of a text lie within each other; of one that is no JSON, any number.
int depth_of(std::string_view text) {
  int depth = 0, most = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      i += c == '\\';
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      most = std::max(most, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return most;
}

}  // namespace

// The library's callback would tell depths, too, and takes quadratic time for a list of objects.
template <class Json>
Json parse_json(std::string_view text) {
  constexpr int kMostDepth = 100;
  if (depth_of(text) > kMostDepth) throw Json::other_error::create(500, "values are nested too deeply", nullptr);
  return Json::parse(text);
}
template nlohmann::json parse_json(std::string_view);
template nlohmann::ordered_json parse_json(std::string_view);

template <class Json>
Json parse_json_or_discard(std::string_view text) {
  try {
    return parse_json<Json>(text);
  } catch (const nlohmann::json::exception&) {
    return Json(Json::value_t::discarded);
  }
}
template nlohmann::json parse_json_or_discard(std::string_view);
template nlohmann::ordered_json parse_json_or_discard(std::string_view);

std::string json_text(const nlohmann::json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}
std::string json_text(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

nlohmann::json read_json_object(const std::string& path, size_t max_bytes) {
  const std::string text = read_text_file(path, max_bytes);
  try {
    nlohmann::json object = parse_json(text);
    if (!object.is_object()) throw InputError({.where = path, .what = "not an object of JSON"});
    return object;
  } catch (const nlohmann::json::exception& e) {
    throw InputError({.where = path, .what = json_problem(e)});
  }
}

// "[json.exception.parse_error.101] parse error at line 1, column 4: syntax error while parsing value - WHAT".
std::string json_problem(const std::exception& error) {
  std::string text = error.what();
  if (const size_t tag = text.find("] "); text.starts_with("[json.exception.") && tag != text.npos)
    text.erase(0, tag + 2);
  constexpr std::string_view kParseError = "parse error at ";
  if (!text.starts_with(kParseError)) return text;
  const size_t colon = text.find(": "), dash = text.find(" - ");
  const std::string place = text.substr(kParseError.size(), colon - kParseError.size());
  return "not JSON at " + place + ": " + text.substr(dash == text.npos ? colon + 2 : dash + 3);
}

}  // namespace ditrain::files
