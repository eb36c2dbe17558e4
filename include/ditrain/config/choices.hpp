// The words of keys in sections train, parallel, memory, kernels, dist, checkpoint, sample and eval; the help of the
// keys explains them.
#pragma once
#include <span>

#include "ditrain/base/words.hpp"

namespace ditrain::config {

/// The features by which samples are compared.
enum class FidFeatures { kPixels, kInception };
inline constexpr Word<FidFeatures> kFidFeatures[] = {{"pixels", FidFeatures::kPixels},
                                                     {"inception", FidFeatures::kInception}};
constexpr std::span<const Word<FidFeatures>> words_of(FidFeatures) { return kFidFeatures; }

/// What happens at a non-finite loss or gradient: the run ends, or the step is counted and skipped.
enum class OnNonFinite { kStop, kSkip };
inline constexpr Word<OnNonFinite> kOnNonFinite[] = {{"stop", OnNonFinite::kStop}, {"skip", OnNonFinite::kSkip}};
constexpr std::span<const Word<OnNonFinite>> words_of(OnNonFinite) { return kOnNonFinite; }

/// What happens if a checkpoint cannot be written: the run ends, or warns. A failed last checkpoint always ends it.
enum class OnCheckpointError { kStop, kWarn };
inline constexpr Word<OnCheckpointError> kOnCheckpointError[] = {{"stop", OnCheckpointError::kStop},
                                                                 {"warn", OnCheckpointError::kWarn}};
constexpr std::span<const Word<OnCheckpointError>> words_of(OnCheckpointError) { return kOnCheckpointError; }

/// What shares a replica: the thread clusters of a rank (cftp), a single rank with one cluster (dp), or several ranks
/// (dp_tp).
enum class Strategy { kCftp, kDp, kDpTp };
inline constexpr Word<Strategy> kStrategies[] = {
    {"cftp", Strategy::kCftp}, {"dp", Strategy::kDp}, {"dp_tp", Strategy::kDpTp}};
constexpr std::span<const Word<Strategy>> words_of(Strategy) { return kStrategies; }

/// How work is split over the thread clusters of a rank.
enum class ClusterSplitChoice { kAuto, kSamples, kN };
inline constexpr Word<ClusterSplitChoice> kClusterSplitChoices[] = {
    {"auto", ClusterSplitChoice::kAuto}, {"samples", ClusterSplitChoice::kSamples}, {"n", ClusterSplitChoice::kN}};
constexpr std::span<const Word<ClusterSplitChoice>> words_of(ClusterSplitChoice) { return kClusterSplitChoices; }

/// What moves tensors between memory tiers: nothing; the paper's Algorithm 1, module by module; or a plan of the step.
enum class AutoMem { kOff, kPaper, kPlanned };
inline constexpr Word<AutoMem> kAutoMems[] = {
    {"off", AutoMem::kOff}, {"paper", AutoMem::kPaper}, {"planned", AutoMem::kPlanned}};
constexpr std::span<const Word<AutoMem>> words_of(AutoMem) { return kAutoMems; }

/// Which threads copy between tiers in memory if no core is reserved for it: threads beside the workers, the workers at
/// the borders of nodes, or the faster of both.
enum class Copy { kAuto, kThreads, kWorkers };
inline constexpr Word<Copy> kCopies[] = {
    {"auto", Copy::kAuto}, {"threads", Copy::kThreads}, {"workers", Copy::kWorkers}};
constexpr std::span<const Word<Copy>> words_of(Copy) { return kCopies; }

/// Which code computes the GEMMs: our kernels or the reference loops.
enum class Gemm { kOwn, kRef };
inline constexpr Word<Gemm> kGemms[] = {{"own", Gemm::kOwn}, {"ref", Gemm::kRef}};
constexpr std::span<const Word<Gemm>> words_of(Gemm) { return kGemms; }

/// Where the cache blocks of GEMMs come from: the file of ditbench tune if it exists, the caches, or another file.
enum class TunedFrom { kAuto, kOff, kFile };
inline constexpr Word<TunedFrom> kTunedFrom[] = {{"auto", TunedFrom::kAuto}, {"off", TunedFrom::kOff}};
constexpr std::span<const Word<TunedFrom>> words_of(TunedFrom) { return kTunedFrom; }

/// How gradients are summed: by MPI over all ranks, or in the memory of a node and then between nodes.
enum class AllReduce { kFlat, kHierarchical };
inline constexpr Word<AllReduce> kAllReduces[] = {{"flat", AllReduce::kFlat},
                                                  {"hierarchical", AllReduce::kHierarchical}};
constexpr std::span<const Word<AllReduce>> words_of(AllReduce) { return kAllReduces; }

/// How adaLN weight gradients are reduced: all-reduce, or all-gather of their low-rank factors.
enum class AdalnExchange { kAuto, kReduce, kFactors };
inline constexpr Word<AdalnExchange> kAdalnExchanges[] = {
    {"auto", AdalnExchange::kAuto}, {"reduce", AdalnExchange::kReduce}, {"factors", AdalnExchange::kFactors}};
constexpr std::span<const Word<AdalnExchange>> words_of(AdalnExchange) { return kAdalnExchanges; }

/// What a run prints: the usual lines, or also the details that log.txt and topology.txt have.
enum class LogLevel { kInfo, kDebug };
inline constexpr Word<LogLevel> kLogLevels[] = {{"info", LogLevel::kInfo}, {"debug", LogLevel::kDebug}};
constexpr std::span<const Word<LogLevel>> words_of(LogLevel) { return kLogLevels; }

/// Channels that guidance changes: the first three, as in the reference, or all.
enum class GuidedChannels { kThree, kAll };
inline constexpr Word<GuidedChannels> kGuidedChannels[] = {{"3", GuidedChannels::kThree},
                                                           {"all", GuidedChannels::kAll}};
constexpr std::span<const Word<GuidedChannels>> words_of(GuidedChannels) { return kGuidedChannels; }
/// The number in diffusion::SamplerConfig; -1: all.
constexpr int64_t number_of(GuidedChannels channels) { return channels == GuidedChannels::kAll ? -1 : 3; }

}  // namespace ditrain::config
