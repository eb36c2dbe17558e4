// The config tree of a run: one struct per section of the YAML file, and the functions that read, write and check it.
// A field and its row in option_table.cpp are all that a new key needs.
//
//   Config config = load_config("quickstart.yaml", {"train.steps=100"});
//   validate(config);
//   validate_for_ranks(config, world_size);
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ditrain/config/choices.hpp"
#include "ditrain/dataset/config.hpp"
#include "ditrain/diffusion/config.hpp"
#include "ditrain/dist/link_model.hpp"
#include "ditrain/memory/copy_engine.hpp"
#include "ditrain/memory/tiers.hpp"
#include "ditrain/nn/layer_sync.hpp"
#include "ditrain/nn/recompute.hpp"
#include "ditrain/optim/config.hpp"

namespace ditrain::config {

struct TrainConfig {
  int64_t steps = 1000;       ///< optimiser steps in total
  int64_t global_batch = 32;  ///< samples per step, over all ranks
  int64_t micro_batch = 0;    ///< samples that a rank processes at once; 0: all of its share
  DType precision = DType::kF32;
  std::optional<nn::Recompute> recompute = nn::Recompute::kSelective;  ///< none: auto, see recompute_of_blocks
  std::vector<nn::Recompute> recompute_of_blocks = {};                 ///< no key: what a plan settles for auto
  OnNonFinite on_non_finite = OnNonFinite::kStop;
  int64_t seed = 0;
  nn::Routes routing = {};
  std::optional<nn::LayerSync> layer_sync = {};
  std::string init_from;    ///< checkpoint or published weights that a new run starts from; empty: none
  std::string branch_from;  ///< checkpoint whose weights, optimiser state and step a new run continues; empty: none
};

struct ParallelConfig {
  int64_t threads = 0;   ///< worker threads per rank; 0: auto
  int64_t clusters = 0;  ///< thread clusters per rank; 0: auto
  Strategy strategy = Strategy::kCftp;
  int64_t tensor_ranks = 0;  ///< ranks that share a replica (dp_tp); 0: auto
  ClusterSplitChoice cut = ClusterSplitChoice::kAuto;
  int64_t comm_cores = -1;  ///< cores per rank that only communicate; -1: auto, 0: shared with workers
  bool smt = false;
};

struct MemoryConfig {
  double fast_gib = 0;  ///< GiB per rank; 0: its share of the on-package memory (HBM)
  /// The size of each slow tier, in the order of memory::kTiers. None means auto: as much as tensors need, or nothing
  /// if a slower tier has a size.
  memory::PerTier<std::optional<double>> tier_gib = memory::default_gib();
  std::string disk_path = {};  ///< "": the run folder
  platform::PagePolicy pages = platform::PagePolicy::kAuto;
  std::optional<memory::SimulatedBulk> simulate_bulk = {};
  int64_t copy_cores = -1;  ///< cores per rank that only copy between tiers; -1: auto, 0: shared with workers
  Copy copy = Copy::kAuto;
  AutoMem automem = AutoMem::kOff;
  bool moves() const { return automem != AutoMem::kOff; }  ///< whether tensors move
};

struct KernelsConfig {
  Gemm gemm = Gemm::kOwn;
  bool fuse = true;
  TunedFrom tuned = TunedFrom::kAuto;
  std::string tuning_file = {};  ///< path for kFile
};

struct DistConfig {
  double bucket_mib = 25;  ///< size of one gradient bucket [MiB]
  bool overlap = true;
  bool engine = true;  ///< a thread of its own runs the all-reduce
  AllReduce allreduce = AllReduce::kHierarchical;
  DType wire = DType::kF32;  ///< type of gradients between nodes
  AdalnExchange adaln = AdalnExchange::kAuto;
  bool shard_optimizer = false;  ///< optimiser state and EMA are divided over the ranks (ZeRO-1)
  bool reproducible = false;     ///< bit-identical for any number of ranks
  /// A step that waits longer for another rank ends the run; 0: never. None means auto: the larger of 300 s and 30
  /// recent steps.
  std::optional<double> timeout_s = {};
  int64_t verify_every = 0;  ///< steps between comparisons of the ranks' weights; 0: never
  std::optional<dist::LinkModel> simulate_link = {};
  std::optional<optim::OuterConfig> outer = {};  ///< none: gradients are summed over all ranks in every step
};

struct CheckpointConfig {
  int64_t every_steps = 1000;   ///< steps between checkpoints; 0: none by steps
  double every_minutes = 30;    ///< maximum time between checkpoints; 0: no limit
  int64_t keep_last = 3;        ///< newest checkpoints that stay; 0: all
  int64_t keep_every = 0;       ///< steps divisible by it are kept for ever; 0: none
  bool keep_discarded = false;  ///< keep those after the step that a run resumes from
  bool async = true;            ///< written while training continues
  double buffer_gib = 1;        ///< per rank: copy-on-write buffer of async
  double timeout_s = 0;         ///< a disk without progress for longer ends the run; 0: no limit
  OnCheckpointError on_error = OnCheckpointError::kWarn;
};

struct LogConfig {
  int64_t every_steps = 10;   ///< steps between progress lines; metrics.jsonl has every step
  double every_seconds = 60;  ///< maximum time without a line, also within a step; 0: no limit
  LogLevel level = LogLevel::kInfo;
  bool tensorboard = false;  ///< event files of scalars and sample grids in OUT/tensorboard
  std::string prometheus;    ///< a text file for node_exporter; empty: none
};

struct SampleConfig {
  int64_t every_steps = 0;  ///< steps between sample grids; 0: no samples while training
  int64_t num_images = 64;
  std::string vae;                              ///< decodes samples of latents; empty: not decoded
  std::string steps = "50";                     ///< respacing, as "50", "ddim25" or "10,10,20"
  const diffusion::Sampler* sampler = nullptr;  ///< null: the default of the process
  double cfg_scale = 1.0;                       ///< classifier-free guidance; 1: off
  GuidedChannels cfg_channels = GuidedChannels::kAll;
  diffusion::GuidedInterval cfg_interval = {};
  std::string guide;  ///< checkpoint of a weaker model that guides instead of the absent label; empty: none
};

struct EvalConfig {
  int64_t every_steps = 0;  ///< steps between validations; 0: no validation loss
  int64_t num_images = 256;
  int64_t fid_every_steps = 0;  ///< steps between Frechet distances of samples; 0: none
  int64_t fid_samples = 1000;
  std::string reference = {};  ///< images or statistics to compare with; empty: images of the data
  FidFeatures features = FidFeatures::kPixels;
  std::string weights = {};  ///< weights of the Inception network
};

struct Config {
  nn::ModelConfig model{.num_classes = 8};  ///< classes of the drawn shapes: the defaults are a run
  diffusion::Config diffusion;
  dataset::Config data;
  TrainConfig train;
  optim::Config optimizer;
  optim::EmaConfig ema;
  ParallelConfig parallel;
  MemoryConfig memory;
  KernelsConfig kernels;
  DistConfig dist;
  CheckpointConfig checkpoint;
  LogConfig log;
  SampleConfig sample;
  EvalConfig eval;
};

/// The config of an empty file: the defaults of the keys.
Config default_config();

/// Reads the config `path`, then `overlays`, whose keys replace those of the files before them, applies `sets`
/// ("a.b=v") in order, then fills the sizes that model.name stands for. `path` is looked for in the working directory,
/// then in share/ditrain/configs beside the folder of the running program, then in the installed configs. It makes no
/// checks across keys: call `validate`.
/// Errors:   InputError "[config] FILE:LINE: ..." for a file that is not found, bad YAML, unknown, double or ill-typed
///           keys, values out of range
Config load_config(const std::string& path, const std::vector<std::string>& sets = {},
                   const std::vector<std::string>& overlays = {});

/// The same from text; `file_name` is what messages call it.
Config parse_config(const std::string& text, const std::string& file_name, const std::vector<std::string>& sets = {});

/// The effective config: every key with its comment; `parse_config` of it gives the same Config.
std::string to_yaml(const Config& config);

/// Whether the model learns pixels, values in [-1, 1], instead of latents.
bool learns_pixels(const Config& config);
/// Warnings about settings that are allowed but seldom meant, each a sentence with what to change.
std::vector<std::string> warnings(const Config& config);

/// The sampler settings of a training run: those of section sample, clamped to [-1, 1] for pixels, and without guidance
/// unless the model was also trained without labels. Errors: InputError for a bad sample.steps
diffusion::SamplerConfig sampler_of(const Config& config);
/// The value of sample.guide for which the guide is the model itself with the token routes of its training.
/// guide_routes returns these routes, or none for another guide.
inline constexpr std::string_view kRoutedGuide = "routed";
nn::Routes guide_routes(const std::string& guide, const Config& config);
/// Whether a run samples: for grids, or for distances (eval.fid_every_steps).
bool draws_samples(const Config& config);

/// Checks keys against each other: shapes, sizes that overflow, model against diffusion and data, data path, and
/// section sample if sample.every_steps is above 0. Does not depend on the ranks.
/// Errors:   InputError "[config] ...", with the line to set
void validate(const Config& config);

/// The part of `validate` that leaves out section `data` (programs that bring their own data, such as ditbench).
void validate_without_data(const Config& config);

/// dataset::check_channels of a config whose data are settled, as those of checkpoints and exports are.
void check_bands(const Config& config);

/// Checks that ranks and model divide by the ranks that share a replica (dp_tp), and that the global batch divides
/// evenly over the replicas of `world_size` ranks and into micro-batches. parallel.tensor_ranks: auto counts as 1.
/// Errors:   InputError "[config] train.global_batch ..."
void validate_for_ranks(const Config& config, int world_size);

}  // namespace ditrain::config
