#include "ditrain/files/json_file.hpp"

#include "ditrain/base/error.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json_problem.hpp"
#include "ditrain/files/json_text.hpp"

namespace ditrain::files {

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

}  // namespace ditrain::files
