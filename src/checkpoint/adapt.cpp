#include "ditrain/checkpoint/adapt.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "ditrain/base/error.hpp"
#include "ditrain/checkpoint/checkpoint.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/nn/patch_embed.hpp"

namespace ditrain::checkpoint {
namespace {

using autograd::Parameter;

constexpr const char *kTable = "pos_embed", *kLabels = "y_embedder.embedding_table.weight",
                     *kLast = "final_layer.linear.weight", *kLastBias = "final_layer.linear.bias";

// Keys of section model that may differ; the name stands for others, and of mlp_ratio the width counts.
bool may_differ(const std::string& key, const nn::ModelConfig& from, const nn::ModelConfig& to) {
  static const std::set<std::string> kAdapted = {"input_size",    "in_channels", "num_classes",
                                                 "class_dropout", "learn_sigma", "metadata_drop"};
  const bool new_condition = key == "condition_channels" && from.condition_channels == 0;
  return key == "name" || kAdapted.contains(key) || new_condition ||
         (key == "mlp_ratio" && from.mlp_size() == to.mlp_size());
}

void refuse_other_networks(const DitFile& file, const config::Config& target) {
  for (const config::Option& o : config::option_table()) {
    if (o.section != "model" || may_differ(o.key, file.config().model, target.model)) continue;
    const std::string theirs = o.get(file.config()), ours = o.get(target);
    if (theirs != ours)
      throw InputError({.where = file.path(),
                        .what = fmt::format("the weights are of another network: {}", o.name()),
                        .got = theirs,
                        .expected = ours + ", as the config says",
                        .hint = fmt::format("--set {}={}", o.name(), theirs)});
  }
}

// The bands of a condition have no rule that maps them.
void refuse_other_condition(const DitFile& file, const config::Config& target) {
  if (file.config().model.condition_channels == 0 || target.model.condition_channels == 0) return;
  const std::vector<std::string> theirs = dataset::condition_names(file.config().data),
                                 ours = dataset::condition_names(target.data);
  if (theirs.empty() || theirs == ours) return;
  throw InputError({.where = file.path(),
                    .what = "the weights are of a model that is given other bands: data.condition",
                    .got = fmt::format("{}", fmt::join(theirs, ", ")),
                    .expected = fmt::format("{}, as the config says", fmt::join(ours, ", ")),
                    .hint = fmt::format("--set data.condition=[{}]", fmt::join(theirs, ", "))});
}

/// Makes full tensors of the model here from those of the file.
class Adapter {
 public:
  Adapter(const DitFile& file, const config::Config& target)
      : file_(file),
        from_(file.config().model),
        to_(target.model),
        channels_(from_.in_channels, band_names(file.config()), to_.in_channels, band_names(target)) {
    refuse_other_networks(file, target);
    refuse_other_condition(file, target);
    if (!channels_.same()) changes_.push_back(channels_.describe());
    if (from_.condition_channels != to_.condition_channels)
      changes_.push_back(fmt::format("{} channels that the file's model is not given: they start without effect",
                                     to_.condition_channels));
    if (!channels_.same() || from_.condition_channels != to_.condition_channels)
      rules_[nn::kPatchesWeight] = rules_[nn::kNarrowPatchesWeight] = &Adapter::patches;
    if (!channels_.same() || from_.learn_sigma != to_.learn_sigma)
      rules_[kLast] = rules_[kLastBias] = &Adapter::last_layer;
    if (from_.learn_sigma != to_.learn_sigma)
      changes_.emplace_back(to_.learn_sigma
                                ? "no variance channels in the file: they start at 0"
                                : "the variance channels of the file are dropped (model.learn_sigma: false)");
    if (from_.grid_height() != to_.grid_height() || from_.grid_width() != to_.grid_width()) {
      changes_.push_back(fmt::format("input of {} x {} in the file, {} x {} here{}", from_.input_height,
                                     from_.input_width, to_.input_height, to_.input_width,
                                     to_.position == nn::Position::kSincos ? ": a new position table" : ""));
      rules_[kTable] = &Adapter::keep;
    }
    compare_labels();
    if (!config::learns_pixels(file.config()) && config::learns_pixels(target))
      changes_.emplace_back("the weights were trained on latents and learn pixels here: expect a long way");
    if (!rules_.empty() && to_.kind != nn::ModelConfig().kind)
      throw InputError(
          {.where = file.path(),
           .what = fmt::format("weights of model.kind: {} are not adapted to other data", word_of(to_.kind)),
           .got = changes_.front(),
           .expected = "the same channels, classes and input size as the file's config",
           .hint = "weights of a model of the same sizes, or no train.init_from"});
  }

  const std::vector<std::string>& changes() const { return changes_; }

  /// `values` is what the model starts with.
  std::vector<float> make(const Parameter& p, const std::vector<float>& values) const {
    const auto rule = rules_.find(p.name);
    return rule == rules_.end() ? file_.read(p.name) : (this->*rule->second)(p, values);
  }
  bool keeps_start(const Parameter& p) const {
    const auto rule = rules_.find(p.name);
    return rule != rules_.end() && rule->second == &Adapter::keep;
  }
  bool adapts(const Parameter& p) const { return rules_.contains(p.name); }

 private:
  using Rule = std::vector<float> (Adapter::*)(const Parameter& p, const std::vector<float>& values) const;

  bool drops(const nn::ModelConfig& m) const { return m.label_rows() == m.num_classes + 1; }
  void compare_labels() {
    if (from_.num_classes == to_.num_classes && from_.label_rows() == to_.label_rows()) return;
    rules_[kLabels] = from_.num_classes == 0 ? &Adapter::keep : &Adapter::labels;
    if (from_.num_classes == to_.num_classes)
      changes_.emplace_back(drops(to_) ? "no row of dropped labels in the file: a new one"
                                       : "the file's row of dropped labels is left out");
    else if (to_.num_classes == 0)
      changes_.push_back(
          fmt::format("{} classes in the file, none here: its label table is left out", from_.num_classes));
    else
      changes_.push_back(
          fmt::format("{} classes in the file, {} here: a new label table{}{}", from_.num_classes, to_.num_classes,
                      drops(from_) && drops(to_) ? ", with the file's row of dropped labels" : "",
                      from_.num_classes < to_.num_classes
                          ? ""
                          : fmt::format("; --set model.num_classes={} keeps the file's, if the labels mean the same",
                                        from_.num_classes)));
  }

  std::vector<float> keep(const Parameter&, const std::vector<float>& values) const { return values; }

  std::vector<float> labels(const Parameter&, const std::vector<float>& values) const {
    const std::vector<float> theirs = file_.read(kLabels);
    std::vector<float> ours = values;
    const int64_t C = to_.hidden_size;
    const auto copy = [&](int64_t from_row, int64_t to_row, int64_t rows) {
      std::copy_n(theirs.begin() + from_row * C, rows * C, ours.begin() + to_row * C);
    };
    if (from_.num_classes == to_.num_classes) copy(0, 0, to_.num_classes);
    if (drops(from_) && drops(to_)) copy(from_.num_classes, to_.num_classes, 1);
    return ours;
  }

  // [C or bottleneck, channels, K, K]: those of the image, then those of a condition, which are the file's or 0.
  std::vector<float> patches(const Parameter& p, const std::vector<float>&) const {
    const std::vector<float> theirs = file_.read(p.name);
    const int64_t C = p.full_shape[0], PP = to_.patch_side() * to_.patch_side(), from = channels_.from(),
                  to = channels_.to();
    const float scale = float(double(from) / double(to));
    const int64_t from_all = from + from_.condition_channels, to_all = to + to_.condition_channels;
    std::vector<float> ours(size_t(num_elements(p.full_shape)));
    for (int64_t c = 0; c < C; ++c) {
      for (int64_t i = 0; i < to; ++i)
        for (int64_t k = 0; k < PP; ++k)
          ours[size_t((c * to_all + i) * PP + k)] =
              scale * channels_.value(i, [&](int64_t j) { return theirs[size_t((c * from_all + j) * PP + k)]; });
      std::copy_n(theirs.begin() + (c * from_all + from) * PP, from_.condition_channels * PP,
                  ours.begin() + (c * to_all + to) * PP);
    }
    return ours;
  }

  // Rows [K, K, predictions and variances of the channels], of C values or, for the bias, one.
  std::vector<float> last_layer(const Parameter& p, const std::vector<float>&) const {
    const std::vector<float> theirs = file_.read(p.name);
    const int64_t PP = to_.patch_side() * to_.patch_side(), from_rows = from_.out_channels(), rows = to_.out_channels();
    const int64_t n = num_elements(p.full_shape) / p.full_shape[0];
    std::vector<float> ours(size_t(num_elements(p.full_shape)), 0.f);
    for (int64_t k = 0; k < PP; ++k)
      for (int64_t row = 0; row < rows; ++row) {
        const bool variance = row >= channels_.to();
        if (variance && !from_.learn_sigma) continue;
        const int64_t first = k * from_rows + (variance ? channels_.from() : 0);
        for (int64_t i = 0; i < n; ++i)
          ours[size_t((k * rows + row) * n + i)] =
              channels_.value(row % channels_.to(), [&](int64_t j) { return theirs[size_t((first + j) * n + i)]; });
      }
    return ours;
  }

  const DitFile& file_;
  const nn::ModelConfig &from_, &to_;
  ChannelMap channels_;
  std::map<std::string, Rule> rules_;
  std::vector<std::string> changes_;
};

}  // namespace

std::vector<std::string> band_names(const config::Config& config) {
  if (!config::learns_pixels(config)) return {};  // data.bands are those of what the latents were made of
  if (int64_t(config.data.bands.size()) == config.model.in_channels) return config.data.bands;
  if (config.data.kind->of_colours && config.model.in_channels == 3) return {"red", "green", "blue"};
  return {};
}

std::vector<std::string> load_adapted(const DitFile& file, const config::Config& target, nn::Model& model,
                                      const std::vector<int>& pus) {
  const Adapter adapter(file, target);
  autograd::ParameterStore& parameters = model.parameters();
  if (adapter.changes().empty() && file.is_plain()) {  // the quick way, by many threads
    load_weights(file.path(), parameters, parameters.values, pus);
    return {};
  }
  if (const auto checks = checks_of(file.path())) check_file(file.path(), *checks, pus);
  for (Parameter* p : parameters.state_dict()) {
    const Pin<float> value(p->value);
    // What is adapted, no ranks share.
    DITRAIN_CHECK(p->part.whole() || !adapter.adapts(*p), p->name + " is whole");
    if (adapter.keeps_start(*p)) continue;
    const std::vector<float> start =
        adapter.adapts(*p) ? std::vector<float>(value.get(), value.get() + p->size()) : std::vector<float>();
    const std::vector<float> full = adapter.make(*p, start);
    p->part.whole() ? void(std::copy(full.begin(), full.end(), value.get())) : p->part.take(full.data(), value.get());
  }
  return adapter.changes();
}

}  // namespace ditrain::checkpoint
