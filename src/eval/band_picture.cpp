#include "ditrain/eval/band_picture.hpp"

#include <fmt/format.h>

namespace ditrain::eval {
namespace {

constexpr int64_t kGap = 1;  // black columns between both halves

std::string describe(const dataset::BandScaling& scaling, const std::vector<int>& bands) {
  std::string text;
  for (const int b : bands)
    text += fmt::format("{}{} ({:.6g} to {:.6g})", text.empty() ? "" : ", ", scaling.names[size_t(b)],
                        scaling.low[size_t(b)], scaling.high[size_t(b)]);
  return text;
}

}  // namespace

BandPictures::BandPictures(const dataset::Config& data, int64_t channels) : channels_(channels) {
  if (!dataset::has_scaling(data) || int64_t(data.bands.size()) != channels) return;
  const dataset::BandScaling scaling = dataset::scaling_of(data);
  const dataset::ColourBands colours = dataset::colours_of(data);
  if (channels >= 3) rgb_ = {0, 1, 2};
  if (colours.has_rgb()) rgb_ = {colours.red, colours.green, colours.blue};
  if (rgb_.empty()) return;
  if (channels > 3 && colours.has_false_colour()) false_colour_ = {colours.nir, colours.red, colours.green};
  description_ = "red, green, blue are " + describe(scaling, rgb_);
  if (!false_colour_.empty()) description_ += "; beside it false colour of " + describe(scaling, false_colour_);
  description_ += "; stretched linearly over these numbers (data.scaling)";
}

int64_t BandPictures::width_of(int64_t width) const { return false_colour_.empty() ? width : 2 * width + kGap; }

images::ImageU8 BandPictures::operator()(const float* chw, int64_t height, int64_t width) const {
  if (rgb_.empty()) return images::to_image(chw, channels_, height, width);
  const int64_t all = width_of(width), plane = height * width;
  images::ImageU8 picture{all, height, 3, std::vector<uint8_t>(size_t(all * height * 3), 0)};
  const auto draw = [&](const std::vector<int>& bands, int64_t left) {
    for (int64_t p = 0; p < plane && !bands.empty(); ++p)
      for (size_t c = 0; c < 3; ++c)
        picture.pixels[size_t((p / width * all + left + p % width) * 3) + c] = images::to_u8(chw[bands[c] * plane + p]);
  };
  draw(rgb_, 0);
  draw(false_colour_, width + kGap);
  return picture;
}

}  // namespace ditrain::eval
