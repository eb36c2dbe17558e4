// Noise schedules: betas, the tables that are made from them, and respacing to fewer steps.
#include "ditrain/diffusion/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/diffusion/registry.hpp"

namespace ditrain::diffusion {

/// Schedule linear: evenly spaced from 1e-4 to 0.02 at 1000 steps; both ends scaled by 1000 / num_steps.
/// Source:   Ho et al. 2020
std::vector<double> linear_betas(int64_t num_steps) {
  const double scale = 1000.0 / static_cast<double>(num_steps);
  const double first = scale * 0.0001, last = scale * 0.02;
  const double stride = (last - first) / static_cast<double>(num_steps - 1);
  std::vector<double> betas(num_steps);
  for (int64_t t = 0; t < num_steps; ++t) betas[t] = first + static_cast<double>(t) * stride;
  betas.back() = last;
  return betas;
}

/// Schedule squaredcos_cap_v2: A_t follows cos^2, betas limited to 0.999.
/// Source:   Nichol and Dhariwal 2021, eq. 17
std::vector<double> squaredcos_cap_v2_betas(int64_t num_steps) {
  const auto alpha_bar = [](double time) {
    const double c = std::cos((time + 0.008) / 1.008 * std::numbers::pi / 2);
    return c * c;
  };
  const auto n = static_cast<double>(num_steps);
  std::vector<double> betas(num_steps);
  for (int64_t t = 0; t < num_steps; ++t) {
    const auto step = static_cast<double>(t);
    betas[t] = std::min(1 - alpha_bar((step + 1) / n) / alpha_bar(step / n), 0.999);
  }
  return betas;
}

namespace {

// More steps than any published process; keeps a mistyped number from taking the memory.
constexpr int64_t kMinSteps = 2, kMaxSteps = 100'000;

void fill_posterior(Schedule& s) {
  const int64_t n = s.num_steps();
  for (int64_t t = 0; t < n; ++t) {
    const double beta = s.betas[t], after = 1 - s.alphas_cumprod[t], before = 1 - s.alphas_cumprod_prev[t];
    s.posterior_variance.push_back(beta * before / after);
    s.posterior_mean_coef1.push_back(beta * std::sqrt(s.alphas_cumprod_prev[t]) / after);
    s.posterior_mean_coef2.push_back(before * std::sqrt(1 - beta) / after);
  }
  const double first = n > 1 ? s.posterior_variance[1] : s.betas[0];
  s.posterior_log_variance_clipped.push_back(std::log(first));
  for (int64_t t = 1; t < n; ++t) s.posterior_log_variance_clipped.push_back(std::log(s.posterior_variance[t]));
}

Schedule schedule_from_betas(std::vector<double> betas, std::vector<int64_t> timestep_map) {
  Schedule s;
  s.betas = std::move(betas);
  s.timestep_map = std::move(timestep_map);
  double product = 1;
  for (const double beta : s.betas) {
    s.alphas_cumprod_prev.push_back(product);
    product *= 1 - beta;
    s.alphas_cumprod.push_back(product);
    s.sqrt_alphas_cumprod.push_back(std::sqrt(product));
    s.sqrt_one_minus_alphas_cumprod.push_back(std::sqrt(1 - product));
    s.log_one_minus_alphas_cumprod.push_back(std::log(1 - product));
    s.sqrt_recip_alphas_cumprod.push_back(std::sqrt(1 / product));
    s.sqrt_recipm1_alphas_cumprod.push_back(std::sqrt(1 / product - 1));
  }
  fill_posterior(s);
  return s;
}

[[noreturn]] void bad_spec(const std::string& spec, const std::string& what, const std::string& expected) {
  refuse("diffusion", "spacing: " + what, "\"" + spec + "\"", expected);
}

int64_t parse_count(std::string_view word, const std::string& spec) {
  int64_t count = 0;
  if (!parse_whole(word, count) || count < 1) {
    bad_spec(spec, "bad number of steps \"" + std::string(word) + "\"",
             "\"N\", \"N1,N2,...\" or \"ddimN\" with whole numbers from 1");
  }
  return count;
}

std::vector<int64_t> strided_steps(int64_t num_steps, int64_t count, const std::string& spec) {
  for (int64_t stride = 1; stride < num_steps; ++stride) {
    if ((num_steps - 1) / stride + 1 != count) continue;
    std::vector<int64_t> steps(count);
    for (int64_t i = 0; i < count; ++i) steps[i] = i * stride;
    return steps;
  }
  bad_spec(spec, "no integer stride gives this number of steps",
           "a count that a stride over " + std::to_string(num_steps) + " steps gives");
}

std::vector<int64_t> listed_steps(int64_t num_steps, const Spacing& spacing) {
  std::vector<int64_t> steps;
  for (const double time : spacing.listed()) {
    const auto step = static_cast<int64_t>(time);
    if (static_cast<double>(step) != time || step >= num_steps || step <= (steps.empty() ? -1 : steps.back())) {
      bad_spec(spacing.text(), "not a list of steps that rise",
               "whole numbers from 0 to " + std::to_string(num_steps - 1));
    }
    steps.push_back(step);
  }
  return steps;
}

void append_section(std::vector<int64_t>& steps, int64_t start, int64_t size, int64_t count) {
  const double stride = count > 1 ? static_cast<double>(size - 1) / static_cast<double>(count - 1) : 1.0;
  double position = 0;  // summed, not multiplied: published maps come from the sum
  for (int64_t i = 0; i < count; ++i, position += stride) {
    steps.push_back(start + static_cast<int64_t>(std::nearbyint(position)));  // half to even
  }
}

}  // namespace

Spacing::Spacing(std::string text) : text_(std::move(text)) {
  constexpr std::string_view kStrided = "ddim";
  strided_ = text_.starts_with(kStrided);
  if (strided_) {
    counts_.push_back(parse_count(std::string_view(text_).substr(kStrided.size()), text_));
    return;
  }
  for (const std::string& count : split(text_, ',')) counts_.push_back(parse_count(count, text_));
}

Spacing Spacing::at(std::vector<double> times) {
  DITRAIN_CHECK(!times.empty(), "a list of times");
  Spacing spacing;
  spacing.text_ = "a list of " + std::to_string(times.size()) + " times";
  spacing.listed_ = std::move(times);
  return spacing;
}

Schedule make_schedule(const BetaSchedule& row, int64_t num_steps) {
  if (num_steps < kMinSteps || num_steps > kMaxSteps) {
    refuse("diffusion", "num_steps out of range", std::to_string(num_steps),
           std::to_string(kMinSteps) + " to " + std::to_string(kMaxSteps));
  }
  std::vector<double> betas = row.betas(num_steps);
  const auto bad = std::find_if(betas.begin(), betas.end(), [](double b) { return !(b > 0 && b < 1); });
  if (bad != betas.end()) {
    refuse("diffusion", "num_steps does not suit schedule " + std::string(row.name),
           std::to_string(num_steps) + " steps, which make a beta of " + std::to_string(*bad), "betas between 0 and 1",
           "num_steps: 1000 with fewer steps in sampling");
  }
  std::vector<int64_t> identity(num_steps);
  std::iota(identity.begin(), identity.end(), 0);
  return schedule_from_betas(std::move(betas), std::move(identity));
}

std::vector<int64_t> space_timesteps(int64_t num_steps, const Spacing& spacing) {
  const std::vector<int64_t>& counts = spacing.counts();
  if (!spacing.listed().empty()) return listed_steps(num_steps, spacing);
  if (spacing.is_strided()) return strided_steps(num_steps, counts.front(), spacing.text());
  const auto num_sections = static_cast<int64_t>(counts.size());
  std::vector<int64_t> steps;
  int64_t start = 0;
  for (int64_t i = 0; i < num_sections; ++i) {
    const int64_t size = num_steps / num_sections + (i < num_steps % num_sections ? 1 : 0);
    if (counts[i] > size) {
      bad_spec(spacing.text(), "more steps than there are",
               "at most " + std::to_string(size) + " in section " + std::to_string(i + 1) + " of " +
                   std::to_string(num_sections));
    }
    append_section(steps, start, size, counts[i]);
    start += size;
  }
  return steps;
}

Schedule respace(const Schedule& base, const Spacing& spacing) {
  std::vector<double> betas;
  std::vector<int64_t> map;
  double last = 1;
  for (const int64_t step : space_timesteps(base.num_steps(), spacing)) {
    betas.push_back(1 - base.alphas_cumprod[step] / last);
    last = base.alphas_cumprod[step];
    map.push_back(base.timestep_map[step]);
  }
  return schedule_from_betas(std::move(betas), std::move(map));
}

}  // namespace ditrain::diffusion
