#include "ditrain/dist/gradient_buckets.hpp"

#include <algorithm>
#include <string>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"

namespace ditrain::dist {

GradientBuckets::GradientBuckets(Communicator& communicator, float* arena, BucketGrid grid)
    : GradientBuckets(communicator, nullptr, arena, std::move(grid)) {}

GradientBuckets::GradientBuckets(Engine& engine, float* arena, BucketGrid grid)
    : GradientBuckets(engine.communicator(), &engine, arena, std::move(grid)) {}

GradientBuckets::GradientBuckets(Communicator& communicator, Engine* engine, float* arena, BucketGrid grid)
    : communicator_(communicator), engine_(engine), arena_(arena), grid_(std::move(grid)) {
  gathered_.resize(size_t(grid_.size()));
  missing_.resize(size_t(grid_.size()));
  requests_.resize(size_t(grid_.size()));
  rearm();
}

void GradientBuckets::gather_instead(int64_t k, int64_t elements) {
  DITRAIN_CHECK(engine_ != nullptr && started_ == 0 && 0 < elements && elements <= bucket(k).size() &&
                    elements % communicator_.world_size() == 0,
                std::to_string(elements) + " elements of bucket " + std::to_string(k) + " of " +
                    std::to_string(communicator_.world_size()) + " ranks");
  gathered_[size_t(k)] = elements;
}

int64_t GradientBuckets::num_buckets() const { return int64_t(missing_.size()); }

void GradientBuckets::rearm() {
  exposed_s_ = 0;
  started_ = done_ = handed_out_ = 0;
  for (int64_t k = 0; k < num_buckets(); ++k) missing_[size_t(k)] = bucket(k).size();
}

void GradientBuckets::mark_ready(int64_t begin, int64_t end) {
  DITRAIN_CHECK(0 <= begin && begin <= end && end <= grid_.n(),
                "slice " + std::to_string(begin) + " ... " + std::to_string(end) + " of " + std::to_string(grid_.n()));
  for (int64_t last = end; last > begin;) {
    const int64_t k = grid_.holding(last - 1);
    const int64_t first = std::max(begin, bucket(k).begin);
    missing_[size_t(k)] -= last - first;
    DITRAIN_CHECK(missing_[size_t(k)] >= 0, "gradients of bucket " + std::to_string(k) + " marked twice");
    last = first;
  }
  start_complete_buckets();
}

void GradientBuckets::start_all() {
  std::fill(missing_.begin(), missing_.end(), 0);
  start_complete_buckets();
}

void GradientBuckets::start_complete_buckets() {
  // Without a progress thread MPI moves on only inside its calls: look at the oldest bucket while passing by.
  while (done_ < started_ && (!requests_[size_t(done_)] || requests_[size_t(done_)]->test())) ++done_;
  for (; started_ < num_buckets() && missing_[size_t(started_)] == 0; ++started_) {
    if (communicator_.world_size() == 1) continue;
    communicator_.count_gradients();
    requests_[size_t(started_)] = start(started_);
  }
}

std::unique_ptr<Request> GradientBuckets::start(int64_t k) {
  float* data = arena_ + bucket(k).begin;
  if (const int64_t elements = gathered_[size_t(k)]; elements > 0)
    return engine_->start_allgather(data, elements, {.grain = elements / communicator_.world_size()});
  return engine_ ? engine_->start_allreduce_sum(data, bucket(k).size(), grid_.is_owned(k))
                 : communicator_.start_allreduce_sum(data, bucket(k).size());
}

void GradientBuckets::check_all_started() const {
  DITRAIN_CHECK(started_ == num_buckets(),
                "finish() with " + std::to_string(num_buckets() - started_) + " buckets that were not marked ready");
}

void GradientBuckets::wait_for(int64_t bucket) {
  Request* request = requests_[size_t(bucket)].get();
  if (request == nullptr) return;
  communicator_.await(*request,
                      "gradient bucket " + std::to_string(bucket + 1) + " of " + std::to_string(num_buckets()));
}

std::optional<GradientBuckets::Slice> GradientBuckets::finish_next() {
  check_all_started();
  if (handed_out_ == num_buckets()) return std::nullopt;
  const ScopedTimer timer(&exposed_s_);
  wait_for(handed_out_);
  return bucket(handed_out_++);
}

void GradientBuckets::finish() {
  while (finish_next()) {
  }
  last_step_ = outcome();
  last_step_.bytes = bytes();
  for (std::unique_ptr<Request>& request : requests_) request.reset();
  rearm();
}

double GradientBuckets::bytes() const {
  int64_t elements = 0;
  for (int64_t k = 0; k < num_buckets() && communicator_.world_size() > 1; ++k)
    elements += gathered_[size_t(k)] > 0 ? gathered_[size_t(k)] : bucket(k).size();
  return double(elements) * sizeof(float);
}

void StepOutcome::add(const ReductionOutcome& bucket) {
  double last_end_s = 0;
  for (const ReductionOutcome& b : buckets) last_end_s = std::max(last_end_s, b.end_s);
  communication_s += std::max(0.0, bucket.end_s - std::max(bucket.start_s, last_end_s));
  buckets.push_back(bucket);
}

StepOutcome GradientBuckets::outcome() const {
  StepOutcome step{.sum_squares = 0.0, .exposed_s = exposed_s_};
  for (const std::unique_ptr<Request>& request : requests_) {
    const std::optional<ReductionOutcome> bucket = request ? request->outcome() : std::nullopt;
    if (!bucket) return {.sum_squares = std::nullopt, .communication_s = step.exposed_s, .exposed_s = step.exposed_s};
    *step.sum_squares += bucket->sum_squares;
    step.add(*bucket);
  }
  if (requests_.empty()) step.sum_squares.reset();
  return step;
}

}  // namespace ditrain::dist
