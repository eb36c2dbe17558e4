// Two checks of whether a conditional model has learned its labels, without any other network: the denoising loss with
// right and wrong labels, and the class of the nearest training image in pixel space.
#pragma once
#include <cstdint>
#include <vector>

#include "ditrain/dataset/dataset.hpp"
#include "ditrain/diffusion/config.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/nn/model.hpp"

namespace ditrain::eval {

/// Mean square errors of the model's prediction, without the weights of training.
struct ValidationLoss {
  double right_label = 0;
  double wrong_label = 0;  ///< NaN for a model with fewer than two classes
};

/// The loss on num_images fixed triples (image, t, noise), with the weights that the parameters are bound to.
/// Math:     image i is the i-th of a shuffle keyed by the seed; its time is Process::spread_time(i, num_images); noise
///           kernels::fill_normal of RandomKey(seed, Stream::kEval, i); the wrong label is one of the others, uniform,
///           by RandomKey(seed, Stream::kEval, i, 1)
/// Numerics: bit-identical for any number of ranks and workers
/// Threads:  collective: ranks split the images; every rank returns the result
/// Errors:   what Dataset::load throws; LogicFault if data and model differ in shape
ValidationLoss validation_loss(ops::Context& ctx, dist::Communicator& comm, nn::Model& model,
                               const diffusion::Config& config, const dataset::Dataset& data, int64_t num_images,
                               uint64_t seed);

/// The samples of `data` that this rank loads in validation_loss(), by index.
std::vector<int64_t> validation_samples(const dist::Communicator& comm, const dataset::Dataset& data,
                                        int64_t num_images, uint64_t seed);

/// The seed that selects the reference images.
inline constexpr uint64_t kReferenceSeed = 1;

/// Finds for every image the nearest (L2 over all values) of min(reference_images, data.size()) samples of `data` and
/// returns its class. The samples are the first of EpochSampler(data.size(), kReferenceSeed), a shuffle, so that a data
/// set sorted by class has all its classes among them. A tie goes to the lower index; an image that is not finite gets
/// -1.
/// Shapes:   images [n, C, H, W], as the samples of the data set
/// Memory:   one sample per worker
/// Errors:   what Dataset::load throws
std::vector<int64_t> nearest_labels(ops::Context& ctx, const std::vector<float>& images, const dataset::Dataset& data,
                                    int64_t reference_images);

/// Share of the images, in [0, 1], whose nearest_labels entry is their own label; 0 for no images. Chance is 1 /
/// num_classes.
double nearest_neighbour_accuracy(ops::Context& ctx, const std::vector<float>& images,
                                  const std::vector<Condition>& conditions, const dataset::Dataset& data,
                                  int64_t reference_images = 4000);

}  // namespace ditrain::eval
