// The tables and figures of the DiT-HC paper (arXiv 2601.01500) about the system, measured on this machine and compared
// with the paper's numbers.
//
// Problem:      seconds on another machine mean nothing here. Ratios can be compared: one strategy to another, our
//               GEMMs to a library's, a step with an optimisation to one without it, shares of the peak.
// Abstractions: an Experiment is a table or figure. It has Comparisons (what, the paper's number, ours) and says what
//               differs.
#pragma once
#include <limits>
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"

namespace ditrain::bench {

struct Comparison {
  std::string what;
  double paper = std::numeric_limits<double>::quiet_NaN();  ///< NaN: the paper has no such number
  double here = std::numeric_limits<double>::quiet_NaN();   ///< NaN: it could not be measured
};

struct PaperBench {
  std::string model = "S";                           ///< for experiments that the paper shows for several models
  int64_t batch = 4;                                 ///< images per step
  std::vector<std::string> only = {};                ///< names of experiments; empty: all
  std::vector<std::string> sets = {};                ///< further config keys of measured steps
  std::string platform = "platforms/ls_pilot.yaml";  ///< for simulated experiments, as plan::load_cluster takes it
  std::string out = {};                              ///< folder for paper.md and a picture per experiment; empty: none
};

struct Experiment {
  const char* name;  ///< "table-2", for --only
  const char* title;
  const char* unit;     ///< of its numbers; "x" for ratios
  const char* differs;  ///< what differs from the paper's machine, and why; or why nothing is measured
  std::vector<Comparison> (*measure)(Harness&, const PaperBench&);  ///< null: it cannot be measured here
  bool simulates = false;                                           ///< on PaperBench::platform
};
const std::vector<Experiment>& paper_experiments();

/// Measures the experiments, with the rows of the benches that they use; a note per experiment is its table.
/// An experiment that cannot run here is left out; its section says why.
/// Errors:   InputError for names that are no experiment, and as plan::load_cluster for the platform of simulated ones,
///           before anything is measured; if none of the experiments can run, as the last of them
void bench_paper(Harness& harness, const PaperBench& bench);

/// The table of an experiment in Markdown, what differs, and the picture's name if it has one; `left_out`: why it could
/// not run.
std::string paper_section(const Experiment& experiment, const std::vector<Comparison>& rows,
                          const std::string& picture = "", const std::string& left_out = "");
/// Pairs of bars on a logarithmic axis, as SVG; a number that is not finite and positive has no bar.
std::string paper_bars_svg(const std::string& title, const std::vector<Comparison>& rows);

}  // namespace ditrain::bench
