// Command lines: flags read and refused, help, and the frame that turns errors into exit codes.
#include "ditrain/config/command_line.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <iostream>
#include <new>
#include <sstream>
#include <stdexcept>

#include "ditrain/base/error.hpp"
#include "ditrain/config/text_layout.hpp"
#include "ditrain/version.hpp"
#include "support/message_of.hpp"

using namespace ditrain;
using ditrain::test::message_of;

namespace {

config::CommandLine test_line(const std::string& positional = "") {
  return config::CommandLine("prog", "tests flags",
                             {{"config", "FILE", "what to read"},
                              {"set", "a.b=v", "change a key", "", true},
                              {"trace", "[FILE]", "write a timeline"},
                              {"strict", "", "no fallbacks"},
                              {"num", "N", "how many", "8"},
                              {"scale", "G", "how much", "1.5"}},
                             positional, "More words.");
}

bool parse(config::CommandLine& line, std::vector<const char*> arguments, std::string* printed = nullptr) {
  arguments.insert(arguments.begin(), "prog");
  std::ostringstream out;
  const bool go_on = line.parse(int(arguments.size()), arguments.data(), out);
  if (printed) *printed = out.str();
  return go_on;
}

std::string parse_error(const std::vector<const char*>& arguments, const std::string& positional = "") {
  config::CommandLine line = test_line(positional);
  return message_of([&] { parse(line, arguments); });
}

template <class F>
std::string number_error(const std::vector<const char*>& arguments, F read) {
  config::CommandLine line = test_line();
  parse(line, arguments);
  return message_of([&] { read(line); });
}

/// Runs `body` in run_program and returns "exit code: what it printed to stderr".
std::string outcome(const std::function<int()>& body) {
  std::ostringstream captured;
  std::streambuf* const before = std::cerr.rdbuf(captured.rdbuf());
  const int code = config::run_program("prog", body);
  std::cerr.rdbuf(before);
  return std::to_string(code) + ": " + captured.str();
}

}  // namespace

TEST_CASE("flags are read in both spellings") {
  config::CommandLine line = test_line();
  REQUIRE(parse(line, {"--config", "a.yaml", "--set", "x.y=[1,2]", "--set=p.q=r=s", "--strict", "--num=3"}));
  CHECK(line.get("config") == "a.yaml");
  CHECK(line.get_all("set") == std::vector<std::string>{"x.y=[1,2]", "p.q=r=s"});
  CHECK((line.has("strict") && line.has("num") && !line.has("trace") && !line.has("scale")));
  CHECK(line.get_int("num", 1, 10) == 3);
}

TEST_CASE("what is not given has its default") {
  config::CommandLine line = test_line();
  REQUIRE(parse(line, {}));
  CHECK((line.get_int("num", 1, 10) == 8 && line.get_double("scale", 0, 2) == 1.5));
  CHECK((line.get("config").empty() && line.get_all("set").empty() && !line.has("strict")));
  CHECK(line.get_all("num") == std::vector<std::string>{"8"});
}

TEST_CASE("a value may be left out where the flag says so") {
  for (const auto& [arguments, value] :
       std::vector<std::pair<std::vector<const char*>, std::string>>{{{"--trace"}, ""},
                                                                     {{"--trace", "t.json"}, "t.json"},
                                                                     {{"--trace=t.json"}, "t.json"},
                                                                     {{"--trace", "--strict"}, ""}}) {
    config::CommandLine line = test_line();
    REQUIRE(parse(line, arguments));
    CHECK(line.has("trace"));
    CHECK(line.get("trace") == value);
    CHECK(line.has("strict") == (arguments.back() == std::string("--strict")));
  }
}

TEST_CASE("values may begin with a dash, be empty or long") {
  config::CommandLine line = test_line();
  const std::string long_value(200000, 'x');
  REQUIRE(parse(line, {"--scale", "-2.5", "--set", "", "--config", long_value.c_str()}));
  CHECK(line.get_double("scale", -3, 3) == -2.5);
  CHECK(line.get_all("set") == std::vector<std::string>{""});
  CHECK(line.get("config") == long_value);
}

TEST_CASE("unknown flags name the nearest") {
  CHECK(parse_error({"--confg", "a"}) == "[command line] unknown flag --confg; did you mean --config?");
  CHECK(parse_error({"--strct=1"}) == "[command line] unknown flag --strct; did you mean --strict?");
  CHECK(parse_error({"--steps", "5"}) == "[command line] unknown flag --steps; try prog --help");
  config::CommandLine with_keys({.program = "ditrain", .summary = "", .flags = {}, .explains_keys = true});
  const auto refused = [&](const char* flag) { return message_of([&] { parse(with_keys, {flag}); }, "accepted"); };
  CHECK(refused("--global_batch") == "[command line] unknown flag --global_batch; try --set train.global_batch=...");
  CHECK(refused("--global-batch") == "[command line] unknown flag --global-batch; try --set train.global_batch=...");
  CHECK(refused("--data") == "[command line] unknown flag --data; try --set data.KEY=VALUE (ditrain --help data)");
  // As the reference implementations call them; a flag of the program goes before a key.
  CHECK(refused("--data-path") == "[command line] unknown flag --data-path; try --set data.path=...");
  CHECK(refused("--epochs") ==
        "[command line] unknown flag --epochs; try --set train.steps=... (epochs x images / train.global_batch)");
  CHECK(refused("--device") == "[command line] unknown flag --device; try ditrain --help");
  CHECK(refused("--ckpt") == "[command line] unknown flag --ckpt; try --set train.init_from=...");
  config::CommandLine sampler("ditsample", "",
                              {{"checkpoint", "DIR|FILE", ""}, {"steps", "S", ""}, {"out", "DIR", ""}});
  const auto hint = [&](const char* flag, const char* meant) {
    CHECK_THROWS_WITH(parse(sampler, {flag, "x"}),
                      "[command line] unknown flag " + std::string(flag) + "; try " + std::string(meant));
  };
  hint("--ckpt", "--checkpoint DIR|FILE"), hint("--num-sampling-steps", "--steps S"),
      hint("--results-dir", "--out DIR"), hint("--name", "--out DIR");
  CHECK(parse_error({"--zzzzzzzzzzzz"}) == "[command line] unknown flag --zzzzzzzzzzzz; try prog --help");
  CHECK(parse_error({"-c", "a"}) == "[command line] unknown flag -c; expected flags with two dashes; try prog --help");
}

TEST_CASE("misused flags") {
  CHECK(parse_error({"--config"}) == "[command line] --config needs a value; expected --config FILE");
  CHECK(parse_error({"--config", "--strict"}) == "[command line] --config needs a value; expected --config FILE");
  CHECK(parse_error({"--strict=yes"}) == "[command line] --strict takes no value; got yes");
  CHECK(parse_error({"--num", "1", "--num", "2"}) ==
        "[command line] --num is given twice; got 1 and 2, expected one value");
  CHECK(parse_error({"more"}) == "[command line] unexpected argument; got more, expected only flags");
  CHECK(parse_error({"a.yaml"}) ==
        "[command line] unexpected argument; got a.yaml, expected only flags; try --config a.yaml");
  CHECK(parse_error({"--set", "a.b", "=", "1"}) ==
        "[command line] unexpected argument; got =, expected only flags; try --set KEY=VALUE without blanks");
  CHECK(parse_error({"--set", "data.path", "pics"}) ==
        "[command line] unexpected argument; got pics, expected only flags; try --set data.path=pics");
  config::CommandLine distances("ditfid", "", {{"real", "PATH", ""}, {"checkpoint", "DIR|FILE", ""}});
  CHECK_THROWS_WITH(parse(distances, {"/dev"}), Catch::EndsWith("; try --real /dev"));
  CHECK_THROWS_WITH(parse(distances, {"--real", "x", "/dev"}), Catch::EndsWith("; try --checkpoint /dev"));
  CHECK(parse_error({"--", "--strict"}) == "[command line] unexpected argument; got --strict, expected only flags");
}

TEST_CASE("arguments without a flag are kept in order where they are allowed") {
  config::CommandLine line = test_line("FILE...");
  REQUIRE(parse(line, {"a", "--strict", "b", "--num", "2", "-", "--", "--c"}));
  CHECK(line.positional() == std::vector<std::string>{"a", "b", "-", "--c"});
  CHECK(line.get("num") == "2");
}

TEST_CASE("bad numbers name their flag") {
  const auto as_int = [](const config::CommandLine& line) { line.get_int("num", 1, 100); };
  CHECK(number_error({"--num", "many"}, as_int) ==
        "[command line] --num: bad value; got 'many', expected an integer from 1 to 100");
  for (const char* text : {"0", "101", "", "5x", "1.5", " 5", "99999999999999999999"}) {
    INFO(text);
    CHECK(number_error({"--num", text}, as_int).find("[command line] --num: bad value") == 0);
  }
  CHECK(number_error({"--num", "100"}, as_int) == "no error");
  const auto as_double = [](const config::CommandLine& line) { line.get_double("scale", 0, 10); };
  for (const char* text : {"nan", "inf", "-0.1", "10.1", "1,5", "1e999"}) {
    INFO(text);
    CHECK(number_error({"--scale", text}, as_double) ==
          "[command line] --scale: bad value; got '" + std::string(text) + "', expected a number from 0 to 10");
  }
}

TEST_CASE("help lists every flag, version is that of the build") {
  config::CommandLine line = test_line("FILE...");
  std::string printed;
  CHECK_FALSE(parse(line, {"--num", "2", "--help"}, &printed));
  CHECK(printed == line.help_text(config::terminal_columns()));
  for (const char* text :
       {"prog - tests flags", "Usage: prog [flags] FILE...", "--config FILE", "--set a.b=v...", "--trace [FILE]",
        "--strict ", "--num N ", "[default 8]", "--help [man|bash]", "--version", "More words.\n"}) {
    INFO(text);
    CHECK(printed.find(text) != std::string::npos);
  }
  CHECK_FALSE(parse(line, {"--version"}, &printed));
  CHECK(printed == std::string("prog ") + kVersion + "\n");
}

TEST_CASE("the effective command line has one line per flag, defaults included") {
  config::CommandLine line = test_line("FILE...");
  REQUIRE(parse(line, {"--set", "a=1", "--set", "b=2", "--strict", "x", "--scale", "3"}));
  CHECK(line.effective_text({"help", "version", "scale"}) ==
        "--config left out\n--set a=1 b=2\n--trace left out\n--strict\n--num 8\nx\n");
}

TEST_CASE("a flag that the program never listed is our own fault") {
  config::CommandLine line = test_line();
  REQUIRE(parse(line, {}));
  CHECK_THROWS_AS(line.get("seed"), LogicFault);
  CHECK_THROWS_AS(line.has("seed"), LogicFault);
}

TEST_CASE("run_program turns errors into messages and exit codes") {
  CHECK(outcome([] { return 75; }) == "75: ");
  CHECK(outcome([]() -> int { throw InputError({.where = "config", .what = "bad", .got = "x"}); }) ==
        "2: prog: error: [config] bad; got x\n");
  CHECK(outcome([]() -> int { throw RunError({.where = "disk", .what = "full"}); }) == "1: prog: error: [disk] full\n");
  CHECK(outcome([]() -> int { throw std::bad_alloc(); }) ==
        "1: prog: error: [memory] out of memory; try fewer ranks per node, or smaller batches, images or models\n");
  CHECK(outcome([]() -> int { throw std::runtime_error("odd"); }) == "1: prog: error: [internal] odd\n");
  CHECK(outcome([] {
          return int(std::filesystem::file_size("/no such folder/x"));
        }).find("2: prog: error: [file system] filesystem error: cannot get file size") == 0);
  const auto exit_code = [](std::errc code) {
    return outcome([code]() -> int { throw std::filesystem::filesystem_error("status", std::make_error_code(code)); })
        .substr(0, 2);
  };
  for (const std::errc of_path : {std::errc::permission_denied, std::errc::not_a_directory})
    CHECK(exit_code(of_path) == "2:");
  for (const std::errc of_disk : {std::errc::io_error, std::errc::no_space_on_device, std::errc::too_many_files_open})
    CHECK(exit_code(of_disk) == "1:");
}
