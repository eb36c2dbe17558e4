#include "ditrain/plan/cut.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/kernels/measure.hpp"
#include "ditrain/nn/model.hpp"
#include "ditrain/platform/limits.hpp"

namespace ditrain::plan {
namespace {

constexpr double kMostIdle = 0.05;  // of the workers: the cuts differ by about as much in what they read

const char* name_of(ops::ClusterSplit cut) {
  return cut == ops::ClusterSplit::kSamples ? "samples" : "columns and heads";
}

// Values that a cluster reads for one block's forward pass: those it wrote itself, and those that lie in all domains.
struct Reads {
  double own, spread;
  double seconds(int clusters, const DomainBandwidth& b) const {
    const double other = b.other > 0 ? b.other : 1, mine = b.own > 0 ? b.own : 1;
    return (own + spread / clusters) / mine + spread * (clusters - 1) / clusters / other;
  }
};
Reads reads_of(ops::ClusterSplit cut, const nn::ProductReads& block, int64_t micro_batch, int clusters) {
  const double inputs = double(micro_batch) * block.inputs;
  if (cut == ops::ClusterSplit::kSamples) return {.own = inputs / clusters, .spread = block.weights};
  return {.own = 0, .spread = block.weights / clusters + inputs};
}

}  // namespace

size_t bytes_to_measure(const platform::Topology& machine, size_t memory_bytes) {
  constexpr size_t kLeast = size_t{64} << 20, kMost = size_t{1} << 30;
  const int domains = std::max(1, machine.numa_domains), caches = (machine.l3_caches + domains - 1) / domains;
  const size_t wanted = 4 * machine.l3_bytes * size_t(caches);
  return std::max(kLeast, std::min({wanted, kMost, memory_bytes / 32}));
}

DomainBandwidth measure_domains(ops::Context& ctx) {
  parallel::Team& team = ctx.team();
  if (team.num_clusters() < 2) return {};
  constexpr int kRepeats = 3;
  const auto num_values =
      int64_t(bytes_to_measure(platform::probe_machine(), platform::memory_limit().bytes) / sizeof(float));
  const Tensor near({num_values}), far({num_values});
  const Pin<float> own(near), other(far);
  // The part of one of a cluster's workers; on those of other clusters an empty one.
  const auto part = [&](const parallel::Worker& w, int cluster) {
    return w.cluster == cluster ? parallel::partition(num_values, w.worker_in_cluster, w.workers_in_cluster, 1024)
                                : parallel::Range{0, 0};
  };
  team.run([&](const parallel::Worker& w) {
    for (const auto& [values, cluster] : {std::pair{own.get(), 0}, {other.get(), w.num_clusters - 1}}) {
      const parallel::Range mine = part(w, cluster);
      std::fill(values + mine.begin, values + mine.end, 1.0f);
    }
  });
  const auto read = [&](float* values) {
    const double start = now_s();
    team.run([&](const parallel::Worker& w) {
      const parallel::Range mine = part(w, 0);
      float* at = values + mine.begin;
      if (mine.empty()) return;
      volatile float sum = kernels::stream_pass({.reads = 1}, &at, mine.size());
      static_cast<void>(sum);
    });
    return 1e-9 * double(num_values) * sizeof(float) / (now_s() - start);
  };
  DomainBandwidth best;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    best.own = std::max(best.own, read(own));
    best.other = std::max(best.other, read(other));
  }
  return best;
}

CutPlan plan_cut(const config::Config& config, int64_t micro_batch, const std::vector<int>& cluster_sizes,
                 const DomainBandwidth& bandwidth) {
  using ops::ClusterSplit;
  const auto clusters = int(cluster_sizes.size());
  const bool divides = micro_batch % clusters == 0;
  if (config.parallel.cut == config::ClusterSplitChoice::kSamples && !divides)
    throw InputError(
        {.where = "config",
         .what = "parallel.cut: samples needs the same number of samples for every cluster",
         .got = fmt::format("a micro-batch of {} for {} clusters", micro_batch, clusters),
         .expected = "a multiple",
         .hint =
             config.train.micro_batch > 0
                 ? fmt::format("parallel.cut: auto, or a train.micro_batch that is a multiple of {}", clusters)
                 : fmt::format("parallel.cut: auto, or a train.global_batch of which each rank gets a multiple of {}",
                               clusters)});
  if (clusters == 1) return {ClusterSplit::kSamples, "one cluster: nothing is cut over clusters"};
  const auto line = [&](ClusterSplit cut, const std::string& reason) {
    return CutPlan{cut, fmt::format("{} over {} clusters ({})", name_of(cut), clusters, reason)};
  };
  if (config.kernels.gemm != config::Gemm::kOwn && config.parallel.cut != config::ClusterSplitChoice::kN)
    return {ClusterSplit::kSamples,
            fmt::format("nothing is cut over clusters (kernels.gemm: {})", config.kernels.gemm)};
  if (config.parallel.cut != config::ClusterSplitChoice::kAuto)
    return line(config.parallel.cut == config::ClusterSplitChoice::kN ? ClusterSplit::kN : ClusterSplit::kSamples,
                "parallel.cut");
  if (!divides) return line(ClusterSplit::kN, fmt::format("auto: {} samples do not divide", micro_batch));
  const int least = *std::min_element(cluster_sizes.begin(), cluster_sizes.end());
  const int workers = std::accumulate(cluster_sizes.begin(), cluster_sizes.end(), 0);
  const double idle = 1 - double(clusters) * least / workers;  // if every cluster gets as much to do
  if (idle > kMostIdle)
    return line(ClusterSplit::kN,
                fmt::format("auto: the smallest has {} of {} workers; with equal numbers of samples, {:.0f} % "
                            "of the workers would wait",
                            least, workers, 100 * idle));
  const nn::ProductReads block = nn::block_reads(config.model);
  const Reads samples = reads_of(ClusterSplit::kSamples, block, micro_batch, clusters);
  const Reads columns = reads_of(ClusterSplit::kN, block, micro_batch, clusters);
  const bool by_samples = samples.seconds(clusters, bandwidth) <= columns.seconds(clusters, bandwidth);
  const Reads &taken = by_samples ? samples : columns, &left = by_samples ? columns : samples;
  std::string why = fmt::format("auto: each reads {:.1f} M values per block this way, {:.1f} M the other way",
                                1e-6 * (taken.own + taken.spread), 1e-6 * (left.own + left.spread));
  if (bandwidth.own > 0)
    why += fmt::format("; {:.0f} GB/s from its own memory, {:.0f} from others'", bandwidth.own, bandwidth.other);
  return line(by_samples ? ClusterSplit::kSamples : ClusterSplit::kN, why);
}

}  // namespace ditrain::plan
