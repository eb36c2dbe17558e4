#include "ditrain/weights/npz_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ditrain/base/error.hpp"
#include "ditrain/files/mapped_file.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "npy_header.hpp"
#include "safetensors_header.hpp"

namespace ditrain::weights {
namespace {

std::string place(const std::string& where, const std::string& name) {
  return name.empty() ? where : fmt::format("{}: '{}'", where, printable(name));
}

void check_bytes(const std::string& where, const NpyHeader& header, uint64_t there) {
  if (header.bytes == there) return;
  throw InputError({.where = where,
                    .what = "the array has more or fewer bytes than its shape says",
                    .got = std::to_string(there),
                    .expected = std::to_string(header.bytes)});
}

// The header of a .npy of `total` bytes, through a function that gives the next n bytes.
template <class Next>
NpyHeader read_header(const std::string& where, uint64_t total, const Next& next) {
  std::string begin = next(std::min<uint64_t>(total, 10));  // version 1 has a length of 2 bytes, the others of 4
  if (begin.size() == 10 && begin[6] != 1) begin += next(std::min<uint64_t>(total - 10, 2));
  const NpyPreamble preamble = parse_npy_preamble(where, begin);
  if (preamble.text_bytes > total - preamble.bytes)
    throw InputError({.where = where, .what = "the .npy header is longer than the file"});
  NpyHeader header = parse_npy_dictionary(where, next(preamble.text_bytes));
  header.header_bytes = preamble.bytes + preamble.text_bytes;
  check_bytes(where, header, total - header.header_bytes);
  return header;
}

NpyHeader read_header(const std::string& where, ZipStream& stream) {
  return read_header(where, stream.left(), [&](uint64_t n) {
    std::string bytes(n, '\0');
    stream.read(bytes.data(), n);
    return bytes;
  });
}

NpyHeader read_header(const std::string& where, std::string_view file) {
  const uint64_t total = file.size();
  return read_header(where, total, [&](uint64_t n) {
    const std::string bytes(file.substr(0, n));
    file.remove_prefix(n);
    return bytes;
  });
}

void swap_bytes(std::vector<std::byte>& data, size_t element_bytes) {
  for (size_t i = 0; i < data.size(); i += element_bytes)
    std::reverse(data.begin() + static_cast<std::ptrdiff_t>(i),
                 data.begin() + static_cast<std::ptrdiff_t>(i + element_bytes));
}

// Fortran's order has the first index fastest.
std::vector<std::byte> to_row_major(const NpyHeader& header, const std::vector<std::byte>& in) {
  std::vector<std::byte> out(in.size());
  const size_t rank = header.shape.size(), bytes = header.element_bytes;
  std::vector<int64_t> index(rank, 0);
  std::vector<size_t> strides(rank, 1);
  for (size_t d = 1; d < rank; ++d) strides[d] = strides[d - 1] * static_cast<size_t>(header.shape[d - 1]);
  size_t at = 0;
  for (size_t to = 0; to < out.size(); to += bytes) {
    std::memcpy(out.data() + to, in.data() + at * bytes, bytes);
    for (size_t d = rank; d-- > 0;) {
      at += strides[d];
      if (++index[d] < header.shape[d]) break;
      at -= strides[d] * static_cast<size_t>(header.shape[d]);
      index[d] = 0;
    }
  }
  return out;
}

}  // namespace

NpzFile::NpzFile(const std::string& path) : where_(path) {
  const auto file = std::make_shared<const files::MappedFile>(path);
  mapping_ = file;
  open({reinterpret_cast<const char*>(file->data()), file->bytes()});
}

NpzFile::NpzFile(const std::string& where, std::string_view bytes) : where_(where) { open(bytes); }

void NpzFile::open(std::string_view bytes) {
  if (bytes.starts_with("\x93NUMPY")) {
    bare_ = bytes;
    names_ = {""};
    return;
  }
  if (!bytes.starts_with("PK"))
    throw InputError({.where = where_, .what = "not a file of numpy", .expected = "an .npz or .npy file"});
  zip_ = std::make_shared<const ZipFile>(where_, bytes);
  for (const ZipFile::Entry& e : zip_->entries())
    if (e.name.ends_with(".npy")) names_.push_back(e.name.substr(0, e.name.size() - 4));
}

bool NpzFile::contains(const std::string& name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

const ZipFile::Entry& NpzFile::entry(const std::string& name) const {
  if (const ZipFile::Entry* found = zip_ ? zip_->find(name + ".npy") : nullptr) return *found;
  std::string list;
  for (size_t i = 0; i < std::min<size_t>(names_.size(), 8); ++i)
    list += (i > 0 ? ", " : "") + fmt::format("'{}'", printable(names_[i]));
  throw InputError({.where = where_,
                    .what = fmt::format("there is no array '{}'", printable(name)),
                    .got = list.empty() ? "no arrays" : list});
}

NpyHeader NpzFile::header(const std::string& name) const {
  if (!zip_ && name.empty()) return read_header(where_, bare_);
  ZipStream stream(*zip_, entry(name));
  return read_header(place(where_, name), stream);
}

std::vector<std::byte> NpzFile::read(const std::string& name) const {
  const NpyHeader header = this->header(name);
  if (header.bytes > kMaxNpyBytes) {
    throw InputError({.where = place(where_, name),
                      .what = "the array is too large",
                      .got = fmt::format("{} bytes", header.bytes),
                      .expected = fmt::format("at most {}", kMaxNpyBytes)});
  }
  std::string whole;
  if (zip_) whole = zip_->read(entry(name), header.header_bytes + kMaxNpyBytes);
  const std::string_view data = std::string_view(zip_ ? whole : bare_).substr(header.header_bytes);
  const auto* p = reinterpret_cast<const std::byte*>(data.data());
  std::vector<std::byte> bytes(p, p + data.size());
  whole = {};
  if (header.big_endian) swap_bytes(bytes, header.element_bytes);
  if (header.fortran_order && header.shape.size() > 1) return to_row_major(header, bytes);
  return bytes;
}

std::vector<double> NpzFile::to_f64(const std::string& name) const {
  return npy_to_f64(header(name).dtype, read(name));
}

std::vector<double> npy_to_f64(const std::string& dtype, const std::vector<std::byte>& bytes) {
  const bool boolean = dtype == "b1", real = dtype[0] == 'f';
  const std::string bits = std::to_string(8 * (dtype[1] - '0'));
  TensorView view{"array",
                  boolean ? "BOOL"
                          : (real              ? "F"
                             : dtype[0] == 'u' ? "U"
                                               : "I") +
                                bits,
                  {static_cast<int64_t>(bytes.size() / static_cast<size_t>(dtype[1] - '0'))},
                  bytes.data(),
                  bytes.size()};
  return weights::to_f64(view);
}

NpyStream::NpyStream(const NpzFile& file, const std::string& name) {
  const std::string where = place(file.where_, name);
  if (file.zip_) {
    stream_ = std::make_unique<ZipStream>(*file.zip_, file.entry(name));
    header_ = read_header(where, *stream_);
  } else {
    header_ = file.header(name);
    bare_ = file.bare_.substr(header_.header_bytes);
  }
  left_ = header_.bytes;
  if ((header_.fortran_order && header_.shape.size() > 1) || header_.big_endian) {
    throw InputError({.where = where,
                      .what = "this array can only be read in row-major order and little endian",
                      .got = header_.big_endian ? "big endian" : "Fortran's order",
                      .hint = "numpy.ascontiguousarray before saving"});
  }
}

void NpyStream::read(void* to, size_t bytes) {
  DITRAIN_CHECK(bytes <= left_, "reading beyond the array");
  left_ -= bytes;
  if (stream_) return stream_->read(to, bytes);
  if (bytes > 0) std::memcpy(to, bare_.data(), bytes);
  bare_.remove_prefix(bytes);
}

void NpyStream::finish() {
  DITRAIN_CHECK(left_ == 0, "the array is not read to its end");
  if (stream_) stream_->finish();
}

}  // namespace ditrain::weights
