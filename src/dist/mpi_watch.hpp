// Ranks that ask each other where they are. Every rank's progress thread answers, also while its other threads hang; a
// process that is stopped stays silent. They go on when a rank has given up: a rank about to end the run must not
// seem dead.
#pragma once
#include <list>
#include <memory>
#include <vector>

#include "mpi_support.hpp"

namespace ditrain::dist {

class MpiWatch final : public Task {
 public:
  /// Among the ranks of `ranks`. Answers from now on with what the counts say then.
  MpiWatch(MpiSession& session, MPI_Comm ranks, std::shared_ptr<const Counts> counts);
  ~MpiWatch() override;

  PollResult advance() override;
  bool only_answers() const override { return true; }

  /// Asks all ranks and waits at most `patience_s` for their answers.
  std::vector<Arrivals> ask(double patience_s);

 private:
  struct Message {
    uint64_t control = 0, gradients = 0;
    double disk_idle_s = 0;
  };
  struct Questions;
  static Message message(const Arrivals& a) { return {a.control, a.gradients, a.disk_idle_s}; }
  void listen();
  void answer(int rank);

  MpiSession& session_;
  OwnComm ranks_;
  const std::shared_ptr<const Counts> counts_;
  MPI_Request question_ = MPI_REQUEST_NULL;  // pending receive of an empty message
  struct Answer {
    Message message;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  std::list<Answer> answers_;  // that are being sent
  const int exceptions_;
};

}  // namespace ditrain::dist
