// A process says how clean data becomes noise over a time, what a model is trained on at a time, and which samplers
// lead back. Trainer, validation, sampling and the acceptance test know nothing else of it. A time is a double whose
// meaning is the process's own: a step 0 ... num_steps-1 (ddpm), a point of [0, 1] (flow).
// Adding a process: one file with its class, as flow.cpp, and one row in registry.cpp.
#pragma once
#include <cstdint>
#include <memory>

#include "ditrain/base/condition.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/diffusion/config.hpp"

namespace ditrain::diffusion {

/// The loss of one sample. mse is always measured, on the model's prediction and without weights; vb (bits per element)
/// is 0 if the objective lacks that term; loss is the trained quantity.
struct LossTerms {
  double mse = 0, vb = 0, loss = 0;
};

/// One sample of a batch whose loss is computed.
struct LossSample {
  Shape shape;
  double time;
  const float *x0, *x_t, *noise;  ///< [C, P] clean data, what the model saw, what x_t was made with
  const float* out;               ///< [output channels, P] the model's
  double grad_weight;             ///< the gradient is multiplied by it
  float* dout;                    ///< all output channels have to be written; null: no gradient wanted
};

class Process {
 public:
  explicit Process(const ProcessKind& kind) : kind_(&kind) {}
  virtual ~Process() = default;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  const ProcessKind& kind() const { return *kind_; }

  /// Channels of the model's output for data of `channels` channels.
  virtual int64_t output_channels(int64_t channels) const = 0;

  /// The time of a training sample. Each sample has its own key, whose stream is that of times.
  virtual double draw_time(const RandomKey& key) const = 0;
  /// Time i of n times spread evenly over all times, for validation, whatever times training draws.
  virtual double spread_time(int64_t i, int64_t n) const = 0;
  /// What the model is given as t.
  virtual double model_time(double time) const = 0;
  /// How much of what the model sees at its t is data, in [0, 1]: alpha / (alpha + sigma) of x_t = alpha x0 + sigma
  /// noise. The same for all processes: 0 is pure noise, 1 clean data.
  virtual double data_share(double model_time) const = 0;
  /// x_t of n elements. x_t may alias x0 or noise.
  virtual void add_noise(double time, const float* x0, const float* noise, float* x_t, int64_t n) const = 0;
  virtual LossTerms loss(const LossSample& sample) const = 0;
  /// Computes LossTerms::mse alone; grad_weight and dout are ignored.
  virtual double mse(const LossSample& sample) const = 0;

 private:
  const ProcessKind* kind_;
};

/// The process of a config, for a model with (`learn_sigma`) or without variance channels.
/// Errors:   InputError for settings out of range and for settings, or a model, that do not go with each other
std::unique_ptr<Process> make_process(Config config, bool learn_sigma);

/// Noises clean data for a range of the samples of a batch. Callers may split a batch over workers by samples; results
/// do not depend on the split.
/// Shapes:   x0, noise, x_t [N, elements_per_sample]; time [N]; samples begin..end-1 are written
/// Types:    f32, factors rounded to f32. x_t may alias x0 or noise
void q_sample(const Process& process, const float* x0, const float* noise, const double* time, float* x_t,
              int64_t elements_per_sample, int64_t begin, int64_t end);

/// A batch whose loss is computed; all arrays start at sample 0 of the batch.
struct LossBatch {
  const float* x0 = nullptr;              ///< [N, C, P] clean data
  const float* x_t = nullptr;             ///< [N, C, P] what the model saw
  const float* noise = nullptr;           ///< [N, C, P] what x_t was made with
  const double* time = nullptr;           ///< [N]
  const float* model_out = nullptr;       ///< [N, output channels, P]
  const Condition* conditions = nullptr;  ///< [N]; pixels that are not `valid` are left out; null: all are valid
};

/// Loss of samples begin..end-1 and its gradient by the model's output; see the process for the mathematics.
/// Numerics: a sample's loss is that of its valid pixels alone, as if it had no others; 0 without any
/// Grads:    dout [N, output channels, P] = grad_weight * d loss / d model_out, overwritten; null: no gradient.
///           grad_weight = 1 / global_batch gives the gradient of the mean loss
/// Types:    f32 arrays; arithmetic and the sums over a sample f64
void training_loss(const Process& process, const Shape& shape, const LossBatch& batch, double grad_weight, float* dout,
                   LossTerms* terms, int64_t begin, int64_t end);

/// Process::mse of samples begin..end-1.
void prediction_error(const Process& process, const Shape& shape, const LossBatch& batch, double* mse, int64_t begin,
                      int64_t end);

}  // namespace ditrain::diffusion
