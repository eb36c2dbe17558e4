// What --help and configs/KEYS.md say about config keys.
#include "ditrain/config/key_help.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>

#include "ditrain/base/error.hpp"
#include "ditrain/files/files.hpp"
#include "support/message_of.hpp"

using namespace ditrain;
using Catch::Contains;
using ditrain::test::message_of;

namespace {

size_t longest_line(const std::string& text) {
  std::istringstream lines(text);
  size_t longest = 0;
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  return longest;
}

std::string refusal(const std::string& topic) {
  return message_of([&] { config::help_on_keys(topic, 80); });
}

}  // namespace

TEST_CASE("the lists behind --help name keys of the table, each once") {
  std::vector<std::string> listed = config::keys_with_audience(), known;
  for (const config::Option& o : config::option_table()) known.push_back(o.name());
  for (const std::string& name : listed) {
    INFO(name);
    CHECK(std::count(known.begin(), known.end(), name) == 1);
    CHECK(std::count(listed.begin(), listed.end(), name) == 1);
  }
  const auto common = std::count_if(config::option_table().begin(), config::option_table().end(), [](const auto& o) {
    return config::audience_of(o) == config::Audience::kEveryRun;
  });
  CHECK((common >= 25 && common <= 35));
}

TEST_CASE("the common keys are short, in the width of the terminal") {
  const std::string text = config::common_keys(80);
  CHECK(longest_line(text) <= 80);
  CHECK_THAT(text, Contains("  train.seed              seed of all random numbers [0]\n") &&
                       Contains("  diffusion.process       ddpm or flow [ddpm]\n") &&
                       Contains("  data.path               folder of the data [none]\n"));
  CHECK(text.find("parallel.cut") == text.npos);
  CHECK(longest_line(config::common_keys(50)) <= 50);
}

TEST_CASE("help on all keys, on a section and on a key says everything of them") {
  const std::string all = config::help_on_keys("all", 100000);
  for (const config::Option& o : config::option_table()) {
    INFO(o.name());
    CHECK(!o.help.empty());
    const char* mark = config::audience_of(o) == config::Audience::kExperts ? "* " : "  ";
    CHECK_THAT(all, Contains("\n" + std::string(mark) + o.key + " ") && Contains(o.help + "; " + o.expected + " ["));
    const std::string alone = config::help_on_keys(o.name(), 100000);
    CHECK_THAT(alone, Catch::StartsWith(o.name() + "\n") && Contains(o.help) && Contains(o.expected));
    CHECK_THAT(config::help_on_keys(o.section, 100000), Contains(alone));
  }
  CHECK_THAT(config::help_on_keys("parallel.cut", 80),
             Contains("for         experts") && Contains("on resume   may change"));
  CHECK_THAT(config::help_on_keys("diffusion.time", 80), Contains("read by     diffusion.process flow alone"));
  const std::string every_steps = config::help_on_keys("every_steps", 80);  // of four sections
  for (const char* section : {"checkpoint", "log", "sample", "eval"})
    CHECK_THAT(every_steps, Contains(section + std::string(".every_steps\n")));
  CHECK(longest_line(config::help_on_keys("dist", 60)) <= 60);
}

TEST_CASE("an unknown topic of help names the nearest one") {
  CHECK(refusal("trian") == "[command line] --help: there is no such section or key; got trian; try --help train");
  CHECK(refusal("train.step") ==
        "[command line] --help: there is no such section or key; got train.step; try --help train.steps");
  CHECK(refusal("epochs") ==
        "[command line] --help: there is no such section or key; got epochs; try --help train.steps");
  CHECK_THAT(refusal("zzzzzzzzz"), Contains("expected all, a key, or one of the sections model, diffusion, data"));
}

TEST_CASE("configs/KEYS.md is what the program prints: ditrain --help markdown renews it") {
  const std::string page = config::keys_page();
  CHECK(page == files::read_text_file(std::string(DITRAIN_GOLDEN_DIR) + "/../../configs/KEYS.md", size_t{1} << 20));
  for (const config::Option& o : config::option_table()) CHECK_THAT(page, Contains("`" + o.key + "`"));
}
