// A communicator for tests that need some of its functions only.
#pragma once
#include "ditrain/dist/communicator.hpp"

namespace ditrain::test {

/// Rank 0 of some ranks on one node. What a test does not override does what it does with one rank.
class QuietCommunicator : public dist::Communicator {
 public:
  explicit QuietCommunicator(int ranks) : ranks_(ranks) {}
  int rank() const override { return 0; }
  int world_size() const override { return ranks_; }
  int local_rank() const override { return rank(); }
  int local_size() const override { return ranks_; }
  int num_nodes() const override { return 1; }
  std::string description() const override { return "ranks of a test"; }
  std::unique_ptr<dist::Request> start_allreduce_sum(float* data, int64_t n) override {
    return null_->start_allreduce_sum(data, n);
  }
  void allreduce_sum(double* data, int64_t n) override { null_->allreduce_sum(data, n); }
  void allreduce_max(double* data, int64_t n) override { null_->allreduce_max(data, n); }
  uint64_t allreduce_or(uint64_t flags) override { return null_->allreduce_or(flags); }
  void broadcast(void* data, size_t bytes, int root) override { null_->broadcast(data, bytes, root); }
  void barrier() override { null_->barrier(); }
  std::vector<std::string> gather_strings(const std::string& text, int root) override {
    return null_->gather_strings(text, root);
  }
  std::vector<double> gather(const double* values, int64_t n, int root) override {
    return null_->gather(values, n, root);
  }

 private:
  void end_all_ranks(int) override {}

  const int ranks_;
  const std::unique_ptr<dist::Communicator> null_ = dist::make_null_communicator();
};

}  // namespace ditrain::test
