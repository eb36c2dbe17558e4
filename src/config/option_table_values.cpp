#include "option_table_values.hpp"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "ditrain/base/text.hpp"
#include "reference_names.hpp"

namespace ditrain::config {
namespace {

constexpr size_t kMaxTextLength = 4096;  // PATH_MAX; no text option needs more
constexpr size_t kMaxShownLength = 60;

const std::string& only_item(const OptionValue& value, const std::string& expected, const std::string& origin,
                             const std::string& name) {
  if (value.is_list || value.items.size() != 1) refuse(origin, name, shown(value), expected);
  return value.items.front();
}

}  // namespace

std::string IntegerRange::text() const {
  const std::string last = high == kNoLimit ? "2^63 - 1" : std::to_string(high);
  return fmt::format("{}an integer from {} to {}", besides, low, last);
}

std::string NumberRange::text() const {
  if (high == HUGE_VAL && low == -HUGE_VAL) return "a number";
  if (high == HUGE_VAL) return fmt::format("a number >= {}", low);
  return fmt::format("a number from {} to {}{}", low, open_high ? "below " : "", high);
}

void fail(const std::string& what, const std::string& got, const std::string& expected, const std::string& hint) {
  ditrain::refuse("config", what, got, expected, hint);
}

void refuse(const std::string& origin, const std::string& name, const std::string& got, const std::string& expected,
            const std::string& hint) {
  fail(origin + name + ": bad value", got, expected, hint);
}

OptionValue value_of_node(const YAML::Node& node, const Option& option, const std::string& origin) {
  if (node.IsScalar()) return {{node.Scalar()}};
  OptionValue value{{}, true};
  if (option.takes_maps && node.IsSequence() && node.size() > 0 && node[0].IsMap()) {
    Option of_map = option;
    of_map.takes_map = true, of_map.takes_maps = false;
    for (const YAML::Node& map : node) value.maps.push_back(value_of_node(map, of_map, origin));
    return value;
  }
  const bool is_map = node.IsMap() && option.takes_map;
  bool ok = (is_map || node.IsSequence()) && node.size() > 0;
  for (auto entry = node.begin(); ok && entry != node.end(); ++entry) {
    const YAML::Node item = is_map ? entry->second : *entry;
    ok = item.IsScalar() && (!is_map || entry->first.IsScalar());
    if (is_map && item.IsNull() && entry->first.IsScalar() && entry->first.Scalar().find(':') != std::string::npos)
      refuse(origin, option.name(), entry->first.Scalar(), option.expected, "a space behind each colon");
    if (!ok) break;
    if (is_map) value.keys.push_back(entry->first.Scalar());
    value.items.push_back(item.Scalar());
  }
  const char* got = node.IsNull() ? "nothing" : node.IsMap() ? "a map" : "a list of lists or an empty list";
  if (!ok) refuse(origin, option.name(), got, option.expected);
  return value;
}

OptionValue value_of_text(const std::string& text, const Option& option, const std::string& origin) {
  const auto inside = [&text](char first, char last) {
    return text.size() >= 2 && text.front() == first && text.back() == last;
  };
  if (!inside('[', ']') && !(option.takes_map && inside('{', '}'))) return {{text}};
  try {
    const YAML::Node around = YAML::Load("[" + text + "]");  // so that nothing of the text can be left over
    if (around.size() != 1) refuse(origin, option.name(), shown({{text}}), option.expected);
    return value_of_node(around[0], option, origin);
  } catch (const YAML::Exception& error) {
    refuse(origin, option.name(), shown({{text}}) + ", which is not YAML: " + error.msg, option.expected);
  }
}

std::string yaml_text(const std::string& text) {
  YAML::Emitter out;
  out << YAML::Flow << YAML::BeginSeq << text << YAML::EndSeq;  // so that the text may stand in a list, too
  const std::string list = out.c_str();
  return list.substr(1, list.size() - 2);
}

std::string number_text(double value) { return fmt::format("{}", value); }

std::string shown(const OptionValue& value) {
  std::string all;
  for (const OptionValue& map : value.maps) all += (all.empty() ? "" : ", ") + shown(map);
  for (size_t i = 0; i < value.items.size(); ++i)
    all += (i == 0 ? "" : ", ") + (i < value.keys.size() ? value.keys[i] + ": " : "") + value.items[i];
  if (all.size() > kMaxShownLength) all.replace(kMaxShownLength, all.npos, "...");
  return value.is_list ? fmt::format("[{}]", all) : fmt::format("'{}'", all);
}

int64_t read_integer(const OptionValue& value, const IntegerRange& range, const std::string& origin,
                     const std::string& name) {
  const std::string& item = only_item(value, range.text(), origin, name);
  int64_t result = 0;
  if (!parse_whole(item, result) || result < range.low || result > range.high)
    refuse(origin, name, shown(value), range.text());
  return result;
}

double read_number(const OptionValue& value, const NumberRange& range, const std::string& origin,
                   const std::string& name) {
  const std::string& item = only_item(value, range.text(), origin, name);
  double result = 0;
  const bool is_number = parse_whole(item, result) && std::isfinite(result);
  if (!is_number || result < range.low || result > range.high || (range.open_high && result == range.high))
    refuse(origin, name, shown(value), range.text());
  return result;
}

bool read_boolean(const OptionValue& value, const std::string& origin, const std::string& name) {
  const std::string& item = only_item(value, "true or false", origin, name);
  if (item != "true" && item != "false") refuse(origin, name, shown(value), "true or false");
  return item == "true";
}

std::string read_text(const OptionValue& value, const std::string& origin, const std::string& name) {
  const std::string& item = only_item(value, "one text", origin, name);
  if (item.size() > kMaxTextLength) refuse(origin, name, shown(value), fmt::format("at most {} bytes", kMaxTextLength));
  const bool control = std::any_of(item.begin(), item.end(), [](char c) { return (c >= 0 && c < ' ') || c == '\x7f'; });
  if (control) refuse(origin, name, "control characters", "printable text");
  if (!is_utf8(item))  // checkpoints hold the config as JSON
    refuse(origin, name, shown(value), "text in UTF-8", "a symbolic link with another name to such a path");
  return item;
}

std::string read_choice(const OptionValue& value, const std::vector<std::string>& words, const std::string& origin,
                        const std::string& name) {
  const std::string& item = only_item(value, alternatives(words), origin, name);
  if (std::find(words.begin(), words.end(), item) != words.end()) return item;
  std::string near = nearest_word(item, words);
  for (const ReferenceWord& row : kReferenceWords)
    if (row.key == name && row.word == item) near = row.meant;
  refuse(origin, name, shown(value), alternatives(words), words.size() > 1 ? near : "");
}

Option named_option(const std::string& name, std::string help, std::string expected) {
  Option o;
  const size_t dot = name.find('.');
  o.section = name.substr(0, dot), o.key = name.substr(dot + 1);
  o.help = std::move(help), o.expected = std::move(expected);
  return o;
}

}  // namespace ditrain::config
