#include "ditrain/checkpoint/checksums.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "checksums_json.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/checkpoint/checkpoint.hpp"
#include "ditrain/files/checkpoint_folder.hpp"
#include "ditrain/files/checksum.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/parallel/jobs.hpp"

namespace ditrain::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Whether the piece lies in a file of that size, without a sum that overflows.
bool lies_inside(const CheckedPiece& p, uint64_t bytes) {
  if (p.run == 0 || p.rows == 0 || p.run > bytes || p.offset > bytes - p.run || p.rows > bytes) return false;
  if (p.rows == 1) return true;
  return p.stride >= p.run && p.stride <= bytes && (p.rows - 1) <= (bytes - p.run - p.offset) / p.stride;
}

uint64_t count_from_json(const json& j, const std::string& where) {
  if (!j.is_number_unsigned())
    throw InputError({.where = where,
                      .what = "not a number of bytes",
                      .got = files::json_text(j),
                      .expected = "a whole number from 0",
                      .hint = "an earlier checkpoint"});
  return j;
}

}  // namespace

json to_json(const std::vector<CheckedPiece>& pieces) {
  json all = json::array();
  for (const CheckedPiece& p : pieces) {
    all.push_back({p.offset, p.run, files::to_hex(p.checksum)});
    if (p.rows > 1) all.back().push_back(p.rows), all.back().push_back(p.stride);
  }
  return all;
}

std::vector<CheckedPiece> pieces_from_json(const json& pieces, const std::string& where) {
  std::vector<CheckedPiece> all;
  for (const json& p : pieces) {
    all.push_back({.offset = count_from_json(p.at(0), where),
                   .run = count_from_json(p.at(1), where),
                   .checksum = files::from_hex(std::string(p.at(2)), where)});
    if (p.size() == 3) continue;
    all.back().rows = count_from_json(p.at(3), where), all.back().stride = count_from_json(p.at(4), where);
  }
  return all;
}

CheckedFile file_from_json(const json& j, const std::string& where) {
  CheckedFile file{.bytes = count_from_json(j.at("bytes"), where), .pieces = pieces_from_json(j.at("pieces"), where)};
  expect_coverage(file, where);
  std::sort(file.pieces.begin(), file.pieces.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  return file;
}

namespace {

// The runs of all pieces, which together have as many bytes as the file.
void expect_each_byte_once(const CheckedFile& file, const std::string& where) {
  constexpr uint64_t kMostRuns = uint64_t{1} << 24;  // 28 blocks of DiT-XL cut over ranks have half a million
  uint64_t rows = 0;
  const auto refuse = [&](const std::string& got, const std::string& expected) {
    throw InputError({.where = where,
                      .what = "checksums do not cover each byte of the file once",
                      .got = got,
                      .expected = expected,
                      .hint = "an earlier checkpoint"});
  };
  for (const CheckedPiece& p : file.pieces) {
    if (p.rows > kMostRuns - rows) refuse("more runs of bytes", fmt::format("at most {}", kMostRuns));
    rows += p.rows;
  }
  std::vector<std::pair<uint64_t, uint64_t>> runs;  // offset, bytes
  runs.reserve(rows);
  for (const CheckedPiece& p : file.pieces)
    for (uint64_t row = 0; row < p.rows; ++row) runs.emplace_back(p.offset + row * p.stride, p.run);
  std::sort(runs.begin(), runs.end());
  uint64_t at = 0;
  for (const auto& [offset, bytes] : runs) {
    if (offset != at) refuse(fmt::format("a run from offset {}", offset), fmt::format("one from {}", at));
    at += bytes;
  }
}

}  // namespace

void expect_coverage(const CheckedFile& file, const std::string& where) {
  uint64_t covered = 0;
  for (const CheckedPiece& p : file.pieces) {
    if (!lies_inside(p, file.bytes))
      throw InputError({.where = where,
                        .what = "a checksum of bytes that are not in the file",
                        .got = fmt::format("{} bytes from offset {}", p.bytes(), p.offset),
                        .expected = fmt::format("inside of {} bytes", file.bytes),
                        .hint = "an earlier checkpoint"});
    covered = p.bytes() <= file.bytes - covered ? covered + p.bytes() : file.bytes + 1;
    if (covered > file.bytes) break;
  }
  if (covered != file.bytes)
    throw InputError({.where = where,
                      .what = "checksums do not cover the file",
                      .got = covered > file.bytes ? "more than it has" : fmt::format("{} bytes", covered),
                      .expected = std::to_string(file.bytes),
                      .hint = "an earlier checkpoint"});
  expect_each_byte_once(file, where);
}

std::optional<CheckedFile> checks_of(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  if (name != files::kAveragesFile &&
      std::find(files::kCheckpointFiles.begin(), files::kCheckpointFiles.end(), name) == files::kCheckpointFiles.end())
    return std::nullopt;  // some other file: a state.json beside it may be anything
  const fs::path parent = fs::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (!fs::is_regular_file(folder + "/state.json")) return std::nullopt;
  const CheckedFiles files = read_checkpoint_state(folder).files;
  const auto found = files.find(name);
  return found == files.end() ? std::nullopt : std::optional(found->second);
}

FileChecker::FileChecker(const weights::SafetensorsFile& file, const CheckedFile& expected)
    : file_(file), expected_(expected), reader_(file.path()) {
  if (file.bytes() != expected.bytes)
    throw InputError({.where = file.path(),
                      .what = "the file has another size than when it was written",
                      .got = fmt::format("{} bytes", file.bytes()),
                      .expected = std::to_string(expected.bytes),
                      .hint = "an earlier checkpoint"});
  const uint64_t data = file.tensors().empty() ? file.bytes() : file.tensors().front().offset;
  uint64_t begin = 0;
  for (const CheckedPiece& piece : expected.pieces) {
    if (piece.offset >= data) break;
    if (piece.rows != 1 || piece.offset != begin || piece.run > data - begin) break;
    check(piece, "", [](uint64_t, const std::byte*, uint64_t) {});
    begin += piece.run;
  }
  if (begin != data)
    throw InputError(
        {.where = file.path(), .what = "its checksums do not fit its header", .hint = "an earlier checkpoint"});
  for (const weights::TensorView& tensor : file.tensors()) expect_fit(tensor);
}

// Every byte of the tensor is in a piece that begins and ends in the tensor.
void FileChecker::expect_fit(const weights::TensorView& tensor) const {
  const auto [first, last] = pieces_of(tensor);
  uint64_t bytes = 0;
  bool inside = true;
  for (const CheckedPiece* piece = first; piece != last; ++piece) {
    inside = inside && piece->offset - tensor.offset + (piece->rows - 1) * piece->stride + piece->run <= tensor.bytes;
    bytes += piece->bytes();
  }
  if (!inside || bytes != tensor.bytes)
    throw InputError({.where = file_.path(),
                      .what = "its checksums do not fit tensor " + tensor.name,
                      .got = fmt::format("checksums of {} bytes", bytes),
                      .expected = std::to_string(tensor.bytes),
                      .hint = "an earlier checkpoint"});
}

bool FileChecker::in_order(const weights::TensorView& tensor) const {
  uint64_t at = tensor.offset;
  for (auto [piece, last] = pieces_of(tensor); piece != last; ++piece) {
    if (piece->rows != 1 || piece->offset != at || piece->run % sizeof(float) != 0) return false;
    at += piece->run;
  }
  return at == tensor.offset + tensor.bytes;
}

std::pair<const CheckedPiece*, const CheckedPiece*> FileChecker::pieces_of(const weights::TensorView& tensor) const {
  const auto before = [](const CheckedPiece& piece, uint64_t offset) { return piece.offset < offset; };
  const CheckedPiece *begin = expected_.pieces.data(), *end = begin + expected_.pieces.size();
  const CheckedPiece* first = std::lower_bound(begin, end, tensor.offset, before);
  return {first, std::lower_bound(first, end, tensor.offset + tensor.bytes, before)};
}

void FileChecker::damaged(const CheckedPiece& piece, const std::string& tensor) const {
  throw InputError(
      {.where = file_.path(),
       .what = fmt::format("the file is damaged: {} bytes from offset {}{} are not those that were written",
                           piece.bytes(), piece.offset, tensor.empty() ? "" : ", of tensor " + tensor + ","),
       .hint = "an earlier checkpoint"});
}

void check_file(const std::string& path, const CheckedFile& expected, const std::vector<int>& pus) {
  const weights::SafetensorsFile file(path);
  const FileChecker checker(file, expected);
  struct Job {
    const weights::TensorView* tensor;
    const CheckedPiece* piece;
  };
  std::vector<Job> jobs;
  for (const weights::TensorView& tensor : file.tensors())
    for (auto [piece, last] = checker.pieces_of(tensor); piece != last; ++piece) jobs.push_back({&tensor, piece});
  parallel::run_jobs(int64_t(jobs.size()), pus, [&](int64_t i) {
    const Job& job = jobs[size_t(i)];
    checker.check(*job.piece, job.tensor->name, [](uint64_t, const std::byte*, uint64_t) {});
  });
}

}  // namespace ditrain::checkpoint
