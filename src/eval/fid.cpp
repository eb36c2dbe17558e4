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
  const char* role;
  std::string path, description, sha256, facts = {};
  std::optional<Features> features = {};
  std::optional<FeatureStatistics> statistics = {};
};

// An npz that has mu and sigma but no images.
bool is_statistics(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  try {
    const io::NpzFile file(path);
    return (file.contains("mu") || file.contains("sigma")) && !file.contains("arr_0");
  } catch (const InputError&) {
    return false;  // no npz: whoever opens it as images says what is wrong
  }
}

Side read_side(parallel::Team& team, const char* role, const std::string& path, const FeatureSettings& settings) {
  Side side{role, path, "", ""};
  if (is_statistics(path)) {
    side.statistics = read_statistics(io::NpzFile(path));
    side.description = fmt::format("statistics of {} dimensions in {}", side.statistics->dimensions(), path);
    side.sha256 = io::sha256_of_file(path);
    return side;
  }
  const auto set = open_image_set(path);
  side.features = features_of(team, *set, settings);
  side.description = set->describe();
  side.sha256 = set->sha256();
  side.facts = set->facts();
  return side;
}

void check_request(const FidRequest& request) {
  check_features(request.features);
  if (request.metrics.empty()) throw InputError({.where = "metrics", .what = "no metric was asked for"});
  const bool pixels = request.features.kind == FeatureKind::kPixels;
  for (const FidMetric metric : {FidMetric::kSfid, FidMetric::kInceptionScore}) {
    if (!pixels || !wants(request, metric)) continue;
    throw InputError({.where = "metrics",
                      .what = fmt::format("'{}' needs a network", word_of(metric)),
                      .got = "--features pixels",
                      .expected = "fid, kid or pr"});
  }
}

void check_counts(const Side& side, const FidRequest& request, std::vector<std::string>& warnings) {
  if (!side.features) return;
  const int64_t n = side.features->n, d = side.features->d;
  if (n <= d && wants(request, FidMetric::kFid)) {
    if (!request.allow_small || n < 2) {
      throw InputError(
          {.where = side.path,
           .what = fmt::format("too few {} images for {} dimensions: their covariance is singular", side.role, d),
           .got = std::to_string(n),
           .expected = fmt::format("at least {}", n < 2 ? 2 : d + 1),
           .hint = n < 2 ? "more images" : "more images, or --allow-small for a number that only shows a trend"});
    }
    warnings.push_back(
        fmt::format("{} {} images for {} dimensions: the distance depends on the number of images", n, side.role, d));
  }
}

const Features& needed_features(const Side& side, const char* metric) {
  if (side.features) return *side.features;
  throw InputError({.where = side.path,
                    .what = fmt::format("'{}' needs images, not statistics, on both sides", metric),
                    .hint = "--metrics fid"});
}

void check_dimensions(const Side& real, const Side& generated) {
  const auto dimensions = [](const Side& side) {
    return side.features ? side.features->d : side.statistics->dimensions();
  };
  if (dimensions(real) == dimensions(generated)) return;
  throw InputError({.where = generated.path,
                    .what = "the two sides have features of different dimensions",
                    .got = std::to_string(dimensions(generated)),
                    .expected = fmt::format("{}, as {} has", dimensions(real), real.path),
                    .hint = "images of one size, and statistics that were made with the same features"});
}

std::string protocol_of(const FidRequest& request, const Side& real, const Side& generated) {
  std::string line = fmt::format("features {}", request.features.kind);
  const Side& described = generated.features ? generated : real;
  if (described.features) line += " (" + described.features->description + ")";
  if (request.features.kind == FeatureKind::kPixels) line += ", not comparable with published FIDs";
  for (const Side* side : {&real, &generated}) {
    line += fmt::format("; {} {}, sha256 {}", side->role, side->description, side->sha256);
    if (!side->facts.empty()) line += fmt::format(", samples.json {}", side->facts);
  }
  if (wants(request, FidMetric::kKid)) {
    const KidSettings settings;
    const int64_t size = real.features && generated.features
                             ? std::min({settings.subset_size, real.features->n, generated.features->n})
                             : settings.subset_size;
    line += fmt::format("; kid of {} subsets of {}, seed {}", settings.num_subsets, size, settings.seed);
  }
  if (wants(request, FidMetric::kPrecisionRecall)) line += "; precision and recall of 3 neighbours";
  return line;
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

void measure_distance(parallel::Team& team, const FidRequest& request, Side& real, Side& generated, FidReport& report) {
  for (Side* side : {&real, &generated})
    if (!side->statistics) side->statistics = statistics_of(team, side->features->values, side->features->d);
  if (!request.save_statistics.empty()) write_statistics(request.save_statistics, *real.statistics);
  if (!wants(request, FidMetric::kFid)) return;
  const FrechetDistance distance = frechet_distance(team, *real.statistics, *generated.statistics);
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
  FidReport report;
  if (wants(request, FidMetric::kBands)) {
    report.bands = compare_bands(request.real, request.generated);
    if (request.metrics.size() == 1) {
      report.protocol = fmt::format("pixels of bands in digital numbers, without missing ones; real {}; generated {}",
                                    request.real, request.generated);
      return report;
    }
  }
  check_request(request);
  Side real = read_side(team, "real", request.real, request.features);
  if (real.features) check_counts(real, request, report.warnings);
  Side generated = read_side(team, "generated", request.generated, request.features);
  check_counts(generated, request, report.warnings);
  check_dimensions(real, generated);
  if (generated.features && generated.features->n < kFullFidCount) {
    report.warnings.push_back(
        fmt::format("{} generated images: published numbers are of {}", generated.features->n, kFullFidCount));
  }
  report.protocol = protocol_of(request, real, generated);
  measure_sets(team, request, real, generated, report);
  if (wants(request, FidMetric::kFid) || !request.save_statistics.empty())
    measure_distance(team, request, real, generated, report);
  return report;
}

std::string to_json(const FidReport& report) {
  nlohmann::ordered_json json;
  const auto set = [&](const char* key, const std::optional<double>& value) {
    json[key] = value && std::isfinite(*value) ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  set("fid", report.fid), set("sfid", report.sfid), set("is", report.inception_score), set("kid", report.kid);
  set("precision", report.precision), set("recall", report.recall);
  set("is_deviation", report.inception_score_deviation), set("kid_deviation", report.kid_deviation);
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
