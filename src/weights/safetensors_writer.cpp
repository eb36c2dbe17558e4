// The writing half of safetensors.hpp.

#include <algorithm>
#include <set>

#include "ditrain/base/dtype.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "safetensors_header.hpp"

namespace ditrain::weights {
namespace {

constexpr size_t kConvertPiece = size_t{1} << 18;  // elements: 512 KiB of bf16, so that it stays in L2

uint64_t checked_bytes(const TensorToWrite& t) {
  uint64_t bytes = safetensors_dtype_bytes(t.dtype);
  DITRAIN_CHECK(bytes != 0, "unknown dtype " + t.dtype + " of " + t.name);
  for (const int64_t dimension : t.shape) {
    DITRAIN_CHECK(dimension >= 0 && !__builtin_mul_overflow(bytes, static_cast<uint64_t>(dimension), &bytes),
                  "impossible shape of " + t.name);
  }
  DITRAIN_CHECK(!t.f32_to_bf16 || t.dtype == "BF16", "f32_to_bf16 needs dtype BF16: " + t.name);
  return bytes;
}

void check_names(const std::vector<TensorToWrite>& tensors) {
  std::set<std::string> names;
  for (const TensorToWrite& t : tensors) {
    DITRAIN_CHECK(is_utf8(t.name) && t.name != "__metadata__", "not a tensor name: " + t.name);
    DITRAIN_CHECK(names.insert(t.name).second, "two tensors named " + t.name);
  }
}

std::string header_text(const std::vector<TensorToWrite>& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const TensorToWrite& t : tensors) {
    const uint64_t end = offset + checked_bytes(t);
    header[t.name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  // Metadata may quote the outside world (paths, host names): bytes that are not UTF-8 become U+FFFD.
  std::string text = files::json_text(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  DITRAIN_CHECK(text.size() <= kMaxHeaderBytes, "header too long");
  return text;
}

void write_as_bf16(files::FileWriter& file, const float* values, size_t count) {
  std::vector<BFloat16> piece(std::min(count, kConvertPiece));
  for (size_t done = 0; done < count; done += piece.size()) {
    const size_t n = std::min(piece.size(), count - done);
    for (size_t i = 0; i < n; ++i) piece[i] = to_bf16(values[done + i]);
    file.write(piece.data(), n * sizeof(BFloat16));
  }
}

// Sorts the tensors as they lie in the file; what comes before them there: the length of the header and the header.
std::string sort_and_make_beginning(std::vector<TensorToWrite>& tensors, std::map<std::string, std::string> metadata) {
  check_names(tensors);
  std::sort(tensors.begin(), tensors.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
    const size_t a_bytes = safetensors_dtype_bytes(a.dtype), b_bytes = safetensors_dtype_bytes(b.dtype);
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.name < b.name;
  });
  metadata["format"] = "pt";  // several readers refuse files that do not say so
  const std::string header = header_text(tensors, metadata);
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header;
}

}  // namespace

void write_safetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                       std::map<std::string, std::string> metadata) {
  for (const TensorToWrite& t : tensors)
    DITRAIN_CHECK(t.data != nullptr || checked_bytes(t) == 0, "no data for " + t.name);
  const std::string begin = sort_and_make_beginning(tensors, std::move(metadata));
  files::FileWriter file(path);
  file.write(begin.data(), begin.size());
  for (const TensorToWrite& t : tensors) {
    const uint64_t bytes = checked_bytes(t);
    if (t.f32_to_bf16)
      write_as_bf16(file, static_cast<const float*>(t.data), bytes / sizeof(BFloat16));
    else
      file.write(t.data, bytes);
  }
  file.finish();
}

SafetensorsLayout lay_out_safetensors(std::vector<TensorToWrite> tensors, std::map<std::string, std::string> metadata) {
  SafetensorsLayout layout{.begin = sort_and_make_beginning(tensors, std::move(metadata)), .places = {}, .bytes = 0};
  layout.bytes = layout.begin.size();
  for (const TensorToWrite& t : tensors) {
    const uint64_t bytes = checked_bytes(t);
    layout.places[t.name] = {layout.bytes, bytes};
    layout.bytes += bytes;
  }
  return layout;
}

}  // namespace ditrain::weights
