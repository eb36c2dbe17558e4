// The FID evaluation: two sets of images, the requested metrics, and one line that says how they were computed. Most
// disputes about an FID are about the protocol, so that line states everything that changes the value, and meaningless
// requests are refused.
//
//   FidReport report = evaluate_fid(team, {.real = "reference.npz", .generated = "samples", ...});
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ditrain/base/words.hpp"
#include "ditrain/eval/band_metrics.hpp"
#include "ditrain/eval/composite.hpp"
#include "ditrain/eval/feature_statistics.hpp"
#include "ditrain/eval/features.hpp"
#include "ditrain/eval/frechet.hpp"
#include "ditrain/eval/set_metrics.hpp"

namespace ditrain::eval {

enum class FidMetric { kFid, kSfid, kInceptionScore, kKid, kPrecisionRecall, kBands };
inline constexpr Word<FidMetric> kFidMetrics[] = {
    {"fid", FidMetric::kFid}, {"sfid", FidMetric::kSfid},          {"is", FidMetric::kInceptionScore},
    {"kid", FidMetric::kKid}, {"pr", FidMetric::kPrecisionRecall}, {"bands", FidMetric::kBands}};
constexpr std::span<const Word<FidMetric>> words_of(FidMetric) { return kFidMetrics; }

struct FidRequest {
  std::string real, generated;  ///< images (eval/image_set.hpp) or an npz with `mu` and `sigma`
  FeatureSettings features = {};
  std::vector<FidMetric> metrics = {FidMetric::kFid};
  bool allow_small = false;                 ///< allow fewer images than feature dimensions
  bool keep_statistics = false;             ///< return the statistics of the real side, too
  std::optional<double> latent_scale = {};  ///< see open_image_set
};

/// Statistics of the real side, one entry per composite, and how they were made.
struct KeptStatistics {
  std::vector<SavedStatistics> all = {};
  std::optional<StatisticsFacts> facts = {};
  void write(const std::string& path) const { write_statistics(path, all, facts); }
};

/// The results; metrics that were not requested are empty.
struct FidReport {
  std::optional<double> fid, sfid, inception_score, kid, precision, recall;
  std::optional<double> inception_score_deviation, kid_deviation;
  std::optional<FrechetDistance> distance;   ///< the parts of `fid`
  std::optional<BandComparison> bands;       ///< for two sets of tiles
  std::optional<double> error_of_precision;  ///< for features in bf16 (eval/features.hpp)
  /// The kind of features on both sides; none: two files of statistics that do not say.
  std::optional<FeatureKind> features = FeatureKind::kInception;
  std::optional<Composite> composite = {};  ///< the composite of tiles that the network saw
  std::vector<FidReport> others = {};       ///< the same metrics of further composites
  std::string protocol;                     ///< one line
  std::vector<std::string> warnings;
  std::optional<KeptStatistics> kept = {};  ///< with FidRequest::keep_statistics
};

/// With fewer generated images than this the FID is biased upwards too much to be compared with published numbers.
inline constexpr int64_t kFullFidCount = 50'000;

/// Computes the requested metrics.
/// Errors:   InputError: a kind of features or a metric that is not available here, sides that are neither images nor
///           statistics, statistics of other dimensions or made in another way, tiles that the network cannot see,
///           pixels of tiles of other bands or scales, fewer images than dimensions without allow_small
/// Threads:  the workers of `team`; bit-identical for any number of them
/// Memory:   what evaluation_bytes() says
FidReport evaluate_fid(parallel::Team& team, const FidRequest& request);
/// The same on several ranks, which share the images that the network sees. Collective: rank 0 returns the report, the
/// others an empty one.
FidReport evaluate_fid(parallel::Team& team, dist::Communicator& comm, const FidRequest& request);

/// The largest memory use of a rank, computed from the headers of the files, and what it is for.
/// Errors:   as evaluate_fid for the paths
struct EvaluationBytes {
  size_t bytes = 0;
  std::string what;
};
EvaluationBytes evaluation_bytes(const FidRequest& request, int world_size, int ranks_on_node);

/// Mean and covariance of images or of a file of statistics.
struct Reference {
  FeatureStatistics statistics;
  std::string description;  ///< a line that says of what
  std::string input;        ///< Features::description of them; "": they do not say
  ImageSizes sizes = {};    ///< of images that the network saw
};
/// Collective: rank 0 returns it, the others return none.
/// Errors:   as evaluate_fid
Reference read_reference(parallel::Team& team, dist::Communicator& comm, const std::string& path,
                         const FeatureSettings& features, std::optional<double> latent_scale = {});

/// Number of images at the path whose features a distance needs; 0: the path holds statistics.
/// Errors:   as open_image_set
int64_t num_images_of(const std::string& path);

/// {"fid", "sfid", "is", "kid", "precision", "recall", "protocol", ...}; null where nothing was measured.
std::string to_json(const FidReport& report);

}  // namespace ditrain::eval
