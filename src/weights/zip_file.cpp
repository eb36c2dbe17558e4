// Source:   PKWARE's APPNOTE.TXT 6.3, sections 4.3 (records) and 4.5.3 (zip64 field).
#include "ditrain/weights/zip_file.hpp"

#include <zlib.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "byte_reader.hpp"
#include "ditrain/files/crc32.hpp"
#include "ditrain/files/mapped_file.hpp"
#include "safetensors_header.hpp"

namespace ditrain::weights {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50, kEntrySignature = 0x02014b50, kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50, kLocator64Signature = 0x07064b50;
constexpr size_t kEndBytes = 22, kLocator64Bytes = 20, kEnd64Bytes = 56, kMaxComment = 0xFFFF;
constexpr uint64_t kMaxEntries = uint64_t{1} << 20;
constexpr uint32_t kSaturated32 = 0xFFFFFFFF;  // "see the zip64 field"
constexpr uint16_t kSaturated16 = 0xFFFF;
// Deflate codes at most 258 bytes in 2 bits: more than that is a lie, and would make us allocate.
constexpr uint64_t kMaxDeflateRatio = 1032;

[[noreturn]] void refuse_entry(const std::string& where, const std::string& name, const std::string& what,
                               const std::string& got = "", const std::string& expected = "") {
  refuse(where, fmt::format("zip entry '{}' {}", printable(name), what), got, expected);
}

// Where the directory is, by the records at the end of the file.
struct Directory {
  uint64_t entries, bytes, offset;
};

// The last end record whose comment reaches exactly to the end of the file.
size_t find_end(const std::string& where, std::string_view file) {
  if (file.size() >= kEndBytes) {
    const size_t first = file.size() - kEndBytes - std::min(file.size() - kEndBytes, kMaxComment);
    for (size_t at = file.size() - kEndBytes + 1; at-- > first;) {
      ByteReader end(where, "end of the zip", file.substr(at));
      if (end.u32() != kEndSignature) continue;
      end.take(16);
      const uint16_t comment_bytes = end.u16();
      if (comment_bytes == end.left()) return at;
    }
  }
  refuse(where, "not a whole zip archive: its directory is missing", fmt::format("{} bytes", file.size()),
         "a file that was not cut off");
}

// The zip64 record that a locator right before the end record leads to; none without a locator.
std::optional<std::pair<Directory, size_t>> read_end64(const std::string& where, std::string_view file, size_t end_at) {
  if (end_at < kLocator64Bytes + kEnd64Bytes) return std::nullopt;
  const size_t locator_at = end_at - kLocator64Bytes;
  ByteReader locator(where, "zip64 locator", file.substr(locator_at, kLocator64Bytes));
  if (locator.u32() != kLocator64Signature) return std::nullopt;
  const uint32_t end64_disk = locator.u32();
  const uint64_t end64_at = locator.u64();
  const uint32_t disks = locator.u32();
  if (end64_disk != 0 || disks > 1) refuse(where, "the zip is in several parts");
  if (end64_at > locator_at - kEnd64Bytes) refuse(where, "the zip64 record is not where it should be");
  ByteReader end64(where, "zip64 record", file.substr(end64_at, locator_at - end64_at));
  const uint32_t signature = end64.u32();
  const uint64_t record_bytes = end64.u64();
  if (signature != kEnd64Signature || record_bytes != end64.left())
    refuse(where, "the zip64 record is not where it should be");
  end64.take(4);
  const uint32_t disk = end64.u32(), directory_disk = end64.u32();
  const uint64_t here = end64.u64(), total = end64.u64(), bytes = end64.u64(), offset = end64.u64();
  if (disk != 0 || directory_disk != 0 || here != total) refuse(where, "the zip is in several parts");
  return std::pair{Directory{total, bytes, offset}, static_cast<size_t>(end64_at)};
}

Directory read_end(const std::string& where, std::string_view file) {
  const size_t end_at = find_end(where, file);
  ByteReader end(where, "end of the zip", file.substr(end_at));
  end.take(4);
  const uint16_t disk = end.u16(), directory_disk = end.u16(), here = end.u16(), total = end.u16();
  const uint32_t bytes = end.u32(), offset = end.u32();
  size_t records_at = end_at;
  Directory d{total, bytes, offset};
  if (const auto end64 = read_end64(where, file, end_at)) {
    std::tie(d, records_at) = *end64;
    const bool agree = (total == kSaturated16 || total == d.entries) && (bytes == kSaturated32 || bytes == d.bytes) &&
                       (offset == kSaturated32 || offset == d.offset);
    if (!agree) refuse(where, "the zip's two end records contradict each other");
  } else if (disk != 0 || directory_disk != 0 || here != total) {
    refuse(where, "the zip is in several parts");
  }
  if (d.offset > records_at || d.bytes != records_at - d.offset)
    refuse(where, "the zip's directory is not where its end says");
  if (d.entries > kMaxEntries || d.entries > d.bytes / 46)
    refuse(where, "the zip's directory is too short for its entries", std::to_string(d.entries));
  return d;
}

// One field of 32 bits of a directory entry; if it is saturated, the next 64 bits of the zip64 field.
uint64_t widened(uint32_t value, ByteReader& zip64) { return value == kSaturated32 ? zip64.u64() : value; }

std::string_view zip64_field(const std::string& where, std::string_view extra) {
  ByteReader fields(where, "zip directory", extra);
  while (fields.left() >= 4) {
    const uint16_t tag = fields.u16(), bytes = fields.u16();
    const std::string_view field = fields.take(bytes);
    if (tag == 1) return field;
  }
  return {};
}

// The header before the packed bytes must tell the same as the directory. Returns the offset of the packed bytes.
uint64_t check_local_header(const std::string& where, std::string_view file, const ZipFile::Entry& entry,
                            uint64_t header_at, uint16_t method) {
  if (header_at >= file.size()) refuse_entry(where, entry.name, "begins behind the end of the file");
  ByteReader local(where, "zip entry", file.substr(header_at));
  if (local.u32() != kLocalSignature) refuse_entry(where, entry.name, "has no header where the directory says");
  local.take(2);
  const uint16_t flags = local.u16(), local_method = local.u16();
  local.take(4);
  const uint32_t crc = local.u32(), packed = local.u32(), bytes = local.u32();
  const uint16_t name_bytes = local.u16(), extra_bytes = local.u16();
  const std::string_view name = local.take(name_bytes);
  local.take(extra_bytes);
  const bool sizes_follow = (flags & 8) != 0;  // behind the data, for writers that stream
  const auto differs = [&](uint32_t here, uint64_t there) {
    return here != there && here != kSaturated32 && !(sizes_follow && here == 0);
  };
  if (name != entry.name || local_method != method || differs(packed, entry.packed_bytes) ||
      differs(bytes, entry.bytes) || (crc != entry.crc && !(sizes_follow && crc == 0)))
    refuse_entry(where, entry.name, "is described differently by its own header and by the directory");
  return header_at + local.at();
}

// What cannot be, or cannot be read, of an entry whose packed bytes have been found.
void check_entry(const std::string& where, const ZipFile::Entry& entry, uint16_t method, uint64_t file_bytes) {
  if (method != 0 && method != 8)
    refuse_entry(where, entry.name, "is compressed in a way that is not read", fmt::format("method {}", method),
                 "stored or deflated");
  if (!entry.deflated && entry.bytes != entry.packed_bytes)
    refuse_entry(where, entry.name, "is stored, but has two sizes",
                 fmt::format("{} and {} bytes", entry.packed_bytes, entry.bytes));
  if (entry.packed_bytes > file_bytes - entry.offset)
    refuse_entry(where, entry.name, "is longer than the file", fmt::format("{} bytes", entry.packed_bytes));
  if (entry.deflated && entry.bytes / kMaxDeflateRatio > entry.packed_bytes)
    refuse_entry(where, entry.name, "says more bytes than its data can unpack to",
                 fmt::format("{} of {}", entry.bytes, entry.packed_bytes));
}

// The next entry of the directory; `header_at` is where its own header lies in the file.
ZipFile::Entry read_entry(const std::string& where, std::string_view file, ByteReader& reader, uint64_t& header_at) {
  if (reader.u32() != kEntrySignature) refuse(where, "an entry of the zip's directory is damaged");
  reader.take(4);
  const uint16_t flags = reader.u16(), method = reader.u16();
  reader.take(4);
  ZipFile::Entry entry;
  entry.crc = reader.u32();
  const uint32_t packed = reader.u32(), bytes = reader.u32();
  const uint16_t name_bytes = reader.u16(), extra_bytes = reader.u16(), comment_bytes = reader.u16();
  const uint16_t disk = reader.u16();
  reader.take(6);
  const uint32_t header = reader.u32();
  entry.name = reader.take(name_bytes);
  ByteReader zip64(where, "zip64 field", zip64_field(where, reader.take(extra_bytes)));
  reader.take(comment_bytes);
  entry.bytes = widened(bytes, zip64), entry.packed_bytes = widened(packed, zip64);
  header_at = widened(header, zip64);
  entry.deflated = method == 8;
  if (flags & 1) refuse_entry(where, entry.name, "is encrypted");
  if (disk != 0 && disk != kSaturated16) refuse_entry(where, entry.name, "is in another part of the zip");
  entry.offset = check_local_header(where, file, entry, header_at, method);
  check_entry(where, entry, method, file.size());
  return entry;
}

// What a directory entry covers in the file.
struct Extent {
  uint64_t begin, end;
  size_t entry;
};

void check_overlaps(const ZipFile& zip, std::vector<Extent> extents, uint64_t directory_at) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < extents.size(); ++i) {
    const std::string& name = zip.entries()[extents[i].entry].name;
    if (extents[i].end > directory_at) refuse_entry(zip.where(), name, "reaches behind the data of the file");
    if (i > 0 && extents[i].begin < extents[i - 1].end)
      refuse_entry(zip.where(), name, "overlaps another one",
                   fmt::format("'{}'", printable(zip.entries()[extents[i - 1].entry].name)));
  }
}

}  // namespace

ZipFile::ZipFile(const std::string& path) : where_(path) {
  const auto file = std::make_shared<const files::MappedFile>(path);
  mapping_ = file;
  bytes_ = {reinterpret_cast<const char*>(file->data()), file->bytes()};
  read_directory();
}

ZipFile::ZipFile(std::string where, std::string_view bytes) : where_(std::move(where)), bytes_(bytes) {
  read_directory();
}

void ZipFile::read_directory() {
  const Directory directory = read_end(where_, bytes_);
  ByteReader reader(where_, "zip directory", bytes_.substr(directory.offset, directory.bytes));
  std::vector<Extent> extents;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    uint64_t header_at = 0;
    Entry entry = read_entry(where_, bytes_, reader, header_at);
    if (!index_.emplace(entry.name, entries_.size()).second) refuse_entry(where_, entry.name, "is there twice");
    extents.push_back({header_at, entry.offset + entry.packed_bytes, entries_.size()});
    entries_.push_back(std::move(entry));
  }
  if (reader.left() != 0) refuse(where_, "bytes trail behind the entries of the zip's directory");
  check_overlaps(*this, std::move(extents), directory.offset);
}

const ZipFile::Entry* ZipFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

std::string ZipFile::read(const Entry& entry, uint64_t max_bytes) const {
  if (entry.bytes > max_bytes)
    refuse_entry(where_, entry.name, "is too large", fmt::format("{} bytes", entry.bytes),
                 fmt::format("at most {}", max_bytes));
  constexpr uint64_t kPiece = 1 << 20;
  ZipStream stream(*this, entry);
  std::string bytes;
  while (stream.left() > 0) {
    const size_t have = bytes.size();
    const auto n = static_cast<size_t>(std::min(stream.left(), std::max<uint64_t>(kPiece, have)));
    bytes.resize(have + n);
    stream.read(bytes.data() + have, n);
  }
  stream.finish();
  return bytes;
}

std::string_view ZipFile::view(const Entry& entry) const {
  DITRAIN_CHECK(!entry.deflated, "a deflated entry has no bytes in place");
  const std::string_view bytes = bytes_.substr(entry.offset, entry.bytes);
  if (files::crc32(0, bytes.data(), bytes.size()) != entry.crc)
    refuse_entry(where_, entry.name, "is damaged: its checksum does not fit");
  return bytes;
}

struct ZipStream::Inflater {
  z_stream z{};
  Inflater() { DITRAIN_CHECK(inflateInit2(&z, -MAX_WBITS) == Z_OK, "zlib does not start"); }
  ~Inflater() { inflateEnd(&z); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

ZipStream::ZipStream(const ZipFile& file, const ZipFile::Entry& entry)
    : file_(file),
      entry_(entry),
      packed_(file.bytes_.substr(entry.offset, entry.packed_bytes)),
      inflater_(entry.deflated ? std::make_unique<Inflater>() : nullptr),
      left_(entry.bytes) {}

ZipStream::~ZipStream() = default;

void ZipStream::read(void* to, size_t bytes) {
  if (bytes > left_) refuse_entry(file_.where_, entry_.name, "has fewer bytes than expected");
  left_ -= bytes;
  auto* out = static_cast<char*>(to);
  if (!inflater_) {
    if (bytes > 0) std::memcpy(out, packed_.data(), bytes);
    packed_.remove_prefix(bytes);
    crc_ = files::crc32(crc_, out, bytes);
    return;
  }
  constexpr size_t kPiece = size_t{1} << 30;  // zlib counts in 32 bits
  for (size_t done = 0; done < bytes;) {
    z_stream& z = inflater_->z;
    const size_t room = std::min(bytes - done, kPiece), input = std::min(packed_.size(), kPiece);
    z.next_out = reinterpret_cast<Bytef*>(out + done), z.avail_out = static_cast<uInt>(room);
    z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed_.data())), z.avail_in = static_cast<uInt>(input);
    const int result = inflate(&z, Z_NO_FLUSH);
    const size_t made = room - z.avail_out, used = input - z.avail_in;
    packed_.remove_prefix(used);
    crc_ = files::crc32(crc_, out + done, made);
    done += made;
    if ((result != Z_OK && result != Z_STREAM_END) || (made == 0 && used == 0) ||
        (result == Z_STREAM_END && done < bytes))
      refuse_entry(file_.where_, entry_.name, "is damaged: it does not unpack to what it says");
  }
}

void ZipStream::finish() {
  if (left_ != 0) refuse_entry(file_.where_, entry_.name, "has more bytes than expected");
  if (inflater_) {
    z_stream& z = inflater_->z;
    Bytef more;
    int result = Z_OK;
    while (result == Z_OK) {
      const auto input = static_cast<uInt>(std::min(packed_.size(), size_t{1} << 30));
      z.next_out = &more, z.avail_out = 1;
      z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed_.data())), z.avail_in = input;
      result = inflate(&z, Z_NO_FLUSH);
      packed_.remove_prefix(input - z.avail_in);
      if (z.avail_out == 0) refuse_entry(file_.where_, entry_.name, "unpacks to more than it says");
    }
    if (result != Z_STREAM_END || !packed_.empty())
      refuse_entry(file_.where_, entry_.name, "is damaged: it does not unpack to what it says");
  }
  if (crc_ != entry_.crc) refuse_entry(file_.where_, entry_.name, "is damaged: its checksum does not fit");
}

}  // namespace ditrain::weights
