#include "ditrain/eval/feature_statistics.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/weights/npz.hpp"
#include "products.hpp"

namespace ditrain::eval {
namespace {

// Two orders of sums differ by about 1e-16 of the largest variance; f32 files by about 1e-7.
constexpr double kAsymmetry = 1e-5;
constexpr const char* kFactsArray = "ditrain";
constexpr uint64_t kMaxFactsBytes = 1 << 20;
constexpr int64_t kMostDimensions = 8192;  // a zip of a megabyte may hold a sigma of gigabytes

[[noreturn]] void refuse(const weights::NpzFile& file, const std::string& what, const std::string& got = "",
                         const std::string& expected = "") {
  throw InputError({.where = file.where(), .what = what, .got = got, .expected = expected});
}

std::vector<double> read_array(const weights::NpzFile& file, const std::string& name,
                               const std::vector<int64_t>& shape) {
  const weights::NpyHeader header = file.header(name);
  if (header.dtype[0] != 'f')
    refuse(file, fmt::format("'{}' is not of floating point", name), header.dtype, "f4 or f8");
  const bool fits = header.shape.size() == shape.size() &&
                    std::equal(shape.begin(), shape.end(), header.shape.begin(),
                               [](int64_t want, int64_t got) { return want < 0 ? got > 0 : want == got; });
  if (!fits)
    refuse(file, fmt::format("'{}' has another shape than statistics have", name),
           fmt::format("[{}]", fmt::join(header.shape, ", ")),
           shape.size() == 1 ? "[d]" : fmt::format("[{}]", fmt::join(shape, ", ")));
  if (header.shape[0] > kMostDimensions)
    refuse(file, fmt::format("'{}' has more dimensions than features have", name), std::to_string(header.shape[0]),
           fmt::format("at most {}", kMostDimensions));
  std::vector<double> values = file.to_f64(name);
  if (!std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); }))
    refuse(file, fmt::format("'{}' holds numbers that are not finite", name));
  return values;
}

void check_covariance(const weights::NpzFile& file, const std::string& name, std::vector<double>& sigma, int64_t d) {
  double largest = 0;
  for (int64_t j = 0; j < d; ++j) {
    const double variance = sigma[size_t(j * d + j)];
    if (variance < 0)
      refuse(file, fmt::format("'{}' is no covariance: variance {} is negative", name, j), fmt::format("{}", variance));
    largest = std::max(largest, variance);
  }
  for (int64_t j = 0; j < d; ++j) {
    for (int64_t k = 0; k < j; ++k) {
      double &a = sigma[size_t(j * d + k)], &b = sigma[size_t(k * d + j)];
      if (std::abs(a - b) > kAsymmetry * largest)
        refuse(file, fmt::format("'{}' is no covariance: it is not symmetric", name),
               fmt::format("{} at [{}, {}] and {} at [{}, {}]", a, j, k, b, k, j));
      a = b = (a + b) / 2;
    }
  }
}

}  // namespace

template <class T>
FeatureStatistics statistics_of(parallel::Team& team, const std::vector<T>& features, int64_t d) {
  DITRAIN_CHECK(d > 0 && features.size() % size_t(d) == 0, "features do not fill rows");
  const int64_t n = int64_t(features.size()) / d;
  if (n < 2)
    throw InputError(
        {.where = "statistics", .what = "too few images", .got = std::to_string(n), .expected = "at least 2"});
  FeatureStatistics s{std::vector<double>(size_t(d), 0.0), std::vector<double>(size_t(d * d))};
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < d; ++j) s.mu[size_t(j)] += double(features[size_t(i * d + j)]);
  for (double& m : s.mu) {
    m /= double(n);
    if (!std::isfinite(m)) throw InputError({.where = "statistics", .what = "a feature is not finite"});
  }
  centered_products(team, features.data(), n, d, s.mu.data(), s.sigma.data());
  for (double& v : s.sigma) v /= double(n - 1);
  return s;
}

template FeatureStatistics statistics_of(parallel::Team&, const std::vector<float>&, int64_t);
template FeatureStatistics statistics_of(parallel::Team&, const std::vector<double>&, int64_t);

FeatureStatistics read_statistics(const weights::NpzFile& file, const StatisticsNames& names) {
  FeatureStatistics s;
  s.mu = read_array(file, names.mu, {-1});
  const int64_t d = s.dimensions();
  s.sigma = read_array(file, names.sigma, {d, d});
  check_covariance(file, names.sigma, s.sigma, d);
  return s;
}

StatisticsNames statistics_names(bool spatial, size_t composite) {
  StatisticsNames names = spatial ? kSpatialStatistics : StatisticsNames();
  if (composite > 0) names.mu += fmt::format("_{}", composite), names.sigma += fmt::format("_{}", composite);
  return names;
}

std::string StatisticsFacts::describe() const {
  std::string text = fmt::format("{} images, features {}", images, features);
  if (!preset.empty()) text += fmt::format(" in {}, preset {}, weights sha256 {}", precision, preset, weights_sha256);
  if (!input.empty()) text += fmt::format(" ({})", input);
  for (const Composite& composite : composites) text += ", " + composite.describe();
  return text;
}

std::optional<StatisticsFacts> read_statistics_facts(const weights::NpzFile& file) {
  if (!file.contains(kFactsArray)) return {};
  const weights::NpyHeader header = file.header(kFactsArray);
  if (header.dtype != "u1" || header.bytes > kMaxFactsBytes)
    refuse(file, fmt::format("'{}' is no text", kFactsArray), fmt::format("{} bytes of {}", header.bytes, header.dtype),
           fmt::format("at most {} bytes of u1", kMaxFactsBytes));
  const std::vector<std::byte> bytes = file.read(kFactsArray);
  try {
    const auto in = files::parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    StatisticsFacts facts{
        .features = in.at("features"), .preset = in.at("preset"), .weights_sha256 = in.at("weights_sha256")};
    facts.precision = in.at("precision"), facts.input = in.at("input"), facts.images = in.at("images");
    for (const auto& c : in.at("composites")) {
      facts.composites.push_back({c.at("name"), c.at("bands"), c.at("low"), c.at("high"), c.value("of_bytes", false)});
      const Composite& last = facts.composites.back();
      if (last.bands.size() != 3 || last.low.size() != 3 || last.high.size() != 3)
        refuse(file, fmt::format("'{}': a composite is of three bands", kFactsArray), files::json_text(c));
      for (size_t b = 0; b < 3; ++b)
        if (last.low[b] == last.high[b])
          refuse(file, fmt::format("'{}': the stretch of a band has no width", kFactsArray), files::json_text(c));
    }
    return facts;
  } catch (const nlohmann::json::exception& e) {
    refuse(file,
           fmt::format("'{}' does not say how the statistics were made: {}", kFactsArray, files::json_problem(e)));
  }
}

void write_statistics(const std::string& path, const std::vector<SavedStatistics>& statistics,
                      const std::optional<StatisticsFacts>& facts) {
  std::vector<weights::NpyToWrite> arrays;
  const auto add = [&](const FeatureStatistics& s, const StatisticsNames& names) {
    const int64_t d = s.dimensions();
    arrays.push_back({names.mu, {d}, s.mu.data()});
    arrays.push_back({names.sigma, {d, d}, s.sigma.data()});
  };
  for (size_t i = 0; i < statistics.size(); ++i) {
    add(statistics[i].plain, statistics_names(false, i));
    if (statistics[i].spatial) add(*statistics[i].spatial, statistics_names(true, i));
  }
  std::string text;
  if (facts) {
    nlohmann::ordered_json json = {{"features", facts->features},
                                   {"preset", facts->preset},
                                   {"weights_sha256", facts->weights_sha256},
                                   {"precision", facts->precision},
                                   {"input", facts->input},
                                   {"images", facts->images},
                                   {"composites", nlohmann::ordered_json::array()}};
    for (const Composite& c : facts->composites)
      json["composites"].push_back(
          {{"name", c.name}, {"bands", c.bands}, {"low", c.low}, {"high", c.high}, {"of_bytes", c.unstretched}});
    text = files::json_text(json);
    arrays.push_back({kFactsArray, {int64_t(text.size())}, nullptr, text});
  }
  weights::write_npz_f64(path, arrays);
}

}  // namespace ditrain::eval
