// What configs are refused with.
#pragma once
#include <string>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/config/option_table.hpp"

namespace ditrain::test {

/// The message of the InputError that `action` throws; "no error" if it throws none.
template <class F>
std::string message_of(F action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

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

}  // namespace ditrain::test
