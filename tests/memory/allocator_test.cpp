#include "ditrain/memory/allocator.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>

using namespace ditrain;

TEST_CASE("blocks are aligned, zeroed and counted") {
  memory::Allocator& home = memory::system_memory();
  const size_t before = home.bytes_in_use();
  for (size_t bytes :
       {size_t{1}, size_t{63}, size_t{4096}, (size_t{256} << 10) - 1, size_t{256} << 10, size_t{5} << 20}) {
    auto* p = static_cast<unsigned char*>(home.allocate(bytes));
    CHECK(reinterpret_cast<uintptr_t>(p) % memory::kAlignment == 0);
    CHECK(home.bytes_in_use() == before + bytes);
    size_t sum = 0;
    for (size_t i = 0; i < bytes; ++i) sum += p[i];
    CHECK(sum == 0);
    std::memset(p, 1, bytes);
    home.deallocate(p, bytes);
    CHECK(home.bytes_in_use() == before);
  }
  CHECK(home.peak_bytes() >= before + (size_t{5} << 20));
}
