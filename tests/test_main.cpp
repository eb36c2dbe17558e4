// Catch2's main, compiled once for all test programs.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#include <cstdlib>

// Temporary folders of tests are often RAM (tmpfs), which a disk tier refuses; the programs that tests start, too.
[[maybe_unused]] const int disk_in_ram = setenv("DITRAIN_DISK_IN_RAM", "1", /*replace=*/0);
