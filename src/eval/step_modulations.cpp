#include "step_modulations.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ditrain/base/error.hpp"

namespace ditrain::eval {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();  // NaN has no order

int64_t steps_that_fit(nn::Model& model, int64_t num_times, int64_t num_labels, size_t most_bytes) {
  const size_t step_bytes = nn::ModulationTable(model, num_labels).bytes();
  return std::clamp<int64_t>(int64_t(most_bytes / step_bytes), 1, num_times);
}

// As few chunks as fit, all of about the same length.
int64_t steps_of_chunk(nn::Model& model, int64_t num_times, int64_t num_labels, size_t most_bytes) {
  const int64_t most = steps_that_fit(model, num_times, num_labels, most_bytes);
  const int64_t num_chunks = (num_times + most - 1) / most;
  return (num_times + num_chunks - 1) / num_chunks;
}

std::map<double, int64_t> places_of(const std::vector<double>& times) {
  std::map<double, int64_t> places;
  for (const double t : times) places.emplace(t, int64_t(places.size()));
  return places;
}

}  // namespace

StepModulations::Key StepModulations::key_of(const Condition& condition) const {
  Key key(has_classes_ ? condition.label : 0, has_numbers_ ? condition.numbers : std::vector<double>());
  for (double& x : key.second)
    if (std::isnan(x)) x = kUnknown;
  return key;
}

std::map<StepModulations::Key, int64_t> StepModulations::columns_of(const std::vector<Condition>& conditions) const {
  std::map<Key, int64_t> columns;
  for (const Condition& condition : conditions) columns.emplace(key_of(condition), int64_t(columns.size()));
  return columns;
}

bool StepModulations::is_of(const std::vector<Condition>& conditions) const {
  const auto columns = columns_of(conditions);
  return std::equal(columns.begin(), columns.end(), column_.begin(), column_.end(),
                    [](const auto& a, const auto& b) { return a.first == b.first; });
}

size_t StepModulations::table_bytes(nn::Model& model, int64_t num_times, int64_t num_labels, size_t most_bytes) {
  const int64_t steps = steps_that_fit(model, num_times, num_labels, most_bytes);
  return nn::ModulationTable(model, steps * num_labels).bytes();
}

StepModulations::StepModulations(nn::Model& model, const std::vector<double>& times,
                                 const std::vector<Condition>& conditions, size_t most_bytes)
    : has_classes_(model.config().num_classes > 0),
      has_numbers_(!model.config().metadata.empty()),
      step_(places_of(times)),
      column_(columns_of(conditions)),
      times_(step_.size()),
      steps_of_chunk_(steps_of_chunk(model, int64_t(step_.size()), int64_t(column_.size()), most_bytes)),
      table_(model, steps_of_chunk_ * int64_t(column_.size())) {
  for (const auto& [time, step] : step_) times_[size_t(step)] = time;
  table_.allocate();
}

void StepModulations::compute(ops::Context& ctx, int64_t chunk) {
  const auto columns = int64_t(column_.size()), num_times = int64_t(times_.size());
  for (int64_t i = 0; i < steps_of_chunk_; ++i) {
    // The last chunk may have fewer steps than the table has room for: it repeats the last one.
    const double time = times_[size_t(std::min(chunk * steps_of_chunk_ + i, num_times - 1))];
    for (const auto& [key, column] : column_) {
      table_.t()[size_t(i * columns + column)] = time;
      table_.conditions()[size_t(i * columns + column)] = {.label = key.first, .numbers = key.second};
      for (double& x : table_.conditions()[size_t(i * columns + column)].numbers)
        if (x == kUnknown) x = NAN;
    }
  }
  table_.compute(ctx);
  computed_chunk_ = chunk;
}

void StepModulations::give(ops::Context& ctx, nn::ModelPass& pass, double time) {
  const auto step = step_.find(time);
  DITRAIN_CHECK(step != step_.end(), "a time that the sampler did not name");
  const int64_t chunk = step->second / steps_of_chunk_;
  if (chunk != computed_chunk_) compute(ctx, chunk);
  std::vector<int64_t> rows(size_t(pass.batch()), (step->second - chunk * steps_of_chunk_) * int64_t(column_.size()));
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto column = column_.find(key_of(pass.conditions()[i]));
    DITRAIN_CHECK(column != column_.end(), "a condition that the batch did not name");
    rows[i] += column->second;
  }
  pass.modulate(ctx, table_, rows);
}

}  // namespace ditrain::eval
