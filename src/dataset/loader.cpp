#include "ditrain/dataset/loader.hpp"

#include <limits>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/dataset/augment.hpp"

namespace ditrain::dataset {
namespace {

constexpr int64_t kMaxThreads = 1024, kMaxQueue = 1024;

void check_range(const char* key, int64_t value, int64_t most) {
  if (value < 1 || value > most)
    throw InputError({.where = "data",
                      .what = std::string("data.") + key + " is out of range",
                      .got = std::to_string(value),
                      .expected = "1 to " + std::to_string(most)});
}

const LoaderConfig& checked(const LoaderConfig& c) {
  check_range("loader_threads", c.threads, kMaxThreads);
  check_range("queue_batches", c.queue_batches, kMaxQueue);
  DITRAIN_CHECK(c.global_batch >= 1 && c.first_in_batch >= 0 && c.count >= 1 && c.first_step >= 0 &&
                    c.count <= c.global_batch - c.first_in_batch,
                "samples of this rank outside the global batch");
  DITRAIN_CHECK(c.first_step < std::numeric_limits<int64_t>::max() / c.global_batch / 2, "positions overflow");
  return c;
}

}  // namespace

Loader::Loader(const Dataset& data, const EpochSampler& sampler, const LoaderConfig& config)
    : data_(data),
      sampler_(sampler),
      config_(checked(config)),
      slots_(size_t(config.queue_batches)),
      take_step_(config.first_step),
      next_step_(config.first_step) {
  DITRAIN_CHECK(sampler.size() == data.size(), "the sampler was made for another data set");
  try {
    for (int64_t t = 0; t < config_.threads; ++t) threads_.emplace_back([this, t] { work(t); });
  } catch (const std::exception& error) {
    stop();  // those that run would wait for ever, and the destructors of members for them
    throw RunError({.where = "data",
                    .what = "cannot start a loader thread",
                    .got = error.what(),
                    .expected = "memory for data.loader_threads " + std::to_string(config_.threads),
                    .hint = "fewer data.loader_threads"});
  }
}

Loader::~Loader() { stop(); }

void Loader::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  room_.notify_all();
}

void Loader::work(int64_t thread) {
  std::exception_ptr start_error;  // of on_thread_start: reported with the first sample this thread takes
  try {
    if (config_.on_thread_start) config_.on_thread_start(thread);
  } catch (...) {
    start_error = std::current_exception();
  }
  int64_t step, i;
  while (take(&step, &i)) {
    std::exception_ptr error = start_error;
    if (!error) {
      try {
        load_sample(step, i);
      } catch (...) {
        error = std::current_exception();
      }
    }
    finish(step, i, error);
  }
}

bool Loader::take(int64_t* step, int64_t* i) {
  std::unique_lock lock(mutex_);
  room_.wait(lock, [this] { return stop_ || take_step_ < next_step_ + config_.queue_batches; });
  if (stop_) return false;
  if (take_i_ == 0) begin_batch(take_step_);
  *step = take_step_;
  *i = take_i_;
  if (++take_i_ == config_.count) ++take_step_, take_i_ = 0;
  return true;
}

void Loader::begin_batch(int64_t step) {
  Slot& s = slot(step);
  s.batch.step = step;
  s.batch.images.resize(size_t(config_.count * data_.shape().elements()));
  s.batch.conditions.resize(size_t(config_.count));
  s.remaining = config_.count;
}

void Loader::load_sample(int64_t step, int64_t i) {
  const int64_t g = config_.first_in_batch + i;
  const auto bits = RandomKey(config_.seed, Stream::kFlip, uint64_t(step), uint64_t(g)).bits(0);
  const bool flip = config_.random_flip && (bits & 1u) != 0;
  const int64_t index = sampler_.index_at(step * config_.global_batch + g);
  Batch& batch = slot(step).batch;  // its size is fixed until the last sample is in
  float* chw = batch.images.data() + i * data_.shape().elements();
  const RandomKey draw(config_.seed, Stream::kPosterior, uint64_t(step), uint64_t(g));
  Condition& condition = batch.conditions[size_t(i)];
  data_.load(index, flip, draw, chw, &condition);
  const auto turn = [&](int64_t channels, auto* values) {
    const SampleShape shape{channels, data_.shape().height, data_.shape().width};
    if (config_.augment == Augment::kFlips && (bits >> 1 & 1u) != 0) turn_upside_down(shape, values);
    if (config_.augment == Augment::kTurns) quarter_turns(shape, int(bits >> 2 & 3u), values);
  };
  turn(data_.shape().channels, chw);
  turn(data_.condition_channels(), condition.image.data());
  if (!condition.valid.empty()) turn(1, condition.valid.data());
}

void Loader::finish(int64_t step, int64_t i, std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  Slot& s = slot(step);
  if (error && (!s.error || i < s.bad_sample)) s.error = error, s.bad_sample = i;
  if (--s.remaining == 0) ready_.notify_one();
}

Batch Loader::next() {
  const ScopedTimer timer(&wait_s_);
  std::unique_lock lock(mutex_);
  Slot& s = slot(next_step_);
  ready_.wait(lock, [&] { return take_step_ > next_step_ && s.remaining == 0; });
  if (s.error) std::rethrow_exception(s.error);
  Batch batch = std::move(s.batch);
  s.batch = {};
  ++next_step_;
  lock.unlock();
  room_.notify_all();
  return batch;
}

}  // namespace ditrain::dataset
