// What configs are refused with.
#pragma once
#include <string>
#include <vector>

#include "ditrain/config/config.hpp"
#include "ditrain/config/option_table.hpp"
#include "support/message_of.hpp"

namespace ditrain::test {

inline std::string parse_error(const std::string& text, const std::vector<std::string>& sets = {}) {
  return message_of([&] { config::parse_config(text, "a.yaml", sets); });
}

inline std::string set_error(const std::string& assignment) { return parse_error("train:", {assignment}); }

inline config::Config labelled_config() {
  config::Config config;
  config.model.in_channels = 3, config.model.num_classes = 8;
  return config;
}

template <class F>
std::string validate_error(F change) {
  config::Config config = labelled_config();
  change(config);
  return message_of([&] { config::validate(config); });
}

/// Another valid value of the option, or "" if it takes only one.
inline std::string other_value(const config::Option& option, const config::Config& base) {
  const std::string now = option.get(base);
  for (const char* text : {"false",  "true",        "1",       "2",       "7",
                           "0.25",   "[0.25, 0.5]", "[8, 16]", "flow",    "squaredcos_cap_v2",
                           "x0",     "fixed_small", "kl",      "min_snr", "logit_normal",
                           "block",  "bf16",        "folder",  "ref",     "skip",
                           "cosine", "ddim",        "all",     "DiT-B/4", "some where/x#y: \"z\" \\"}) {
    config::Config trial = base;
    if (message_of([&] { config::apply_set(trial, option.name() + "=" + text); }) == "no error" &&
        option.get(trial) != now)
      return text;
  }
  return "";
}

}  // namespace ditrain::test
