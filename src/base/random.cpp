#include "ditrain/base/random.hpp"

#include <cmath>
#include <numbers>

namespace ditrain {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {uint32_t(p1 >> 32) ^ c[1] ^ k[0], uint32_t(p1), uint32_t(p0 >> 32) ^ c[3] ^ k[1], uint32_t(p0)};
    k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u;  // Weyl constants of the paper
  }
  return c;
}

RandomKey::RandomKey(uint64_t seed, Stream stream, uint64_t a, uint64_t b) {
  // Two Philox calls hash (seed, stream, a, b) into a 64-bit key and a 64-bit sequence number.
  const auto h = philox4x32({uint32_t(a), uint32_t(a >> 32), uint32_t(b), uint32_t(b >> 32)},
                            {uint32_t(seed), uint32_t(seed >> 32)});
  const auto g = philox4x32(h, {uint32_t(stream), 0x64697472u});
  sequence_ = {.key = {g[0], g[1]}, .number = uint64_t{g[2]} << 32 | g[3]};
}

std::array<uint32_t, 4> RandomKey::block(uint64_t index) const {
  const auto& [key, number] = sequence_;
  return philox4x32({uint32_t(index), uint32_t(index >> 32), uint32_t(number), uint32_t(number >> 32)},
                    {key[0], key[1]});
}

namespace {
float to_uniform(uint32_t bits) { return float(bits >> 8) * 0x1p-24f; }
}  // namespace

uint32_t RandomKey::bits(uint64_t i) const { return block(i / 4)[i % 4]; }
float RandomKey::uniform(uint64_t i) const { return to_uniform(bits(i)); }

void RandomKey::fill_uniform(float* out, int64_t n, uint64_t first) const {
  for (int64_t j = 0; j < n;) {
    const uint64_t i = first + uint64_t(j);
    const auto four = block(i / 4);
    for (uint64_t lane = i % 4; lane < 4 && j < n; ++lane, ++j) out[j] = to_uniform(four[lane]);
  }
}

uint64_t RandomKey::below(uint64_t i, uint64_t n) const {
  const auto b = block(i);
  const uint64_t x = uint64_t{b[0]} << 32 | b[1];
  return uint64_t((unsigned __int128)x * n >> 64);
}

namespace {
// Four normals from one block: two Box-Muller pairs; u1 in (0, 1], so the logarithm is finite.
std::array<float, 4> normals(const std::array<uint32_t, 4>& b) {
  std::array<float, 4> out;
  for (int pair = 0; pair < 2; ++pair) {
    const double u1 = (b[2 * pair] + 1.0) * 0x1p-32, u2 = b[2 * pair + 1] * 0x1p-32;
    const double radius = std::sqrt(-2.0 * std::log(u1)), angle = 2.0 * std::numbers::pi * u2;
    out[2 * pair] = float(radius * std::cos(angle));
    out[2 * pair + 1] = float(radius * std::sin(angle));
  }
  return out;
}
}  // namespace

float RandomKey::normal(uint64_t i) const { return normals(block(i / 4))[i % 4]; }

void RandomKey::fill_normal(float* out, int64_t n, uint64_t first) const {
  for (int64_t j = 0; j < n;) {
    const uint64_t i = first + uint64_t(j);
    const auto four = normals(block(i / 4));
    for (uint64_t lane = i % 4; lane < 4 && j < n; ++lane, ++j) out[j] = four[lane];
  }
}

}  // namespace ditrain
