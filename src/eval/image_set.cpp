#include "ditrain/eval/image_set.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/dataset/file_list.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/dataset/tile_shards.hpp"
#include "ditrain/eval/sample_facts.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/files/sha256.hpp"
#include "ditrain/parallel/jobs.hpp"
#include "ditrain/weights/npz_file.hpp"
#include "ditrain/weights/safetensors.hpp"

namespace ditrain::eval {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlock = 256;                      // images of an array in memory at a time,
constexpr int64_t kBlockBytes = int64_t{256} << 20;  // or fewer, if they are large

struct Listing {
  std::vector<std::string> folders, images, shards, others;  // names in the order of their bytes
};

Listing list(const std::string& path) {
  const dataset::Listing all = dataset::list_folder(path, "another folder");
  Listing listing{.folders = all.folders, .images = {}, .shards = {}, .others = {}};
  for (const std::string& name : all.files) {
    const dataset::FileKind kind = dataset::file_kind(name);
    std::vector<std::string>& names = kind == dataset::FileKind::kImage   ? listing.images
                                      : kind == dataset::FileKind::kShard ? listing.shards
                                                                          : listing.others;
    if (name != kSampleFactsFile && name != kUnfinishedFile) names.push_back(name);
  }
  return listing;
}

// The facts of samples, on one line.
std::string read_facts(const std::string& samples) {
  const std::string path = sample_facts_path(samples);
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return "";
  try {
    return files::json_text(files::parse_json<nlohmann::ordered_json>(files::read_text_file(path, 1 << 20)));
  } catch (const nlohmann::json::exception& e) {
    throw InputError({.where = path, .what = files::json_problem(e)});
  }
}

// Whether facts say that the samples are latents, of whose values pictures keep eight bits of some.
bool tell_latents(const std::string& facts) {
  const auto json = files::parse_json_or_discard(facts);
  return json.is_object() && json.value("latents", nlohmann::json()) == true;
}

// The SHA-256 of the file, or of the list that sha256sum would print.
std::string sha256_of_files(const std::vector<std::string>& paths) {
  if (paths.size() == 1) return files::sha256_of_file(paths[0]);
  files::Sha256 sum;
  for (const std::string& path : paths)
    sum.add(files::sha256_of_file(path) + "  " + fs::path(path).filename().string() + "\n");
  return sum.hex();
}

class ImageFolder final : public ImageSet {
 public:
  ImageFolder(const std::string& path, const Listing& top) : path_(path), facts_(read_facts(path)) {
    for (const std::string& folder : top.folders) {
      const Listing inside = list(path + "/" + folder);
      if (inside.images.empty()) empty_.push_back(folder);
      for (const std::string& name : inside.images) names_.push_back(folder + "/" + name);
      for (const std::string& name : inside.folders) unread_.push_back(folder + "/" + name);
      for (const std::string& name : inside.others) ignored_.add(name);
    }
    if (!names_.empty() && !empty_.empty())
      throw InputError({.where = path,
                        .what = fmt::format("the class '{}' has no images", empty_[0]),
                        .expected = "at least one image in each sub-folder"});
    if (!names_.empty() && !top.images.empty())
      throw InputError({.where = path,
                        .what = "there are images both in the folder and in its sub-folders",
                        .got = fmt::format("{} and {}", top.images.size(), names_.size()),
                        .hint = "a folder of one kind"});
    if (names_.empty()) names_ = top.images, unread_.clear(), ignored_ = {};  // of other folders than classes
    for (const std::string& name : top.others) ignored_.add(name);
    if (names_.empty())
      throw InputError({.where = path,
                        .what = "there are no images",
                        .expected = ".png, .jpg, .jpeg or .bmp files, or .safetensors shards"});
    hashes_.resize(names_.size());
  }

  int64_t size() const override { return int64_t(names_.size()); }
  std::string describe() const override {
    const std::string left = left_out();
    return fmt::format("{} images in the folder {}{}", names_.size(), path_, left.empty() ? "" : " (" + left + ")");
  }
  std::string left_out() const override {
    const std::string files = ignored_.describe();
    if (unread_.empty()) return files;
    return fmt::format("{} folder(s) inside the class folders are not read, such as '{}'{}{}", unread_.size(),
                       unread_.front(), files.empty() ? "" : "; ", files);
  }
  std::string facts() const override { return facts_; }
  std::string sha256() const override {
    files::Sha256 sum;
    for (size_t i = 0; i < names_.size(); ++i) {
      const bool read = !hashes_[i].empty();  // or another rank read it
      sum.add((read ? hashes_[i] : files::sha256_of_file(path_ + "/" + names_[i])) + "  " + names_[i] + "\n");
    }
    return sum.hex();
  }

  EvalImage image(int64_t i) override {
    const std::string file_path = path_ + "/" + names_[size_t(i)];
    const std::string file = files::read_text_file(file_path, images::kMaxImageFileBytes);
    hashes_[size_t(i)] = files::sha256_of(file);  // of its own slot: images may be read by several threads
    images::ImageU8 image = images::decode_image(file_path, file);
    return {image.height, image.width, image.channels, true, false, std::move(image.pixels), {}, file_path};
  }

 private:
  std::string path_, facts_;
  std::vector<std::string> names_, empty_, unread_, hashes_;
  dataset::IgnoredFiles ignored_;
};

// The values of one image that lies as numbers of a type of numpy.
void set_values(EvalImage& image, const std::string& dtype, const std::byte* data, size_t bytes) {
  image.is_u8 = dtype == "u1";
  if (image.is_u8) {
    const auto* p = reinterpret_cast<const uint8_t*>(data);
    image.u8.assign(p, p + bytes);
    return;
  }
  const std::vector<double> values = weights::npy_to_f64(dtype, {data, data + bytes});
  image.f32.assign(values.begin(), values.end());
}

class NpzImages final : public ImageSet {
 public:
  explicit NpzImages(const std::string& path) : path_(path), file_(path), facts_(read_facts(path)) {
    if (facts_.empty()) facts_ = read_facts(files::folder_of(path));
    if (!file_.contains(array_) && file_.names() == std::vector<std::string>{""}) array_ = "";
    header_ = file_.header(array_);
    const size_t rank = header_.shape.size();
    if (rank != 3 && rank != 4) {
      throw InputError({.where = path,
                        .what = "the array does not hold images",
                        .got = fmt::format("shape [{}]", fmt::join(header_.shape, ", ")),
                        .expected = "[N, H, W, C] or [N, H, W]"});
    }
    if (std::any_of(header_.shape.begin(), header_.shape.end(), [](int64_t n) { return n == 0; }))
      throw InputError({.where = path, .what = "there are no images"});
    if (int64_t(header_.bytes) / size() > kBlockBytes) {
      throw InputError({.where = path,
                        .what = "the images are too large",
                        .got = fmt::format("{} bytes each", int64_t(header_.bytes) / size()),
                        .expected = fmt::format("at most {}", kBlockBytes)});
    }
  }

  int64_t size() const override { return header_.shape[0]; }
  std::string describe() const override { return fmt::format("{} images in {}", size(), path_); }
  std::string sha256() const override { return files::sha256_of_file(path_); }
  std::string facts() const override { return facts_; }

  void prepare(int64_t begin, int64_t end) override {
    const auto image_bytes = int64_t(header_.bytes) / size();
    if (!stream_ || begin < at_) stream_.emplace(file_, array_), at_ = 0;
    begin_ = begin, bytes_.resize(size_t((end - begin) * image_bytes));
    std::vector<std::byte> skipped(size_t(at_ < begin ? image_bytes : 0));
    for (; at_ < begin; ++at_) stream_->read(skipped.data(), skipped.size());
    stream_->read(bytes_.data(), bytes_.size());
    at_ = end;
    if (at_ == size()) stream_->finish(), stream_.reset();
  }
  int64_t most_prepared() const override {
    return std::clamp<int64_t>(kBlockBytes / (int64_t(header_.bytes) / size()), 1, kBlock);
  }
  EvalImage image(int64_t i) override {
    const auto image_bytes = int64_t(header_.bytes) / size();
    EvalImage image{header_.shape[1], header_.shape[2], header_.shape.size() == 4 ? header_.shape[3] : 1};
    image.name = fmt::format("{}, image {}", path_, i);
    set_values(image, header_.dtype, bytes_.data() + (i - begin_) * image_bytes, size_t(image_bytes));
    return image;
  }

 private:
  std::string path_;
  weights::NpzFile file_;
  std::string array_ = "arr_0", facts_;
  weights::NpyHeader header_;
  std::optional<weights::NpyStream> stream_;
  int64_t at_ = 0, begin_ = 0;  // images that the stream has given; the first that is prepared
  std::vector<std::byte> bytes_;
};

// Of latents with their moments, the mean.
const char* images_of(const weights::SafetensorsFile& file) {
  for (const char* name : {"images", "samples", "mean"})
    if (file.contains(name)) return name;
  return "latents";
}

class Shards final : public ImageSet {
 public:
  Shards(const std::string& path, const std::vector<std::string>& files, std::optional<double> latent_scale)
      : path_(path),
        paths_(files),
        facts_(read_facts(files::folder_of(files.front()))),
        is_latent_(tell_latents(facts_)) {
    for (const std::string& file : files) {
      files_.emplace_back(file);
      const char* name = images_of(files_.back());
      const weights::TensorView& tensor = files_.back().tensor(name);
      if (tensor.shape.size() != 4 || tensor.num_elements() == 0) {
        throw InputError({.where = file,
                          .what = fmt::format("'{}' does not hold images", name),
                          .got = fmt::format("shape [{}]", fmt::join(tensor.shape, ", ")),
                          .expected = "[N, C, H, W]"});
      }
      tensors_.push_back(tensor);
      begins_.push_back(size_);
      size_ += tensor.shape[0];
    }
    const auto stated = [&](size_t i) { return is_encoded(i) ? dataset::stated_latent_scale(files_[i]) : 0; };
    for (size_t i = 1; i < files.size() && !latent_scale; ++i)
      if (stated(i) != stated(0))
        throw InputError({.where = files[i],
                          .what = "this shard states another scale_factor than " + files[0],
                          .got = fmt::format("{:g}", stated(i)),
                          .expected = fmt::format("{:g}", stated(0)),
                          .hint = "a folder for the latents of each VAE"});
    scale_ = float(latent_scale ? *latent_scale : stated(0) > 0 ? stated(0) : 1);
  }

  int64_t size() const override { return size_; }
  std::string describe() const override {
    return fmt::format("{} {} in the shards {}", size_, is_latent_ ? "latents" : "images", path_);
  }
  std::string sha256() const override { return sha256_of_files(paths_); }
  std::string facts() const override { return facts_; }

  EvalImage image(int64_t i) override {
    const size_t shard = size_t(std::upper_bound(begins_.begin(), begins_.end(), i) - begins_.begin()) - 1;
    const weights::TensorView row = weights::row_range(tensors_[shard], i - begins_[shard], 1);
    const std::string name = fmt::format("{}, image {}", paths_[shard], i - begins_[shard]);
    if (tensors_[shard].name == "samples" && row.dtype != "U8")
      return round_as_saved(weights::to_f32(row).data(), {row.shape[1], row.shape[2], row.shape[3]}, is_latent_, name);
    EvalImage image{row.shape[2], row.shape[3], row.shape[1], row.dtype == "U8", true};
    image.name = name;
    if (image.is_u8) {
      const auto* p = reinterpret_cast<const uint8_t*>(row.data);
      image.u8.assign(p, p + row.bytes);
    } else {
      image.f32 = weights::to_f32(row);
      if (is_encoded(shard))
        for (float& x : image.f32) x *= scale_;
    }
    return image;
  }

 private:
  // Latents as ditdata writes them, before their factor.
  bool is_encoded(size_t shard) const { return tensors_[shard].name == "latents" || tensors_[shard].name == "mean"; }

  std::string path_;
  std::vector<std::string> paths_;
  std::string facts_;
  const bool is_latent_;
  std::vector<weights::SafetensorsFile> files_;
  std::vector<weights::TensorView> tensors_;
  std::vector<int64_t> begins_;
  int64_t size_ = 0;
  float scale_ = 1;  // of latents
};

class Tiles final : public ImageSet {
 public:
  explicit Tiles(const std::string& path, const std::vector<std::string>& bands = {})
      : shards_(path),
        bands_(dataset::find_bands(shards_.band_names(), bands.empty() ? shards_.band_names() : bands, path)),
        facts_(read_facts(files::folder_of(shards_.shards().front().file.path()))) {}

  int64_t size() const override { return shards_.size(); }
  std::string describe() const override { return fmt::format("{} tiles in {}", size(), shards_.path()); }
  std::string sha256() const override {
    std::vector<std::string> paths;
    for (const dataset::TileShard& shard : shards_.shards()) paths.push_back(shard.file.path());
    return sha256_of_files(paths);
  }
  std::string facts() const override { return facts_; }
  const dataset::TileShards* tiles() const override { return &shards_; }

  EvalImage image(int64_t i) override {
    const dataset::TileShard& shard = shards_.shard_of(i);
    const int64_t tile = i - shard.first;
    EvalImage image{shard.height, shard.width, int64_t(bands_.size()), shard.type == images::PixelType::kU8, true};
    image.name = fmt::format("{}, tile {}", shard.file.path(), tile);
    for (const int b : bands_) {
      for (const double x : dataset::filled_plane(shard, tile, b)) {
        if (image.is_u8)
          image.u8.push_back(uint8_t(std::lround(x)));
        else
          image.f32.push_back(float(x));
      }
    }
    return image;
  }

 private:
  dataset::TileShards shards_;
  std::vector<int> bands_;  // their places in the shards
  std::string facts_;
};

bool is_of_tiles(const weights::SafetensorsFile& file) {
  return file.contains("images") && file.metadata().contains("bands");
}

// Whether pictures cannot show what the first shard of a folder holds: digital numbers, latents, or other channels.
bool says_more_than_pictures(const std::string& shard) {
  const weights::SafetensorsFile file(shard);
  if (is_of_tiles(file) || tell_latents(read_facts(files::folder_of(shard)))) return true;
  const char* name = images_of(file);
  if (!file.contains(name) || file.tensor(name).shape.size() != 4) return false;
  const int64_t channels = file.tensor(name).shape[1];
  return channels != 1 && channels != 3;
}

std::unique_ptr<ImageSet> open_shards(const std::string& path, const std::vector<std::string>& files,
                                      std::optional<double> latent_scale) {
  if (is_of_tiles(weights::SafetensorsFile(files.front()))) return std::make_unique<Tiles>(path);
  return std::make_unique<Shards>(path, files, latent_scale);
}

std::string first_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes(16, '\0');
  file.read(bytes.data(), std::streamsize(bytes.size()));
  bytes.resize(size_t(file.gcount()));
  return bytes;
}

}  // namespace

bool ImageSet::is_latent() const { return tell_latents(facts()); }

EvalImage round_as_saved(const float* chw, const dataset::SampleShape& shape, bool is_latent, std::string name) {
  EvalImage image{.height = shape.height, .width = shape.width, .channels = shape.channels};
  image.name = std::move(name);
  if (!is_latent && (shape.channels == 1 || shape.channels == 3)) {
    images::ImageU8 picture = images::to_image(chw, shape.channels, shape.height, shape.width);
    image.channels = picture.channels, image.u8 = std::move(picture.pixels);
  } else {
    image.is_u8 = false, image.channels_first = true;
    image.f32.assign(chw, chw + shape.elements());
  }
  return image;
}

void ImageSet::visit(parallel::Team& team, const std::function<void(int64_t, const EvalImage&)>& use) {
  for (int64_t begin = 0; begin < size(); begin += most_prepared()) {
    const int64_t end = std::min(begin + most_prepared(), size());
    prepare(begin, end);
    parallel::run_jobs(team, end - begin, [&](int64_t i) { use(begin + i, image(begin + i)); });
  }
}

std::unique_ptr<ImageSet> open_tiles(const std::string& path, const std::vector<std::string>& bands) {
  return std::make_unique<Tiles>(path, bands);
}

std::unique_ptr<ImageSet> open_image_set(const std::string& path, std::optional<double> latent_scale) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    for (const char* file : {"/status.json", "/checkpoints/latest", "/state.json"})
      if (fs::exists(path + file, error))
        throw InputError({.where = path,
                          .what = "this is a run or a checkpoint, no images",
                          .expected = "a folder of images",
                          .hint = "ditsample --checkpoint " + quoted_word(path) + ", which draws images"});
    const Listing top = list(path);
    std::vector<std::string> shards;
    for (const std::string& name : top.shards) shards.push_back(path + "/" + name);
    if (shards.empty() || (!top.images.empty() && !says_more_than_pictures(shards[0])))
      return std::make_unique<ImageFolder>(path, top);
    return open_shards(path, shards, latent_scale);
  }
  if (!fs::is_regular_file(path, error)) throw InputError({.where = path, .what = "there is no such folder or file"});
  const std::string begin = first_bytes(path);
  if (begin.size() > 8 && begin[8] == '{') return open_shards(path, {path}, latent_scale);
  return std::make_unique<NpzImages>(path);
}

}  // namespace ditrain::eval
