#include "raster_target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t bytes) {
  ditrain::fuzz::read_raster({reinterpret_cast<const char*>(data), bytes});
  return 0;
}
