#include "ditrain/verify/verify.hpp"

#include "ditrain/base/error.hpp"
#include "kinds.hpp"

namespace ditrain::verify {

namespace {

struct FixtureKind {
  const char* name;  // the metadata's "file", without its ending
  void (*verify)(Verification&);
  const char *begins = nullptr, *ends = nullptr;  // of other names of the kind: other models
  bool has(const std::string& title) const {
    return title == name || (begins != nullptr && title.starts_with(begins) && title.ends_with(ends));
  }
};
constexpr FixtureKind kKinds[] = {
    {"ops", verify_ops},
    {"dit_tiny", verify_dit_tiny},
    {"tread", verify_tread},
    {"blocks", verify_blocks},
    {"pos_embed", verify_pos_embed},
    {"dit_init_stats", verify_dit_init_stats},
    {"dit_s2_stats", verify_dit_stats, "dit_", "_stats"},
    {"diffusion", verify_diffusion},
    {"train_traj", verify_train_traj},
    {"sample_traj", verify_sample_traj},
    {"flow", verify_flow},
    {"samplers", verify_samplers},
    {"conv", verify_conv},
    {"vae_small", verify_vae_small},
    {"vae_rect", verify_vae_rect},
    {"vae_sd_stats", verify_vae_stats, "vae_sd_", "_stats"},
    {"fid_inception_stats", verify_fid_inception},
    {"fid_presets", verify_fid_presets},
    {"fid_math", verify_fid_math},
    {"fid_sets", verify_fid_sets},
};

const FixtureKind& find_kind(const weights::SafetensorsFile& file) {
  const std::string title = Verification::title_of(file);
  std::string known;
  for (const FixtureKind& kind : kKinds) {
    if (kind.has(title)) return kind;
    known += (known.empty() ? "" : ", ") + std::string(kind.name);
  }
  refuse(file.path(), "fixtures of this kind are not available in this version", title, known);
}

}  // namespace

std::vector<std::string> fixture_kinds() {
  std::vector<std::string> names;
  for (const FixtureKind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

Report verify_fixture(const std::string& path, ops::Context& ctx) {
  const weights::SafetensorsFile file(path);
  const FixtureKind& kind = find_kind(file);
  Report report{.file = path};
  Verification verification(file, ctx, report);
  kind.verify(verification);
  verification.expect_all_used();
  if (report.comparisons.empty()) refuse(path, "the fixture has nothing to compare");
  report.passed = true;
  for (const Comparison& c : report.comparisons) report.passed = report.passed && c.passed;
  return report;
}

}  // namespace ditrain::verify
