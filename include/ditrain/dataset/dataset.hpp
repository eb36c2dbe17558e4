// Training data as numbered samples. A Dataset hides where samples come from (synthetic shapes, image files, shards of
// latents or tiles) and what happens to unreadable ones. It knows nothing of epochs, batches or ranks: those are
// sampler.hpp and loader.hpp.
//
//   auto data = open_dataset(config.data, {3, 32, 32}, /*num_classes=*/8, /*seed=*/1);
//   Loader loader(*data, EpochSampler(data->size(), seed), {.global_batch = 64, .count = 64});
//   Batch batch = loader.next();
//
// A new kind: one file in src/dataset, one row in kinds.cpp.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "ditrain/base/condition.hpp"
#include "ditrain/base/metadata.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/dataset/config.hpp"
#include "ditrain/dataset/file_list.hpp"

namespace ditrain::dataset {

/// Labels in files are smaller: one beyond is garbage, and would size a table of the model.
inline constexpr int64_t kMaxClasses = int64_t{1} << 24;

/// The shape of one sample as the model reads it: f32 [channels, height, width].
struct SampleShape {
  int64_t channels = 3, height = 32, width = 32;
  int64_t elements() const { return channels * height * width; }
};

inline constexpr int64_t kMaxSide = 1 << 16, kMaxChannels = 1 << 12;  ///< of samples: elements() is below 2^44

/// Number of classes of `kind: shapes`.
inline constexpr int64_t kShapesClasses = 8;

/// The two parts into which data.hold_out splits a data set. With hold_out 0 all samples are for training.
enum class Part { kTraining, kHeldOut };

class Dataset {
 public:
  virtual ~Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  /// Number of samples in the part that keep() chose; indices run over that part, [0, size).
  int64_t size() const { return members_.empty() ? size_ : int64_t(members_.size()); }
  const SampleShape& shape() const { return shape_; }
  /// Number of classes in the data; 0: no labels.
  int64_t num_classes() const { return num_classes_; }
  /// Channels of the image in each sample's condition, [channels, shape().height, shape().width]; 0: no such image.
  int64_t condition_channels() const { return condition_channels_; }
  /// Whether the data states entry `number` of kMetadata (base/metadata.hpp).
  bool knows(size_t number) const { return known_numbers_[number]; }
  /// One name per class, or empty where the data has none.
  const std::vector<std::string>& class_names() const { return class_names_; }

  /// Reads sample `index`.
  /// Shapes:  chw [channels, height, width], overwritten; *condition is overwritten
  /// Units:   images in [-1, 1]; latents as stored, times latent_scale. Labels in [0, num_classes), 0 without labels
  /// Numerics: the same bytes for the same arguments, whatever was read before; `flip` mirrors left-right, ignored by
  ///          kinds that cannot
  /// Threads: may be called by any number of threads at once
  /// Errors:  an unreadable sample throws InputError that names it; under `on_bad_file: skip` it is counted, logged
  ///          once and replaced by the next readable index (index + 1, modulo size), and InputError is thrown only
  ///          after 1,000 unreadable ones in a row (or all of the set)
  void load(int64_t index, bool flip, float* chw, Condition* condition) const;
  /// The same with a key for random draws: latents stored as mean and log-variance give a new draw per key. The other
  /// load() always gives the same draw of a sample.
  void load(int64_t index, bool flip, const RandomKey& draw, float* chw, Condition* condition) const;

  /// The label that load() gives sample `index`, without reading its pixels where the kind knows it; an unreadable
  /// sample has its own.
  /// Threads: as load
  int64_t label(int64_t index) const { return label_of(member(index)); }

  /// Number of unreadable samples that this rank has met so far (each counted once) under `on_bad_file: skip`.
  int64_t bad_files() const;
  std::vector<int64_t> bad_samples() const;  ///< their indices

  /// Restricts the data set to one part.
  /// Math:    sample i is held out if a random number keyed by i alone is below `share`
  /// Errors:  InputError for a part without samples
  void keep(Part part, double share);
  /// "4012 of them are for training, the others held out (data.hold_out: 0.2)"; "" if all are there.
  std::string describe_part() const;

  /// The classes below `num_classes` that have no sample: "2 of 10 classes: 3 (cat), 8 to 9"; "" if all have one.
  std::string describe_unused(int64_t num_classes) const;
  /// That a model of no classes does not learn those of the data; "" where nothing is lost.
  std::string describe_unlearnt(int64_t num_classes) const;

  /// One line for the log: kind, place, number of samples and classes.
  virtual std::string describe() const = 0;
  /// Identifies the samples with their order, labels and scaling. Results that are stored per sample carry it.
  std::string samples_checksum() const { return checksum_of_samples() + describe_part(); }
  /// Checksum of the content of one sample, for kinds whose samples_checksum() does not cover contents:
  /// files::checksum_of_parts of its file; under `on_bad_file: skip`, 0 if the file is missing or may not be read.
  /// Threads: as load
  uint64_t content_checksum(int64_t index) const { return checksum_of_content(member(index)); }
  /// Files in the data folder that are not samples, by extension: "ignored 12 files (.txt 10, .xml 2)"; "" if there are
  /// none. Hidden files do not count.
  std::string describe_ignored() const { return ignored_.describe(); }
  /// What is probably wrong with the data although it can be read, one line each.
  const std::vector<std::string>& warnings() const { return warnings_; }

 protected:
  Dataset(const Config& config, const SampleShape& shape);
  virtual std::string checksum_of_samples() const { return ""; }
  virtual uint64_t checksum_of_content(int64_t /*index*/) const { return 0; }
  /// The default reads the sample.
  virtual int64_t label_of(int64_t index) const;
  /// Reads one sample, never another in its place.
  /// Threads: any number at once
  /// Errors:  InputError if it is unreadable
  virtual void read(int64_t index, bool flip, float* chw, Condition* condition) const = 0;
  /// The same with a key, for kinds that draw. The default calls read().
  virtual void read_drawn(int64_t index, bool flip, const RandomKey& draw, float* chw, Condition* condition) const;
  /// Counts a file that is not a sample.
  void ignore_file(const std::string& name) { ignored_.add(name); }
  /// Records that this class has a sample. A kind that never calls it is taken to have samples of all its classes.
  void note_class(int64_t label);
  bool skips_bad() const { return skip_bad_; }

  SampleShape shape_;
  int64_t size_ = 0, num_classes_ = 0, condition_channels_ = 0;
  std::vector<std::string> class_names_, warnings_;
  std::array<bool, kNumMetadata> known_numbers_ = {};

 private:
  using Read = std::function<void(int64_t index)>;
  int64_t member(int64_t index) const { return members_.empty() ? index : members_[size_t(index)]; }
  void load_with(int64_t index, const Read& read) const;
  void read_or_explain(int64_t index, const Read& read) const;
  bool try_read(int64_t index, const Read& read) const;
  bool known_bad(int64_t index) const;
  void note_bad(int64_t index, const std::string& why) const;

  IgnoredFiles ignored_;
  bool skip_bad_;
  std::vector<int64_t> members_;  // the samples of the chosen part, by number among all; empty: all
  std::string part_;
  std::vector<bool> has_samples_;  // by class, up to the highest that note_class() saw
  mutable std::mutex mutex_;       // guards bad_
  mutable std::set<int64_t> bad_;
};

/// Fills the keys that follow from the data: bands, ranges and type of tiles (settle_tiles), the scale of latents. Keys
/// that are set stay. Does nothing if data.path is not set.
/// Errors:   InputError for data that cannot be read or that contradicts the keys
void settle(Config& config);

/// Opens the data set of `config.kind`. Lists files and reads headers and labels, no pixels.
/// shape        the samples that the model takes
/// num_classes  the model's number of classes; 0: it takes no labels, so labels are not checked
/// seed         draws the samples of synthetic kinds
/// Errors:   InputError for a path that is unset, missing or empty, a shape that the kind cannot give, more classes
///           than the model has, and values of `config` out of range
std::unique_ptr<Dataset> open_dataset(const Config& config, const SampleShape& shape, int64_t num_classes,
                                      uint64_t seed, Part part = Part::kTraining);

}  // namespace ditrain::dataset
