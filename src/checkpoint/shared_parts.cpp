#include "shared_parts.hpp"

#include "ditrain/base/error.hpp"

namespace ditrain::checkpoint {
namespace {

using autograd::Parameter;
using autograd::ParameterStore;

// f(parameter, arena) for all tensors of a checkpoint that ranks share, in one order.
template <class F>
void for_shared(ParameterStore& parameters, F f) {
  for (const Parameter* p : parameters.state_dict())
    if (!p->part.whole())
      for (const Tensor* arena : {&parameters.values, &parameters.ema, &parameters.exp_avg, &parameters.exp_avg_sq})
        f(*p, *arena);
}

bool same_memory(const Tensor& a, const Tensor& b) { return &a.storage() == &b.storage(); }

}  // namespace

PartCollector::PartCollector(plan::TensorGroup& group, ParameterStore& parameters) : group_(group), parameters_(parameters) {
  for_shared(parameters, [&](const Parameter& p, const Tensor& arena) { items_.push_back({&p, arena}); });
}

void PartCollector::finish() {
  for (size_t i = 0; i < items_.size(); ++i)
    if (!items_[i].received) receive(items_[i], int(i));
}

void PartCollector::receive(Item& item, int tag) {
  const Parameter& p = *item.parameter;
  item.received = true;
  full_.resize(size_t(num_elements(p.full_shape)));
  part_.resize(size_t(p.size()));
  p.part.put(Pin<float>(parameters_.view(item.arena, p)), full_.data());
  autograd::Part part = p.part;
  for (int rank = 1; rank < group_.communicator().world_size(); ++rank) {
    dist::Communicator& communicator = group_.communicator();
    const auto request = communicator.start_receive(part_.data(), part_.size() * sizeof(float), rank, tag);
    communicator.await(*request, p.name + " of the checkpoint");
    part.begin += p.part.end - p.part.begin, part.end += p.part.end - p.part.begin;
    part.put(part_.data(), full_.data());
  }
}

const float* PartCollector::full(const Parameter& p, const Tensor& arena) {
  for (size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    if (item.parameter != &p || !same_memory(item.arena, arena)) continue;
    DITRAIN_CHECK(!item.received, p.name + " is collected twice");
    receive(item, int(i));
    return full_.data();
  }
  throw LogicFault({.where = "checkpoint", .what = p.name + " is not shared"});
}

void send_parts(plan::TensorGroup& group, ParameterStore& parameters) {
  std::vector<std::unique_ptr<Pin<float>>> pins;
  std::vector<std::unique_ptr<dist::Request>> requests;
  for_shared(parameters, [&](const Parameter& p, const Tensor& arena) {
    pins.push_back(std::make_unique<Pin<float>>(parameters.view(arena, p)));
    const int tag = int(requests.size());
    requests.push_back(group.communicator().start_send(pins.back()->get(), size_t(p.size()) * sizeof(float), 0, tag));
  });
  for (const auto& request : requests) group.communicator().await(*request, "this rank's part of the checkpoint");
}

}  // namespace ditrain::checkpoint
