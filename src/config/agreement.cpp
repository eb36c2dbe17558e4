#include "ditrain/config/agreement.hpp"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

#include "ditrain/base/error.hpp"
#include "ditrain/commit.hpp"
#include "ditrain/files/crc32.hpp"
#include "ditrain/version.hpp"

namespace ditrain::config {
namespace {

std::string packed(const std::vector<std::string>& fields) {
  std::string text;
  for (const std::string& field : fields) text += std::to_string(field.size()) + ':' + field;
  return text;
}

std::vector<std::string> unpacked(const std::string& text) {
  std::vector<std::string> fields;
  for (size_t at = 0; at < text.size();) {
    size_t digits = 0;
    const size_t size = std::stoul(text.substr(at), &digits);
    fields.push_back(text.substr(at + digits + 1, size));
    at += digits + 1 + size;
  }
  return fields;
}

/// The first lines in which two texts differ.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines_a(a), lines_b(b);
  std::string line_a, line_b;
  while (line_a == line_b) {
    const bool more_a = bool(std::getline(lines_a, line_a)), more_b = bool(std::getline(lines_b, line_b));
    if (!more_a) line_a.clear();
    if (!more_b) line_b.clear();
    if (!more_a && !more_b) break;
  }
  return {line_a, line_b};
}

/// what, got, expected and hint of the first invariant in which this rank differs; nothing if it does not.
std::vector<std::string> difference(const std::vector<RankInvariant>& mine, const std::vector<std::string>& first) {
  for (size_t i = 0; i < mine.size(); ++i) {
    const std::string expected = i < first.size() ? first[i] : "";
    if (mine[i].value == expected) continue;
    const auto [got, wanted] = first_difference(mine[i].value, expected);
    return {mine[i].what, got, wanted, mine[i].hint};
  }
  return {};
}

/// Checksum of the file that this process runs: the same version may have been built in several ways.
std::string program_file() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::vector<char> block(size_t{1} << 20);
  uint32_t crc = 0;
  int64_t bytes = 0;
  while (file.read(block.data(), std::streamsize(block.size())), file.gcount() > 0) {
    crc = files::crc32(crc, block.data(), size_t(file.gcount()));
    bytes += file.gcount();
  }
  return fmt::format("{} bytes with checksum {:08x}", bytes, crc);
}

}  // namespace

void check_agreement(dist::Communicator& comm, const std::vector<RankInvariant>& mine) {
  std::vector<std::string> values;
  for (const RankInvariant& invariant : mine) values.push_back(invariant.value);
  const std::vector<std::string> first = unpacked(dist::broadcast_text(comm, packed(values)));
  const std::vector<std::string> all = comm.gather_strings(packed(difference(mine, first)));
  std::string found;
  for (size_t rank = 0; rank < all.size() && found.empty(); ++rank)
    if (!all[rank].empty()) found = packed({std::to_string(rank), comm.host(int(rank)), comm.host(0)}) + all[rank];
  const std::vector<std::string> f = unpacked(dist::broadcast_text(comm, found));
  if (f.empty()) return;
  throw InputError({.where = "ranks",
                    .what = fmt::format("rank {} ({}) does not have the {} of rank 0 ({})", f[0], f[1], f[3], f[2]),
                    .got = f[4],
                    .expected = f[5],
                    .hint = f[6]});
}

std::string build_name() { return *kCommit ? fmt::format("{} ({})", kVersion, kCommit) : kVersion; }

std::vector<RankInvariant> program_invariants(const std::string& program) {
  return {{"program version", program + " " + build_name(), "one build for all nodes"},
          {"program file", program_file(), "one build for all nodes"}};
}

}  // namespace ditrain::config
