#include "ditrain/eval/latent_shards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <sstream>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/dataset/tile_shards.hpp"
#include "ditrain/files/checksum.hpp"
#include "ditrain/files/file_lock.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/kernels/random.hpp"
#include "ditrain/weights/safetensors.hpp"

namespace ditrain::eval {
namespace {

namespace fs = std::filesystem;
using Metadata = std::map<std::string, std::string>;

constexpr const char *kSums = "sums", *kSquares = "squares";  // of each channel, for stats.json
constexpr const char* kSource = "source";
constexpr const char* kContent = "origin_content";  // of the images of a shard
constexpr int64_t kMostShards = 100000;             // five digits

std::string text_of(const std::vector<double>& values) {
  std::string text;
  for (const double v : values) text += (text.empty() ? "" : " ") + fmt::format("{:.17g}", v);
  return text;
}

// What is collected of the images of a shard, and of their mirrored copies.
struct Encoded {
  std::vector<float> latents, logvar;  // logvar: of kMoments, whose latents are means
};
struct Content {
  Encoded plain, flipped;
  std::vector<int64_t> labels;
};

void append(std::vector<float>& all, const Tensor& more) {
  const std::vector<float> values = to_vector(more);
  all.insert(all.end(), values.begin(), values.end());
}

class Writer {
 public:
  Writer(ops::Context& ctx, nn::Autoencoder& vae, const dataset::Dataset& data, const LatentShards& request)
      : ctx_(ctx), vae_(vae), data_(data), request_(request), origin_(data.samples_checksum()), image_(data.shape()) {
    const int64_t f = vae.config().shrink(), z = vae.config().latent_channels;
    latent_ = {z, image_.height / f, image_.width / f};
    count_ = (data.size() + request.samples - 1) / request.samples;
    if (count_ > kMostShards)
      throw InputError({.where = request.out,
                        .what = "too many shards",
                        .got = std::to_string(count_),
                        .expected = "at most " + std::to_string(kMostShards),
                        .hint = "more samples in each"});
  }

  int64_t count() const { return count_; }
  int64_t first(int64_t shard) const { return shard * request_.samples; }
  int64_t size(int64_t shard) const { return std::min(request_.samples, data_.size() - first(shard)); }
  std::string path(int64_t shard) const { return fmt::format("{}/latents_{:05}.safetensors", request_.out, shard); }

  /// What a shard says of itself.
  Metadata facts(int64_t shard) const {
    Metadata all = request_.tiles;
    all.insert(
        {{"scale_factor", fmt::format("{:.9g}", request_.scale_factor)},
         {"vae", request_.vae},
         {"precision", dtype_name(vae_.type())},
         {kSource, data_.describe()},
         {"groups", std::to_string(vae_.config().groups)},
         {"origin", origin_},
         {kContent, content(shard)},
         {"image", fmt::format("{} x {} x {}", image_.channels, image_.height, image_.width)},
         {"posterior", request_.posterior == PosteriorUse::kSample ? fmt::format("drawn with seed {}", request_.seed)
                                                                   : std::string(word_of(request_.posterior))},
         {"flip", request_.flip ? "yes" : "no"},
         {"samples", fmt::format("{} to {} of {}", first(shard), first(shard) + size(shard) - 1, data_.size())}});
    return all;
  }

  /// Whether the shard is there; refuses one that was made in another way.
  bool exists(int64_t shard) const {
    if (!fs::exists(path(shard))) return false;
    const Metadata metadata = metadata_of(shard);
    Metadata expected = facts(shard);
    expected.erase(kSource);                                     // a path has many spellings; the origin tells
    if (!metadata.contains(kContent)) expected.erase(kContent);  // shards of older builds
    dataset::expect_made_so(path(shard), metadata, expected, "this shard was", "images");
    return true;
  }

  /// Training would read them beside those of this call.
  void refuse_left_over_shards() const {
    for (const auto& entry : fs::directory_iterator(request_.out)) {
      const std::string name = entry.path().filename().string();
      const bool shard = name.starts_with("latents_") && name.ends_with(".safetensors");
      if (!shard || name < fs::path(path(count_)).filename().string()) continue;
      throw InputError({.where = entry.path().string(),
                        .what = "a shard that these images do not have",
                        .expected = fmt::format("{} shards of {} images each", count_, request_.samples),
                        .hint = "the same --shard and images as before, removing it, or another folder"});
    }
  }

  void write(int64_t shard, const std::function<void(int64_t)>& encoded) {
    Content content;
    for (int64_t i = first(shard), end = i + size(shard); i < end;) {
      const int64_t n = std::min<int64_t>(ctx_.num_workers(), end - i);
      encode(i, n, false, content);
      if (request_.flip) encode(i, n, true, content);
      i += n;
      encoded(n);
    }
    save(shard, content);
  }

 private:
  std::string content(int64_t shard) const {
    std::vector<uint64_t> sums(static_cast<size_t>(size(shard)));
    ctx_.for_range(size(shard), 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      for (int64_t i = begin; i < end; ++i) sums[size_t(i)] = data_.content_checksum(first(shard) + i);
    });
    return files::to_hex(
        files::checksum_of({reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof sums[0]}));
  }

  Metadata metadata_of(int64_t shard) const try {
    return weights::SafetensorsFile(path(shard)).metadata();
  } catch (const InputError& e) {
    throw InputError({.where = path(shard),
                      .what = "this shard is damaged",
                      .got = e.what(),
                      .hint = "removing it: it is made again then"});
  }

  // Appends the latents of samples [first, first + n).
  void encode(int64_t first, int64_t n, bool mirrored, Content& content) {
    const Tensor images({n, image_.channels, image_.height, image_.width});
    const Tensor moments({n, 2 * latent_[0], latent_[1], latent_[2]});
    std::vector<Condition> conditions(static_cast<size_t>(n));
    {
      const Pin<float> p(images);
      ctx_.for_range(n, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
        for (int64_t i = begin; i < end; ++i)
          data_.load(first + i, mirrored, p + i * image_.elements(), &conditions[size_t(i)]);
      });
    }
    vae_.encode(ctx_, images, moments);
    expect_finite(moments, first, mirrored);
    const nn::Posterior posterior(moments);
    Encoded& all = mirrored ? content.flipped : content.plain;
    append(all.latents, request_.posterior == PosteriorUse::kSample ? drawn(posterior, first) : posterior.mean);
    if (request_.posterior == PosteriorUse::kMoments) append(all.logvar, posterior.logvar);
    for (int64_t i = 0; i < n && !mirrored; ++i) content.labels.push_back(conditions[size_t(i)].label);
  }

  void expect_finite(const Tensor& moments, int64_t first, bool mirrored) const {
    const std::vector<float> values = to_vector(moments);
    const size_t each = values.size() / size_t(moments.dim(0));
    for (size_t i = 0; i < values.size(); ++i)
      if (!std::isfinite(values[i]))
        throw RunError({.where = data_.describe(),
                        .what = fmt::format("the autoencoder gives no finite numbers for image {}{}",
                                            first + int64_t(i / each), mirrored ? ", mirrored" : ""),
                        .got = std::to_string(values[i]),
                        .hint = "--precision f32, or leaving out that image"});
  }

  Tensor drawn(const nn::Posterior& posterior, int64_t first) const {
    const Tensor noise(posterior.mean.shape());
    const Pin<float> p(noise);
    const int64_t each = noise.size() / noise.dim(0);
    for (int64_t i = 0; i < noise.dim(0); ++i)
      kernels::fill_normal(RandomKey(request_.seed, Stream::kPosterior, uint64_t(first + i)), 0, p + i * each, each);
    return posterior.sample(noise);
  }

  void save(int64_t shard, const Content& content) const {
    const int64_t n = size(shard), each = latent_[1] * latent_[2];
    const std::vector<float>&latents = content.plain.latents, &logvar = content.plain.logvar;
    std::vector<double> sums(static_cast<size_t>(latent_[0])), squares(sums.size());
    for (size_t i = 0; i < latents.size(); ++i) {
      const auto c = size_t(int64_t(i) / each % latent_[0]);
      const double x = latents[i], variance = logvar.empty() ? 0 : std::exp(double(logvar[i]));
      sums[c] += x, squares[c] += x * x + variance;
    }
    Metadata metadata = facts(shard);
    metadata[kSums] = text_of(sums), metadata[kSquares] = text_of(squares);
    std::vector<weights::TensorToWrite> tensors;
    add(tensors, "", content.plain, n);
    if (request_.flip) add(tensors, "_flip", content.flipped, n);
    if (data_.num_classes() > 0) tensors.push_back({"labels", "I64", {n}, content.labels.data()});
    files::PendingFile pending(path(shard));
    weights::write_safetensors(pending.temporary(), tensors, metadata);
    pending.commit();
  }

  void add(std::vector<weights::TensorToWrite>& tensors, const std::string& suffix, const Encoded& encoded,
           int64_t n) const {
    const Shape shape{n, latent_[0], latent_[1], latent_[2]};
    const bool moments = request_.posterior == PosteriorUse::kMoments;
    tensors.push_back({(moments ? "mean" : "latents") + suffix, "F32", shape, encoded.latents.data()});
    if (moments) tensors.push_back({"logvar" + suffix, "F32", shape, encoded.logvar.data()});
  }

  ops::Context& ctx_;
  nn::Autoencoder& vae_;
  const dataset::Dataset& data_;
  const LatentShards& request_;
  const std::string origin_;
  dataset::SampleShape image_;
  std::vector<int64_t> latent_;
  int64_t count_ = 0;
};

// The numbers of a line; none if it holds anything else.
std::vector<double> numbers_of(const weights::SafetensorsFile& file, const char* key) {
  std::vector<double> values;
  const auto found = file.metadata().find(key);
  const char* p = found == file.metadata().end() ? "" : found->second.c_str();
  for (char* end = nullptr; *p != '\0'; p = end) {
    values.push_back(std::strtod(p, &end));
    if (end == p) return {};
  }
  return values;
}

void write_statistics(const Writer& writer, const LatentShards& request, int64_t samples) {
  std::vector<double> mean, deviation;
  double each = 0;
  for (int64_t shard = 0; shard < writer.count(); ++shard) {
    const weights::SafetensorsFile file(writer.path(shard));
    const std::vector<double> sums = numbers_of(file, kSums), squares = numbers_of(file, kSquares);
    const Shape& shape = file.tensor(request.posterior == PosteriorUse::kMoments ? "mean" : "latents").shape;
    if (mean.empty()) mean.resize(sums.size()), deviation.resize(sums.size());
    if (shape.size() != 4 || sums.size() != size_t(shape[1]) || sums.size() != mean.size() ||
        squares.size() != sums.size())
      throw InputError({.where = file.path(), .what = "the shard lacks the sums of its channels"});
    each = double(shape[2] * shape[3]);
    for (size_t c = 0; c < sums.size(); ++c) mean[c] += sums[c], deviation[c] += squares[c];
  }
  const double n = double(samples) * each;
  for (size_t c = 0; c < mean.size(); ++c) {
    mean[c] /= n;
    deviation[c] = std::sqrt(std::max(0.0, deviation[c] / n - mean[c] * mean[c]));
  }
  const nlohmann::json json = {
      {"samples", samples}, {"scale_factor", request.scale_factor}, {"mean", mean}, {"std", deviation}};
  files::write_file_atomically(request.out + "/stats.json", files::json_text(json, 2) + "\n");
}

// The shards that are missing, as rank 0 finds them.
std::vector<int64_t> missing_shards(const Writer& writer, dist::Communicator& comm) {
  std::string list;
  if (comm.rank() == 0) {
    writer.refuse_left_over_shards();
    for (int64_t shard = 0; shard < writer.count(); ++shard)
      if (!writer.exists(shard)) list += std::to_string(shard) + " ";
  }
  std::istringstream numbers(dist::broadcast_text(comm, list));
  return {std::istream_iterator<int64_t>(numbers), {}};
}

void check_shape(const nn::AutoencoderConfig& config, const dataset::SampleShape& image, bool of_tiles) {
  if (image.channels != config.image_channels)
    throw InputError({.where = "latents",
                      .what = "channels of the images are not those of the autoencoder",
                      .got = std::to_string(image.channels),
                      .expected = std::to_string(config.image_channels)});
  const int64_t f = config.shrink();
  if (image.height % f != 0 || image.width % f != 0)
    throw InputError({.where = "latents",
                      .what = "size of the images",
                      .got = fmt::format("{} x {}", image.height, image.width),
                      .expected = "multiples of " + std::to_string(f),
                      .hint = fmt::format("{} {}", of_tiles ? "ditdata make --tile" : "--size",
                                          (std::max(image.height, image.width) + f - 1) / f * f)});
}

}  // namespace

void write_latent_shards(ops::Context& ctx, nn::Autoencoder& vae, const dataset::Dataset& data,
                         const LatentShards& shards, dist::Communicator& comm,
                         const std::function<void(const EncodingProgress&)>& progress) {
  check_shape(vae.config(), data.shape(), !shards.tiles.empty());
  std::unique_ptr<files::FileLock> lock;  // until the last rank has ended
  if (comm.rank() == 0) {
    lock = files::lock_output_folder(shards.out);
    files::remove_stale_files(shards.out);
  }
  comm.barrier();
  if (comm.rank() != 0) lock = files::join_output_folder(shards.out);
  Writer writer(ctx, vae, data, shards);
  std::vector<int64_t> mine;
  EncodingProgress so_far;
  const std::vector<int64_t> missing = missing_shards(writer, comm);
  for (size_t i = size_t(comm.rank()); i < missing.size(); i += size_t(comm.world_size()))
    mine.push_back(missing[i]), so_far.to_do += writer.size(missing[i]);
  for (const int64_t shard : mine)
    writer.write(shard, [&](int64_t n) {
      so_far.encoded += n;
      if (progress) progress(so_far);
    });
  comm.barrier();
  if (comm.rank() == 0) write_statistics(writer, shards, data.size());
  comm.barrier();
}

}  // namespace ditrain::eval
