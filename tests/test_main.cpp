// The main function of all test programs. Exit codes: 0 passed, 1 something failed, 77 all cases that ran were skipped
// (SKIP_RETURN_CODE of ctest, which runs them one by one). Skipped cases are listed at the end.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "support/skip.hpp"

// Temporary folders of tests are often RAM (tmpfs), which a disk tier refuses; the programs that tests start, too.
[[maybe_unused]] const int disk_in_ram = setenv("DITRAIN_DISK_IN_RAM", "1", /*replace=*/0);

namespace {

constexpr int kSkipped = 77;

/// Counts over all cases, and over the runs of the one that is running (GENERATE and SECTION run it again).
struct Counts {
  int cases = 0, skipped_cases = 0;
  int runs = 0;
  std::vector<std::string> reasons = {};
  std::vector<std::pair<std::string, std::string>> skipped = {};
} counts;

struct Listener : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseStarting(const Catch::TestCaseInfo&) override { counts.runs = 0, counts.reasons.clear(); }
  void sectionStarting(const Catch::SectionInfo&) override { counts.runs += depth_++ == 0; }
  void sectionEnded(const Catch::SectionStats&) override { --depth_; }
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    ++counts.cases;
    counts.skipped_cases += !counts.reasons.empty() && int(counts.reasons.size()) == counts.runs;
    for (const std::string& reason : counts.reasons) counts.skipped.push_back({stats.testInfo.name, reason});
  }

 private:
  int depth_ = 0;
};
CATCH_REGISTER_LISTENER(Listener)

}  // namespace

void ditrain::test::skip(const std::string& reason) { counts.reasons.push_back(reason); }

int main(int argc, char** argv) {
  const int failed = Catch::Session().run(argc, argv);
  for (const auto& [name, reason] : counts.skipped) std::printf("skipped: %s: %s\n", name.c_str(), reason.c_str());
  if (failed != 0) return 1;
  return counts.cases > 0 && counts.skipped_cases == counts.cases ? kSkipped : 0;
}
