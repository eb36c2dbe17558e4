#include "ditrain/dataset/dataset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/dataset/augment.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/file_list.hpp"
#include "ditrain/dataset/kinds.hpp"

namespace ditrain::dataset {
namespace {

constexpr int64_t kMaxBadInARow = 1000;  // enough to step over a lost folder; a set worse than that is not usable
constexpr int64_t kMaxRangesShown = 8;

void check_config(const Config& config) {
  if (config.latent_scale && (!std::isfinite(*config.latent_scale) || *config.latent_scale == 0))
    throw InputError({.where = "data",
                      .what = "data.latent_scale is not usable",
                      .got = std::to_string(*config.latent_scale),
                      .expected = "a finite number other than 0"});
  if (!config.kind->path.empty() && config.path.empty())
    throw InputError({.where = "data",
                      .what = "data.kind: " + std::string(config.kind->name) + " needs data.path, which is not set",
                      .hint = "the line `data: {path: DIR}` in the config, or --set data.path=DIR"});
}

void check_shape(const SampleShape& s) {
  if (s.channels < 1 || s.channels > kMaxChannels || s.height < 1 || s.height > kMaxSide || s.width < 1 ||
      s.width > kMaxSide)
    throw ShapeError(
        {.where = "data",
         .what = "no samples of this shape",
         .got = std::to_string(s.channels) + " x " + std::to_string(s.height) + " x " + std::to_string(s.width),
         .expected = "1 to 4096 channels and sides of 1 to 65536"});
}

void check_classes(const Dataset& data, int64_t num_classes) {
  const int64_t have = data.num_classes();
  if (num_classes > 1 && have == 0)
    throw InputError(
        {.where = "data",
         .what = "the data has no labels, but the model is conditioned on classes: " + data.describe(),
         .got = "model.num_classes " + std::to_string(num_classes),
         .expected = "0 or 1",
         .hint = "one sub-folder per class (folder), a tensor `labels` (latents) or model.num_classes: auto"});
  if (num_classes > 0 && have > num_classes)
    throw InputError({.where = "data",
                      .what = "label out of range: the data has more classes than the model: " + data.describe(),
                      .got = "labels up to " + std::to_string(have - 1),
                      .expected = "labels below model.num_classes " + std::to_string(num_classes),
                      .hint = "model.num_classes: " + std::to_string(have) + ", or auto"});
}

}  // namespace

void settle_latent_scale(Config& config);  // latents.cpp

void settle(Config& config) {
  if (config.path.empty()) return;
  settle_tiles(config);
  if (!config.kind->pixels) settle_latent_scale(config);
}

std::unique_ptr<Dataset> open_dataset(const Config& config, const SampleShape& shape, int64_t num_classes,
                                      uint64_t seed, Part part) {
  check_config(config);
  check_shape(shape);
  check_augment(config, shape);
  auto data = config.kind->open({config, shape, num_classes, seed});
  DITRAIN_CHECK(data->size() > 0, "an empty data set was opened");
  check_classes(*data, num_classes);
  if (config.hold_out > 0 || part == Part::kHeldOut) data->keep(part, config.hold_out);
  return data;
}

Dataset::Dataset(const Config& config, const SampleShape& shape)
    : shape_(shape), skip_bad_(config.on_bad_file == OnBadFile::kSkip) {}

void Dataset::load(int64_t index, bool flip, float* chw, Condition* condition) const {
  load_with(index, [&](int64_t i) { *condition = {}, read(i, flip, chw, condition); });
}

void Dataset::load(int64_t index, bool flip, const RandomKey& draw, float* chw, Condition* condition) const {
  load_with(index, [&](int64_t i) { *condition = {}, read_drawn(i, flip, draw, chw, condition); });
}

void Dataset::read_drawn(int64_t index, bool flip, const RandomKey&, float* chw, Condition* condition) const {
  read(index, flip, chw, condition);
}

int64_t Dataset::label_of(int64_t index) const {
  std::vector<float> unused(static_cast<size_t>(shape_.elements()));
  Condition condition;
  read(index, /*flip=*/false, unused.data(), &condition);
  return condition.label;
}

void Dataset::keep(Part part, double share) {
  for (int64_t i = 0; i < size_; ++i)
    if ((RandomKey(0, Stream::kHeldOut, uint64_t(i)).uniform(0) < share) == (part == Part::kHeldOut))
      members_.push_back(i);
  const bool training = part == Part::kTraining;
  part_ = fmt::format("{} of them are {}, the others {} (data.hold_out: {})", members_.size(),
                      training ? "for training" : "held out", training ? "held out" : "for training", share);
  if (members_.empty())
    throw InputError(
        {.where = "data",
         .what = std::string(training ? "all samples are held out: " : "no sample is held out: ") + describe(),
         .got = fmt::format("data.hold_out: {}", share),
         .expected = "a share that leaves both parts a sample",
         .hint = "data.hold_out: 0.2"});
}

std::string Dataset::describe_part() const { return part_; }

void Dataset::load_with(int64_t index, const Read& read) const {
  DITRAIN_CHECK(index >= 0 && index < size(), "sample " + std::to_string(index));
  if (!skip_bad_) return read_or_explain(member(index), read);
  const int64_t tries = std::min(size(), kMaxBadInARow);
  for (int64_t k = 0; k < tries; ++k)
    if (try_read(member((index + k) % size()), read)) return;
  throw InputError({.where = "data",
                    .what = std::to_string(tries) + " unreadable samples in a row, from sample " +
                            std::to_string(index) + " on: " + describe(),
                    .hint = "data.on_bad_file: error, which tells what is wrong with the first"});
}

void Dataset::read_or_explain(int64_t index, const Read& read) const {
  try {
    read(index);
  } catch (const LogicFault&) {
    throw;
  } catch (const Error& error) {
    throw InputError(
        {.where = "data",
         .what = std::string("unreadable sample: ") + error.what(),
         .hint = "`data.on_bad_file: skip` (ditdata: --on-bad-file skip), which counts it and takes the next one"});
  }
}

bool Dataset::try_read(int64_t index, const Read& read) const {
  if (known_bad(index)) return false;
  try {
    read(index);
    return true;
  } catch (const LogicFault&) {
    throw;
  } catch (const Error& error) {
    note_bad(index, error.what());
    return false;
  }
}

bool Dataset::known_bad(int64_t index) const {
  const std::lock_guard lock(mutex_);
  return bad_.contains(index);
}

void Dataset::note_bad(int64_t index, const std::string& why) const {
  const std::lock_guard lock(mutex_);
  if (bad_.insert(index).second) log::warn("skipped a bad sample ({} so far): {}", bad_.size(), why);
}

void Dataset::note_class(int64_t label) {
  if (size_t(label) >= has_samples_.size()) has_samples_.resize(size_t(label) + 1);
  has_samples_[size_t(label)] = true;
}

std::string Dataset::describe_unused(int64_t num_classes) const {
  const auto used = [&](int64_t c) {
    return has_samples_.empty() ? c < std::max<int64_t>(num_classes_, 1)
                                : c < int64_t(has_samples_.size()) && has_samples_[size_t(c)];
  };
  const auto text = [&](int64_t c) {
    const bool named = c < int64_t(class_names_.size());
    return std::to_string(c) + (named ? " (" + class_names_[size_t(c)] + ")" : "");
  };
  std::string list;
  int64_t unused = 0, ranges = 0;
  for (int64_t first = 0, last = 0; first < num_classes; first = last + 1) {
    for (last = first; last < num_classes && !used(last);) ++last;
    if (last == first) continue;
    unused += last - first;
    if (++ranges <= kMaxRangesShown)
      list += (ranges > 1 ? ", " : "") + text(first) + (last - first > 1 ? " to " + text(last - 1) : "");
  }
  if (ranges > kMaxRangesShown) list += ", ...";
  return unused == 0 ? "" : std::to_string(unused) + " of " + std::to_string(num_classes) + " classes: " + list;
}

std::string Dataset::describe_unlearnt(int64_t num_classes) const {
  if (num_classes != 0 || num_classes_ < 2) return "";
  return "its " + std::to_string(num_classes_) + " classes are not learnt (model.num_classes: 0; auto learns them)";
}

int64_t Dataset::bad_files() const {
  const std::lock_guard lock(mutex_);
  return int64_t(bad_.size());
}

std::vector<int64_t> Dataset::bad_samples() const {
  const std::lock_guard lock(mutex_);
  return {bad_.begin(), bad_.end()};
}

}  // namespace ditrain::dataset
