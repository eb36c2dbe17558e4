#include "ditrain/config/key_help.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "ditrain/base/error.hpp"
#include "ditrain/config/text_layout.hpp"
#include "reference_names.hpp"

namespace ditrain::config {
namespace {

// Keys that stand in neither list are for some runs.
constexpr std::string_view kEveryRun[] = {"model.name",
                                          "model.input_size",
                                          "model.in_channels",
                                          "model.num_classes",
                                          "diffusion.process",
                                          "data.kind",
                                          "data.path",
                                          "data.vae",
                                          "data.random_flip",
                                          "data.bands",
                                          "train.steps",
                                          "train.global_batch",
                                          "train.micro_batch",
                                          "train.precision",
                                          "train.recompute",
                                          "train.seed",
                                          "train.init_from",
                                          "optimizer.lr",
                                          "optimizer.schedule",
                                          "optimizer.warmup_steps",
                                          "ema.decay",
                                          "parallel.threads",
                                          "memory.automem",
                                          "dist.shard_optimizer",
                                          "checkpoint.every_steps",
                                          "checkpoint.keep_last",
                                          "log.tensorboard",
                                          "sample.every_steps",
                                          "sample.num_images",
                                          "sample.cfg_scale",
                                          "sample.vae",
                                          "eval.every_steps",
                                          "eval.fid_every_steps"};
constexpr std::string_view kExperts[] = {"diffusion.num_steps",
                                         "diffusion.variance",
                                         "diffusion.min_snr_gamma",
                                         "diffusion.time_mean",
                                         "diffusion.time_deviation",
                                         "data.scale_low",
                                         "data.scale_high",
                                         "data.number_type",
                                         "data.number_scale",
                                         "data.number_offset",
                                         "data.loader_threads",
                                         "data.queue_batches",
                                         "optimizer.betas",
                                         "optimizer.eps",
                                         "optimizer.decay_share",
                                         "parallel.strategy",
                                         "parallel.clusters",
                                         "parallel.tensor_ranks",
                                         "parallel.cut",
                                         "parallel.comm_cores",
                                         "parallel.smt",
                                         "memory.pages",
                                         "memory.simulate_bulk",
                                         "memory.copy_cores",
                                         "memory.copy",
                                         "kernels.gemm",
                                         "kernels.fuse",
                                         "kernels.tuned",
                                         "dist.bucket_mib",
                                         "dist.overlap",
                                         "dist.engine",
                                         "dist.allreduce",
                                         "dist.wire",
                                         "dist.adaln",
                                         "dist.verify_every",
                                         "dist.simulate_link",
                                         "dist.outer",
                                         "checkpoint.keep_discarded",
                                         "checkpoint.buffer_gib",
                                         "sample.cfg_channels"};

template <class List>
bool lists(const List& list, const std::string& name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

/// The default as a user writes it; "none" for an empty text.
std::string default_of(const Option& o, const Config& defaults) {
  const std::string value = o.get(defaults);
  return value.empty() || value == "\"\"" || value == "''" ? "none" : value;
}

/// What the key is for, in a few words: its first clause, or its values if they explain themselves.
std::string in_short(const Option& o) {
  if (!o.words.empty() && o.help.starts_with(o.words.front() + ":")) return o.expected;
  return o.help.substr(0, std::min(o.help.find(';'), o.help.find(" (")));
}

std::string short_line(const Option& o, const Config& defaults, size_t indent, size_t width) {
  return labelled("  " + o.name(), fmt::format("{} [{}]", in_short(o), default_of(o, defaults)), indent, width);
}

std::string in_full(const Option& o, const Config& defaults, size_t width) {
  constexpr size_t kIndent = 14;
  const auto line = [&](const char* label, const std::string& text) { return labelled(label, text, kIndent, width); };
  std::string text = o.name() + "\n" + line("  meaning", o.help) + line("  values", o.expected) +
                     line("  default", default_of(o, defaults));
  if (!o.process.empty()) text += line("  read by", "diffusion.process " + o.process + " alone");
  if (o.may_change_on_resume) text += line("  on resume", "may change");
  if (audience_of(o) == Audience::kExperts) text += line("  for", "experts: the default suits nearly every run");
  return text;
}

std::string section_in_full(const std::string& section, const Config& defaults, size_t width) {
  std::string text;
  for (const Option& o : option_table())
    if (o.section == section) text += (text.empty() ? "" : "\n") + in_full(o, defaults, width);
  return text;
}

std::string all_keys(const Config& defaults, size_t width) {
  std::string text = wrapped(
      "Config keys (YAML file, or --set KEY=VALUE): meaning; values [default]. A star marks keys for experts.", width);
  size_t indent = 0;
  for (const Option& o : option_table()) indent = std::max(indent, o.key.size() + 4);
  std::string section;
  for (const Option& o : option_table()) {
    if (o.section != section) text += "\n" + (section = o.section) + ":\n";
    const char* mark = audience_of(o) == Audience::kExperts ? "*" : " ";
    text += labelled(fmt::format("{} {}", mark, o.key),
                     fmt::format("{}; {} [{}]", o.help, o.expected, default_of(o, defaults)), indent, width);
  }
  return text;
}

std::string in_cell(std::string text) {
  for (size_t i = text.find('|'); i != text.npos; i = text.find('|', i + 2)) text.insert(i, "\\");
  return text;
}

}  // namespace

Audience audience_of(const Option& option) {
  if (lists(kEveryRun, option.name())) return Audience::kEveryRun;
  return lists(kExperts, option.name()) ? Audience::kExperts : Audience::kSomeRuns;
}

std::vector<std::string> keys_with_audience() {
  std::vector<std::string> names(std::begin(kEveryRun), std::end(kEveryRun));
  names.insert(names.end(), std::begin(kExperts), std::end(kExperts));
  return names;
}

std::string common_keys(size_t width) {
  const Config defaults = default_config();
  size_t indent = 0;
  for (const std::string_view name : kEveryRun) indent = std::max(indent, name.size() + 4);
  std::string text;
  for (const Option& o : option_table())
    if (audience_of(o) == Audience::kEveryRun) text += short_line(o, defaults, indent, width);
  return text;
}

std::string help_on_keys(const std::string& topic, size_t width) {
  const Config defaults = default_config();
  if (topic == "all") return all_keys(defaults, width);
  const std::vector<std::string> sections = option_sections();
  if (lists(sections, topic)) return section_in_full(topic, defaults, width);
  std::string text;
  std::vector<std::string> topics = sections;
  topics.emplace_back("all");
  for (const Option& o : option_table()) {
    topics.push_back(o.name()), topics.push_back(o.key);
    if (o.name() == topic || o.key == topic) text += (text.empty() ? "" : "\n") + in_full(o, defaults, width);
  }
  if (!text.empty()) return text;
  const ReferenceName* known = find_reference_name(topic);
  const std::string near = known ? std::string(known->key) : nearest_word(topic, topics);
  throw InputError({.where = "command line",
                    .what = "--help: there is no such section or key",
                    .got = topic,
                    .expected = near.empty() ? "all, a key, or one of the sections " + alternatives(sections) : "",
                    .hint = near.empty() ? "" : "--help " + near});
}

std::string keys_page() {
  const Config defaults = default_config();
  std::string text =
      "# Config keys\n\n"
      "All keys of a config file, as `ditrain --help all` lists them. This page is made from the program's table:\n"
      "`ditrain --help markdown > configs/KEYS.md` renews it. [README.md](README.md) explains how keys work "
      "together.\n\n"
      "**Bold** keys are those that most runs set (`ditrain --help`); the keys *in italics* are for experts: their\n"
      "defaults suit nearly every run. A dagger (†) marks what a resumed run may change.\n";
  std::string section;
  for (const Option& o : option_table()) {
    if (o.section != section)
      text += fmt::format("\n## {}\n\n| key | meaning | values | default |\n|---|---|---|---|\n", section = o.section);
    const Audience audience = audience_of(o);
    const char* mark = audience == Audience::kEveryRun ? "**" : audience == Audience::kExperts ? "*" : "";
    text += fmt::format("| {}`{}`{}{} | {} | {} | `{}` |\n", mark, o.key, mark, o.may_change_on_resume ? " †" : "",
                        in_cell(o.help), in_cell(o.expected), in_cell(default_of(o, defaults)));
  }
  return text;
}

}  // namespace ditrain::config
