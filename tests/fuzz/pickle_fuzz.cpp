#include "targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t bytes) {
  ditrain::fuzz::read_pickle({reinterpret_cast<const char*>(data), bytes});
  return 0;
}
