// The hand-written split of option texts: no regular expressions, whose recursion long arguments could exhaust.
#define CXXOPTS_NO_REGEX
#include "ditrain/config/command_line.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cxxopts.hpp>
#include <filesystem>
#include <iostream>
#include <new>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/config/key_help.hpp"
#include "ditrain/config/manual.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/config/text_layout.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/platform/limits.hpp"
#include "ditrain/platform/topology.hpp"
#include "ditrain/version.hpp"
#include "reference_names.hpp"

namespace ditrain::config {
namespace {

[[noreturn]] void misused(const std::string& what, const std::string& got = "", const std::string& expected = "",
                          const std::string& hint = "") {
  throw InputError({.where = "command line", .what = what, .got = got, .expected = expected, .hint = hint});
}

bool is_switch(const Flag& flag) { return flag.argument.empty(); }
bool is_optional(const Flag& flag) { return flag.argument.starts_with('['); }

}  // namespace

std::string usage_of(const Flag& flag) {
  return "--" + flag.name + (is_switch(flag) ? "" : " " + flag.argument) + (flag.repeated ? "..." : "");
}

CommandLine::CommandLine(Usage usage) : usage_(std::move(usage)) {
  usage_.flags.push_back({"help", usage_.explains_keys ? "[SECTION|KEY|all|man|bash]" : "[man|bash]",
                          usage_.explains_keys ? "print this, or what is known of config keys, and exit"
                                               : "print this, the man page or the completion of bash, and exit"});
  usage_.flags.push_back({"version", "", "print the version and exit"});
}

CommandLine::CommandLine(std::string program, std::string summary, std::vector<Flag> flags, std::string positional,
                         std::string details)
    : CommandLine(
          Usage{std::move(program), std::move(summary), std::move(flags), std::move(positional), std::move(details)}) {}

CommandLine::CommandLine(const std::string& program, const Command& command)
    : CommandLine(program + " " + command.name, command.summary, command.flags, command.positional, command.details) {}

const Flag* CommandLine::find(const std::string& name) const {
  const auto found =
      std::find_if(usage_.flags.begin(), usage_.flags.end(), [&](const Flag& f) { return f.name == name; });
  return found == usage_.flags.end() ? nullptr : &*found;
}

const Flag& CommandLine::flag(const std::string& name) const {
  const Flag* found = find(name);
  DITRAIN_CHECK(found != nullptr, usage_.program + " has no flag --" + name);
  return *found;
}

const Flag& CommandLine::given_flag(const std::string& name) const {
  if (const Flag* found = find(name)) return *found;
  std::vector<std::string> names;
  for (const Flag& f : usage_.flags) names.push_back(f.name);
  std::string word = name;
  std::replace(word.begin(), word.end(), '-', '_');
  const ReferenceName* known = find_reference_name(word);
  const std::string near = known == nullptr ? nearest_word(name, names) : "";
  if (known != nullptr && find(std::string(known->flag)) != nullptr)
    misused("unknown flag --" + name, "", "", usage_of(flag(std::string(known->flag))));
  const std::string setting = usage_.explains_keys ? settings_called(name) : "";
  if (!setting.empty()) misused("unknown flag --" + name, "", "", setting);
  misused("unknown flag --" + name + (near.empty() ? "" : "; did you mean --" + near + "?"), "", "",
          near.empty() ? usage_.program + " --help" : "");
}

/// Every value joined to its flag ("--num", "8" -> "--num=8"), so that a value can begin with a dash or be left out.
std::vector<std::string> CommandLine::with_joined_values(int argc, const char* const* argv) const {
  std::vector<std::string> joined = {usage_.program};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--") {
      joined.insert(joined.end(), argv + i, argv + argc);
      break;
    }
    if (argument.size() > 1 && argument[0] == '-' && argument[1] != '-')
      misused("unknown flag " + argument, "", "flags with two dashes", usage_.program + " --help");
    joined.push_back(argument);
    if (!argument.starts_with("--")) continue;
    const size_t equal = argument.find('=');
    const Flag& f = given_flag(argument.substr(2, equal == std::string::npos ? equal : equal - 2));
    const bool has_value = equal != std::string::npos;
    if (is_switch(f) && has_value) misused("--" + f.name + " takes no value", argument.substr(equal + 1));
    if (is_switch(f) || has_value) continue;
    const std::string next = i + 1 < argc ? argv[i + 1] : "--";
    const bool next_is_value = !next.starts_with("--") && !(is_optional(f) && next.starts_with('-'));
    if (!next_is_value && !is_optional(f)) misused("--" + f.name + " needs a value", "", usage_of(f));
    joined.back() += "=" + (next_is_value ? next : "");
    i += next_is_value;
  }
  return joined;
}

void CommandLine::run_parser(const std::vector<std::string>& arguments) {
  cxxopts::Options options(usage_.program, usage_.summary);
  for (const Flag& f : usage_.flags) {
    const auto value = is_switch(f) ? std::shared_ptr<cxxopts::Value>(cxxopts::value<bool>())
                                    : std::shared_ptr<cxxopts::Value>(cxxopts::value<std::string>());
    options.add_options()(f.name, f.help, value);
  }
  std::vector<const char*> pointers;
  for (const std::string& argument : arguments) pointers.push_back(argument.c_str());
  try {
    const cxxopts::ParseResult result = options.parse(int(pointers.size()), pointers.data());
    for (const auto& pair : result.arguments()) values_[pair.key()].push_back(pair.value());
    positional_ = result.unmatched();
  } catch (const cxxopts::exceptions::exception& error) {
    misused(error.what(), "", "", usage_.program + " --help");
  }
}

// The first flag that was not given and takes such a file or folder, with that; "" without either.
std::string CommandLine::flag_for_path(const std::string& path) const {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return "";
  const std::string kind = std::filesystem::is_directory(path, ignored) ? "DIR" : "FILE";
  for (const Flag& f : usage_.flags)
    if (!has(f.name) && (f.argument.find(kind) != std::string::npos || f.argument == "PATH"))
      return "--" + f.name + " " + quoted_word(path);
  return "";
}

void CommandLine::check_counts() const {
  for (const auto& [name, values] : values_)
    if (values.size() > 1 && !flag(name).repeated && !is_switch(flag(name)))
      misused("--" + name + " is given twice", values[0] + " and " + values[1], "one value");
  if (!usage_.positional.empty() || positional_.empty()) return;
  const std::string& first = positional_[0];
  std::string hint;
  if (find("config") != nullptr && (first.ends_with(".yaml") || first.ends_with(".yml"))) hint = "--config " + first;
  if (hint.empty()) hint = flag_for_path(first);
  const std::string set = find("set") != nullptr ? get("set") : "";
  if (!set.empty() && set.find('=') == std::string::npos)
    hint = first.starts_with("=") ? "--set KEY=VALUE without blanks" : "--set " + set + "=" + quoted_word(first);
  std::vector<std::string> commands;
  for (const Command& command : usage_.commands) commands.push_back(command.name);
  if (const std::string near = nearest_word(first, commands); !near.empty()) hint = usage_.program + " " + near;
  misused("unexpected argument", first, "only flags", hint);
}

bool CommandLine::parse(int argc, const char* const* argv, std::ostream& out) {
  values_.clear();
  run_parser(with_joined_values(argc, argv));
  if (has("help"))
    out << text_on(get("help"));
  else if (has("version"))
    out << usage_.program << " " << kVersion << "\n";
  if (has("help") || has("version")) return false;
  check_counts();
  return true;
}

bool CommandLine::parse(int argc, const char* const* argv) {
  const bool goes_on = parse(argc, argv, std::cout);
  if (!goes_on) check_stdout();
  return goes_on;
}

bool CommandLine::has(const std::string& name) const { return values_.contains(flag(name).name); }

void CommandLine::need(std::initializer_list<const char*> names) const {
  for (const std::string name : names)
    if (!has(name)) misused("--" + name + " is needed", "", "", usage_.program + " --help");
}

std::string CommandLine::get(const std::string& name) const {
  const Flag& f = flag(name);
  const auto found = values_.find(name);
  return found == values_.end() ? f.default_value : found->second.back();
}

std::vector<std::string> CommandLine::get_all(const std::string& name) const {
  const std::string& fallback = flag(name).default_value;
  const auto found = values_.find(name);
  if (found != values_.end()) return found->second;
  return fallback.empty() ? std::vector<std::string>{} : std::vector<std::string>{fallback};
}

std::string CommandLine::get_path(const std::string& name) const {
  const std::string path = get(name);
  if (path.empty() && has(name))
    misused("--" + name + " is given an empty name", "''", usage_of(flag(name)),
            "a look at the shell variable behind it");
  return path;
}

int64_t CommandLine::get_int(const std::string& name, int64_t low, int64_t high) const {
  int64_t value = 0;
  const std::string text = get(name);
  if (!parse_whole(text, value) || value < low || value > high)
    misused("--" + name + ": bad value", "'" + text + "'", fmt::format("an integer from {} to {}", low, high));
  return value;
}

double CommandLine::get_double(const std::string& name, double low, double high) const {
  double value = 0;
  const std::string text = get(name);
  if (!parse_whole(text, value) || !std::isfinite(value) || value < low || value > high)
    misused("--" + name + ": bad value", "'" + text + "'", fmt::format("a number from {} to {}", low, high));
  return value;
}

int CommandLine::get_threads(int64_t low) const {
  const int64_t threads = has("threads") ? get_int("threads", low, 1024) : 0;
  return threads > 0 ? int(threads) : platform::default_threads(platform::probe_topology()).threads;
}

std::string CommandLine::help_text(size_t width) const {
  const Usage& u = usage_;
  size_t indent = 0;
  for (const Flag& f : u.flags) indent = std::max(indent, usage_of(f).size() + 4);
  indent = std::min(indent, width / 3);
  std::string text = fmt::format("{} - {}\n\nUsage: {} [flags]{}{}\n\n", u.program, u.summary, u.program,
                                 u.positional.empty() ? "" : " ", u.positional);
  for (const Flag& f : u.flags) {
    const std::string fallback = f.default_value.empty() ? "" : " [default " + f.default_value + "]";
    text += labelled("  " + usage_of(f), f.help + fallback, indent, width);
  }
  if (u.explains_keys)
    text += "\nConfig keys that most runs set (--set KEY=VALUE, or in the YAML file) [default]:\n" + common_keys(width);
  return u.details.empty() ? text : text + "\n" + wrapped(u.details, width);
}

// What --help prints. A word that is no topic of a program without keys may be one of its own, as in `ditbench --help
// gemm`.
std::string CommandLine::text_on(const std::string& topic) const {
  if (topic == "man") return man_page(usage_);
  if (topic == "bash") return bash_completion(usage_);
  if (topic == "markdown" && usage_.explains_keys) return keys_page();
  if (!topic.empty() && usage_.explains_keys) return help_on_keys(topic, terminal_columns());
  return help_text(terminal_columns());
}

std::string CommandLine::effective_text(const std::vector<std::string>& but) const {
  std::string text;
  for (const Flag& f : usage_.flags) {
    if (std::find(but.begin(), but.end(), f.name) != but.end()) continue;
    if (is_switch(f)) {
      text += fmt::format("{}--{}\n", has(f.name) ? "" : "no ", f.name);
      continue;
    }
    const std::vector<std::string> values = get_all(f.name);
    text += fmt::format("--{} {}\n", f.name, values.empty() ? "left out" : fmt::format("{}", fmt::join(values, " ")));
  }
  for (const std::string& argument : positional_) text += argument + "\n";
  return text;
}

void open_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)  // open() takes the lowest number that is free
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) (void)!::open("/dev/null", O_RDWR);
}

void check_stdout() {
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.flush().good();
  if (!written)
    throw RunError({.where = "stdout", .what = "not all of the output could be written", .hint = "a disk with room"});
}

int run_program(const char* name, const std::function<int()>& body) {
  open_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // beyond a limit of file sizes: an error like a full disk
  // One write: what MPI prints of its own at the same time must not come between.
  const auto say = [name](const std::string& text) {
    std::cerr << std::string(name) + ": error: " + log::of_rank() + printable_lines(text) + "\n";
  };
  try {
    return body();
  } catch (const Error& error) {
    say(error.what());
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    say("[memory] out of memory; try fewer ranks per node, or smaller batches, images or models");
    return kExitFailed;
  } catch (const std::filesystem::filesystem_error& error) {
    say("[file system] " + std::string(error.what()));
    return files::is_error_of_path(error.code().value()) ? kExitBadInput : kExitFailed;
  } catch (const std::exception& error) {
    say("[internal] " + std::string(error.what()));
    return kExitFailed;
  }
}

}  // namespace ditrain::config
