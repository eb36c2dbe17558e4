#include "ditrain/eval/sample_writer.hpp"

#include <fmt/format.h>

#include <cmath>

#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/images/image.hpp"
#include "ditrain/weights/npz.hpp"
#include "ditrain/weights/safetensors.hpp"

namespace ditrain::eval {
namespace {

constexpr int64_t kGridPad = 2;

// The file of all values, written as they come.
class SampleFile {
 public:
  SampleFile(const SampleFiles& files, const SampleForm& output, const std::vector<int64_t>& labels)
      : pending_(files.folder + "/" + kRawSamplesFile),
        layout_(weights::lay_out_safetensors({{name(output),
                                               images::safetensors_name(output.type()),
                                               {files.num, output.channels, output.height, output.width},
                                               nullptr},
                                              {"labels", "I64", {files.num}, nullptr}},
                                             metadata(output))),
        file_(pending_.temporary()),
        next_(layout_.places.at(name(output)).offset) {
    file_.write(layout_.begin.data(), layout_.begin.size());
    file_.extend(layout_.bytes - layout_.begin.size());
    file_.overwrite(layout_.places.at("labels").offset, labels.data(), labels.size() * sizeof(int64_t));
  }
  void append(const std::string& bytes) {
    file_.overwrite(next_, bytes.data(), bytes.size());
    next_ += bytes.size();
  }
  void finish() {
    file_.finish();
    pending_.commit();
  }

 private:
  static const char* name(const SampleForm& output) { return output.scaling ? "images" : "samples"; }
  static std::map<std::string, std::string> metadata(const SampleForm& output) {
    if (!output.scaling) return {};
    std::map<std::string, std::string> all = {{"bands", files::json_text(nlohmann::json(output.scaling->names))},
                                              {"crs", output.like ? output.like->crs : ""}};
    if (!output.scaling->scale.empty()) all["scale"] = files::json_text(nlohmann::json(output.scaling->scale));
    if (!output.scaling->offset.empty()) all["offset"] = files::json_text(nlohmann::json(output.scaling->offset));
    return all;
  }

  files::PendingFile pending_;
  weights::SafetensorsLayout layout_;
  files::FileWriter file_;
  uint64_t next_;
};

// One sample of all bands. `like` lends where it lies and, to bands of the same name, the scale and offset that the
// model does not know.
void write_sample(const std::string& path, const SampleForm& o, const float* chw) {
  const std::vector<std::byte> numbers = o.numbers(chw, 1);
  images::RasterToWrite raster{.width = o.width, .height = o.height, .type = o.type(), .pixels = numbers.data()};
  for (int64_t c = 0; c < o.channels; ++c) {
    images::RasterBand band{.name = o.scaling ? o.scaling->names[size_t(c)] : ""};
    if (o.scaling && !o.scaling->scale.empty()) band.scale = o.scaling->scale[size_t(c)];
    if (o.scaling && !o.scaling->offset.empty()) band.offset = o.scaling->offset[size_t(c)];
    const bool known = band.scale != 1 || band.offset != 0;  // nothing is stated by 1 and 0
    if (o.like && o.scaling && !known)
      for (const images::RasterBand& lent : o.like->bands)
        if (dataset::canonical_band(lent.name) == dataset::canonical_band(band.name))
          band.scale = lent.scale, band.offset = lent.offset;
    raster.bands.push_back(band);
  }
  if (o.like) raster.crs = o.like->crs, raster.transform = o.like->transform;
  images::write_geotiff(path, raster);
}

}  // namespace

std::string sample_name(int64_t number, bool geotiff) {
  return fmt::format("{:06}.{}", number, geotiff ? "tif" : "png");
}

std::vector<std::byte> SampleForm::numbers(const float* values, int64_t n) const {
  std::vector<std::byte> all;
  for (int64_t i = 0; i < n; ++i) {
    const float* chw = values + i * channels * pixels();
    const auto* raw = reinterpret_cast<const std::byte*>(chw);
    const std::vector<std::byte> one =
        scaling ? scaling->numbers(chw, pixels()) : std::vector<std::byte>(raw, raw + channels * pixels() * 4);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

// Rank 0 collects from all ranks, in the order of the images: pictures for grid and npz, values of data that is no
// picture.
class SampleWriter::Impl {
 public:
  Impl(const SampleFiles& files, const SampleForm& output, const BandPictures& picture,
       const std::vector<int64_t>& labels, dist::Communicator& comm)
      : files_(files),
        output_(output),
        picture_(picture),
        picture_width_(picture.width_of(output.width)),
        comm_(comm),
        raw_(!output.is_picture() || output.scaling) {
    if (!files.geotiff && picture_width_ > images::kMaxImagePixels / output.height)
      throw InputError({.where = "samples",
                        .what = "samples are too large for PNG pictures",
                        .got = fmt::format("{} x {} pixels", picture_width_, output.height),
                        .expected = fmt::format("at most {} pixels", images::kMaxImagePixels),
                        .hint = "--format geotiff, if they are tiles"});
    DITRAIN_CHECK(files.drawn == 0 || (!raw_ && !files.geotiff), "PNGs hold all that is known of the samples");
    if (comm.rank() != 0) return;
    if (raw_) file_.emplace(files, output, labels);
    if (!files.npz.empty()) {
      pending_npz_.emplace(files.npz);
      npz_.emplace(pending_npz_->temporary(), "arr_0",
                   std::vector<int64_t>{files.num, output.height, output.width, output.channels});
    }
    if (!files.grid.empty() || npz_)
      for (int64_t i = 0; i < (npz_ ? files.drawn : std::min(files.drawn, kMaxGridImages)); ++i) add_drawn(i);
  }

  void add(ops::Context& ctx, const std::vector<float>& values, int64_t first, int64_t n) {
    const std::vector<images::ImageU8> pictures = write_each(ctx, values, first, n);
    if (!files_.grid.empty() || !files_.npz.empty()) {
      std::string pixels;
      for (const images::ImageU8& picture : pictures) pixels.append(picture.pixels.begin(), picture.pixels.end());
      for (const std::string& of_rank : comm_.gather_strings(pixels)) add_pixels(of_rank);
    }
    if (!raw_) return;
    const std::vector<std::byte> numbers = output_.numbers(values.data(), int64_t(pictures.size()));
    const std::string bytes(reinterpret_cast<const char*>(numbers.data()), numbers.size());
    for (const std::string& of_rank : comm_.gather_strings(bytes))
      if (file_) file_->append(of_rank);
  }

  void finish() {
    if (comm_.rank() != 0) return;
    if (file_) file_->finish();
    if (npz_) npz_->finish(), pending_npz_->commit();
    if (files_.grid.empty()) return;
    const auto columns = int64_t(std::ceil(std::sqrt(double(grid_.size()))));
    images::write_png(files_.grid, images::make_grid(grid_, columns, kGridPad));
  }

 private:
  std::vector<images::ImageU8> write_each(ops::Context& ctx, const std::vector<float>& values, int64_t first,
                                          int64_t n) const {
    std::vector<images::ImageU8> pictures(static_cast<size_t>(n));
    ctx.for_range(n, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      for (int64_t i = begin; i < end; ++i) {
        const float* chw = values.data() + i * output_.channels * output_.pixels();
        pictures[size_t(i)] = picture_(chw, output_.height, output_.width);
        const std::string path = path_of(first + i);
        files_.geotiff ? write_sample(path, output_, chw) : images::write_png(path, pictures[size_t(i)]);
      }
    });
    return pictures;
  }

  std::string path_of(int64_t number) const { return files_.folder + "/" + sample_name(number, files_.geotiff); }

  // Pictures are read in three channels, of which grey ones have the same values.
  void add_drawn(int64_t number) {
    const images::ImageU8 image = images::read_image(path_of(number));
    if (image.width != picture_width_ || image.height != output_.height)
      throw InputError({.where = path_of(number),
                        .what = "a sample of another size",
                        .got = fmt::format("{} x {} pixels", image.width, image.height),
                        .expected = fmt::format("{} x {}", picture_width_, output_.height)});
    std::string pixels;
    for (size_t i = 0; i < image.pixels.size(); i += output_.channels < 3 ? 3 : 1) pixels += char(image.pixels[i]);
    add_pixels(pixels);
  }

  void add_pixels(const std::string& pixels) {
    if (npz_) npz_->append(reinterpret_cast<const uint8_t*>(pixels.data()), pixels.size());
    const int64_t channels = output_.channels < 3 ? 1 : 3;
    const auto bytes = size_t(picture_width_ * output_.height * channels);
    for (size_t at = 0; at < pixels.size() && int64_t(grid_.size()) < kMaxGridImages; at += bytes)
      grid_.push_back({picture_width_,
                       output_.height,
                       channels,
                       {pixels.begin() + int64_t(at), pixels.begin() + int64_t(at + bytes)}});
  }

  const SampleFiles files_;
  const SampleForm& output_;
  const BandPictures& picture_;
  const int64_t picture_width_;
  dist::Communicator& comm_;
  const bool raw_;
  std::optional<SampleFile> file_;
  std::optional<files::PendingFile> pending_npz_;
  std::optional<weights::NpzU8Writer> npz_;
  std::vector<images::ImageU8> grid_;
};

SampleWriter::SampleWriter(const SampleFiles& files, const SampleForm& form, const BandPictures& picture,
                           const std::vector<int64_t>& labels, dist::Communicator& comm)
    : impl_(std::make_unique<Impl>(files, form, picture, labels, comm)) {}
SampleWriter::~SampleWriter() = default;
void SampleWriter::add(ops::Context& ctx, const std::vector<float>& values, int64_t first, int64_t n) {
  impl_->add(ctx, values, first, n);
}
void SampleWriter::finish() { impl_->finish(); }

}  // namespace ditrain::eval
