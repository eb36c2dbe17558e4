#include "mpi_watch.hpp"

#include <utility>

#include "ditrain/base/clock.hpp"

namespace ditrain::dist {
namespace {

constexpr int kQuestion = 1, kReply = 2;  // tags
constexpr double kLookEvery_s = 0.2;      // short against the patience of who asks

}  // namespace

MpiWatch::MpiWatch(MpiSession& session, MPI_Comm ranks, std::shared_ptr<const Counts> counts)
    : session_(session), ranks_(session, ranks), counts_(std::move(counts)), exceptions_(std::uncaught_exceptions()) {
  session_.run([&] { listen(); });
  session_.thread().add(*this);
}

MpiWatch::~MpiWatch() {
  session_.thread().remove(*this);
  if (std::uncaught_exceptions() > exceptions_) return;
  session_.run([&] {
    MPI_Cancel(&question_);
    MPI_Wait(&question_, MPI_STATUS_IGNORE);
    for (Answer& answer : answers_) MPI_Wait(&answer.request, MPI_STATUS_IGNORE);
  });
}

void MpiWatch::listen() { MPI_Irecv(nullptr, 0, MPI_BYTE, MPI_ANY_SOURCE, kQuestion, ranks_.get(), &question_); }

PollResult MpiWatch::advance() {
  int asked = 0;
  MPI_Status status;
  // All that have come: of many ranks that wait for one, each asks all others. An error here ends the watch, not the
  // run.
  while (question_ != MPI_REQUEST_NULL && MPI_Test(&question_, &asked, &status) == MPI_SUCCESS && asked != 0)
    answer(status.MPI_SOURCE);
  std::erase_if(answers_, [](Answer& a) {
    int sent = 0;
    return MPI_Test(&a.request, &sent, MPI_STATUS_IGNORE) == MPI_SUCCESS && sent != 0;
  });
  return {.wake_s = now_s() + kLookEvery_s};
}

void MpiWatch::answer(int rank) {
  Answer& next = answers_.emplace_back(Answer{message(counts_->now())});
  MPI_Isend(&next.message, int(sizeof(Message)), MPI_BYTE, rank, kReply, ranks_.get(), &next.request);
  listen();
}

struct MpiWatch::Questions {
  explicit Questions(size_t ranks) : answers(ranks), arrived(ranks) {}
  std::vector<Message> answers;
  std::vector<int> arrived;
  std::vector<MPI_Request> requests;
};

std::vector<Arrivals> MpiWatch::ask(double patience_s) {
  int ranks = 0, self = 0;
  session_.run([&] {
    check_mpi(MPI_Comm_size(ranks_.get(), &ranks), "MPI_Comm_size");
    check_mpi(MPI_Comm_rank(ranks_.get(), &self), "MPI_Comm_rank");
  });
  auto all = std::make_unique<Questions>(size_t(ranks));
  all->requests.resize(2 * size_t(ranks), MPI_REQUEST_NULL);
  session_.run([&] {
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == self) continue;
      MPI_Irecv(&all->answers[size_t(rank)], int(sizeof(Message)), MPI_BYTE, rank, kReply, ranks_.get(),
                &all->requests[size_t(rank)]);
      MPI_Isend(nullptr, 0, MPI_BYTE, rank, kQuestion, ranks_.get(), &all->requests[size_t(ranks + rank)]);
    }
  });
  const auto missing = [&] {
    int left = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      int& arrived = all->arrived[size_t(rank)];
      if (rank != self && arrived == 0)
        session_.run([&] { MPI_Test(&all->requests[size_t(rank)], &arrived, MPI_STATUS_IGNORE); });
      left += rank != self && arrived == 0 ? 1 : 0;
    }
    return left;
  };
  const double end = now_s() + patience_s;
  for (Backoff backoff; missing() > 0 && now_s() < end;) backoff.pause();
  std::vector<Arrivals> arrivals(static_cast<size_t>(ranks));
  for (size_t rank = 0; rank < arrivals.size(); ++rank)
    arrivals[rank] = {all->answers[rank].control, all->answers[rank].gradients, all->arrived[rank] != 0,
                      all->answers[rank].disk_idle_s};
  arrivals[size_t(self)] = counts_->now();
  if (missing() > 0)
    (void)all.release();  // never freed: an answer may come into this memory later, and the run is over anyway
  else
    session_.run([&] { MPI_Waitall(int(all->requests.size()), all->requests.data(), MPI_STATUSES_IGNORE); });
  return arrivals;
}

}  // namespace ditrain::dist
