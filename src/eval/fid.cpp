#include "ditrain/eval/fid.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/io/files.hpp"
#include "ditrain/io/sha256.hpp"

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
  const char* role() const { return is_generated ? "generated" : "real"; }
};

// What an npz holds; nothing if the path is none.
struct NpzContents {
  bool statistics = false, spatial_statistics = false, images = false;
};
NpzContents contents_of(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return {};
  try {
    const io::NpzFile file(path);
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
    side.statistics = read_statistics(io::NpzFile(path));
    if (npz.spatial_statistics && wants(request, FidMetric::kSfid))
      side.spatial_statistics = read_statistics(io::NpzFile(path), kSpatialStatistics);
    side.description = fmt::format("statistics of {} dimensions in {}", side.statistics->dimensions(), path);
    side.sha256 = io::sha256_of_file(path);
    const bool covered = !wants(request, FidMetric::kSfid) || side.spatial_statistics;
    if (!npz.images || (covered && !needs_rows(request, is_generated))) return side;
  }
  side.set = open_image_set(path);
  side.facts = side.set->facts();
  return side;
}

// Features of its images, on rank 0.
void add_features(parallel::Team& team, dist::Communicator& comm, const FidRequest& request, Side& side) {
  if (!side.set) return;
  FeatureSettings settings = request.features;
  settings.spatial = wants(request, FidMetric::kSfid) && !side.spatial_statistics;
  settings.logits = side.is_generated && wants(request, FidMetric::kInceptionScore);
  side.features = features_of(team, comm, *side.set, settings);
  if (comm.rank() != 0) return;
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

constexpr int64_t kSplits = 10;  // of 50,000 images: those of 5,000 that ADM takes
int64_t splits_of(const Features& features) { return std::min(kSplits, features.n); }

std::string protocol_of(const FidRequest& request, const Side& real, const Side& generated) {
  std::string line = fmt::format("features {}", request.features.kind);
  const Side& described = generated.features ? generated : real;
  if (described.features) line += " (" + described.features->description + ")";
  if (request.features.kind == FeatureKind::kPixels) line += ", not comparable with published FIDs";
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
    line += fmt::format("; inception score of {} splits in the order of the images, logits without bias",
                        splits_of(*generated.features));
  if (wants(request, FidMetric::kPrecisionRecall)) line += "; precision and recall of 3 neighbours";
  return line;
}

void measure_score(const FidRequest& request, const Side& generated, FidReport& report) {
  if (!wants(request, FidMetric::kInceptionScore)) return;
  const Features& f = needed_features(generated, "is");
  const MeanAndDeviation value =
      inception_score(probabilities_of(f.logits, nn::kInceptionClasses), nn::kInceptionClasses, splits_of(f));
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

}  // namespace

FidReport evaluate_fid(parallel::Team& team, const FidRequest& request) {
  return evaluate_fid(team, *dist::make_null_communicator(), request);
}

FidReport evaluate_fid(parallel::Team& team, dist::Communicator& comm, const FidRequest& asked) {
  FidRequest request = asked;
  check_request(request);
  FidReport report;
  if (wants(request, FidMetric::kBands)) {
    if (comm.rank() == 0) report.bands = compare_bands(request.real, request.generated);
    if (request.metrics.size() == 1) {
      report.protocol = fmt::format("pixels of bands in digital numbers, without missing ones; real {}; generated {}",
                                    request.real, request.generated);
      return report;
    }
  }
  Side real = open_side(false, request.real, request), generated = open_side(true, request.generated, request);
  if (real.set || generated.set) load_network(request.features);
  const bool pixels = request.features.kind == FeatureKind::kPixels;
  if (pixels) check_numbers(real, generated);
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
  if (generated.set && generated.set->size() < kFullFidCount) {
    report.warnings.push_back(
        fmt::format("{} generated images: published numbers are of {}", generated.set->size(), kFullFidCount));
  }
  for (const Side* side : {&real, &generated})
    if (side->features && side->features->error_of_precision)
      report.error_of_precision = std::max(report.error_of_precision.value_or(0), *side->features->error_of_precision);
  measure_score(request, generated, report);
  report.protocol = protocol_of(request, real, generated);
  measure_sets(team, request, real, generated, report);
  measure_spatial_distance(team, request, real, generated, report);
  measure_distance(team, request, real, generated, report);
  if (!request.save_statistics.empty())
    write_statistics(request.save_statistics, needed_statistics(team, real), real.spatial_statistics);
  return report;
}

FeatureStatistics reference_statistics(parallel::Team& team, dist::Communicator& comm, const std::string& path,
                                       const FeatureSettings& features, std::string& description) {
  const FidRequest request{.real = path, .generated = "", .features = features};
  Side side = open_side(false, path, request);
  add_features(team, comm, request, side);
  description = side.description;
  if (side.statistics || comm.rank() != 0) return side.statistics.value_or(FeatureStatistics());
  return statistics_of(team, side.features->values, side.features->d);
}

std::string to_json(const FidReport& report) {
  nlohmann::ordered_json json;
  const auto set = [&](const char* key, const std::optional<double>& value) {
    json[key] = value && std::isfinite(*value) ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  set("fid", report.fid), set("sfid", report.sfid), set("is", report.inception_score), set("kid", report.kid);
  set("precision", report.precision), set("recall", report.recall);
  set("is_deviation", report.inception_score_deviation), set("kid_deviation", report.kid_deviation);
  if (report.error_of_precision) set("bf16_feature_error", report.error_of_precision);
  json["protocol"] = report.protocol;
  json["warnings"] = report.warnings;
  if (report.bands) {
    const auto put = [](const PixelComparison& p) {
      return nlohmann::ordered_json{{"name", p.name},
                                    {"real_mean", p.real_mean},
                                    {"real_std", p.real_deviation},
                                    {"generated_mean", p.generated_mean},
                                    {"generated_std", p.generated_deviation},
                                    {"frechet", p.frechet}};
    };
    for (const PixelComparison& band : report.bands->bands) json["bands"].push_back(put(band));
    if (report.bands->ndvi) json["ndvi"] = put(*report.bands->ndvi);
    if (report.bands->angle) json["spectral_angle"] = put(*report.bands->angle);
    if (report.bands->angle) json["angle_of_means"] = report.bands->angle_of_means;
  }
  if (report.distance) {
    const FrechetDistance& d = *report.distance;
    json["frechet"] = {{"mean_term", d.mean_term},
                       {"trace_real", d.trace1},
                       {"trace_generated", d.trace2},
                       {"trace_of_root", d.trace_of_root},
                       {"negative_eigenvalues", {d.num_negative1, d.num_negative}},
                       {"most_negative", {d.most_negative1, d.most_negative}}};
  }
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace ditrain::eval
