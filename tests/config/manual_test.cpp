// Man pages and completion, and the layout of text for terminals.
#include "ditrain/config/manual.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <sstream>

#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/config/text_layout.hpp"
#include "ditrain/files/files.hpp"

using namespace ditrain;
using Catch::Contains;

namespace {

config::Usage test_usage() {
  return {.program = "prog",
          .summary = "tests flags",
          .flags = {{"config", "FILE", "what to read"},
                    {"set", "KEY=VALUE", "change a key", "", true},
                    {"resume", "auto|DIR", ".where a run goes on, say C:\\runs"},
                    {"weights", "ema|model", "which", "ema"},
                    {"help", "[SECTION|KEY|all]", "print this"}},
          .details = "'quoted' line",
          .commands = {{.name = "plan",
                        .summary = "finds places",
                        .positional = "DIR...",
                        .flags = {{"nodes", "N", "of the cluster", "4"}}},
                       {.name = "place"}},
          .explains_keys = true};
}

std::string output_of(const std::string& command) {
  std::string text;
  std::array<char, 4096> buffer;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  for (size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) text.append(buffer.data(), n);
  REQUIRE(::pclose(pipe) == 0);
  return text;
}

}  // namespace

TEST_CASE("a man page names every flag and key, and roff takes no text for a request") {
  const std::string page = config::man_page(test_usage());
  CHECK_THAT(page, Catch::StartsWith(".TH PROG 1 ") && Contains("prog \\- tests flags"));
  CHECK_THAT(page, Contains(".B \\-\\-set KEY=VALUE...\nchange a key\n"));
  CHECK_THAT(page, Contains("\n\\&.where a run goes on, say C:\\eruns\n") && Contains("\n\\&'quoted' line\n"));
  for (const config::Option& o : config::option_table()) CHECK_THAT(page, Contains("\n.B " + o.name() + "\n"));
  CHECK_THAT(page, Contains(".SS prog plan [flags] DIR...\nfinds places\n.TP\n.B \\-\\-nodes N\nof the cluster"));
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    if (line.starts_with(".")) CHECK_THAT(line, Catch::Matches("\\.(TH|SH|SS|TP|B|nf|fi)( .*)?"));
    CHECK_FALSE(line.starts_with("'"));
  }
}

TEST_CASE("bash completes flags, keys, their words and topics of help") {
  const TemporaryFolder scratch;
  files::write_file_atomically(scratch / "prog", config::bash_completion(test_usage()));
  const auto completed = [&](const std::string& words) {  // the last word is completed
    return output_of("bash -c 'source \"" + (scratch / "prog") + "\"; COMP_WORDS=(" + words +
                     "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _prog; echo ${COMPREPLY[@]}' 2>&1");
  };
  CHECK(completed("prog --we") == "--weights\n");
  CHECK(completed("prog --weights \"\"") == "ema model\n");
  CHECK(completed("prog --resume a") == "auto\n");
  CHECK(completed("prog --set train.st") == "train.steps=\n");
  CHECK(completed("prog --set train.precision =") == "f32 bf16\n");
  CHECK(completed("prog --set train.precision = b") == "bf16\n");
  CHECK(completed("prog --set train.steps = 1") == "\n");  // bash then tries files
  CHECK(completed("prog --config conf") == "\n");
  CHECK(completed("prog --help train.se") == "train.seed\n");
  CHECK(completed("prog --help al") == "all\n");
  CHECK(completed("prog pla") == "plan place\n");
  CHECK(completed("prog \"\"") == "plan place\n");
  CHECK(completed("prog plan pla") == "\n");
  CHECK(completed("prog plan --no") == "--nodes\n");
  CHECK(completed("prog plan --we") == "\n");
  CHECK(completed("prog place --we") == "--weights\n");
}

TEST_CASE("text is broken at blanks, below its own beginning") {
  CHECK(config::labelled("  --a B", "one two three", 10, 17) == "  --a B   one two\n          three\n");
  CHECK(config::labelled("  --long-label", "text", 6, 20) == "  --long-label\n      text\n");
  CHECK(config::labelled("a", "averylongwordthatstayswhole x", 2, 10) == "a averylongwordthatstayswhole\n  x\n");
  CHECK(config::labelled("a", "", 2, 10) == "a \n");
  CHECK(config::wrapped("short\n  two words more\n\nend", 12) == "short\n  two words\n  more\n\nend\n");
}
