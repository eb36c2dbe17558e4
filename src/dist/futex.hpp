// Sleeping on a word of memory, which may be shared with other processes (std::atomic::wait is for one process only).
#pragma once
#include <atomic>
#include <cstdint>

namespace ditrain::dist {

/// Sleeps while word == old, at most `seconds` (infinity: no limit). May return early for no reason.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t old, double seconds);
/// Wakes all that sleep on the word, in all processes.
void futex_wake_all(std::atomic<uint32_t>& word);

}  // namespace ditrain::dist
