// Kinds of option values: each function makes one row of the option table from a key, the field that it fills and the
// values that it accepts. Texts come from outside, so every one is checked as a whole: no value is cut or guessed.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/base/words.hpp"
#include "ditrain/config/option_table.hpp"

namespace YAML {
class Node;
}

namespace ditrain::config {

inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();  // 2^63 - 1, what the field can hold

struct IntegerRange {
  int64_t low, high = kNoLimit;
  const char* besides = "";  ///< what else is accepted, read by the caller, for the text
  std::string text() const;
};

struct NumberRange {
  double low, high = HUGE_VAL;
  bool open_high = false;  ///< high itself is not allowed
  std::string text() const;
};

/// Throws the InputError "[config] what; got ..., expected ...; try hint".
[[noreturn]] void fail(const std::string& what, const std::string& got = "", const std::string& expected = "",
                       const std::string& hint = "");
/// The same for a bad value.
[[noreturn]] void refuse(const std::string& origin, const std::string& name, const std::string& got,
                         const std::string& expected, const std::string& hint = "");

/// The value that a YAML node or, for --set, a text stands for. A text is a list or a map if it is in brackets or (for
/// an option that takes a map) in braces, else one scalar as it is.
/// Errors:   InputError "[config] ORIGINsection.key: bad value ..." for what no option takes, and for brackets that are
///           not YAML
OptionValue value_of_node(const YAML::Node& node, const Option& option, const std::string& origin);
OptionValue value_of_text(const std::string& text, const Option& option, const std::string& origin);

/// Quoted where plain YAML would read it as something else.
std::string yaml_text(const std::string& text);
std::string number_text(double value);
/// For messages: the items of a list in brackets, a scalar in quotes, cut after 60 characters.
std::string shown(const OptionValue& value);

/// One scalar of the value. Errors: InputError if it is a list or no such number, word or text.
int64_t read_integer(const OptionValue& value, const IntegerRange& range, const std::string& origin,
                     const std::string& name);
double read_number(const OptionValue& value, const NumberRange& range, const std::string& origin,
                   const std::string& name);
bool read_boolean(const OptionValue& value, const std::string& origin, const std::string& name);
std::string read_text(const OptionValue& value, const std::string& origin, const std::string& name);
std::string read_choice(const OptionValue& value, const std::vector<std::string>& words, const std::string& origin,
                        const std::string& name);

/// A field of the config. Its type alone is a parameter, so that rows of one kind share their code.
template <class T>
struct Field {
  T& (*at)(Config&);
  T& operator()(Config& c) const { return at(c); }
  const T& operator()(const Config& c) const { return at(const_cast<Config&>(c)); }
};
template <class F>
auto field_at(F access) {
  return Field<std::remove_reference_t<std::invoke_result_t<F, Config&>>>{access};
}

/// Splits "section.key" into a row without set and get.
Option named_option(const std::string& name, std::string help, std::string expected);

template <class F>
Option integer(const std::string& name, F field, const IntegerRange& range, std::string help) {
  Option o = named_option(name, std::move(help), range.text());
  o.set = [=](Config& c, const OptionValue& v, const std::string& origin) {
    field(c) = read_integer(v, range, origin, name);
  };
  o.get = [=](const Config& c) { return std::to_string(field(c)); };
  return o;
}

/// From `low` to `high`; low - 1 in the field stands for the word "auto".
template <class F>
Option integer_or_auto(const std::string& name, F field, int64_t low, int64_t high, std::string help) {
  const IntegerRange range{low, high, "auto or "};
  Option o = named_option(name, std::move(help), range.text());
  o.set = [=](Config& c, const OptionValue& v, const std::string& origin) {
    const bool automatic = !v.is_list && v.items.front() == "auto";
    field(c) = automatic ? low - 1 : read_integer(v, range, origin, name);
  };
  o.get = [=](const Config& c) { return field(c) < low ? "auto" : std::to_string(field(c)); };
  return o;
}

template <class F>
Option number(const std::string& name, F field, const NumberRange& range, std::string help) {
  Option o = named_option(name, std::move(help), range.text());
  o.set = [=](Config& c, const OptionValue& v, const std::string& origin) {
    field(c) = read_number(v, range, origin, name);
  };
  o.get = [=](const Config& c) { return number_text(field(c)); };
  return o;
}

/// No number in the field stands for the word "auto".
template <class F>
Option number_or_auto(const std::string& name, F field, const NumberRange& range, std::string help) {
  Option o = named_option(name, std::move(help), "auto or " + range.text());
  o.set = [=](Config& c, const OptionValue& v, const std::string& origin) {
    field(c).reset();
    if (v.is_list || v.items.front() != "auto") field(c) = read_number(v, range, origin, name);
  };
  o.get = [=](const Config& c) { return field(c) ? number_text(*field(c)) : "auto"; };
  return o;
}

template <class F>
Option boolean(const std::string& name, F field, std::string help) {
  Option o = named_option(name, std::move(help), "true or false");
  o.words = {"true", "false"};
  o.set = [=](Config& c, const OptionValue& v, const std::string& origin) { field(c) = read_boolean(v, origin, name); };
  o.get = [=](const Config& c) { return field(c) ? "true" : "false"; };
  return o;
}

template <class F>
Option text(const std::string& name, F field, std::string help, std::string expected = "text") {
  Option o = named_option(name, std::move(help), std::move(expected));
  o.set = [=](Config& c, const OptionValue& v, const std::string& origin) { field(c) = read_text(v, origin, name); };
  o.get = [=](const Config& c) { return yaml_text(field(c)); };
  return o;
}

template <class F>
Option choice(const std::string& name, F field, const std::vector<std::string>& words, std::string help) {
  Option o = named_option(name, std::move(help), alternatives(words));
  o.words = words;
  o.set = [=](Config& c, const OptionValue& v, const std::string& origin) {
    field(c) = read_choice(v, words, origin, name);
  };
  o.get = [=](const Config& c) { return yaml_text(field(c)); };
  return o;
}

/// A list of names; the word `none_word` stands for the empty list.
template <class F>
Option names_or(const std::string& name, F field, const std::string& none_word, std::string help) {
  Option o = named_option(name, std::move(help), none_word + ", or a list of names");
  o.set = [=](Config& c, const OptionValue& v, const std::string& origin) {
    field(c).clear();
    if (!v.is_list && v.items.front() == none_word) return;
    for (const std::string& item : v.items) field(c).push_back(read_text({{item}}, origin, name));
  };
  o.get = [=](const Config& c) {
    std::string text;
    for (const std::string& item : field(c)) text += (text.empty() ? "[" : ", ") + yaml_text(item);
    return text.empty() ? none_word : text + "]";
  };
  return o;
}

/// A list of numbers; the empty list stands for the word "auto".
template <class F>
Option numbers_or_auto(const std::string& name, F field, std::string help) {
  Option o = named_option(name, std::move(help), "auto or a list of numbers");
  o.set = [=](Config& c, const OptionValue& v, const std::string& origin) {
    field(c).clear();
    if (!v.is_list && v.items.front() == "auto") return;
    for (const std::string& item : v.items)
      field(c).push_back(read_number({{item}}, {-HUGE_VAL, HUGE_VAL}, origin, name));
  };
  o.get = [=](const Config& c) {
    std::string text;
    for (const double item : field(c)) text += (text.empty() ? "[" : ", ") + number_text(item);
    return text.empty() ? "auto" : text + "]";
  };
  return o;
}

/// The words of the field's type, an enum or a pointer to a row of a table.
template <class F>
Option word(const std::string& name, F field, std::string help) {
  using V = std::remove_cvref_t<decltype(field(std::declval<Config&>()))>;
  Option o = named_option(name, std::move(help), alternatives(all_words<V>()));
  o.words = all_words<V>();
  o.set = [=](Config& c, const OptionValue& v, const std::string& origin) {
    find_word(read_choice(v, all_words<V>(), origin, name), field(c));
  };
  o.get = [=](const Config& c) { return yaml_text(std::string(word_of(field(c)))); };
  return o;
}

template <class V>
struct WordsOf {
  using type = V;
};
template <class V>
struct WordsOf<std::optional<V>> {
  using type = V;
};

/// The same for a row, or for an optional value, that may be left open: the word "auto" stands for none. `only`: the
/// values of the type that are accepted; empty: all.
template <class F, class V = typename WordsOf<std::remove_cvref_t<std::invoke_result_t<F, Config&>>>::type>
Option word_or_auto(const std::string& name, F field, std::string help, const std::vector<V>& only = {}) {
  std::vector<std::string> words = only.empty() ? all_words<V>() : std::vector<std::string>();
  for (const V& value : only) words.emplace_back(word_of(value));
  words.emplace_back("auto");
  Option o = named_option(name, std::move(help), alternatives(words));
  o.words = words;
  o.set = [=](Config& c, const OptionValue& v, const std::string& origin) {
    V value{};
    field(c) = {};
    if (find_word(read_choice(v, words, origin, name), value)) field(c) = value;
  };
  o.get = [=](const Config& c) -> std::string {
    if (!field(c)) return "auto";
    if constexpr (std::is_pointer_v<V>)
      return yaml_text(std::string(word_of(field(c))));
    else
      return yaml_text(std::string(word_of(*field(c))));
  };
  return o;
}

/// A number of a map, or true or false.
template <class T>
struct Entry {
  std::string key, expected;
  std::variant<double T::*, int T::*, int64_t T::*, bool T::*> field;
  double low = 0, high = 0;
  void set(T& value, const std::string& text, const std::string& origin, const std::string& name) const {
    const IntegerRange range{int64_t(low), int64_t(high)};
    if (const auto* real = std::get_if<double T::*>(&field))
      value.*(*real) = read_number({{text}}, {low, high}, origin, name);
    else if (const auto* wide = std::get_if<int64_t T::*>(&field))
      value.*(*wide) = read_integer({{text}}, range, origin, name);
    else if (const auto* flag = std::get_if<bool T::*>(&field))
      value.*(*flag) = read_boolean({{text}}, origin, name);
    else
      value.*std::get<int T::*>(field) = int(read_integer({{text}}, range, origin, name));
  }
  std::string get(const T& value) const {
    if (const auto* flag = std::get_if<bool T::*>(&field)) return value.*(*flag) ? "true" : "false";
    return std::visit([&](auto member) { return number_text(double(value.*member)); }, field);
  }
};

/// The numbers of a map, as maps of T have them.
template <class T>
struct Entries {
  std::vector<Entry<T>> all;

  /// "{KEY: what is accepted, ...}"
  std::string expected() const {
    std::string text;
    for (const Entry<T>& e : all) text += (text.empty() ? "{" : ", ") + e.key + ": " + e.expected;
    return text + "}";
  }
  std::string get(const T& value) const {
    std::string text;
    for (const Entry<T>& e : all) text += (text.empty() ? "{" : ", ") + e.key + ": " + e.get(value);
    return text + "}";
  }
  /// Sets the numbers that the map has; returns whether they are all of them. `expected`: of the whole option.
  bool set(T& value, const OptionValue& map, const std::string& origin, const std::string& name,
           const std::string& expected_of_option) const {
    std::set<std::string> seen;
    for (size_t i = 0; i < map.items.size(); ++i) {
      const std::string key = i < map.keys.size() ? map.keys[i] : "";
      const auto e = std::find_if(all.begin(), all.end(), [&](const Entry<T>& entry) { return entry.key == key; });
      if (e == all.end() || !seen.insert(key).second) refuse(origin, name, shown(map), expected_of_option);
      e->set(value, map.items[i], origin, name + "." + key);
    }
    return seen.size() == all.size();
  }
};

/// "off", or a map of numbers, all of which have defaults.
template <class T, class F>
Option map_or_off(const std::string& name, F field, const Entries<T>& entries, std::string help) {
  const std::string expected = "off or " + entries.expected();
  Option o = named_option(name, std::move(help), expected);
  o.takes_map = true;
  o.set = [=](Config& c, const OptionValue& v, const std::string& origin) {
    if (!v.is_list && v.items == std::vector<std::string>{"off"}) return field(c).reset();
    if (!v.is_list) refuse(origin, name, shown(v), expected);
    T value;
    entries.set(value, v, origin, name, expected);
    field(c) = value;
  };
  o.get = [=](const Config& c) -> std::string { return field(c) ? entries.get(*field(c)) : "off"; };
  return o;
}

/// "off", or a list of maps that have all numbers.
template <class T, class F>
Option maps_or_off(const std::string& name, F field, const Entries<T>& entries, std::string help) {
  const std::string expected = "off or [" + entries.expected() + ", ...]";
  Option o = named_option(name, std::move(help), expected);
  o.takes_maps = true;
  o.set = [=](Config& c, const OptionValue& v, const std::string& origin) {
    const bool off = !v.is_list && v.items == std::vector<std::string>{"off"};
    if (!off && v.maps.empty()) refuse(origin, name, shown(v), expected);
    std::vector<T> values(v.maps.size());
    for (size_t i = 0; i < values.size(); ++i)
      if (!entries.set(values[i], v.maps[i], origin, name, expected)) refuse(origin, name, shown(v.maps[i]), expected);
    field(c) = values;
  };
  o.get = [=](const Config& c) -> std::string {
    std::string text;
    for (const T& value : field(c)) text += (text.empty() ? "[" : ", ") + entries.get(value);
    return text.empty() ? "off" : text + "]";
  };
  return o;
}

}  // namespace ditrain::config
