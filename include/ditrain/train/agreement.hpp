// Ranks that do not see the same program, config, data or checkpoint would train different models without a word, or
// wait for each other for ever: they are compared before anything is written.
#pragma once
#include <string>
#include <vector>

#include "ditrain/config/config.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/train/trainer.hpp"

namespace ditrain::train {

/// Something that has to be the same on all ranks. Of a value of several lines, messages show the first that differs.
struct Fact {
  std::string what, value, hint;
};

/// Compares the facts of all ranks with those of rank 0, all in the same order. Collective.
/// Errors:   InputError "[ranks] ...", the same on all ranks: the lowest rank that differs, its host, in what
void check_agreement(dist::Communicator& comm, const std::vector<Fact>& mine);

/// Program, instruction set, command line and config of this process.
std::vector<Fact> start_facts(const config::Config& config, const TrainOptions& options);

}  // namespace ditrain::train
