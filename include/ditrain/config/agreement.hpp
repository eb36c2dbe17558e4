// Ranks that do not see the same program, flags, config, data or checkpoint would train different models without a
// word, draw images of another model, or wait for each other for ever: they are compared before anything is written.
#pragma once
#include <string>
#include <vector>

#include "ditrain/dist/communicator.hpp"

namespace ditrain::config {

/// Something that has to be the same on all ranks. Of a value of several lines, messages show the first that differs.
struct Fact {
  std::string what, value, hint;
};

/// Compares the facts of all ranks with those of rank 0, all in the same order. Collective.
/// Errors:   InputError "[ranks] ...", the same on all ranks: the lowest rank that differs, its host, in what
void check_agreement(dist::Communicator& comm, const std::vector<Fact>& mine);

/// Version and file of the program that this process runs.
std::vector<Fact> program_facts(const std::string& program);

}  // namespace ditrain::config
