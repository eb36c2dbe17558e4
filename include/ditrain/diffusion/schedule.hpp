// Noise schedules: the f64 tables of a diffusion process, and respacing to fewer steps.
// Adding a schedule: its betas in schedule.cpp, one row in registry.cpp.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ditrain::diffusion {

struct BetaSchedule;

/// Which times of a process a sampler visits, as users write it: "ddimN", a fixed integer stride that gives N steps; or
/// counts "N" or "N1,N2,...": the process is split into that many equal sections, section i gets Ni evenly spread
/// steps.
class Spacing {
 public:
  /// Errors:   InputError for any other text, and for a count below 1
  Spacing(std::string text);
  Spacing(const char* text) : Spacing(std::string(text)) {}
  /// Exactly these times, in the process's order; for comparisons with other implementations.
  static Spacing at(std::vector<double> times);

  const std::string& text() const { return text_; }
  bool is_strided() const { return strided_; }
  const std::vector<int64_t>& counts() const { return counts_; }  ///< per section; of a stride: one
  const std::vector<double>& listed() const { return listed_; }   ///< empty: not listed

 private:
  Spacing() = default;
  std::string text_;
  bool strided_ = false;
  std::vector<int64_t> counts_;
  std::vector<double> listed_;
};

/// The tables of a process with steps t = 0 (nearly clean) ... num_steps()-1 (nearly noise); all have num_steps()
/// entries.
/// Math:     a_t = 1 - betas[t], A_t = alphas_cumprod[t] = a_0 ... a_t, P_t = A_{t-1} with P_0 = 1;
///           q(x_t | x_0) = N(sqrt(A_t) x_0, 1 - A_t);
///           q(x_{t-1} | x_t, x_0) = N(posterior_mean_coef1 x_0 + posterior_mean_coef2 x_t, posterior_variance)
/// Source:   Ho et al. 2020, eq. 4-7; Nichol and Dhariwal 2021. posterior_variance[0] is 0, therefore
///           posterior_log_variance_clipped[0] repeats entry 1; a process of one step has log(betas[0]) there.
struct Schedule {
  std::vector<double> betas, alphas_cumprod, alphas_cumprod_prev;
  std::vector<double> sqrt_alphas_cumprod, sqrt_one_minus_alphas_cumprod, log_one_minus_alphas_cumprod;
  std::vector<double> sqrt_recip_alphas_cumprod;    ///< 1 / sqrt(A_t)
  std::vector<double> sqrt_recipm1_alphas_cumprod;  ///< sqrt(1 / A_t - 1)
  std::vector<double> posterior_variance, posterior_log_variance_clipped, posterior_mean_coef1, posterior_mean_coef2;
  std::vector<int64_t> timestep_map;  ///< step of this schedule -> timestep that the model is given

  int64_t num_steps() const { return static_cast<int64_t>(betas.size()); }
};

/// The schedule of a row of the registry, with the identity as timestep map.
/// Errors:   InputError for num_steps outside [2, 100000] or too few for the schedule's betas to stay below 1 ("linear"
///           needs 21).
Schedule make_schedule(const BetaSchedule& row, int64_t num_steps);

/// The steps to keep out of num_steps, increasing. For "ddimN": the smallest stride that gives N steps. For counts:
/// evenly spread over each section, with its first and last step, fractions rounded half to even. Otherwise the listed
/// times.
/// Errors:   InputError if a section has fewer steps than requested, no stride gives the count, or listed steps do not
///           rise
std::vector<int64_t> space_timesteps(int64_t num_steps, const Spacing& spacing);

/// The process that visits only space_timesteps(base.num_steps(), spacing), with the same A_t at these steps.
Schedule respace(const Schedule& base, const Spacing& spacing);

}  // namespace ditrain::diffusion
