// Quality per CPU-hour: recipes trained in turns by real runs of ditrain for equal CPU seconds, and how good samples
// of each are after so much of it.
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"

namespace ditrain::bench {

struct QualityBench {
  std::string config;                       ///< the reference, which recipes change
  std::vector<std::string> recipes = {};    ///< YAML files laid over it; the name of a recipe is that of its file
  std::vector<std::string> sets = {};       ///< config keys of all of them, "a.b=v"
  std::vector<double> minutes = {1, 2, 4};  ///< CPU minutes of training after which samples are compared, rising
  int64_t seeds = 3, first_seed = 0;
  int64_t samples = 1000;
  int64_t evaluations = 50;  ///< of the model per sample, those that guide included
  std::string out;           ///< folder of runs, results, plots and grids
  bool quick = false;        ///< a few steps and samples instead: numbers mean nothing
};

/// Trains every recipe with every seed to every mark, seed by seed and mark by mark, all recipes in turn, then draws
/// samples with equal seeds and evaluations, without guidance and, where a recipe has another sample.cfg_scale than 1,
/// with it (by labels, or by sample.guide), and measures them (quality_measures.hpp).
/// A mark is a number of steps. It follows from its CPU minutes and the CPU seconds per step (user + system, without
/// start, samples and validation), which short runs of all recipes in turns measure first: the median of three
/// medians. Recipes that join a folder later are measured in turns with the first one. With optimizer.schedule:
/// constant the marks are checkpoints of one run; with wsd they are decaying branches of one trunk; with cosine each
/// is a run of its own.
/// data.hold_out, 0.2 unless set, keeps images from training.
/// Rows      of `real images`, then per guidance, recipe and mark: cpu_minutes, steps, and each measure with its 95 %
///           bootstrap interval over the seeds; then per recipe against the reference: how many times the CPU time the
///           reference takes for the value that it has at its last mark, and in how many measures it takes more
/// Files     OUT/quality.json (what is compared), OUT/results.jsonl, OUT/RECIPE/seed_N/... (runs), OUT/curves*.svg and
///           OUT/grid*.png (recipes side by side, first seed, last mark)
/// A bench that was ended goes on when it is started again with the same --out, also on another machine that has the
/// folder and the data under the same paths; more seeds and recipes come to those that are there.
/// Errors:   InputError for configs that cannot run, names that are there twice, an --out of another comparison, fewer
///           evaluations than a step takes, and without ditrain beside this program; RunError for a run that fails
void bench_quality(Harness& harness, const QualityBench& bench);

}  // namespace ditrain::bench
