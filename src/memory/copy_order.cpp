#include "ditrain/memory/copy_order.hpp"

#include <utility>

namespace ditrain::memory {

int64_t CopyOrder::add(Copy copy, double now_s) {
  const size_t row = row_of(copy);
  rows_[row].push_back({std::move(copy), next_ticket_, now_s});
  return next_ticket_++;
}

void CopyOrder::make_urgent(int64_t ticket) {
  for (auto& row : rows_)
    for (CopyJob& job : row)
      if (job.ticket == ticket) job.copy.urgent = true;
}

CopyJob* CopyOrder::next(size_t row) {
  CopyJob* first = nullptr;
  for (CopyJob& job : rows_[row]) {
    if (!job.has_more()) continue;
    if (job.copy.urgent) return &job;
    if (first == nullptr) first = &job;
  }
  return first;
}

CopyJob CopyOrder::take(CopyJob& job) {
  CopyJob taken = std::move(job);
  rows_[row_of(taken.copy)].remove_if([&](const CopyJob& other) { return &other == &job; });
  return taken;
}

}  // namespace ditrain::memory
