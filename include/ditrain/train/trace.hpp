// A timeline of the run in Chrome's trace event format (chrome://tracing, Perfetto): one process a rank.
#pragma once
#include <string>

#include "ditrain/autograd/tape.hpp"
#include "ditrain/dist/communicator.hpp"

namespace ditrain::train {

class Trace {
 public:
  /// Not enabled: every call is a no-op.
  Trace(bool enabled, int rank) : enabled_(enabled), rank_(rank) {}

  bool enabled() const { return enabled_; }
  /// Something that ran from start_s to end_s (now_s() times). Kept up to a cap of events; later ones are left out.
  /// `lane`: 0 computes, 1 communicates.
  void add(const std::string& name, const char* category, double start_s, double end_s, int lane = 0);
  /// Records forward and backward of every node.
  void watch(autograd::Tape& tape);
  /// Collective: rank 0 writes the events of all ranks, of each the first ones within its share of 1 GiB. Errors:
  /// RunError if the file cannot be written
  void write(const std::string& path, dist::Communicator& comm) const;

 private:
  bool enabled_;
  int rank_;
  double node_start_s_ = 0;
  size_t num_events_ = 0;
  std::string events_;  // JSON objects, comma separated
};

}  // namespace ditrain::train
