// What flags, keys and words of the reference implementations (train.py and sample.py of DiT and SiT) and of other
// trainers are called here, for the errors that refuse them. The guide configs/README.md has those of train.py in a
// table.
#pragma once
#include <algorithm>
#include <iterator>
#include <string_view>

namespace ditrain::config {

struct ReferenceName {
  std::string_view name;       ///< words joined by '_'; SECTION.NAME: a key, in that section alone
  std::string_view key;        ///< the config key; "": there is none
  std::string_view flag = "";  ///< the flag, in programs that have it
  std::string_view note = "";  ///< how the value follows from that of the reference
};

inline constexpr ReferenceName kReferenceNames[] = {
    {"batch_size", "train.global_batch"},
    {"ckpt", "train.init_from", "checkpoint"},
    {"ckpt_every", "checkpoint.every_steps"},
    {"data_path", "data.path"},
    {"device", ""},
    {"ema_decay", "ema.decay"},
    {"epochs", "train.steps", "", "epochs x images / train.global_batch"},
    {"global_batch_size", "train.global_batch"},
    {"global_seed", "train.seed", "seed"},
    {"grad_clip", "optimizer.clip_norm"},
    {"gradient_accumulation", "train.micro_batch", "", "train.global_batch / ranks / accumulation"},
    {"gradient_accumulation_steps", "train.micro_batch", "", "train.global_batch / ranks / accumulation"},
    {"image_size", "model.input_size", "", "of latents: an eighth of the pixels"},
    {"learning_rate", "optimizer.lr"},
    {"log_every", "log.every_steps"},
    {"name", "", "out"},
    {"num_sampling_steps", "sample.steps", "steps"},
    {"num_fid_samples", "eval.fid_samples", "num"},
    {"num_workers", "data.loader_threads"},
    {"optimizer.name", "optimizer.kind"},
    {"per_proc_batch_size", "", "batch"},
    {"results_dir", "", "out"},
    {"sample_dir", "", "out"},
};

/// The row of a name; null: no name of the references.
inline const ReferenceName* find_reference_name(std::string_view name) {
  const auto* row = std::find_if(std::begin(kReferenceNames), std::end(kReferenceNames),
                                 [&](const ReferenceName& r) { return r.name == name; });
  return row == std::end(kReferenceNames) ? nullptr : row;
}

/// A word that other trainers give such a key, and the one that has its meaning here.
struct ReferenceWord {
  std::string_view key, word, meant;
};

inline constexpr ReferenceWord kReferenceWords[] = {
    {"data.on_bad_file", "stop", "error"},
    {"diffusion.loss", "l2", "mse"},
};

}  // namespace ditrain::config
