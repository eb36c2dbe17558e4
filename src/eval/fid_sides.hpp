// The two sides of a comparison by features: what a path holds, and whether the sides may be compared. fid.cpp computes
// the metrics.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/eval/fid.hpp"

namespace ditrain::eval {

inline constexpr int64_t kNeighbours = 3;  ///< of improved precision and recall

bool wants(const FidRequest& request, FidMetric metric);

/// One side of the comparison: statistics, the features that they were made of, or both.
struct Side {
  bool is_generated;
  std::string path, description = {}, sha256 = {}, facts = {};
  std::unique_ptr<ImageSet> set = nullptr;  ///< if their features are needed
  std::optional<Features> features = {};
  std::optional<FeatureStatistics> statistics = {}, spatial_statistics = {};
  bool is_of_file = false;                   ///< its statistics were read from a file
  std::optional<StatisticsFacts> made = {};  ///< how the file says that they were made
  std::string bands = {};                    ///< of tiles as they are: names and scales, in the order of the channels
  const char* role() const { return is_generated ? "generated" : "real"; }
  const dataset::TileShards* tiles() const { return set ? set->tiles() : nullptr; }
};

/// Opens a side without computing features, so that a wrong path is found before hours of computing.
/// Errors:   InputError as open_image_set and read_statistics
Side open_side(bool is_generated, const std::string& path, const FidRequest& request);
/// Shows the side in one of the composites: tiles become pictures, statistics are those of this composite.
void show_composite(Side& side, const std::vector<Composite>& composites, size_t number, const FidRequest& request);
/// Computes the features of its images. Collective; rank 0 gets them.
void add_features(parallel::Team& team, dist::Communicator& comm, const FidRequest& request, Side& side);
/// How the request's features are made, as a file of statistics states it.
StatisticsFacts facts_of(const FidRequest& request);
/// The composites in which both sides are compared; empty: pictures, or tiles as they are.
std::vector<Composite> composites_for(const parallel::Team& team, const Side& real, const Side& generated,
                                      std::vector<std::string>& warnings);
/// Puts the bands of generated tiles in the order of the real ones. Errors: InputError if bands, types or scales differ
void pair_bands(Side& real, Side& generated);

// Checks. Errors: InputError, where = the path of a side; what may be compared with care is a warning.
void check_request(const FidRequest& request);
/// Compares the metrics with what the sides hold, before any feature is computed.
void check_metrics(const FidRequest& request, const Side& real, const Side& generated);
/// Compares the number of images with that of the features, d.
void check_counts(const Side& side, int64_t d, const FidRequest& request, std::vector<std::string>& warnings);
/// Checks that pixels of both sides have numbers of one kind.
void check_numbers(Side& real, Side& generated);
/// Compares the images with their samples.json, and tells what is not read.
void check_facts(const Side& side, std::vector<std::string>& warnings);
void check_dimensions(const Side& real, const Side& generated, int64_t of_real, int64_t of_generated);
/// Check how statistics of a file were made against the other side. `hint` replaces the advice on flags.
void check_features(const Side& side, const std::string& other, const std::string& hint = "");
void check_made(const Side& side, const StatisticsFacts& other, const std::string& hint = "");
void check_statistics(const FidRequest& request, const Side& real, const Side& generated,
                      std::vector<std::string>& warnings);
void expect_same(const Side& side, const char* what, const std::string& got, const std::string& expected,
                 const std::string& hint);
/// A warning about statistics that do not state how they were made.
std::string says_nothing(const Side& side);

}  // namespace ditrain::eval
