// Pictures of samples of many bands. By the names of the bands (dataset::find_colours): red, green and blue, and beside
// it near infrared, red and green ("false colour", vegetation is red). The stretch is that of the model's data: -1, the
// lower end of a band's range, is black and 1 is full; so pictures of all steps and runs on the same data compare.
#pragma once
#include <optional>
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
  int64_t width_of(int64_t width) const;  ///< of the picture of samples of that width
  /// What is shown and how it is stretched, one line; "" where that is the first three channels.
  const std::string& description() const { return description_; }

 private:
  int64_t channels_;
  std::vector<int> rgb_, false_colour_;
  std::string description_;
};

}  // namespace ditrain::eval
