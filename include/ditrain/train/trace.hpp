// A timeline of the run in Chrome's trace event format (chrome://tracing, Perfetto): one process per rank, with one
// lane for computation and others for all-reduces and for copies between memory tiers. Operations under way at the same
// time get separate lanes, because viewers draw overlapping events of a lane wrong unless they are nested. Clocks of
// other nodes are aligned to that of rank 0 once, at the start; the head of the file states the error, and the drift at
// the end.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ditrain/autograd/tape.hpp"
#include "ditrain/base/clock.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/train/metrics.hpp"

namespace ditrain::train {

/// Events of kCompute are nested (step, phase, node); every other event gets a lane in which nothing else is under way.
enum class Lane { kCompute, kCommunication, kCopyIn, kCopyOut };

class Trace {
 public:
  /// If not enabled, every call is a no-op. `clock` is this rank's clock [s].
  Trace(bool enabled, int rank, std::function<double()> clock = now_s)
      : enabled_(enabled), rank_(rank), clock_(std::move(clock)) {}

  bool enabled() const { return enabled_; }
  /// Starts the timeline at time 0. Collective; call it before the first add().
  void start(dist::Communicator& comm);
  /// Adds an event that ran from start_s to end_s (now_s() times). Events beyond a cap are only counted.
  void add(const std::string& name, const char* category, double start_s, double end_s, Lane lane = Lane::kCompute);
  /// Adds the spans of phases to the compute lane.
  void add_phases(const std::vector<PhaseSpan>& spans);
  /// Adds a step that ends now: its phases, and the all-reduces of its buckets.
  void add_step(int64_t step, double start_s, const std::vector<PhaseSpan>& phases,
                const std::vector<dist::ReductionOutcome>& sums);
  /// Records forward and backward of every node. If clusters pass a node on their own, the first cluster's times count.
  void watch(autograd::Tape& tape);
  /// Rank 0 writes the events of all ranks, for each rank the first ones that fit its share of 1 GiB. Collective.
  /// Errors: RunError if the file cannot be written
  void write(const std::string& path, dist::Communicator& comm) const;

 private:
  // A lane as viewers show it; its place in the list is its number in the file.
  struct Track {
    Lane lane;
    int number;  // among those of the same lane
    double busy_until_s = 0;
  };

  size_t track_for(Lane lane, double start_s, double end_s);
  std::string lanes(const std::string& host) const;

  bool enabled_;
  int rank_;
  std::function<double()> clock_;
  double zero_s_ = 0;                              // where 0 is on this rank's clock
  double clock_offset_s_ = 0, clock_error_s_ = 0;  // of it from rank 0's at the start, and how well that is known
  double node_start_s_ = 0;
  size_t num_events_ = 0, left_out_ = 0;
  std::vector<Track> tracks_;
  std::string events_;  // JSON objects, each ended by a comma and a new line
};

}  // namespace ditrain::train
