// For test cases that need what this machine lacks: ctest then reports "Skipped" instead of a pass that says nothing.
#pragma once
#include <string>

namespace ditrain::test {
void skip(const std::string& reason);  // test_main.cpp
}

/// Ends a test case that cannot run here (Catch2 has such a macro from version 3.3 on). A case that runs several times
/// (GENERATE) is skipped if all its runs are.
#define SKIP(reason)               \
  do {                             \
    ::ditrain::test::skip(reason); \
    return;                        \
  } while (false)
