// Config keys that a bench decides itself: a value by --set would be lost, or make it measure something else.
#pragma once
#include <string>
#include <vector>

#include "ditrain/base/error.hpp"

namespace ditrain::bench {

struct OwnKey {
  std::string key, hint;  ///< "parallel.threads", "--threads"
};

/// Errors:   InputError for a set ("a.b=v") of one of these keys
inline void expect_not_set(const std::vector<std::string>& sets, const std::vector<OwnKey>& keys) {
  for (const std::string& set : sets)
    for (const OwnKey& own : keys)
      if (set.starts_with(own.key + "="))
        refuse("ditbench", "--set " + own.key + " is not measured here", set, "", own.hint);
}

}  // namespace ditrain::bench
