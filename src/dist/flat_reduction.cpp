// A sum over all ranks that the MPI library makes.
#include <algorithm>

#include "ditrain/kernels/elementwise.hpp"
#include "reduction.hpp"

namespace ditrain::dist {
namespace {

class FlatReduction final : public Reduction {
 public:
  FlatReduction(Communicator& communicator, float* data, int64_t n)
      : data_(data), n_(n), request_(communicator.start_allreduce_sum(data, n)) {}

  PollResult advance(const Reduction*) override {
    if (done()) return {};
    if (!request_->test()) return {.poll = true};
    for (int64_t i = 0; i < n_; i += kPiece) sum_squares_ += kernels::sum_squares(data_ + i, std::min(kPiece, n_ - i));
    phase_ = kDone;
    return {.progressed = true};
  }

 private:
  float* data_;
  int64_t n_;
  std::unique_ptr<Request> request_;
};

}  // namespace

std::unique_ptr<Reduction> make_flat_reduction(Communicator& communicator, float* data, int64_t n) {
  return std::make_unique<FlatReduction>(communicator, data, n);
}

}  // namespace ditrain::dist
