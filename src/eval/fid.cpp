#include "ditrain/eval/fid.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "fid_sides.hpp"

namespace ditrain::eval {
namespace {

// Splits of the Inception Score: ADM's evaluator takes 5,000 images at a time, others 10 equal splits.
constexpr int64_t kSplits = 10, kImagesOfSplit = 5000;
constexpr uint64_t kShuffleSeed = 2020;
bool has_splits_of_adm(const FidRequest& request) { return request.features.preset == FidPreset::kAdm; }
std::string describe_splits(const FidRequest& request, int64_t n) {
  return has_splits_of_adm(request)
             ? fmt::format("splits of {} images in their order", kImagesOfSplit)
             : fmt::format("{} splits of shuffled images (seed {})", std::min(kSplits, n), kShuffleSeed);
}
// Folders of classes list one class after the other: splits in that order have few classes each, and a score several
// times too low. ADM's evaluator takes files whose order is random.
std::vector<int64_t> shuffled_rows(int64_t n) { return subset_rows(kShuffleSeed, 0, 0, n, n); }

// The requested kind of features; for two files of statistics the kind that they state.
std::optional<FeatureKind> kind_of(const FidRequest& request, const Side& real, const Side& generated) {
  FeatureKind kind = request.features.kind;
  if (real.set || generated.set) return kind;
  for (const Side* side : {&real, &generated})
    if (side->made && find_word(side->made->features, kind)) return kind;
  return {};
}

std::string protocol_of(const FidRequest& request, const Side& real, const Side& generated) {
  const std::optional<FeatureKind> kind = kind_of(request, real, generated);
  std::string line = kind ? fmt::format("features {}", *kind) : "features as both files of statistics have them";
  const Side& described = generated.features ? generated : real;
  if (described.features) line += " (" + described.features->description + ")";
  if (kind == FeatureKind::kPixels) line += ", not comparable with published FIDs";
  for (const Side* side : {&real, &generated}) {
    line += fmt::format("; {} {}, sha256 {}", side->role(), side->description, side->sha256);
    if (!side->facts.empty()) line += fmt::format(", samples.json {}", side->facts);
  }
  if (wants(request, FidMetric::kKid)) {
    const KidSettings settings;
    const int64_t size = real.features && generated.features
                             ? std::min({settings.subset_size, real.features->n, generated.features->n})
                             : settings.subset_size;
    const bool whole = real.features && generated.features && size == real.features->n && size == generated.features->n;
    line += whole ? "; kid of both sets as a whole, without a deviation"
                  : fmt::format("; kid of {} subsets of {}, seed {}", settings.num_subsets, size, settings.seed);
  }
  if (wants(request, FidMetric::kInceptionScore))
    line +=
        fmt::format("; inception score of {}, logits without bias", describe_splits(request, generated.features->n));
  if (wants(request, FidMetric::kPrecisionRecall))
    line += fmt::format("; precision and recall of {} neighbours", kNeighbours);
  return line;
}

void measure_score(const FidRequest& request, const Side& generated, FidReport& report) {
  if (!wants(request, FidMetric::kInceptionScore)) return;
  const Features& f = *generated.features;
  const std::vector<double> probabilities = probabilities_of(f.logits, nn::kInceptionClasses);
  const MeanAndDeviation value =
      has_splits_of_adm(request)
          ? inception_score(probabilities, nn::kInceptionClasses, splits_of_size(f.n, kImagesOfSplit))
          : inception_score(probabilities, nn::kInceptionClasses, std::min(kSplits, f.n), shuffled_rows(f.n));
  report.inception_score = value.mean, report.inception_score_deviation = value.deviation;
}

void measure_spatial_distance(parallel::Team& team, const FidRequest& request, Side& real, Side& generated,
                              FidReport& report) {
  if (!wants(request, FidMetric::kSfid)) return;
  for (Side* side : {&real, &generated}) {
    if (!side->spatial_statistics)
      side->spatial_statistics = statistics_of(team, side->features->spatial, nn::kInceptionSpatial);
  }
  report.sfid = frechet_distance(team, *real.spatial_statistics, *generated.spatial_statistics).value;
}

FeatureRows<float> rows_of(const Features& f) { return {f.values.data(), f.n, f.d}; }

void measure_sets(parallel::Team& team, const FidRequest& request, const Side& real, const Side& generated,
                  FidReport& report) {
  if (wants(request, FidMetric::kKid)) {
    const MeanAndDeviation value = kid(team, rows_of(*generated.features), rows_of(*real.features));
    report.kid = value.mean;
    if (!std::isnan(value.deviation)) report.kid_deviation = value.deviation;
  }
  if (wants(request, FidMetric::kPrecisionRecall)) {
    const PrecisionRecall value =
        precision_recall(team, rows_of(*real.features), rows_of(*generated.features), kNeighbours);
    report.precision = value.precision, report.recall = value.recall;
  }
}

const FeatureStatistics& needed_statistics(parallel::Team& team, Side& side) {
  if (!side.statistics) side.statistics = statistics_of(team, side.features->values, side.features->d);
  return *side.statistics;
}

void measure_distance(parallel::Team& team, const FidRequest& request, Side& real, Side& generated, FidReport& report) {
  if (!wants(request, FidMetric::kFid)) return;
  const FrechetDistance distance =
      frechet_distance(team, needed_statistics(team, real), needed_statistics(team, generated));
  report.distance = distance;
  report.fid = distance.value;
  const double worst = std::min(distance.most_negative1, distance.most_negative);
  if (worst < -1e-8) {
    report.warnings.push_back(
        fmt::format("{} and {} eigenvalues were negative and were set to 0, the largest of them {:.1e} of the largest",
                    distance.num_negative1, distance.num_negative, -worst));
  }
}

int64_t dimensions_of(const FidRequest& request, const Side& side) {
  if (side.statistics) return side.statistics->dimensions();
  if (request.features.kind == FeatureKind::kInception) return nn::kInceptionFeatures;
  side.set->prepare(0, 1);
  const EvalImage image = side.set->image(0);
  return eval::dimensions_of(request.features.kind, {image.channels, image.height, image.width});
}

constexpr const char* kSameShape = "images of the same size and, of tiles, the same bands in the same order";

// Sides of other sizes may have as many values, averaged by other blocks.
void expect_same_pixels(const Side& real, const Side& generated) {
  const auto size_of = [](const Side& side) {
    const std::string& text = side.features->description;
    return text.substr(0, std::min(text.find(", divided by"), text.find(", bands")));
  };
  if (size_of(real) == size_of(generated)) return;
  throw InputError({.where = generated.path,
                    .what = "images of another size than the real side's, whose pixels mean something else",
                    .got = size_of(generated),
                    .expected = size_of(real),
                    .hint = "images of one size on both sides"});
}

// The network sees squares of one size, whatever the images were.
void check_sizes(const Side& real, const Side& generated, std::vector<std::string>& warnings) {
  for (const Side* side : {&real, &generated})
    if (side->features && !side->features->sizes.are_square())
      warnings.push_back(fmt::format("{}: images of {} pixels are squashed to squares, not cropped", side->path,
                                     side->features->sizes.describe()));
  if (real.features && generated.features && real.features->sizes != generated.features->sizes)
    warnings.push_back(
        fmt::format("the sides have images of other sizes, {} and {} pixels: resizing alone makes a "
                    "distance",
                    real.features->sizes.describe(), generated.features->sizes.describe()));
}

// All but bands, of two sides that are open; on rank 0.
FidReport measure(parallel::Team& team, dist::Communicator& comm, const FidRequest& request, Side& real,
                  Side& generated) {
  FidReport report;
  const bool pixels = request.features.kind == FeatureKind::kPixels;
  for (Side* side : {&real, &generated}) {
    check_facts(*side, report.warnings);
    check_counts(*side, dimensions_of(request, *side), request, report.warnings);
  }
  check_dimensions(real, generated, dimensions_of(request, real), dimensions_of(request, generated));
  for (Side* side : {&real, &generated}) add_features(team, comm, request, *side);
  if (comm.rank() != 0) return {};
  if (pixels && real.made && generated.features)
    expect_same(real, "other pixels", real.made->input, generated.features->description, kSameShape);
  if (pixels && generated.made && real.features)
    expect_same(generated, "other pixels", generated.made->input, real.features->description, kSameShape);
  if (pixels && real.features && generated.features) expect_same_pixels(real, generated);
  if (!pixels) check_sizes(real, generated, report.warnings);
  if (generated.set && generated.set->size() < kFullFidCount) {
    report.warnings.push_back(
        fmt::format("{} generated images: published numbers are of {}", generated.set->size(), kFullFidCount));
  }
  for (const Side* side : {&real, &generated})
    if (side->features && side->features->error_of_precision)
      report.error_of_precision = std::max(report.error_of_precision.value_or(0), *side->features->error_of_precision);
  measure_score(request, generated, report);
  report.features = kind_of(request, real, generated);
  report.protocol = protocol_of(request, real, generated);
  measure_sets(team, request, real, generated, report);
  measure_spatial_distance(team, request, real, generated, report);
  measure_distance(team, request, real, generated, report);
  return report;
}

// Statistics of the real side in one more composite; the facts are those of the first composite's images.
void keep_statistics(parallel::Team& team, const FidRequest& request, Side& real, KeptStatistics& kept) {
  kept.all.push_back({needed_statistics(team, real), real.spatial_statistics});
  if (kept.all.size() > 1) return;
  std::optional<StatisticsFacts>& facts = kept.facts;
  facts = real.made;
  if (real.is_of_file) return;
  facts = facts_of(request);
  facts->images = real.features->n;
  if (request.features.kind == FeatureKind::kPixels) facts->input = real.features->description;
}

}  // namespace

FidReport evaluate_fid(parallel::Team& team, const FidRequest& request) {
  return evaluate_fid(team, *dist::make_null_communicator(), request);
}

FidReport evaluate_fid(parallel::Team& team, dist::Communicator& comm, const FidRequest& asked) {
  FidRequest request = asked;
  check_request(request);
  std::vector<std::string> warnings;
  std::optional<BandComparison> bands;
  const auto measure_bands = [&] {
    if (comm.rank() != 0) return;
    bands = compare_bands(request.real, request.generated);
    if (!bands->other_scales.empty())
      warnings.push_back(
          fmt::format("{}: the sides state different scales or offsets; NDVI, angles and composites compare number * "
                      "scale + offset",
                      bands->other_scales));
  };
  if (request.metrics == std::vector{FidMetric::kBands}) {
    measure_bands();
    FidReport report;
    report.bands = std::move(bands), report.warnings = std::move(warnings);
    report.protocol = fmt::format("pixels of bands in digital numbers, without missing ones; real {}; generated {}",
                                  request.real, request.generated);
    return report;
  }
  Side real = open_side(false, request.real, request), generated = open_side(true, request.generated, request);
  for (const Side* side : {&real, &generated})  // before the network's weights are asked for
    if (side->made && (real.set || generated.set)) check_features(*side, std::string(word_of(request.features.kind)));
  if (real.set || generated.set) load_network(request.features);
  check_statistics(request, real, generated, warnings);
  check_metrics(request, real, generated);
  std::vector<Composite> composites;
  if (request.features.kind == FeatureKind::kInception)
    composites = composites_for(team, real, generated, warnings);
  else
    pair_bands(real, generated), check_numbers(real, generated);
  const bool both_are_tiles = real.tiles() != nullptr && generated.tiles() != nullptr;
  const bool real_is_picture = real.set && real.tiles() == nullptr;  // the composites are those of the generated side
  if (wants(request, FidMetric::kBands) || (both_are_tiles && !composites.empty())) measure_bands();
  FidReport first;
  KeptStatistics kept;
  for (size_t i = 0; i < std::max<size_t>(1, composites.size()); ++i) {
    if (i > 0) real = open_side(false, request.real, request), generated = open_side(true, request.generated, request);
    if (!composites.empty())
      for (Side* side : {&real, &generated}) show_composite(*side, composites, i, request);
    FidReport report = measure(team, comm, request, real, generated);
    if (comm.rank() == 0 && request.keep_statistics) keep_statistics(team, request, real, kept);
    if (!composites.empty()) report.composite = composites[i];
    std::erase_if(report.warnings, [&](const std::string& w) {  // said already, of the same images
      return std::count(first.warnings.begin(), first.warnings.end(), w) > 0;
    });
    i == 0 ? first = std::move(report) : first.others.emplace_back(std::move(report));
  }
  if (comm.rank() != 0) return {};
  first.bands = std::move(bands);
  first.warnings.insert(first.warnings.begin(), warnings.begin(), warnings.end());
  if (kept.facts && !real_is_picture) kept.facts->composites = composites;
  if (request.keep_statistics) first.kept = std::move(kept);
  return first;
}

namespace {

// Bytes per image of a side: features in f32, and the Inception Score's probabilities of the logits in f64.
double bytes_of_row(const FidRequest& request, const Side& side, double d) {
  double values = d * sizeof(float);
  if (wants(request, FidMetric::kSfid) && !side.spatial_statistics) values += nn::kInceptionSpatial * sizeof(float);
  if (side.is_generated && wants(request, FidMetric::kInceptionScore))
    values += nn::kInceptionClasses * (sizeof(float) + sizeof(double));
  return values;
}

}  // namespace

EvaluationBytes evaluation_bytes(const FidRequest& request, int world_size, int ranks_on_node) {
  check_request(request);
  EvaluationBytes all{0, "statistics"};
  if (request.metrics == std::vector{FidMetric::kBands}) return all;
  // In f64, which no count of a hostile file overflows. Rank 0 has the features of all images; of several ranks, it has
  // them twice while they are gathered.
  double rows = 0, most_images = 0, d = 0;
  std::string what;
  for (const bool is_generated : {false, true}) {
    Side side = open_side(is_generated, is_generated ? request.generated : request.real, request);
    const auto own = double(dimensions_of(request, side));
    d = std::max(d, own);
    if (!side.set) continue;
    const auto n = double(side.set->size());
    rows += n * bytes_of_row(request, side, own) * (world_size > 1 ? 2 : 1);
    most_images = std::max(most_images, n);
    what += (what.empty() ? "features of " : " and ") + side.set->describe();
  }
  constexpr double kMatrices = 6;      // [d, d] in f64: statistics of both sides, and four of the distance
  constexpr double kRowsAtOnce = 512;  // of distances to all images
  double bytes = rows + kMatrices * d * d * sizeof(double);
  if (wants(request, FidMetric::kPrecisionRecall)) bytes += (kRowsAtOnce + 8) * most_images * sizeof(double);
  bytes /= ranks_on_node;
  if (request.features.kind == FeatureKind::kInception && !what.empty()) bytes += double(kInceptionBytes);
  if (!what.empty()) all.what = what;
  all.bytes = size_t(std::min(bytes, 0x1p60));
  return all;
}

Reference read_reference(parallel::Team& team, dist::Communicator& comm, const std::string& path,
                         const FeatureSettings& features, std::optional<double> latent_scale) {
  const FidRequest request{.real = path, .generated = "", .features = features, .latent_scale = latent_scale};
  Side side = open_side(false, path, request);
  if (side.statistics && !side.made && comm.rank() == 0) log::warn("{}", says_nothing(side));
  if (side.made && !side.made->composites.empty())
    throw InputError({.where = path,
                      .what = "statistics of composites of tiles cannot be eval.reference",
                      .got = side.made->composites[0].describe(),
                      .hint = "images as eval.reference"});
  if (const std::string left = side.set ? side.set->left_out() : ""; !left.empty() && comm.rank() == 0)
    log::warn("eval.reference: {}: {}", path, left);
  const StatisticsFacts own = facts_of(request);
  if (side.made)
    check_made(side, own,
               fmt::format("images as eval.reference, or statistics of ditfid --features {}{}", own.features,
                           own.preset.empty() ? "" : " --preset " + own.preset));
  add_features(team, comm, request, side);
  if (side.statistics) return {*side.statistics, side.description, side.made ? side.made->input : ""};
  if (comm.rank() != 0) return {};
  return {statistics_of(team, side.features->values, side.features->d), side.description, side.features->description,
          side.features->sizes};
}

}  // namespace ditrain::eval
