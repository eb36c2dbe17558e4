// The communicator of a run with one rank and without MPI, and what all communicators share.
#include <cstdio>
#include <cstdlib>

#include "ditrain/base/error.hpp"
#include "ditrain/dist/communicator.hpp"

namespace ditrain::dist {
namespace {

class DoneRequest final : public Request {
 public:
  bool test() override { return true; }
  void wait() override {}
};

void check_count(int64_t n) { DITRAIN_CHECK(n >= 0, "count " + std::to_string(n)); }
void check_root(int root) { DITRAIN_CHECK(root == 0, "root " + std::to_string(root) + " of 1 rank"); }

class NullCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  int num_nodes() const override { return 1; }
  bool concurrent_calls() const override { return true; }
  std::string description() const override { return "one rank, without MPI"; }

  std::unique_ptr<Request> start_allreduce_sum(float*, int64_t n) override {
    check_count(n);
    return std::make_unique<DoneRequest>();
  }
  void allreduce_sum(double*, int64_t n) override { check_count(n); }
  void allreduce_max(double*, int64_t n) override { check_count(n); }
  void allreduce_min(double*, int64_t n) override { check_count(n); }
  uint64_t allreduce_or(uint64_t flags) override { return flags; }
  void broadcast(void*, size_t, int root) override { check_root(root); }
  void barrier() override {}
  std::vector<std::string> gather_strings(const std::string& text, int root) override {
    check_root(root);
    return {text};
  }
  std::vector<double> gather(const double* values, int64_t n, int root) override {
    check_count(n);
    check_root(root);
    return {values, values + n};
  }

 private:
  void end_all_ranks(int) override {}
};

}  // namespace

void Communicator::abort(int exit_code) {
  std::fflush(nullptr);
  end_all_ranks(exit_code);
  std::_Exit(exit_code);  // no destructors: other threads may still be at work
}

std::unique_ptr<Communicator> make_null_communicator() { return std::make_unique<NullCommunicator>(); }

}  // namespace ditrain::dist
