#include "ditrain/files/json.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

using Catch::Contains;
using Catch::StartsWith;
using ditrain::files::json_text;
using ditrain::files::parse_json;
using nlohmann::json;

namespace {

template <class F>
std::string problem(F action) {
  try {
    action();
  } catch (const json::exception& error) {
    return ditrain::files::json_problem(error);
  }
  return "no error";
}

}  // namespace

TEST_CASE("what is wrong with a JSON text is said without the library's tags") {
  CHECK_THAT(problem([] { parse_json("{\"a\":\n 1,").get<int>(); }),
             StartsWith("not JSON at line 2, column 4: unexpected end of input"));
  CHECK_THAT(problem([] { parse_json("").get<int>(); }), StartsWith("not JSON at line 1, column 1: "));
  CHECK(problem([] { parse_json("{}").at("step").get<int>(); }) == "key 'step' not found");
  CHECK_THAT(problem([] { parse_json("[1]").at("step").get<int>(); }), !Contains("json.exception"));
  CHECK(problem([] { parse_json("\"x\"").get<int>(); }) == "type must be number, but is string");
  CHECK(ditrain::files::json_problem(std::runtime_error("other - text: as it is")) == "other - text: as it is");
}

TEST_CASE("values of JSON that are nested deeply are refused") {
  const auto nested = [](size_t times) { return std::string(times, '[') + std::string(times, ']'); };
  CHECK(parse_json(nested(100)).is_array());
  CHECK(problem([&] { parse_json(nested(200)); }) == "values are nested too deeply");
  CHECK(ditrain::files::parse_json_or_discard(nested(1 << 20)).is_discarded());
  CHECK(parse_json("[\"" + std::string(200, '[') + R"(\\"])").size() == 1);  // brackets in a text, behind an escape
  CHECK(parse_json(R"(["\"[", 1])").size() == 2);
}

TEST_CASE("a text that is no JSON is discarded where the caller says so") {
  using ditrain::files::parse_json_or_discard;
  CHECK(parse_json_or_discard("{").is_discarded());
  CHECK(parse_json_or_discard<nlohmann::ordered_json>("").is_discarded());
  CHECK(parse_json_or_discard("[1]") == json{1});
}

TEST_CASE("JSON is written in one line or indented, and bytes that are no UTF-8 are replaced") {
  CHECK(json_text(json{{"b", 1}, {"a", {2, 3}}}) == R"({"a":[2,3],"b":1})");
  CHECK(json_text(nlohmann::ordered_json{{"b", 1}, {"a", 2}}, 1) == "{\n \"b\": 1,\n \"a\": 2\n}");
  CHECK(json_text(json("x\xff")) == "\"x\xef\xbf\xbd\"");
}
