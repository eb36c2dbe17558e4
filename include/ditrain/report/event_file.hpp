// Event files of TensorBoard: scalars and images. A record is its length (u64), the masked CRC32C of that, an Event
// (protobuf) and the masked CRC32C of it; numbers are little-endian.
//   Event   1 wall_time (double)  2 step (int64)  3 file_version (string)  5 summary
//   Summary 1 value, repeated     Value 1 tag  2 simple_value (float)  4 image
//   Image   1 height  2 width  3 colorspace  4 encoded_image_string
// Source:   tensorflow/core/util/event.proto, framework/summary.proto, lib/io/record_writer.cc
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ditrain::report {

/// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78).
uint32_t crc32c(std::string_view bytes);
/// The CRC-32C of `bytes` as records store it: rotated and offset, because the CRC of data that contains its own CRC
/// detects errors poorly.
uint32_t masked_crc32c(std::string_view bytes);

/// An encoded image, PNG or JPEG.
struct EventImage {
  std::string tag, encoded;
  int64_t width = 0, height = 0;
};

/// A file that grows. Nothing is written before flush().
class EventFile {
 public:
  /// Makes `folder` and a file in it with a unique name. Errors: RunError, InputError
  EventFile(const std::string& folder, double now_s);
  void add_scalars(double wall_time_s, int64_t step, const std::vector<std::pair<std::string, double>>& values);
  void add_image(double wall_time_s, int64_t step, const EventImage& image);
  /// Appends what has been added. Errors: RunError; what was added is lost then, and the file ends with a whole record
  void flush();
  const std::string& path() const { return path_; }

 private:
  void add(double wall_time_s, int64_t step, int field, std::string_view content);

  std::string path_, buffer_;
};

}  // namespace ditrain::report
