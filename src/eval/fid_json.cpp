// The report of an FID evaluation as JSON.
#include <cmath>

#include "ditrain/eval/fid.hpp"
#include "ditrain/files/json.hpp"

namespace ditrain::eval {
namespace {

void put_metrics(const FidReport& report, nlohmann::ordered_json& json) {
  const auto set = [&](const char* key, const std::optional<double>& value) {
    json[key] = value && std::isfinite(*value) ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  set("fid", report.fid), set("sfid", report.sfid), set("is", report.inception_score), set("kid", report.kid);
  set("precision", report.precision), set("recall", report.recall);
  set("is_deviation", report.inception_score_deviation), set("kid_deviation", report.kid_deviation);
}

void put_composites(const FidReport& report, nlohmann::ordered_json& json) {
  const auto put = [&](const FidReport& one) {
    nlohmann::ordered_json entry = {{"name", one.composite->name},
                                    {"bands", one.composite->bands},
                                    {"low", one.composite->low},
                                    {"high", one.composite->high}};
    put_metrics(one, entry);
    entry["protocol"] = one.protocol;
    json["composites"].push_back(entry);
  };
  put(report);
  for (const FidReport& other : report.others) put(other);
}

}  // namespace

std::string to_json(const FidReport& report) {
  nlohmann::ordered_json json;
  put_metrics(report, json);
  if (report.error_of_precision) json["bf16_feature_error"] = *report.error_of_precision;
  if (report.composite) put_composites(report, json);
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
  return files::json_text(json, 1) + "\n";
}

}  // namespace ditrain::eval
