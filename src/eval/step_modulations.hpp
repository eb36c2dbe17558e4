// Modulations of the steps of a sampler, ahead of them: for every time that it visits with every label and numbers
// of a batch.
// They go into a table of limited size in chunks of steps, in the order of sampling; a chunk takes one product per
// block over all of its rows, where each step by itself would read the same weights for a few rows. Every batch of
// samples makes its own table: for 50 steps of XL/2 and 8 labels that is 0.1 % of the work of sampling.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "ditrain/nn/model.hpp"

namespace ditrain::eval {

class StepModulations {
 public:
  /// times     those of all evaluations in their order; a time may come again
  /// conditions  those of a batch in any order; parts that the model lacks and images make no difference
  /// Memory:   allocates a table for the steps that fit into most_bytes, at least for one step
  StepModulations(nn::Model& model, const std::vector<double>& times, const std::vector<Condition>& conditions,
                  size_t most_bytes);
  /// The most that the table takes of that, for num_times different times and num_labels labels.
  static size_t table_bytes(nn::Model& model, int64_t num_times, int64_t num_labels, size_t most_bytes);

  /// Whether it is for the labels and numbers of these conditions, and no others.
  bool is_of(const std::vector<Condition>& conditions) const;

  /// Gives a pass the modulations of its conditions, all at one time; computes the chunk of that time if the table
  /// holds another one.
  /// Errors:   LogicFault for a time or a condition that was not named
  void give(ops::Context& ctx, nn::ModelPass& pass, double time);

 private:
  // What the table tells conditions apart by: label and numbers, as far as the model takes them; infinity: not known.
  using Key = std::pair<int64_t, std::vector<double>>;
  Key key_of(const Condition& condition) const;
  std::map<Key, int64_t> columns_of(const std::vector<Condition>& conditions) const;
  void compute(ops::Context& ctx, int64_t chunk);

  bool has_classes_, has_numbers_;
  std::map<double, int64_t> step_;  // of a time, numbered by their first evaluation
  std::map<Key, int64_t> column_;   // of a condition, in the rows of a step
  std::vector<double> times_;       // of steps
  int64_t steps_of_chunk_;
  nn::ModulationTable table_;
  int64_t computed_chunk_ = -1;
};

}  // namespace ditrain::eval
