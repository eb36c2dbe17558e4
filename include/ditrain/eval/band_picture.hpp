// Pictures of samples with many bands. The names of the bands (dataset::colours_of) choose red, green and blue, and
// beside it near infrared, red and green ("false colour", which shows vegetation in red). -1 is black and 1 is full,
// the ends of a band's range in the model's data, so that pictures of all steps and runs on the same data can be
// compared.
#pragma once
#include <string>

#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/images/image.hpp"

namespace ditrain::eval {

class BandPictures {
 public:
  /// Without names (data other than tiles) the first three channels are red, green and blue; fewer than three are grey.
  BandPictures(const dataset::Config& data, int64_t channels);

  /// chw [channels, height, width] in about [-1, 1].
  images::ImageU8 operator()(const float* chw, int64_t height, int64_t width) const;
  int64_t width_of(int64_t width) const;  ///< width in pixels of the picture of a sample of width `width`
  /// One line: which bands are shown and how they are stretched; "" where the first three channels are shown.
  const std::string& description() const { return description_; }

 private:
  int64_t channels_;
  std::vector<int> rgb_, false_colour_;
  std::string description_;
};

}  // namespace ditrain::eval
