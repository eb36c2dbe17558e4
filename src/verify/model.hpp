// What the fixtures of models share: sizes from settings, formula weights, weights from the file, and one batch through
// forward and backward.
#pragma once
#include <optional>

#include "ditrain/diffusion/diffusion.hpp"
#include "ditrain/nn/model.hpp"
#include "verification.hpp"

namespace ditrain::verify {

inline constexpr int64_t kTrainedSteps = 1000;  // of the diffusion that model fixtures were made with

/// The metadata's "model", a name as in configs, and cfg.{input_size, patch_size, in_channels, hidden_size, depth,
/// num_heads, num_classes, learn_sigma}. Without a name, all of these have to be there; a model with a name has the
/// public sizes where they are not. `otherwise`: the model of files that name none. learn_sigma: of files that do not
/// tell it.
/// Errors:   InputError for an unknown name, for sizes out of bounds or that do not fit together
nn::ModelConfig read_dit_config(Verification& v, const std::string& otherwise = "custom",
                                std::optional<bool> learn_sigma = {});

/// Layout of a model whose memory has been held against what a fixture may ask for.
/// Errors:   InputError if its arenas would not be small
nn::Model lay_out(const nn::ModelConfig& config);

/// Allocates and fills every parameter: by the formula, pos_embed from its table. `products` kBF16 adds their copy in
/// bf16.
void fill_model(nn::Model& model, autograd::ParameterStore::For purpose, const std::string& suffix, ops::Context& ctx,
                DType products = DType::kF32);

/// Allocates and fills every parameter from the file's tensors of the same names.
void load_model(nn::Model& model, autograd::ParameterStore::For purpose, Verification& v);

/// Tolerance for pos_embed against our table: f64 arithmetic on either side, rounded once to f32 values up to 1.
inline constexpr double kTableTolerance = 1e-7;

Shape image_shape(const nn::ModelConfig& config, int64_t batch);
Shape output_shape(const nn::ModelConfig& config, int64_t batch);

/// A tape with its memory. Errors: InputError if it would not be small
std::unique_ptr<nn::ModelPass> make_pass(nn::Model& model, int64_t batch, autograd::Mode mode,
                                         const nn::PassOptions& options = {});

struct ModelBatch {
  std::vector<float> x;    ///< [B, C, H, W]
  std::vector<double> t;   ///< [B], as the model is given it
  std::vector<int64_t> y;  ///< [B], null class where dropped
};
/// out [B, O, H, W]
std::vector<float> run_forward(nn::ModelPass& pass, const ModelBatch& batch, ops::Context& ctx);
/// After run_forward: gradients of the parameters, from zero, and of the image.
void run_backward(nn::Model& model, nn::ModelPass& pass, const std::vector<float>& dout, ops::Context& ctx);

/// Compares results with `out` of the float32 run, .f64, and .f64s, which has the float32 sinusoid.
void check_output(Verification& v, const Shape& shape, const std::vector<float>& out, double tolerance,
                  double against_f64s);

/// One batch of the diffusion's training objective.
struct LossInputs {
  std::vector<float> x0, noise;
  std::vector<int64_t> t, y;
};
struct LossResults {
  std::vector<float> out;
  std::vector<double> mse, vb, loss;  ///< per sample
  double mean_loss = 0;
};
/// Forward, loss as in the reference's training (mse_vb) and backward of its mean.
LossResults run_loss(nn::Model& model, nn::ModelPass& pass, const LossInputs& batch, ops::Context& ctx);

/// Schedules as fixtures and as configs call them.
struct ScheduleName {
  std::string fixture, config;
};
inline const ScheduleName kSchedules[] = {{"linear", "linear"}, {"squaredcos", "squaredcos_cap_v2"}};

/// The model for sampling loops, with the first `channels` of its output.
diffusion::ModelFn model_of(nn::ModelPass& pass, const nn::ModelConfig& config, int64_t channels, ops::Context& ctx);
/// The file's guidance. Errors: InputError if it is none
double read_cfg_scale(Verification& v);
inline constexpr int64_t kGuidedChannels = 3;  // what the reference guides
/// [steps, samples, ...]: latents after each step of the sampler that starts at z.
std::vector<double> trajectory(const diffusion::Process& process, const diffusion::SamplerConfig& config,
                               const diffusion::Shape& shape, const diffusion::ModelFn& model,
                               diffusion::SampleRequest request, std::vector<float> z,
                               const diffusion::NoiseFn& noise = {});
/// diffusers' sampling sigmas of process flow: a line from 1 to the smallest training sigma, shifted, and 0. Its
/// training sigmas are shifted already where the shift is a constant.
std::vector<double> scheduler_sigmas(int64_t steps, double shift, bool dynamic = false);
double shifted_sigma(double sigma, double shift);

}  // namespace ditrain::verify
