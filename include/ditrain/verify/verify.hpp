// Acceptance test of a build: recomputes reference fixtures (files with inputs and results of the public reference
// implementation) on this machine and compares the results.
//
// Problem:      a kernel that is wrong on one machine, or by one term, still trains something.
// Difficulties: sizes, seeds and names come from files that are not trusted; rounding makes every result differ a
//               little; and a value of the file that is never compared is a test that cannot fail. So every tensor
//               of a fixture has to be a setting, an input, compared, or named as left out; any other is an error.
// Abstractions: a table of kinds (registry in verify.cpp), one file each; Verification, which reads a fixture and books
//               what was used; Comparison and Report, what comes out.
//
//   Report report = verify_fixture("dit_tiny.safetensors", ctx);
//   print(std::cout, report);
#pragma once
#include <iosfwd>
#include <string>
#include <vector>

#include "ditrain/ops/context.hpp"
#include "ditrain/verify/compare.hpp"

namespace ditrain::verify {

struct Report {
  std::string file;      ///< path as given
  bool passed = false;   ///< all comparisons passed
  int64_t compared = 0;  ///< tensors of the file with at least one comparison
  std::vector<Comparison> comparisons = {};
  std::vector<std::string> left_out = {};  ///< parts of the file about features that this program does not have
  std::string error = {};                  ///< why the fixture could not be run, else empty
};

/// Runs one fixture. Its kind is the entry "file" of the header's metadata, its sizes are its cfg.* tensors, its
/// formula weights follow the metadata's key_suffix: the path's name means nothing.
/// Errors:   InputError for a file that is not a fixture: not safetensors, unknown kind, missing or superfluous tensor,
///           wrong dtype or shape, settings out of range. A wrong value is a failed comparison, not an error.
Report verify_fixture(const std::string& path, ops::Context& ctx);

/// The kinds that verify_fixture knows.
std::vector<std::string> fixture_kinds();

/// The comparison that came nearest to its tolerance or exceeded it most; null without comparisons.
const Comparison* worst_comparison(const Report& report);

/// Every comparison, one line each, and a closing line.
void print(std::ostream& out, const Report& report);

/// {"fixtures": [{"file", "passed", "compared", "worst": {"tensor", "max_abs", "max_rel", "tolerance"}}]}; a fixture
/// that could not be run has "error" and null as "worst". Numbers that are not finite are null.
std::string to_json(const std::vector<Report>& reports);

}  // namespace ditrain::verify
