// One read or write of a disk as many requests at once: through io_uring where the kernel lets us, else one after the
// other with pread and pwrite.
#pragma once
#include <cstddef>
#include <string>

namespace ditrain::memory {

enum class DiskOperation { kRead, kWrite };

/// Returns what went wrong; "" if nothing did. Threads: any number at once, each with a queue of its own.
std::string disk_transfer(int fd, DiskOperation operation, size_t offset, std::byte* data, size_t bytes);

/// Why io_uring cannot be used; "" if it is. DITRAIN_NO_IO_URING in the environment refuses it, for tests.
std::string queue_refusal();

}  // namespace ditrain::memory
