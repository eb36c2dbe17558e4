// Compares two configs: which keys differ, and which of them a resumed run must not change.
#pragma once
#include <string>
#include <vector>

#include "ditrain/config/config.hpp"

namespace ditrain::config {

struct Difference {
  std::string key, old_value, new_value;
};

/// Keys whose values differ.
std::vector<Difference> differences(const Config& old_config, const Config& new_config);

/// Keys that differ although a resumed run must not change them: those that it reads and whose row does not say
/// may_change_on_resume (free_on_resume in option_table.cpp decides it).
std::vector<Difference> differences_on_resume(const Config& old_config, const Config& new_config);

/// Whether sections sample and eval agree, so that the Frechet distances of both runs are comparable.
bool measure_same_distances(const Config& a, const Config& b);

/// Refuses to resume if differences_on_resume finds any.
/// Errors:   InputError "[resume] ..." that lists both values of every such key
void check_resume(const Config& old_config, const Config& new_config);

}  // namespace ditrain::config
