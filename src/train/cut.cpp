#include "ditrain/train/cut.hpp"

#include <fmt/format.h>

#include "ditrain/base/error.hpp"

namespace ditrain::train {
namespace {

const char* name_of(ops::Cut cut) { return cut == ops::Cut::kSamples ? "samples" : "columns and heads"; }

// Values that all clusters together read for one block's forward pass.
double values_read(ops::Cut cut, const nn::DitConfig& m, int64_t micro_batch, int clusters) {
  const double C = double(m.hidden_size), F = double(m.mlp_size()), M = double(micro_batch * m.tokens());
  const double weights = 4 * C * C + 2 * C * F, inputs = M * (3 * C + F);
  return cut == ops::Cut::kSamples ? clusters * weights + inputs : weights + clusters * inputs;
}

}  // namespace

CutPlan plan_cut(const Config& config, int64_t micro_batch, int clusters) {
  using ops::Cut;
  const bool divides = micro_batch % clusters == 0;
  if (config.parallel.cut == "samples" && !divides)
    throw InputError({.where = "config",
                      .what = "parallel.cut: samples needs as many samples for every cluster",
                      .got = fmt::format("a micro-batch of {} for {} clusters", micro_batch, clusters),
                      .expected = "a multiple",
                      .hint = "choose another train.micro_batch, or parallel.cut: auto"});
  if (clusters == 1) return {Cut::kSamples, "one cluster: nothing is cut over clusters"};
  const auto line = [&](Cut cut, const std::string& reason) {
    return CutPlan{cut, fmt::format("{} go to {} clusters ({})", name_of(cut), clusters, reason)};
  };
  if (config.parallel.cut != "auto") return line(config.parallel.cut == "n" ? Cut::kN : Cut::kSamples, "parallel.cut");
  if (!divides) return line(Cut::kN, fmt::format("auto: {} samples do not divide", micro_batch));
  const double samples = values_read(Cut::kSamples, config.model, micro_batch, clusters);
  const double columns = values_read(Cut::kN, config.model, micro_batch, clusters);
  return line(samples <= columns ? Cut::kSamples : Cut::kN,
              fmt::format("auto: a block reads {:.1f} M values so, {:.1f} M the other way",
                          1e-6 * std::min(samples, columns), 1e-6 * std::max(samples, columns)));
}

}  // namespace ditrain::train
