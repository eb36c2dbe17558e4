#include "ditrain/report/event_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "ditrain/files/files.hpp"

namespace ditrain::report {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? c >> 1 ^ 0x82F63B78u : c >> 1;
    table[i] = c;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = make_table();

template <class T>
std::string little_endian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof value; ++i) bytes += char(value >> (8 * i) & 0xFF);
  return bytes;
}

// Protobuf: a field is its number and wire type, then a varint (0), 8 bytes (1), 4 bytes (5), or a length and bytes
// (2).
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += char(value | 0x80);
  return bytes + char(value);
}
std::string key(int field, int wire_type) { return varint(uint64_t(field << 3 | wire_type)); }
std::string number_field(int field, int64_t value) { return key(field, 0) + varint(uint64_t(value)); }
std::string double_field(int field, double value) {
  return key(field, 1) + little_endian(std::bit_cast<uint64_t>(value));
}
std::string float_field(int field, float value) {
  return key(field, 5) + little_endian(std::bit_cast<uint32_t>(value));
}
std::string bytes_field(int field, std::string_view bytes) {
  return key(field, 2) + varint(bytes.size()) + std::string(bytes);
}

constexpr int kFileVersion = 3, kSummary = 5;  // fields of Event

std::string host_name() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return host.data();
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t c = ~0u;
  for (const char byte : bytes) c = c >> 8 ^ kTable[(c ^ uint8_t(byte)) & 0xFF];
  return ~c;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t c = crc32c(bytes);
  return (c >> 15 | c << 17) + 0xa282ead8u;
}

EventFile::EventFile(const std::string& folder, double now_s) {
  files::make_output_folder(folder);
  for (int n = 0; path_.empty() || std::filesystem::exists(path_); ++n)
    path_ = fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", folder, int64_t(now_s), host_name(), ::getpid(), n);
  add(now_s, 0, kFileVersion, "brain.Event:2");
  flush();
}

void EventFile::add(double wall_time_s, int64_t step, int field, std::string_view content) {
  const std::string event = double_field(1, wall_time_s) + number_field(2, step) + bytes_field(field, content);
  const std::string length = little_endian(uint64_t(event.size()));
  buffer_ += length + little_endian(masked_crc32c(length)) + event + little_endian(masked_crc32c(event));
}

void EventFile::add_scalars(double wall_time_s, int64_t step,
                            const std::vector<std::pair<std::string, double>>& values) {
  std::string summary;
  for (const auto& [tag, value] : values) summary += bytes_field(1, bytes_field(1, tag) + float_field(2, float(value)));
  if (!summary.empty()) add(wall_time_s, step, kSummary, summary);
}

void EventFile::add_image(double wall_time_s, int64_t step, const EventImage& image) {
  constexpr int kRgb = 3;
  const std::string picture = number_field(1, image.height) + number_field(2, image.width) + number_field(3, kRgb) +
                              bytes_field(4, image.encoded);
  add(wall_time_s, step, kSummary, bytes_field(1, bytes_field(1, image.tag) + bytes_field(4, picture)));
}

void EventFile::flush() {
  const std::string text = std::exchange(buffer_, {});
  if (text.empty()) return;
  const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  struct stat before {};
  const bool opened = fd >= 0 && ::fstat(fd, &before) == 0;
  errno = opened ? ENOSPC : errno;  // of a write that is cut short
  const bool written = opened && ::write(fd, text.data(), text.size()) == ssize_t(text.size());
  const int error_number = errno;
  if (opened && !written) (void)!::ftruncate(fd, before.st_size);  // readers stop at half a record
  if (fd >= 0) ::close(fd);
  if (!written) throw RunError({.where = path_, .what = "cannot append events", .got = std::strerror(error_number)});
}

}  // namespace ditrain::report
