// What can be chosen by a word in sections train, parallel, memory, kernels, dist and sample; see the help of the keys.
#pragma once
#include <span>

#include "ditrain/base/words.hpp"

namespace ditrain::config {

/// What the samples of a run are compared by.
enum class FidFeatures { kPixels, kInception };
inline constexpr Word<FidFeatures> kFidFeatures[] = {{"pixels", FidFeatures::kPixels},
                                                     {"inception", FidFeatures::kInception}};
constexpr std::span<const Word<FidFeatures>> words_of(FidFeatures) { return kFidFeatures; }

/// What a loss or gradient that is not finite does: ends the run, or is counted and its step left out.
enum class OnNonFinite { kStop, kSkip };
inline constexpr Word<OnNonFinite> kOnNonFinite[] = {{"stop", OnNonFinite::kStop}, {"skip", OnNonFinite::kSkip}};
constexpr std::span<const Word<OnNonFinite>> words_of(OnNonFinite) { return kOnNonFinite; }

/// What a checkpoint that could not be written does: ends the run, or is warned about. The last one of a run ends it.
enum class OnCheckpointError { kStop, kWarn };
inline constexpr Word<OnCheckpointError> kOnCheckpointError[] = {{"stop", OnCheckpointError::kStop},
                                                                 {"warn", OnCheckpointError::kWarn}};
constexpr std::span<const Word<OnCheckpointError>> words_of(OnCheckpointError) { return kOnCheckpointError; }

/// What shares a replica: the clusters of a rank (cftp), no ranks (dp), some ranks (dp_tp).
enum class Strategy { kCftp, kDp, kDpTp };
inline constexpr Word<Strategy> kStrategies[] = {
    {"cftp", Strategy::kCftp}, {"dp", Strategy::kDp}, {"dp_tp", Strategy::kDpTp}};
constexpr std::span<const Word<Strategy>> words_of(Strategy) { return kStrategies; }

/// What is cut over the clusters of a rank.
enum class Cut { kAuto, kSamples, kN };
inline constexpr Word<Cut> kCuts[] = {{"auto", Cut::kAuto}, {"samples", Cut::kSamples}, {"n", Cut::kN}};
constexpr std::span<const Word<Cut>> words_of(Cut) { return kCuts; }

/// What moves tensors between memory tiers, and how far ahead: nothing; the paper's Algorithm 1, module by module; a
/// plan of the step.
enum class AutoMem { kOff, kPaper, kPlanned };
inline constexpr Word<AutoMem> kAutoMems[] = {
    {"off", AutoMem::kOff}, {"paper", AutoMem::kPaper}, {"planned", AutoMem::kPlanned}};
constexpr std::span<const Word<AutoMem>> words_of(AutoMem) { return kAutoMems; }

/// Who copies between tiers in memory, where no core does only that: threads beside the workers, the workers at the
/// borders of nodes, or whichever is faster.
enum class Copy { kAuto, kThreads, kWorkers };
inline constexpr Word<Copy> kCopies[] = {
    {"auto", Copy::kAuto}, {"threads", Copy::kThreads}, {"workers", Copy::kWorkers}};
constexpr std::span<const Word<Copy>> words_of(Copy) { return kCopies; }

/// What computes the matrix products.
enum class Gemm { kOwn, kOpenBlas, kBlis, kOneDnn, kRef };
inline constexpr Word<Gemm> kGemms[] = {{"own", Gemm::kOwn},
                                        {"openblas", Gemm::kOpenBlas},
                                        {"blis", Gemm::kBlis},
                                        {"onednn", Gemm::kOneDnn},
                                        {"ref", Gemm::kRef}};
constexpr std::span<const Word<Gemm>> words_of(Gemm) { return kGemms; }

/// Where the cache blocks of products come from: the file of ditbench tune, if there is one; the caches; another file.
enum class TunedFrom { kAuto, kOff, kFile };
inline constexpr Word<TunedFrom> kTunedFrom[] = {{"auto", TunedFrom::kAuto}, {"off", TunedFrom::kOff}};
constexpr std::span<const Word<TunedFrom>> words_of(TunedFrom) { return kTunedFrom; }

/// How gradients are summed: by MPI over all ranks, or in the memory of a node and then between nodes.
enum class AllReduce { kFlat, kHierarchical };
inline constexpr Word<AllReduce> kAllReduces[] = {{"flat", AllReduce::kFlat},
                                                  {"hierarchical", AllReduce::kHierarchical}};
constexpr std::span<const Word<AllReduce>> words_of(AllReduce) { return kAllReduces; }

/// What ranks exchange of adaLN's gradients.
enum class AdalnExchange { kAuto, kReduce, kFactors };
inline constexpr Word<AdalnExchange> kAdalnExchanges[] = {
    {"auto", AdalnExchange::kAuto}, {"reduce", AdalnExchange::kReduce}, {"factors", AdalnExchange::kFactors}};
constexpr std::span<const Word<AdalnExchange>> words_of(AdalnExchange) { return kAdalnExchanges; }

/// Channels that guidance changes: the first three, as the reference, or all.
enum class GuidedChannels { kThree, kAll };
inline constexpr Word<GuidedChannels> kGuidedChannels[] = {{"3", GuidedChannels::kThree},
                                                           {"all", GuidedChannels::kAll}};
constexpr std::span<const Word<GuidedChannels>> words_of(GuidedChannels) { return kGuidedChannels; }
/// As diffusion::SamplerConfig counts them.
constexpr int64_t number_of(GuidedChannels channels) { return channels == GuidedChannels::kAll ? -1 : 3; }

}  // namespace ditrain::config
