#include "ditrain/config/differences.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "ditrain/base/error.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/diffusion/registry.hpp"

namespace ditrain::config {
namespace {

// Whether what is trained depends on the key.
bool is_read(const Option& o, const Config& config) {
  const diffusion::Config& c = config.diffusion;
  if (!o.process.empty() && o.process != c.process->name) return false;
  if (o.name() == "data.path" && config.data.kind->path.empty()) return false;
  return o.name() != "diffusion.min_snr_gamma" || c.loss_weight != diffusion::default_row<diffusion::LossWeight>();
}

}  // namespace

std::vector<Difference> differences_on_resume(const Config& old_config, const Config& new_config) {
  std::vector<Difference> differences;
  for (const Option& o : option_table()) {
    const std::string old_value = o.get(old_config), new_value = o.get(new_config);
    const bool bound = o.name() == "train.micro_batch" && new_config.dist.reproducible;
    const bool may_change = (o.may_change_on_resume && !bound) || !is_read(o, new_config);
    if (!may_change && old_value != new_value) differences.push_back({o.name(), old_value, new_value});
  }
  return differences;
}

std::vector<Difference> differences(const Config& a, const Config& b) {
  std::vector<Difference> all;
  for (const Option& o : option_table())
    if (o.get(a) != o.get(b)) all.push_back({o.name(), o.get(a), o.get(b)});
  return all;
}

bool measure_same_distances(const Config& a, const Config& b) {
  constexpr std::string_view kOther[] = {"every_steps", "num_images", "fid_every_steps"};  // when, and what is shown
  return std::none_of(option_table().begin(), option_table().end(), [&](const Option& o) {
    const bool matters = (o.section == "eval" || o.section == "sample") &&
                         std::find(std::begin(kOther), std::end(kOther), o.key) == std::end(kOther);
    return matters && o.get(a) != o.get(b);
  });
}

void check_resume(const Config& old_config, const Config& new_config) {
  const std::vector<Difference> differences = differences_on_resume(old_config, new_config);
  if (differences.empty()) return;
  std::string list;
  for (const Difference& d : differences)
    list += fmt::format("{}{}: was {}, now {}", list.empty() ? "" : "; ", d.key, d.old_value, d.new_value);
  throw InputError({.where = "resume",
                    .what = "the config differs from that of the run: " + list,
                    .hint = "the old values, or a new --out folder with train.branch_from, which keeps step, optimiser "
                            "and EMA, or with train.init_from, which takes the weights alone"});
}

}  // namespace ditrain::config
