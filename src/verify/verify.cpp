#include "ditrain/verify/verify.hpp"

#include "ditrain/base/error.hpp"
#include "kinds.hpp"

namespace ditrain::verify {

namespace {

struct Kind {
  const char* name;  // the metadata's "file", without its ending
  void (*verify)(Verification&);
};
constexpr Kind kKinds[] = {
    {"ops", verify_ops},
    {"dit_tiny", verify_dit_tiny},
    {"dit_s2_stats", verify_dit_s2_stats},
    {"pos_embed", verify_pos_embed},
    {"dit_init_stats", verify_dit_init_stats},
    {"diffusion", verify_diffusion},
    {"train_traj", verify_train_traj},
    {"sample_traj", verify_sample_traj},
    {"flow", verify_flow},
    {"samplers", verify_samplers},
};

std::string kind_name(const io::SafetensorsFile& file) {
  const auto entry = file.metadata().find("file");
  if (entry == file.metadata().end())
    throw InputError(
        {.where = file.path(), .what = "not a reference fixture", .got = "no entry \"file\" in the header's metadata"});
  std::string name = entry->second;
  const std::string ending = ".safetensors";
  if (name.ends_with(ending)) name.resize(name.size() - ending.size());
  return name;
}

const Kind& find_kind(const io::SafetensorsFile& file) {
  const std::string name = kind_name(file);
  std::string known;
  for (const Kind& kind : kKinds) {
    if (name == kind.name) return kind;
    known += (known.empty() ? "" : ", ") + std::string(kind.name);
  }
  throw InputError({.where = file.path(),
                    .what = "fixtures of this kind are not available in this version",
                    .got = name,
                    .expected = known});
}

}  // namespace

std::vector<std::string> fixture_kinds() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

Report verify_fixture(const std::string& path, ops::Context& ctx) {
  const io::SafetensorsFile file(path);
  const Kind& kind = find_kind(file);
  Report report{.file = path};
  Verification verification(file, ctx, report);
  kind.verify(verification);
  verification.expect_all_used();
  if (report.comparisons.empty()) throw InputError({.where = path, .what = "the fixture has nothing to compare"});
  report.passed = true;
  for (const Comparison& c : report.comparisons) report.passed = report.passed && c.passed;
  return report;
}

}  // namespace ditrain::verify
