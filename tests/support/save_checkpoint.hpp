// A whole checkpoint of a store, written by one rank.
#pragma once
#include "ditrain/base/error.hpp"
#include "ditrain/checkpoint/saver.hpp"
#include "workers.hpp"

namespace ditrain::test {

/// Returns its folder.
inline std::string save_checkpoint(const std::string& dir, const checkpoint::CheckpointState& state,
                                   autograd::ParameterStore& parameters) {
  Workers crew;
  const auto comm = dist::make_null_communicator();
  checkpoint::CheckpointSaver saver(
      {.checkpoints_dir = dir, .config = {}, .mine = {.parts = {{0, parameters.arena_size()}}}}, parameters, *comm,
      crew.ctx);
  auto outcome = saver.start(state);
  if (!outcome) outcome = saver.finish();
  DITRAIN_CHECK(outcome && outcome->problem.empty(), outcome->problem);
  return outcome->folder;
}

}  // namespace ditrain::test
