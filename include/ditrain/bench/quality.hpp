// Quality per CPU-hour: trains recipes in turns, by real runs of ditrain, for equal CPU seconds, and measures how good
// the samples of each are.
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"

namespace ditrain::bench {

/// A YAML file that is laid over the config; a recipe has the name of its file.
struct QualityRecipe {
  std::string file;
  double last_minutes = 1e300;  ///< marks beyond it are left out
};

struct QualityBench {
  std::string config;  ///< config file that recipes change; it takes part itself
  std::vector<QualityRecipe> recipes = {};
  std::vector<std::string> against = {};    ///< names of those with which all are compared; empty: the config
  std::vector<std::string> sets = {};       ///< config keys for all runs, "a.b=v"
  std::vector<double> minutes = {1, 2, 4};  ///< marks: CPU minutes of training after which samples are compared, rising
  int64_t seeds = 3, first_seed = 0;
  int64_t samples = 1000;
  int64_t evaluations = 50;  ///< of the model per sample, including those for guidance
  std::string out;           ///< folder of runs, results, plots and grids
  bool equal_steps = false;  ///< new recipes are not measured: a step counts as one of `config`
  bool quick = false;        ///< only a few steps and samples: the numbers mean nothing
};

/// Trains every recipe with every seed to every mark that it has: mark by mark, seed by seed, all recipes in turn. Then
/// it draws samples with equal seeds and evaluations, in train.precision, without guidance and, if a recipe sets
/// sample.cfg_scale other than 1, also with guidance (by labels, or by sample.guide), and measures them
/// (quality_measures.hpp).
/// A mark is a number of steps: its CPU minutes / the CPU seconds per step (user + system, without start, samples and
/// validation). Short runs of all recipes in turns measure these seconds first, as the fastest of six medians. Recipes
/// that join a folder later are measured in turns with the first one; with equal_steps they are not measured, and get
/// the steps of `config`. With optimizer.schedule: constant the marks are checkpoints of one run; with wsd they are
/// decaying branches of one trunk; with cosine each is a run of its own. Recipes that differ only in section `sample`
/// share their runs, unless their learning rate is constant.
/// data.hold_out, 0.2 unless set, keeps images from training.
/// Rows      one for `real images`, then per guidance, recipe and mark: cpu_minutes, steps, and each measure with its
///           bootstrap interval over the seeds; then one per recipe and reference: for each measure, CPU
///           time of the reference / CPU time of the recipe until it has the reference's value at the last mark; and
///           in how many measures the recipe is faster and slower; with one mark of the reference, the differences
/// Files     OUT/quality.json (what is compared), OUT/results.jsonl, OUT/RECIPE/seed_N/... (runs), OUT/curves*.svg and
///           OUT/grid*.png (recipes side by side, first seed, the last mark of each)
/// A signal lets the run that goes on write its checkpoint (for up to 30 s); then the bench ends with exit code 75.
/// An interrupted bench resumes when it is started again with the same --out, also on another machine that has the
/// folder and the data under the same paths; new seeds, recipes and later marks are added to the existing ones.
/// Errors:   InputError for configs that cannot run, names that are there twice, a reference that is no recipe, a
///           recipe without a mark, recipes with other data or other weights to start from, equal_steps of recipes
///           whose steps take another time, drawn images with several seeds, data.vae, data.condition, an --out of
///           another comparison, fewer evaluations than a step takes, and without ditrain beside this program; RunError
///           for a run that fails. One that diverges has no values.
void bench_quality(Harness& harness, const QualityBench& bench);

}  // namespace ditrain::bench
