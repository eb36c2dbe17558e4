#include "fid_sides.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "ditrain/base/error.hpp"
#include "ditrain/eval/sample_facts.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/files/sha256.hpp"

namespace ditrain::eval {

bool wants(const FidRequest& request, FidMetric metric) {
  return std::find(request.metrics.begin(), request.metrics.end(), metric) != request.metrics.end();
}

namespace {

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

bool needs_rows(const FidRequest& request, bool is_generated) {
  return wants(request, FidMetric::kKid) || wants(request, FidMetric::kPrecisionRecall) ||
         (is_generated && wants(request, FidMetric::kInceptionScore));
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

}  // namespace

int64_t num_images_of(const std::string& path) {
  const NpzContents npz = contents_of(path);
  return npz.statistics && !npz.images ? 0 : open_image_set(path)->size();
}

// Statistics of the file are preferred to those of its images: ADM's references hold 10,000 images beside the
// statistics of a whole data set.
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
  side.set = open_image_set(path, request.latent_scale);
  side.facts = side.set->facts();
  return side;
}

void show_composite(Side& side, const std::vector<Composite>& composites, size_t number, const FidRequest& request) {
  if (side.tiles() != nullptr) side.set = composite_set(side.path, composites[number]);
  if (!side.statistics || number == 0) return;
  const weights::NpzFile file(side.path);
  side.statistics = read_statistics(file, statistics_names(false, number));
  if (wants(request, FidMetric::kSfid) && file.contains(statistics_names(true, number).mu))
    side.spatial_statistics = read_statistics(file, statistics_names(true, number));
}

void add_features(parallel::Team& team, dist::Communicator& comm, const FidRequest& request, Side& side) {
  if (!side.set) return;
  FeatureSettings settings = request.features;
  settings.spatial = wants(request, FidMetric::kSfid) && !side.spatial_statistics;
  settings.logits = side.is_generated && wants(request, FidMetric::kInceptionScore);
  side.features = features_of(team, comm, *side.set, settings);
  if (comm.rank() != 0) return;
  const std::vector<float>& values = side.features->values;
  const auto bad = std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
  if (bad != values.end())
    throw InputError({.where = side.path,
                      .what = fmt::format("image {} has features that are not finite, as it has pixels that are not",
                                          (bad - values.begin()) / side.features->d)});
  if (!side.bands.empty()) side.features->description += ", bands " + side.bands;
  side.description += (side.description.empty() ? "" : " and ") + side.set->describe();
  if (request.features.kind == FeatureKind::kInception)
    side.description += fmt::format(", {} pixels", side.features->sizes.describe());
  side.sha256 = side.set->sha256();
}

void check_request(const FidRequest& request) {
  if (request.metrics.empty()) throw InputError({.where = "metrics", .what = "no metric was asked for"});
  if (request.keep_statistics && request.metrics == std::vector{FidMetric::kBands})
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

void check_metrics(const FidRequest& request, const Side& real, const Side& generated) {
  const auto need_images = [&](FidMetric metric, const Side& side, int64_t least) {
    if (!wants(request, metric)) return;
    if (!side.set)
      throw InputError(
          {.where = side.path,
           .what = fmt::format("'{}' needs images, not statistics, {}", word_of(metric),
                               metric == FidMetric::kInceptionScore ? "on the generated side" : "on both sides"),
           .hint = "--metrics fid"});
    if (side.set->size() < least)
      throw InputError({.where = side.path,
                        .what = fmt::format("too few {} images for '{}'", side.role(), word_of(metric)),
                        .got = std::to_string(side.set->size()),
                        .expected = fmt::format("at least {}", least)});
  };
  for (const Side* side : {&real, &generated})
    need_images(FidMetric::kKid, *side, 2), need_images(FidMetric::kPrecisionRecall, *side, kNeighbours + 1);
  need_images(FidMetric::kInceptionScore, generated, 1);
  for (const Side* side : {&real, &generated})
    if (request.features.kind == FeatureKind::kInception && side->set && side->set->is_latent())
      throw InputError({.where = side->path,
                        .what = "the Inception network sees pictures, not latents",
                        .got = "samples.json: latents",
                        .hint = "decoding them (ditsample --vae), or --features pixels and latents on both sides"});
  if (!wants(request, FidMetric::kSfid)) return;
  for (const Side* side : {&real, &generated})
    if (!side->set && !side->spatial_statistics)
      throw InputError({.where = side->path,
                        .what = "'sfid' needs images or statistics of spatial features",
                        .got = "mu and sigma alone",
                        .expected = "mu_s and sigma_s, as ADM's references have",
                        .hint = "--metrics fid"});
  const auto spatial = [](const Side& side) {
    return side.spatial_statistics ? side.spatial_statistics->dimensions() : nn::kInceptionSpatial;
  };
  check_dimensions(real, generated, spatial(real), spatial(generated));
}

void check_counts(const Side& side, int64_t d, const FidRequest& request, std::vector<std::string>& warnings) {
  if (!side.set) return;
  const bool saves = !side.is_generated && request.keep_statistics;
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
  if (!side.set) return;
  if (const std::string left = side.set->left_out(); !left.empty()) warnings.push_back(side.path + ": " + left);
  if (std::error_code none; std::filesystem::exists(side.path + "/" + kUnfinishedFile, none))
    warnings.push_back(fmt::format("{}: samples of a ditsample that has not ended or was ended, {} so far", side.path,
                                   side.set->size()));
  if (side.facts.empty()) return;
  const auto facts = files::parse_json_or_discard(side.facts);
  const auto images = facts.is_object() ? facts.find("images") : facts.end();
  if (images == facts.end() || !images->is_number_integer() || *images == side.set->size()) return;
  warnings.push_back(fmt::format("{}: samples.json tells of {} images, but there are {}", side.path,
                                 files::json_text(*images), side.set->size()));
}

void check_dimensions(const Side& real, const Side& generated, int64_t of_real, int64_t of_generated) {
  if (of_real == of_generated) return;
  throw InputError({.where = generated.path,
                    .what = "the two sides have features of different dimensions",
                    .got = std::to_string(of_generated),
                    .expected = fmt::format("{}, as {} has", of_real, real.path),
                    .hint = "images of one size and as many channels (files of pictures have three, of grey ones too), "
                            "and statistics that were made with the same features"});
}

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
void check_features(const Side& side, const std::string& other, const std::string& hint) {
  expect_same(side, "other features", side.made->features, other,
              hint.empty() ? fmt::format("--features {}, or {}", side.made->features, kAnew) : hint);
}
// A run has no flags, but a hint of its own.
void check_made(const Side& side, const StatisticsFacts& other, const std::string& hint) {
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

}  // namespace ditrain::eval
