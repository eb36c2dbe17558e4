// Checkpoints of replicas that ranks share: files hold full tensors, ranks have parts of some of them.
#pragma once
#include <vector>

#include "ditrain/autograd/parameters.hpp"
#include "ditrain/plan/rank_groups.hpp"

namespace ditrain::checkpoint {

/// On the first rank of a group: puts the full tensors together, one at a time, from what the others send. Each tensor
/// of `values`, `ema` and the moments that ranks share is received once: in full(), or by finish(), so that the others
/// get on if the file cannot be written.
class PartCollector {
 public:
  PartCollector(plan::TensorGroup& group, autograd::ParameterStore& parameters);
  PartCollector(const PartCollector&) = delete;
  PartCollector& operator=(const PartCollector&) = delete;

  /// The full tensor of a shared parameter, of the arena that `arena` is; valid until the next call.
  const float* full(const autograd::Parameter& p, const Tensor& arena);
  /// Receives what is left.
  void finish();

 private:
  struct Item {
    const autograd::Parameter* parameter;
    Tensor arena;
    bool received = false;
  };
  void receive(Item& item, int tag);

  plan::TensorGroup& group_;
  autograd::ParameterStore& parameters_;
  std::vector<Item> items_;  // their numbers are the tags of the messages
  std::vector<float> full_, part_;
};

/// On the other ranks of the group: sends this rank's parts and returns when they have arrived.
void send_parts(plan::TensorGroup& group, autograd::ParameterStore& parameters);

}  // namespace ditrain::checkpoint
