// Affinity of the calling thread: which processing units (PUs, by operating-system number) it may run on. A thread
// inherits the mask of the thread that creates it, so code that starts threads from a bound thread must give them a
// mask of their own first.
#pragma once
#include <string>
#include <vector>

namespace ditrain::platform {

/// Whether a binding took place; `reason` tells why not.
struct BindResult {
  bool bound = false;
  std::string reason = {};
  explicit operator bool() const { return bound; }
};

/// PUs in the calling thread's mask, increasing. Errors: throws RunError if the system does not report them.
std::vector<int> affinity_mask();

/// Binds the calling thread to one PU. Never throws for a refusal: the caller picks the fallback and logs it.
BindResult bind_this_thread(int pu);

/// Gives the calling thread this set of PUs, for example a mask kept from before it was bound.
BindResult set_affinity_mask(const std::vector<int>& pus);

}  // namespace ditrain::platform
