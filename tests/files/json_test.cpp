#include "ditrain/files/json.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

using Catch::Contains;
using Catch::StartsWith;
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
  CHECK_THAT(problem([] { json::parse("{\"a\":\n 1,").get<int>(); }),
             StartsWith("not JSON at line 2, column 4: unexpected end of input"));
  CHECK_THAT(problem([] { json::parse("").get<int>(); }), StartsWith("not JSON at line 1, column 1: "));
  CHECK(problem([] { json::parse("{}").at("step").get<int>(); }) == "key 'step' not found");
  CHECK_THAT(problem([] { json::parse("[1]").at("step").get<int>(); }), !Contains("json.exception"));
  CHECK(problem([] { json::parse("\"x\"").get<int>(); }) == "type must be number, but is string");
  CHECK(ditrain::files::json_problem(std::runtime_error("other - text: as it is")) == "other - text: as it is");
}
