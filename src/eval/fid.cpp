#include "ditrain/eval/fid.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/sha256.hpp"

namespace ditrain::eval {
namespace {

bool wants(const FidRequest& request, FidMetric metric) {
  return std::find(request.metrics.begin(), request.metrics.end(), metric) != request.metrics.end();
}

// One side of the comparison: statistics, the features that they were made of, or both.
struct Side {
  bool is_generated;
  std::string path, description = {}, sha256 = {}, facts = {};
  std::unique_ptr<ImageSet> set = nullptr;  // if their features are needed
  std::optional<Features> features = {};
  std::optional<FeatureStatistics> statistics = {}, spatial_statistics = {};
  bool is_of_file = false;                   // its statistics were read,
  std::optional<StatisticsFacts> made = {};  // and the file says how they were made
  std::string bands = {};                    // of tiles as they are: names and scales, in the order of the channels
  const char* role() const { return is_generated ? "generated" : "real"; }
  const dataset::TileShards* tiles() const { return set ? set->tiles() : nullptr; }
};

// What an npz holds; none if the path is not an npz.
struct NpzContents {
  bool statistics = false, spatial_statistics = false, images = false;
};
NpzContents contents_of(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return {};
  try {
    const weights::NpzFile file(path);
    return {file.contains("mu") || file.contains("sigma"), file.contains("mu_s") && file.contains("sigma_s"),
            file.contains("arr_0")};
  } catch (const InputError&) {
    return {};  // no npz: whoever opens it as images says what is wrong
  }
}

}  // namespace

int64_t num_images_of(const std::string& path) {
  const NpzContents npz = contents_of(path);
  return npz.statistics && !npz.images ? 0 : open_image_set(path)->size();
}

namespace {

bool needs_rows(const FidRequest& request, bool is_generated) {
  return wants(request, FidMetric::kKid) || wants(request, FidMetric::kPrecisionRecall) ||
         (is_generated && wants(request, FidMetric::kInceptionScore));
}

// All of a side but its features, so that a wrong path is found before hours of computing. Statistics of the file are
// preferred to those of its images: ADM's references hold 10,000 images beside the statistics of a whole data set.
Side open_side(bool is_generated, const std::string& path, const FidRequest& request) {
  Side side{.is_generated = is_generated, .path = path};
  const NpzContents npz = contents_of(path);
  const bool pixels = request.features.kind == FeatureKind::kPixels;
  if (npz.statistics && !(npz.images && pixels)) {
    side.statistics = read_statistics(weights::NpzFile(path));
    if (npz.spatial_statistics && wants(request, FidMetric::kSfid))
      side.spatial_statistics = read_statistics(weights::NpzFile(path), kSpatialStatistics);
    side.is_of_file = true, side.made = read_statistics_facts(weights::NpzFile(path));
    side.description = fmt::format("statistics of {} dimensions in {}{}", side.statistics->dimensions(), path,
                                   side.made ? " (" + side.made->describe() + ")" : "");
    side.sha256 = files::sha256_of_file(path);
    const bool covered = !wants(request, FidMetric::kSfid) || side.spatial_statistics;
    if (!npz.images || (covered && !needs_rows(request, is_generated))) return side;
  }
  side.set = open_image_set(path);
  side.facts = side.set->facts();
  return side;
}

// What the side is in one of the composites: tiles become pictures, statistics are those of this composite.
void show_composite(Side& side, const std::vector<Composite>& composites, size_t number, const FidRequest& request) {
  if (side.tiles() != nullptr) side.set = composite_set(side.path, composites[number]);
  if (!side.statistics || number == 0) return;
  const weights::NpzFile file(side.path);
  side.statistics = read_statistics(file, statistics_names(false, number));
  if (wants(request, FidMetric::kSfid) && file.contains(statistics_names(true, number).mu))
    side.spatial_statistics = read_statistics(file, statistics_names(true, number));
}

// Features of its images, on rank 0.
void add_features(parallel::Team& team, dist::Communicator& comm, const FidRequest& request, Side& side) {
  if (!side.set) return;
  FeatureSettings settings = request.features;
  settings.spatial = wants(request, FidMetric::kSfid) && !side.spatial_statistics;
  settings.logits = side.is_generated && wants(request, FidMetric::kInceptionScore);
  side.features = features_of(team, comm, *side.set, settings);
  if (comm.rank() != 0) return;
  if (!side.bands.empty()) side.features->description += ", bands " + side.bands;
  side.description += (side.description.empty() ? "" : " and ") + side.set->describe();
  side.sha256 = side.set->sha256();
}

void check_request(const FidRequest& request) {
  if (request.metrics.empty()) throw InputError({.where = "metrics", .what = "no metric was asked for"});
  if (!request.save_statistics.empty() && request.metrics == std::vector{FidMetric::kBands})
    throw InputError({.where = "metrics", .what = "'bands' makes no statistics that could be saved"});
  const bool pixels = request.features.kind == FeatureKind::kPixels;
  for (const FidMetric metric : {FidMetric::kSfid, FidMetric::kInceptionScore}) {
    if (!pixels || !wants(request, metric)) continue;
    throw InputError({.where = "metrics",
                      .what = fmt::format("'{}' needs a network", word_of(metric)),
                      .got = "--features pixels",
                      .expected = "fid, kid or pr"});
  }
}

// Counts against `d` features.
void check_counts(const Side& side, int64_t d, const FidRequest& request, std::vector<std::string>& warnings) {
  if (!side.set) return;
  const bool saves = !side.is_generated && !request.save_statistics.empty();
  const bool needs_covariance = ((wants(request, FidMetric::kFid) || saves) && !side.statistics) ||
                                (wants(request, FidMetric::kSfid) && !side.spatial_statistics);
  const int64_t n = side.set->size();
  if (n > d || !needs_covariance) return;
  if (!request.allow_small || n < 2) {
    throw InputError(
        {.where = side.path,
         .what = fmt::format("too few {} images for {} dimensions: their covariance is singular", side.role(), d),
         .got = std::to_string(n),
         .expected = fmt::format("at least {}", n < 2 ? 2 : d + 1),
         .hint = n < 2 ? "more images" : "more images, or --allow-small for a number that only shows a trend"});
  }
  warnings.push_back(
      fmt::format("{} {} images for {} dimensions: the distance depends on the number of images", n, side.role(), d));
}

// Numbers of eight bits are divided by 255, others are taken as they are: pixels of one kind say nothing about those of
// the other, unless they lie about between 0 and 1 as well.
void check_numbers(Side& real, Side& generated) {
  constexpr int64_t kLooked = 8;     // images
  constexpr float kBeyond = 0.0625;  // that networks and resizing overshoot by
  if (!real.set || !generated.set || real.set->size() == 0 || generated.set->size() == 0) return;
  const auto read = [](ImageSet& set, int64_t i) { return set.prepare(i, i + 1), set.image(i); };
  const bool real_is_u8 = read(*real.set, 0).is_u8;
  if (real_is_u8 == read(*generated.set, 0).is_u8) return;
  const Side &eight = real_is_u8 ? real : generated, &digital = real_is_u8 ? generated : real;
  float least = 0, greatest = 1;
  const int64_t n = std::min(kLooked, digital.set->size());
  for (int64_t i = 0; i < n; ++i)
    for (const float value : read(*digital.set, i * digital.set->size() / n).f32)
      least = std::min(least, value), greatest = std::max(greatest, value);
  if (least >= -kBeyond && greatest <= 1 + kBeyond) return;
  throw InputError({.where = digital.path,
                    .what = fmt::format(
                        "pixels of other numbers than the {} side's, which are of eight bits (0 to 255)", eight.role()),
                    .got = fmt::format("{:g} to {:g} in {} images", least, greatest, n),
                    .expected = "eight bits on both sides, numbers of sensors on both, or numbers from 0 to 1",
                    .hint = "tiles of the same scenes on both sides (ditdata make, ditsample of a model of tiles)"});
}

// Names as they are compared, and what the numbers mean.
std::string describe_bands(const dataset::TileShards& tiles) {
  std::vector<std::string> all;
  for (size_t b = 0; b < tiles.bands().size(); ++b) {
    const dataset::TileBand& band = tiles.common_band(int64_t(b));
    all.push_back(dataset::canonical_band(band.name));
    if (band.scale != 1 || band.offset != 0) all.back() += fmt::format(" * {} + {}", band.scale, band.offset);
  }
  return fmt::format("{}", fmt::join(all, ", "));
}

// Pixels of tiles are compared band by band, in the order of the real side.
void pair_bands(Side& real, Side& generated) {
  for (Side* side : {&real, &generated})
    if (side->tiles() != nullptr) side->bands = describe_bands(*side->tiles());
  if (real.tiles() == nullptr || generated.tiles() == nullptr) return;
  const std::vector<std::string> names = real.tiles()->band_names(), others = generated.tiles()->band_names();
  const auto set_of = [](const std::vector<std::string>& all) {
    std::set<std::string> set;
    for (const std::string& name : all) set.insert(dataset::canonical_band(name));
    return set;
  };
  const auto refuse = [&](const char* what, const std::string& got, const std::string& expected) {
    throw InputError({.where = generated.path,
                      .what = fmt::format("pixels of tiles with other {} than the real side's", what),
                      .got = got,
                      .expected = expected,
                      .hint = "--metrics bands, which compares the bands that both sides have"});
  };
  if (set_of(names) != set_of(others))
    refuse("bands", fmt::format("{}", fmt::join(others, ", ")), fmt::format("{}", fmt::join(names, ", ")));
  const images::PixelType type = real.tiles()->type(), other = generated.tiles()->type();
  if ((type == images::PixelType::kU8) != (other == images::PixelType::kU8))  // eight bits are divided by 255
    refuse("numbers", std::string(word_of(other)), std::string(word_of(type)));
  const std::vector<int> places = dataset::find_bands(others, names, generated.path);
  for (size_t b = 0; b < names.size(); ++b) {
    const dataset::TileBand &x = real.tiles()->bands()[b], &y = generated.tiles()->bands()[size_t(places[b])];
    if (x.scale != y.scale || x.offset != y.offset)
      refuse("scales or offsets", fmt::format("{} * {} + {}", y.name, y.scale, y.offset),
             fmt::format("{} * {} + {}", x.name, x.scale, x.offset));
  }
  generated.set = open_tiles(generated.path, names), generated.bands = real.bands;
}

// A folder that was copied in part, or that holds something else than the samples.
void check_facts(const Side& side, std::vector<std::string>& warnings) {
  if (!side.set || side.facts.empty()) return;
  const auto facts = nlohmann::json::parse(side.facts, nullptr, /*allow_exceptions=*/false);
  const auto images = facts.is_object() ? facts.find("images") : facts.end();
  if (images == facts.end() || !images->is_number_integer() || *images == side.set->size()) return;
  warnings.push_back(fmt::format("{}: samples.json tells of {} images, but there are {}", side.path, images->dump(),
                                 side.set->size()));
}

const Features& needed_features(const Side& side, const char* metric) {
  if (side.features) return *side.features;
  throw InputError({.where = side.path,
                    .what = fmt::format("'{}' needs images, not statistics, on both sides", metric),
                    .hint = "--metrics fid"});
}

void check_dimensions(const Side& real, const Side& generated, int64_t of_real, int64_t of_generated) {
  if (of_real == of_generated) return;
  throw InputError({.where = generated.path,
                    .what = "the two sides have features of different dimensions",
                    .got = std::to_string(of_generated),
                    .expected = fmt::format("{}, as {} has", of_real, real.path),
                    .hint = "images of one size, and statistics that were made with the same features"});
}
void check_dimensions(const Side& real, const Side& generated) {
  const auto dimensions = [](const Side& side) {
    return side.statistics ? side.statistics->dimensions() : side.features->d;
  };
  check_dimensions(real, generated, dimensions(real), dimensions(generated));
}

// How the request's features are made, as a file of statistics says it.
StatisticsFacts facts_of(const FidRequest& request) {
  StatisticsFacts facts{.features = std::string(word_of(request.features.kind)), .preset = {}, .weights_sha256 = {}};
  if (request.features.kind == FeatureKind::kPixels) return facts;
  facts.preset = word_of(request.features.preset), facts.precision = word_of(request.features.precision);
  facts.weights_sha256 = request.features.weights_sha256;
  return facts;
}

void expect_same(const Side& side, const char* what, const std::string& got, const std::string& expected,
                 const std::string& hint) {
  if (got == expected) return;
  throw InputError({.where = side.path,
                    .what = fmt::format("the statistics are of {} than the other side", what),
                    .got = got.empty() ? "none" : got,
                    .expected = expected.empty() ? "none" : expected,
                    .hint = hint});
}

// Statistics of a file stand for images only where they were made as the other side is. Features in bf16 are a little
// off those in f32, which the protocol says.
constexpr const char* kAnew = "statistics made anew (--save-statistics)";
void check_features(const Side& side, const std::string& other, const std::string& hint = "") {
  expect_same(side, "other features", side.made->features, other,
              hint.empty() ? fmt::format("--features {}, or {}", side.made->features, kAnew) : hint);
}
// A run has no flags, but a hint of its own.
void check_made(const Side& side, const StatisticsFacts& other, const std::string& hint = "") {
  const StatisticsFacts& made = *side.made;
  check_features(side, other.features, hint);
  expect_same(side, "another preset", made.preset, other.preset,
              hint.empty() ? fmt::format("--preset {}, or {}", made.preset, kAnew) : hint);
  expect_same(side, "other weights (sha256)", made.weights_sha256, other.weights_sha256, hint.empty() ? kAnew : hint);
}

std::string says_nothing(const Side& side) {
  return side.path +
         ": the statistics do not say how they were made; features, preset and weights are taken to be those of the "
         "other side";
}

void check_statistics(const FidRequest& request, const Side& real, const Side& generated,
                      std::vector<std::string>& warnings) {
  for (const Side* side : {&real, &generated}) {
    const Side& other = side == &real ? generated : real;
    if (!side->statistics) continue;
    if (!side->made)
      warnings.push_back(says_nothing(*side));
    else if (other.set)
      check_made(*side, facts_of(request));
    else if (other.made)
      check_made(*side, *other.made);
  }
  if (!real.made || !generated.made) return;
  const auto text = [](const StatisticsFacts& facts) {
    std::string all;
    for (const Composite& c : facts.composites) all += (all.empty() ? "" : ", ") + c.describe();
    return all;
  };
  expect_same(generated, "other composites", text(*generated.made), text(*real.made), "");
  expect_same(generated, "other pixels", generated.made->input, real.made->input, "");
}

// The network sees three bands of eight bits. Without names of colours it sees those of tiles that have no more.
void check_pictures(const Side& side, std::vector<std::string>& warnings) {
  if (side.tiles() == nullptr) return;
  const std::vector<std::string> names = side.tiles()->band_names();
  const std::string bands = fmt::format("{}", fmt::join(names, ", "));
  if (names.size() != 3 || side.tiles()->type() != images::PixelType::kU8)
    throw InputError(
        {.where = side.path,
         .what = "the network sees red, green and blue, which both sides need by name, beside pictures of eight bits",
         .got = fmt::format("{} of {}", bands, word_of(side.tiles()->type())),
         .expected = "tiles on both sides with names such as Red, Green, Blue, NIR, or all of Sentinel-2's",
         .hint = "--features pixels, or --metrics bands"});
  warnings.push_back(
      fmt::format("{}: bands {} are taken for red, green and blue, which their names do not say", side.path, bands));
}

// Pictures are no composites of bands that were stretched by percentiles, nor false colour.
void expect_tiles(const Side& side, const Side& statistics) {
  const std::vector<Composite>& all = statistics.made->composites;
  if (!side.set || side.tiles() != nullptr || (all.size() == 1 && all[0].unstretched)) return;
  throw InputError(
      {.where = side.path,
       .what = fmt::format("no composites can be made of these images to be compared with {}", statistics.path),
       .got = side.set->describe(),
       .expected = fmt::format("tiles, of which {} is made", all[0].describe()),
       .hint = "statistics of pictures (--save-statistics)"});
}

// Composites in which both sides are compared; empty: pictures, or tiles as they are.
std::vector<Composite> composites_for(const parallel::Team& team, const Side& real, const Side& generated,
                                      std::vector<std::string>& warnings) {
  for (const Side* side : {&real, &generated}) {
    if (!side->made || side->made->composites.empty()) continue;
    expect_tiles(side == &real ? generated : real, *side);
    return side->made->composites;
  }
  std::vector<Composite> all;
  if (real.tiles() != nullptr && generated.tiles() != nullptr)
    all = composites_of(*real.tiles(), generated.tiles()->band_names(), team.num_workers());
  else if (real.tiles() != nullptr || generated.tiles() != nullptr)
    all = unstretched_composite(real.tiles() != nullptr ? *real.tiles() : *generated.tiles());
  if (all.empty())
    for (const Side* side : {&real, &generated}) check_pictures(*side, warnings);
  return all;
}

// Splits of the Inception Score: ADM's evaluator takes 5,000 images at a time, others 10 equal splits.
constexpr int64_t kSplits = 10, kImagesOfSplit = 5000;
bool has_splits_of_adm(const FidRequest& request) { return request.features.preset == FidPreset::kAdm; }
std::string describe_splits(const FidRequest& request, int64_t n) {
  return has_splits_of_adm(request) ? fmt::format("splits of {} images", kImagesOfSplit)
                                    : fmt::format("{} splits", std::min(kSplits, n));
}

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
    line += fmt::format("; kid of {} subsets of {}, seed {}", settings.num_subsets, size, settings.seed);
  }
  if (wants(request, FidMetric::kInceptionScore))
    line += fmt::format("; inception score of {} in the order of the images, logits without bias",
                        describe_splits(request, generated.features->n));
  if (wants(request, FidMetric::kPrecisionRecall)) line += "; precision and recall of 3 neighbours";
  return line;
}

void measure_score(const FidRequest& request, const Side& generated, FidReport& report) {
  if (!wants(request, FidMetric::kInceptionScore)) return;
  const Features& f = needed_features(generated, "is");
  const std::vector<double> probabilities = probabilities_of(f.logits, nn::kInceptionClasses);
  const MeanAndDeviation value =
      has_splits_of_adm(request)
          ? inception_score(probabilities, nn::kInceptionClasses, splits_of_size(f.n, kImagesOfSplit))
          : inception_score(probabilities, nn::kInceptionClasses, std::min(kSplits, f.n));
  report.inception_score = value.mean, report.inception_score_deviation = value.deviation;
}

void measure_spatial_distance(parallel::Team& team, const FidRequest& request, Side& real, Side& generated,
                              FidReport& report) {
  if (!wants(request, FidMetric::kSfid)) return;
  for (Side* side : {&real, &generated}) {
    if (side->spatial_statistics) continue;
    if (!side->features)
      throw InputError({.where = side->path,
                        .what = "'sfid' needs images or statistics of spatial features",
                        .got = "mu and sigma alone",
                        .expected = "mu_s and sigma_s, as ADM's references have",
                        .hint = "--metrics fid"});
    side->spatial_statistics = statistics_of(team, side->features->spatial, nn::kInceptionSpatial);
  }
  const FeatureStatistics &a = *real.spatial_statistics, &b = *generated.spatial_statistics;
  check_dimensions(real, generated, a.dimensions(), b.dimensions());
  report.sfid = frechet_distance(team, a, b).value;
}

FeatureRows<float> rows_of(const Features& f) { return {f.values.data(), f.n, f.d}; }

void measure_sets(parallel::Team& team, const FidRequest& request, const Side& real, const Side& generated,
                  FidReport& report) {
  if (wants(request, FidMetric::kKid)) {
    const Features &x = needed_features(generated, "kid"), &y = needed_features(real, "kid");
    const MeanAndDeviation value = kid(team, rows_of(x), rows_of(y));
    report.kid = value.mean, report.kid_deviation = value.deviation;
  }
  if (wants(request, FidMetric::kPrecisionRecall)) {
    const Features &x = needed_features(generated, "pr"), &y = needed_features(real, "pr");
    const PrecisionRecall value = precision_recall(team, rows_of(y), rows_of(x));
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

constexpr const char* kSameShape = "images of the same size and, of tiles, the same bands in the same order";

// All but bands, of two sides that are open; on rank 0.
FidReport measure(parallel::Team& team, dist::Communicator& comm, const FidRequest& request, Side& real,
                  Side& generated) {
  FidReport report;
  const bool pixels = request.features.kind == FeatureKind::kPixels;
  for (Side* side : {&real, &generated}) {
    check_facts(*side, report.warnings);
    if (!pixels) check_counts(*side, nn::kInceptionFeatures, request, report.warnings);
  }
  for (Side* side : {&real, &generated}) {
    add_features(team, comm, request, *side);
    if (pixels && comm.rank() == 0 && side->set) check_counts(*side, side->features->d, request, report.warnings);
  }
  if (comm.rank() != 0) return {};
  check_dimensions(real, generated);
  if (pixels && real.made && generated.features)
    expect_same(real, "other pixels", real.made->input, generated.features->description, kSameShape);
  if (pixels && generated.made && real.features)
    expect_same(generated, "other pixels", generated.made->input, real.features->description, kSameShape);
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

// Statistics of the real side, kept for --save-statistics; the facts are those of the first composite's images.
void keep_statistics(parallel::Team& team, const FidRequest& request, Side& real, std::vector<SavedStatistics>& all,
                     std::optional<StatisticsFacts>& facts) {
  all.push_back({needed_statistics(team, real), real.spatial_statistics});
  if (all.size() > 1) return;
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
  const auto add_bands = [&](FidReport& report) {
    if (comm.rank() != 0) return;
    report.bands = compare_bands(request.real, request.generated);
    if (!report.bands->other_scales.empty())
      report.warnings.push_back(
          fmt::format("{}: the sides state different scales or offsets; NDVI, angles and composites compare number * "
                      "scale + offset",
                      report.bands->other_scales));
  };
  if (request.metrics == std::vector{FidMetric::kBands}) {
    FidReport report;
    report.protocol = fmt::format("pixels of bands in digital numbers, without missing ones; real {}; generated {}",
                                  request.real, request.generated);
    add_bands(report);
    return report;
  }
  Side real = open_side(false, request.real, request), generated = open_side(true, request.generated, request);
  for (const Side* side : {&real, &generated})  // before the network's weights are asked for
    if (side->made && (real.set || generated.set)) check_features(*side, std::string(word_of(request.features.kind)));
  if (real.set || generated.set) load_network(request.features);
  std::vector<std::string> warnings;
  check_statistics(request, real, generated, warnings);
  std::vector<Composite> composites;
  if (request.features.kind == FeatureKind::kInception)
    composites = composites_for(team, real, generated, warnings);
  else
    pair_bands(real, generated), check_numbers(real, generated);
  const bool both_are_tiles = real.tiles() != nullptr && generated.tiles() != nullptr;
  const bool real_is_picture = real.set && real.tiles() == nullptr;  // the composites are those of the generated side
  FidReport first;
  std::vector<SavedStatistics> saved;
  std::optional<StatisticsFacts> facts;
  for (size_t i = 0; i < std::max<size_t>(1, composites.size()); ++i) {
    if (i > 0) real = open_side(false, request.real, request), generated = open_side(true, request.generated, request);
    if (!composites.empty())
      for (Side* side : {&real, &generated}) show_composite(*side, composites, i, request);
    FidReport report = measure(team, comm, request, real, generated);
    if (comm.rank() == 0 && !request.save_statistics.empty()) keep_statistics(team, request, real, saved, facts);
    if (!composites.empty()) report.composite = composites[i];
    std::erase_if(report.warnings, [&](const std::string& w) {  // said already, of the same images
      return std::count(first.warnings.begin(), first.warnings.end(), w) > 0;
    });
    i == 0 ? first = std::move(report) : first.others.emplace_back(std::move(report));
  }
  if (wants(request, FidMetric::kBands) || (both_are_tiles && !composites.empty())) add_bands(first);
  if (comm.rank() != 0) return {};
  first.warnings.insert(first.warnings.begin(), warnings.begin(), warnings.end());
  if (facts && !real_is_picture) facts->composites = composites;
  if (!request.save_statistics.empty()) write_statistics(request.save_statistics, saved, facts);
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

int64_t dimensions_of(const FidRequest& request, Side& side) {
  if (side.statistics) return side.statistics->dimensions();
  if (request.features.kind == FeatureKind::kInception) return nn::kInceptionFeatures;
  side.set->prepare(0, 1);
  const EvalImage image = side.set->image(0);
  return eval::dimensions_of(request.features.kind, {image.channels, image.height, image.width});
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

FeatureStatistics reference_statistics(parallel::Team& team, dist::Communicator& comm, const std::string& path,
                                       const FeatureSettings& features, std::string& description) {
  const FidRequest request{.real = path, .generated = "", .features = features};
  Side side = open_side(false, path, request);
  if (side.statistics && !side.made && comm.rank() == 0) log::warn("{}", says_nothing(side));
  if (side.made && !side.made->composites.empty())
    throw InputError({.where = path,
                      .what = "statistics of composites of tiles cannot be eval.reference",
                      .got = side.made->composites[0].describe(),
                      .hint = "images as eval.reference"});
  const StatisticsFacts own = facts_of(request);
  if (side.made)
    check_made(side, own,
               fmt::format("images as eval.reference, or statistics of ditfid --features {}{}", own.features,
                           own.preset.empty() ? "" : " --preset " + own.preset));
  add_features(team, comm, request, side);
  description = side.description;
  if (side.statistics || comm.rank() != 0) return side.statistics.value_or(FeatureStatistics());
  return statistics_of(team, side.features->values, side.features->d);
}

}  // namespace ditrain::eval
