// The text of an error, for tests of what is refused.
#pragma once
#include <string>

#include "ditrain/base/error.hpp"

namespace ditrain::test {

/// The message of the error that `action` throws; `otherwise` if it throws none. Errors of other types pass through.
template <class Error = InputError, class F>
std::string message_of(F action, const char* otherwise = "no error") {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return otherwise;
}

}  // namespace ditrain::test
