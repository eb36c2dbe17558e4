// A process defines how clean data becomes noise over time, the training target at each time, and the samplers that
// lead back to data. Trainer, validation, sampling and the acceptance test use only this interface. A time is a double
// whose meaning depends on the process: a step 0 ... num_steps-1 (ddpm), a point of [0, 1] (flow).
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
  const float *x0, *x_t, *noise;  ///< [C, P] clean data, the model's input, the noise in x_t
  const float* out;               ///< [output channels, P] the model's output
  double grad_weight;             ///< factor on the gradient
  float* dout;                    ///< gradient by `out`; all output channels are written; null: not wanted
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

  /// Draws the time of a training sample. Each sample has its own key, of Stream::kTimestep.
  virtual double draw_time(const RandomKey& key) const = 0;
  /// Time i of n times spread evenly over all times, for validation, whatever times training draws.
  virtual double spread_time(int64_t i, int64_t n) const = 0;
  /// The value that the model receives as t.
  virtual double model_time(double time) const = 0;
  /// The share of data in the model's input at its t: alpha / (alpha + sigma) for x_t = alpha x0 + sigma noise. For all
  /// processes 0 is pure noise and 1 clean data.
  virtual double data_share(double model_time) const = 0;
  /// Computes x_t of n elements. x_t may alias x0 or noise.
  virtual void add_noise(double time, const float* x0, const float* noise, float* x_t, int64_t n) const = 0;
  virtual LossTerms loss(const LossSample& sample) const = 0;
  /// Computes LossTerms::mse alone; grad_weight and dout are ignored.
  virtual double mse(const LossSample& sample) const = 0;

 private:
  const ProcessKind* kind_;
};

/// The process of a config, for a model with (`learn_sigma`) or without variance channels.
/// Errors:   InputError for settings out of range, and for settings that contradict each other or the model
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
  const float* x_t = nullptr;             ///< [N, C, P] the model's input
  const float* noise = nullptr;           ///< [N, C, P] the noise in x_t
  const double* time = nullptr;           ///< [N]
  const float* model_out = nullptr;       ///< [N, output channels, P]
  const Condition* conditions = nullptr;  ///< [N]; pixels that are not `valid` are left out; null: all are valid
};

/// Loss of samples begin..end-1 and its gradient by the model's output; see the process for the mathematics.
/// Numerics: only valid pixels count, as if a sample had no others; the loss of a sample without valid pixels is 0
/// Grads:    dout [N, output channels, P] = grad_weight * d loss / d model_out, overwritten; null: no gradient.
///           grad_weight = 1 / global_batch gives the gradient of the mean loss
/// Types:    f32 arrays; arithmetic and the sums over a sample f64
void training_loss(const Process& process, const Shape& shape, const LossBatch& batch, double grad_weight, float* dout,
                   LossTerms* terms, int64_t begin, int64_t end);

/// Process::mse of samples begin..end-1.
void prediction_error(const Process& process, const Shape& shape, const LossBatch& batch, double* mse, int64_t begin,
                      int64_t end);

}  // namespace ditrain::diffusion
