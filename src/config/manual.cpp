#include "ditrain/config/manual.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>

#include "ditrain/config/key_help.hpp"
#include "ditrain/version.hpp"

namespace ditrain::config {
namespace {

// ---- man page ----

/// Text that roff prints as it is: backslashes and dashes escaped, no line that begins like a request.
std::string roff(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '\\')
      safe += "\\e";
    else if (c == '-')
      safe += "\\-";
    else if ((c == '.' || c == '\'') && (safe.empty() || safe.back() == '\n'))
      safe += std::string("\\&") + c;
    else
      safe += c;
  }
  return safe;
}

std::string entry(const std::string& label, const std::string& text) {
  return fmt::format(".TP\n.B {}\n{}\n", roff(label), roff(text));
}

std::string entries(const std::vector<Flag>& flags) {
  std::string text;
  for (const Flag& f : flags)
    text += entry(usage_of(f), f.help + (f.default_value.empty() ? "" : " [default " + f.default_value + "]"));
  return text;
}

// Those that have flags of their own; the others are told of by the details of the program.
std::string commands_for_man(const Usage& usage) {
  std::string text;
  for (const Command& c : usage.commands)
    if (!c.flags.empty())
      text += fmt::format(".SS {} {} [flags]{}\n{}\n{}", usage.program, c.name,
                          c.positional.empty() ? "" : " " + roff(c.positional), roff(c.summary),
                          entries(c.flags) + (c.details.empty() ? "" : ".PP\n.nf\n" + roff(c.details) + "\n.fi\n"));
  return text.empty() ? "" : ".SH COMMANDS\n" + text;
}

std::string keys_for_man() {
  const Config defaults = default_config();
  std::string text, section;
  for (const Option& o : option_table()) {
    if (o.section != section) text += fmt::format(".SS {}\n", section = o.section);
    const char* mark = audience_of(o) == Audience::kExperts ? " For experts." : "";
    text += entry(o.name(), fmt::format("{}. Values: {}. Default: {}.{}", o.help, o.expected, o.get(defaults), mark));
  }
  return text;
}

// ---- completion ----

/// What a value of the flag can be: its words, or none if it is a file, a folder or a number.
std::vector<std::string> words_of_argument(std::string argument) {
  std::erase_if(argument, [](char c) { return c == '[' || c == ']'; });
  std::vector<std::string> words;
  std::istringstream parts(argument);
  for (std::string part; std::getline(parts, part, '|');)
    if (std::none_of(part.begin(), part.end(), [](unsigned char c) { return std::isupper(c) != 0; }))
      words.push_back(part);
  return words;
}

/// A line of a `case` of bash.
std::string line_of_case(const std::string& pattern, const std::vector<std::string>& words) {
  return fmt::format("    {}) words=\"{}\" ;;\n", pattern, fmt::join(words, " "));
}

/// What else is completed: flags, those of a command that has its own, and names of commands as the first word.
std::string other_words(const Usage& usage) {
  const auto names = [](const std::vector<Flag>& flags) {
    std::vector<std::string> all;
    for (const Flag& f : flags) all.push_back("--" + f.name);
    return all;
  };
  std::string text = fmt::format("    *) [[ $cur == -* ]] && words=\"{}\"\n", fmt::join(names(usage.flags), " "));
  std::vector<std::string> commands;
  for (const Command& c : usage.commands) {
    commands.push_back(c.name);
    if (c.flags.empty()) continue;
    text += fmt::format("      [[ $cur == -* && ${{COMP_WORDS[1]}} == {} ]] && words=\"{} --help --version\"\n", c.name,
                        fmt::join(names(c.flags), " "));
  }
  if (!commands.empty())
    text += fmt::format("      [[ $cur != -* && $COMP_CWORD -eq 1 ]] && words=\"{}\"\n", fmt::join(commands, " "));
  return text + "      ;;\n";
}

std::string names_of_keys() {
  std::vector<std::string> names;
  for (const Option& o : option_table()) names.push_back(o.name() + "=");
  return fmt::format("{}", fmt::join(names, " "));
}

std::string topics_of_help(const Usage& usage) {
  std::vector<std::string> topics = {"man", "bash"};
  if (usage.explains_keys) {
    topics = option_sections();
    topics.emplace_back("all");
    for (const Option& o : option_table()) topics.push_back(o.name());
  }
  return fmt::format("{}", fmt::join(topics, " "));
}

}  // namespace

std::string man_page(const Usage& usage) {
  std::string name = usage.program;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return char(std::toupper(c)); });
  std::string text = fmt::format(".TH {} 1 \"\" \"ditrain {}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n", name,
                                 kVersion, usage.program, roff(usage.summary));
  text += fmt::format(".SH SYNOPSIS\n.B {}\n[flags]{}\n.SH OPTIONS\n", usage.program,
                      usage.positional.empty() ? "" : " " + roff(usage.positional));
  text += entries(usage.flags) + commands_for_man(usage);
  if (!usage.details.empty()) {
    text += ".SH NOTES\n.nf\n" + roff(usage.details) + "\n.fi\n";
  }
  if (usage.explains_keys)
    text += ".SH CONFIG KEYS\nKeys of the YAML file, or of \\-\\-set KEY=VALUE.\n" + keys_for_man();
  return text;
}

// Bash splits words at "=": `--set train.precision=b` comes as --set, train.precision, =, b.
std::string bash_completion(const Usage& usage) {
  const std::string function = "_" + usage.program;
  std::string of_flags, of_keys;
  bool sets_keys = false;
  for (const Flag& f : usage.flags) {
    sets_keys |= f.name == "set";
    if (const auto words = words_of_argument(f.argument); !words.empty() && f.name != "help")
      of_flags += line_of_case("--" + f.name, words);
  }
  if (sets_keys)
    for (const Option& o : option_table())
      if (!o.words.empty()) of_keys += line_of_case(o.name(), o.words);
  std::string text = fmt::format(
      "# Completion of {0} for bash, made by `{0} --help bash`.\n"
      "{1}() {{\n"
      "  local cur=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=\"\"\n"
      "  if [[ $cur == = ]]; then\n"
      "    cur=\"\"\n"
      "  elif [[ $before == = ]]; then\n"
      "    before=${{COMP_WORDS[COMP_CWORD-2]}}\n"
      "  fi\n"
      "  case $before in\n"
      "    --help) words=\"{2}\" ;;\n",
      usage.program, function, topics_of_help(usage));
  if (sets_keys) text += fmt::format("    --set) words=\"{}\"; compopt -o nospace 2> /dev/null ;;\n", names_of_keys());
  text += of_flags + of_keys + other_words(usage);
  text += fmt::format(
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
      "}}\n"
      "complete -o default -F {} {}\n",
      function, usage.program);
  return text;
}

}  // namespace ditrain::config
