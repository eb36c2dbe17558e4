// Image files: one sub-folder per class (its sorted position is the label) or a flat folder without labels. Only names
// are read when it is opened; a file is decoded each time its sample is wanted.

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/dataset/file_list.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/files/checksum.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/images/exif.hpp"
#include "ditrain/images/image.hpp"

namespace ditrain::dataset {
namespace {

[[noreturn]] void no_images(const std::string& path, const Listing& top) {
  std::string hint = way_to_data(path, "folder");
  const bool other_data = !hint.empty();
  if (!other_data) hint = "a folder of images, or one with a sub-folder of images per class";
  for (const auto& name : top.folders)
    if (!other_data && !list_folder(path + "/" + name).folders.empty()) {
      hint = "a folder further down, such as data.path: " + path + "/" + name;
      break;
    }
  throw InputError({.where = "data",
                    .what = "no images in '" + path + "'",
                    .got = describe(top),
                    .expected = ".jpg, .jpeg, .png or .bmp files",
                    .hint = hint});
}

class ImageFolder final : public Dataset {
 public:
  explicit ImageFolder(const OpenRequest& request)
      : Dataset(request.config, request.shape), root_(request.config.path), exif_(request.config.exif_orientation) {
    const Listing top = list_folder(root_);
    for (const auto& name : top.folders) add_class(name);
    if (!unread_folders_.empty() && log::of_rank().empty())
      log::warn("data: {} folder(s) inside the class folders of '{}' are not read, such as '{}'",
                unread_folders_.size(), root_, unread_folders_.front());
    const std::vector<std::string> loose = image_names(top);
    if (files_.empty()) {
      class_names_.clear();
      for (const auto& name : loose) files_.push_back({name, 0});
    } else if (!loose.empty()) {
      log::warn("data: {} images beside the class folders of '{}' are not used", loose.size(), root_);
    }
    if (files_.empty()) no_images(root_, top);
    size_ = int64_t(files_.size());
    num_classes_ = int64_t(class_names_.size());
  }

  std::string describe() const override {
    const std::string labels = num_classes_ == 0 ? "no labels" : std::to_string(num_classes_) + " classes";
    return "folder '" + root_ + "': " + std::to_string(size_) + " images, " + labels;
  }
  std::string checksum_of_samples() const override {
    std::string names;
    for (const File& file : files_) names += file.name + ' ' + std::to_string(file.label) + '\n';
    for (const std::string& name : class_names_) names += name + '\n';
    return files::to_hex(files::checksum_of(names));
  }
  uint64_t checksum_of_content(int64_t index) const override try {
    return files::checksum_of_parts(root_ + "/" + files_[size_t(index)].name);
  } catch (const files::OpenError&) {
    if (!skips_bad()) throw;
    return 0;  // another image takes its place
  }

 private:
  struct File {
    std::string name;  // relative to root_
    int64_t label;
  };

  std::vector<std::string> image_names(const Listing& listing) {
    std::vector<std::string> names;
    for (const std::string& name : listing.files)
      file_kind(name) == FileKind::kImage ? names.push_back(name) : ignore_file(name);
    return names;
  }

  // An empty sub-folder keeps its label: the other labels must not depend on whether it was filled yet.
  void add_class(const std::string& name) {
    const auto label = int64_t(class_names_.size());
    class_names_.push_back(name);
    const Listing listing = list_folder(root_ + "/" + name);
    for (const auto& folder : listing.folders) unread_folders_.push_back(name + "/" + folder);
    const std::vector<std::string> images = image_names(listing);
    for (const auto& image : images) files_.push_back({name + "/" + image, label});
    if (!images.empty()) note_class(label);
  }

  images::ImageU8 read_upright(const std::string& path) const {
    if (!exif_) return images::read_image(path);
    const std::string bytes = files::read_text_file(path, images::kMaxImageFileBytes);
    return images::turn_upright(images::decode_image(path, bytes), images::exif_orientation(bytes));
  }

  int64_t label_of(int64_t index) const override { return files_[size_t(index)].label; }

  void read(int64_t index, bool flip, float* chw, Condition* condition) const override {
    const File& file = files_[size_t(index)];
    const images::ImageU8 image =
        images::center_crop_adm(read_upright(root_ + "/" + file.name), shape_.height, shape_.width);
    DITRAIN_CHECK(image.channels == 3 && image.height == shape_.height && image.width == shape_.width,
                  "crop of another size than asked for");
    const int64_t height = shape_.height, width = shape_.width;
    for (int64_t c = 0; c < 3; ++c)
      for (int64_t y = 0; y < height; ++y)
        for (int64_t x = 0; x < width; ++x) {
          const int64_t from = flip ? width - 1 - x : x;
          *chw++ = float(image.pixels[size_t((y * width + from) * 3 + c)]) / 127.5f - 1.0f;
        }
    condition->label = label_of(index);
  }

  std::string root_;
  bool exif_;                                // turn photographs as their cameras say
  std::vector<std::string> unread_folders_;  // relative to root_
  std::vector<File> files_;
};

}  // namespace

std::unique_ptr<Dataset> open_image_folder(const OpenRequest& request) {
  if (request.shape.channels != 3)
    throw ShapeError({.where = "data",
                      .what = "data.kind: folder reads RGB images",
                      .got = "model.in_channels " + std::to_string(request.shape.channels),
                      .expected = "3",
                      .hint = "model.in_channels: 3, or data.kind: latents"});
  return std::make_unique<ImageFolder>(request);
}

}  // namespace ditrain::dataset
