#include "ditrain/train/evaluation.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/dataset/sampler.hpp"
#include "ditrain/eval/band_picture.hpp"
#include "ditrain/eval/label_check.hpp"
#include "ditrain/eval/sample_facts.hpp"
#include "ditrain/eval/sampling.hpp"
#include "ditrain/images/image.hpp"
#include "ditrain/plan/inputs.hpp"

namespace ditrain::train {
namespace {

constexpr int64_t kReferenceImages = 4000;

void write_grid(const std::string& path, const std::vector<float>& images, const dataset::SampleShape& shape,
                int64_t classes_in_turn, const eval::BandPictures& picture) {
  const int64_t elements = shape.elements(), n = int64_t(images.size()) / elements;
  std::vector<images::ImageU8> pictures;
  for (int64_t i = 0; i < n; ++i) pictures.push_back(picture(images.data() + i * elements, shape.height, shape.width));
  // Where labels go in turn, few classes get a column each.
  const bool few_classes = classes_in_turn >= 2 && classes_in_turn <= 16;
  const int64_t columns = few_classes ? classes_in_turn : int64_t(std::ceil(std::sqrt(double(n))));
  images::write_png(path, images::make_grid(pictures, columns, 2));
}

constexpr const char *kBalanced = "balanced", *kLabelsOfData = "of the data";

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

void write_facts(const std::string& picture, int64_t step, const config::Config& c, const char* labels, bool decoded) {
  const std::filesystem::path folder = std::filesystem::path(picture).parent_path();
  eval::write_sample_facts(folder.string(),
                           {.program = "ditrain",
                            .images = c.sample.num_images,
                            .sampler = sampler_of(c),
                            .labels = labels,
                            .seed = uint64_t(c.train.seed),
                            .checkpoint = folder.parent_path().string(),
                            .step = step,
                            .weights = "ema",
                            .latents = !decoded && !config::learns_pixels(c),
                            .vae = decoded ? c.sample.vae : "",
                            .guide = c.sample.guide},
                           *diffusion::make_process(c.diffusion, c.model.learn_sigma));
}

// This rank's of n samples, classes in turn.
eval::GenerateRequest share_of(const config::Config& config, int64_t n, const dist::Communicator& comm,
                               nn::Model* guide) {
  const auto seed = uint64_t(config.train.seed);
  const std::vector<int64_t> labels = eval::make_labels(kBalanced, n, config.model.num_classes, seed);
  const parallel::Range mine = parallel::partition(n, comm.rank(), comm.world_size());
  return {.sampler = sampler_of(config),
          .seed = seed,
          .conditions = conditions_of({labels.begin() + mine.begin, labels.begin() + mine.end}),
          .first_index = mine.begin,
          .guide = guide,
          .guide_routes = config::guide_routes(config.sample.guide, config)};
}

}  // namespace

bool Evaluation::gives_images() const { return config.model.condition_channels > 0 || !config.model.metadata.empty(); }

// Samples of a model that is given images or numbers are drawn for the first ones of a shuffle of the data, whose
// labels they have.
void Evaluation::give_images(eval::GenerateRequest& request) const {
  if (!gives_images()) return;
  const dataset::EpochSampler order(data.size(), uint64_t(config.train.seed));
  std::vector<float> unused(static_cast<size_t>(data.shape().elements()));
  for (size_t i = 0; i < request.conditions.size(); ++i)
    data.load(order.index_at((request.first_index + int64_t(i)) % data.size()), /*flip=*/false, unused.data(),
              &request.conditions[i]);
  if (config.model.num_classes == 0)  // whatever labels the data have
    for (Condition& condition : request.conditions) condition.label = 0;
}

// The labels of the same shuffle: a distance to the data would count other proportions of the classes as a difference.
void Evaluation::give_labels(eval::GenerateRequest& request) const {
  if (config.model.num_classes < 2) return;
  const dataset::EpochSampler order(data.size(), uint64_t(config.train.seed));
  for (size_t i = 0; i < request.conditions.size(); ++i)
    request.conditions[i].label = data.label(order.index_at((request.first_index + int64_t(i)) % data.size()));
}

void Evaluation::sample_grid(const std::string& path, int64_t step, bool compare,
                             std::map<std::string, double>& extra) {
  const eval::WeightsFrom averaged(model.parameters(), ema);
  const int64_t n = config.sample.num_images;
  eval::GenerateRequest request = share_of(config, n, comm, guide);
  give_images(request);
  std::vector<float> images = eval::generate(ctx, model, config.diffusion, request);
  if (compare && data.num_classes() > 1 && config.model.num_classes > 1 && encoded == nullptr) {
    double own = 0;
    const double share = eval::nearest_neighbour_accuracy(ctx, images, request.conditions, data, kReferenceImages);
    own = share * double(request.conditions.size());
    comm.allreduce_sum(&own, 1);
    extra["sample_class_accuracy"] = own / double(n);
    log::info(
        "samples: {} of {} have their own class as nearest neighbour among {} images of the data (chance {:.1f} %)",
        int64_t(std::lround(own)), n, std::min<int64_t>(kReferenceImages, data.size()),
        100.0 / double(data.num_classes()));
  }
  const dataset::SampleShape shape = decoder != nullptr ? decoder->images() : plan::model_shape(config.model);
  const bool diverged = comm.allreduce_or(all_finite(images) ? 0 : 1) != 0;
  if (decoder != nullptr) images = decoder->decode(ctx, std::move(images));
  const std::vector<float> all = dist::gather_floats(comm, std::move(images));
  if (comm.rank() != 0) return;
  try {
    eval::expect_finite(all, n, 0, decoder != nullptr && !diverged ? eval::kBadVae : eval::kDiverged);
    const bool latents = !config::learns_pixels(config) && decoder == nullptr;
    const eval::BandPictures picture(latents ? dataset::Config() : config.data, shape.channels);
    write_grid(path, all, shape, gives_images() ? 0 : config.model.num_classes, picture);
    write_facts(path, step, config, gives_images() ? kLabelsOfData : kBalanced, decoder != nullptr);
    const std::string note =
        latents ? "latents, of which the first channels are shown: sample.vae decodes them" : picture.description();
    log::info("samples: {}{}", path, note.empty() ? "" : " (" + note + ")");
  } catch (const RunError& e) {
    log::warn("the sample grid or its samples.json is not written: {}", e.what());
  }
}

double Evaluation::fid(eval::TrainingFid& measure, std::map<std::string, double>& extra) {
  const eval::WeightsFrom averaged(model.parameters(), ema);
  eval::GenerateRequest mine = share_of(config, config.eval.fid_samples, comm, guide);
  give_labels(mine);
  bool diverged = false, bad_vae = false;  // eight bits would hide it
  double value = measure.distance(int64_t(mine.conditions.size()), [&](int64_t first, int64_t n) {
    eval::GenerateRequest some = mine;
    some.conditions.assign(mine.conditions.begin() + first, mine.conditions.begin() + first + n);
    some.first_index += first;
    give_images(some);
    std::vector<float> images = eval::generate(ctx, model, config.diffusion, some);
    diverged = diverged || !all_finite(images);
    if (decoder != nullptr) images = decoder->decode(ctx, std::move(images));
    bad_vae = bad_vae || !all_finite(images);
    return images;
  });
  if (const uint64_t found = comm.allreduce_or((diverged ? 1 : 0) | (bad_vae ? 2 : 0)); found != 0) {
    log::warn("{} is not measured: samples have values that are not finite; {}", measure.name(),
              (found & 1) != 0 ? eval::kDiverged.what : eval::kBadVae.what);
    value = NAN;
  }
  extra[measure.name()] = value;
  log::info("{}: {:.4g} ({} samples)", measure.name(), value, config.eval.fid_samples);
  return value;
}

void Evaluation::validation(std::map<std::string, double>& extra) {
  const eval::WeightsFrom averaged(model.parameters(), ema);
  const auto seed = uint64_t(config.train.seed);
  const int64_t n = config.eval.num_images;
  if (encoded != nullptr) encoded->prepare(ctx, eval::validation_samples(comm, validation_data, n, seed));
  const eval::ValidationLoss loss = eval::validation_loss(ctx, comm, model, config.diffusion,
                                                          encoded != nullptr ? *encoded : validation_data, n, seed);
  extra["val_mse"] = loss.right_label;
  if (std::isfinite(loss.wrong_label)) extra["val_mse_wrong_label"] = loss.wrong_label;
  const std::string labels = std::isfinite(loss.wrong_label)
                                 ? fmt::format(" with the right label, {:.5f} with a wrong one", loss.wrong_label)
                                 : "";
  log::info("validation: mse {:.5f}{} ({} fixed {}images)", loss.right_label, labels,
            std::min(n, validation_data.size()), config.data.hold_out > 0 ? "held-out " : "");
}

}  // namespace ditrain::train
