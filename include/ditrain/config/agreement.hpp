// Checks that all ranks have the same program, flags, config, data and checkpoint, before anything is written. Ranks
// that differ would silently train different models, sample from another model, or wait for each other for ever.
#pragma once
#include <string>
#include <vector>

#include "ditrain/dist/communicator.hpp"

namespace ditrain::config {

/// Something that has to be the same on all ranks. If a value has several lines, messages show the first line that
/// differs.
struct RankInvariant {
  std::string what, value, hint;
};

/// Compares the invariants of all ranks with those of rank 0, all in the same order. Collective.
/// Errors:   InputError "[ranks] ...", the same on all ranks, naming the lowest rank that differs, its host and the
///           invariant
void check_agreement(dist::Communicator& comm, const std::vector<RankInvariant>& mine);

/// "0.9.0 (7a00851)": version, and the commit if the program was built in a checkout.
std::string build_name();

/// Version and file of the program that this process runs.
std::vector<RankInvariant> program_invariants(const std::string& program);

}  // namespace ditrain::config
