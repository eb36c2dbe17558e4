#include "ditrain/kernels/random.hpp"

#include <array>
#include <numbers>

#include "kernel_test_utils.hpp"

using namespace ditrain;
using namespace ditrain::kernels;

namespace {

const RandomKey kKey(7, Stream::kTest, 3, 5);

// Each kind of start within a block; carries of the counter into its second word; close to its end.
constexpr uint64_t kFirsts[] = {0, 1, 2, 3, 4, 1001, (uint64_t{1} << 34) - 5, ~uint64_t{0} - 120};
constexpr int64_t kLengths[] = {0, 1, 2, 3, 5, 16, 31, 32, 33, 34, 35, 64, 67, 100};

// The definition, of the words of one pair. In f64 the rounded angle would spoil cosines and sines close to 0.
std::array<double, 2> exact_normals(uint32_t radius_word, uint32_t angle_word) {
  const long double radius = std::sqrt(-2 * std::log((radius_word + 1.0L) * 0x1p-32L));
  const long double angle = 2 * std::numbers::pi_v<long double> * (angle_word * 0x1p-32L);
  // The least of them that is not 0 is 1.5e-9.
  const auto exact_zero = [](long double x) { return std::abs(x) < 1e-15L ? 0 : x; };
  return {double(radius * exact_zero(std::cos(angle))), double(radius * exact_zero(std::sin(angle)))};
}

/// |got - want| in units of the last place of an f32 next to want.
double ulp_error(float got, double want) {
  int exponent;
  std::frexp(want, &exponent);
  return std::ldexp(std::abs(double(got) - want), 24 - exponent);
}

constexpr double kLargestError = 4.5;  // ulp; 3.7 and, without fused multiply-add, 4.3 are the worst of 2^26 normals

}  // namespace

TEST_CASE("random bits and uniform numbers are those of the scalar generator") {
  for (const ElementwiseKernels* table : usable_elementwise()) {
    for (const uint64_t first : kFirsts) {
      for (const int64_t n : kLengths) {
        INFO(table->name << " first " << first << " n " << n);
        Guarded bits(n), uniform(n);
        table->random_bits(kKey.sequence(), first, reinterpret_cast<uint32_t*>(bits.data()), n);
        table->random_uniform(kKey.sequence(), first, uniform.data(), n);
        int64_t wrong = 0;
        for (int64_t j = 0; j < n; ++j) {
          uint32_t word;
          std::memcpy(&word, bits.data() + j, sizeof word);
          wrong += word != kKey.bits(first + uint64_t(j));
          wrong += uniform.data()[j] != kKey.uniform(first + uint64_t(j));
        }
        CHECK(wrong == 0);
        CHECK((bits.zones_untouched() && uniform.zones_untouched()));
      }
    }
  }
}

TEST_CASE("random normals are those of the scalar generator to some units in the last place") {
  constexpr int64_t kCount = 1 << 18;
  std::vector<float> want(kCount), got(kCount);
  kKey.fill_normal(want.data(), kCount, 5);
  for (const ElementwiseKernels* table : usable_elementwise()) {
    INFO(table->name);
    table->random_normal(kKey.sequence(), 5, got.data(), kCount);
    double worst = 0;
    for (size_t i = 0; i < want.size(); ++i) worst = std::max(worst, ulp_error(got[i], want[i]));
    CHECK(worst <= kLargestError + 0.5);  // of the scalar one's rounding
    for (const uint64_t first : kFirsts)
      CHECK(([&] {
        float x;
        table->random_normal(kKey.sequence(), first, &x, 1);
        return ulp_error(x, kKey.normal(first)) <= kLargestError + 0.5;
      }()));
  }
}

TEST_CASE("normals of words that are hard: ends of the logarithm, its branches, whole turns and their neighbours") {
  std::vector<uint32_t> radius_words, angle_words;
  for (const uint32_t middle : {0u, 0x7fffffffu, 0xb504f334u, 0x5a827999u, 0x00ffffffu, 0x01000000u, 0xffffff00u})
    for (uint32_t d = 0; d < 9; ++d) radius_words.push_back(middle + d - 4);
  for (uint32_t eighth = 0; eighth < 8; ++eighth)
    for (uint32_t d = 0; d < 9; ++d) angle_words.push_back((eighth << 29) + d - 4);
  for (uint32_t bit = 0; bit < 32; ++bit) {
    radius_words.insert(radius_words.end(), {1u << bit, ~(1u << bit), (1u << bit) - 1});
    angle_words.insert(angle_words.end(), {1u << bit, ~(1u << bit), 0u - (1u << bit)});
  }
  for (const ElementwiseKernels* table : usable_elementwise()) {
    INFO(table->name);
    double worst = 0;
    for (const uint32_t radius : radius_words) {
      for (const uint32_t angle : angle_words) {
        const uint32_t words[2] = {radius, angle};
        const std::array<double, 2> want = exact_normals(radius, angle);
        float got[2];
        table->box_muller(words, got, 1);
        for (const size_t i : {0, 1}) worst = std::max(worst, ulp_error(got[i], want[i]));
      }
    }
    CHECK(worst <= kLargestError);
    const uint32_t largest[2] = {0, 0}, none[2] = {0xffffffffu, 0x20000000u};
    float x[2];
    table->box_muller(largest, x, 1);
    CHECK(x[0] == Approx(std::sqrt(64 * std::numbers::ln2)));
    CHECK(x[1] == 0);
    table->box_muller(none, x, 1);
    CHECK((x[0] == 0 && x[1] == 0));
  }
}

TEST_CASE("random numbers do not depend on where a range is cut nor on where it is written") {
  constexpr int64_t kCount = 1000;
  for (const ElementwiseKernels* table : usable_elementwise()) {
    INFO(table->name);
    std::vector<float> whole(kCount), cut(kCount + 1);
    table->random_normal(kKey.sequence(), 0, whole.data(), kCount);
    for (int64_t i = 0, step = 1; i < kCount; i += step, step = step * 2 + 1)
      table->random_normal(kKey.sequence(), uint64_t(i), cut.data() + 1 + i, std::min(step, kCount - i));
    CHECK(same_bits(whole, {cut.begin() + 1, cut.end()}));
  }
}

TEST_CASE("normals have the moments, tails and distribution of N(0, 1) and no correlation of neighbours") {
  constexpr int64_t kCount = 1 << 20, kBins = 256;
  constexpr double n = kCount;
  for (const ElementwiseKernels* table : usable_elementwise()) {
    INFO(table->name);
    std::vector<float> x(kCount);
    table->random_normal(kKey.sequence(), 0, x.data(), kCount);
    std::array<double, 5> moment{};
    std::array<double, 5> product{};  // with the element 1 ... 4 further on: the pair, and across pairs and blocks
    std::array<int64_t, kBins> count{};
    int64_t beyond_3 = 0, beyond_4 = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      const double v = x[size_t(i)];
      double power = 1;
      for (double& m : moment) m += power / n, power *= v;
      for (int64_t lag = 1; lag <= 4; ++lag) product[size_t(lag)] += v * x[size_t((i + lag) % kCount)] / n;
      const double below = 0.5 * std::erfc(-v / std::numbers::sqrt2);  // equally likely in each bin
      ++count[size_t(std::min<int64_t>(kBins - 1, int64_t(below * kBins)))];
      beyond_3 += std::abs(v) > 3, beyond_4 += std::abs(v) > 4;
    }
    // Five standard deviations each: of the moments of n values, of products, of binomial counts, of chi-square.
    CHECK(std::abs(moment[1]) < 5 / std::sqrt(n));
    CHECK(std::abs(moment[2] - 1) < 5 * std::sqrt(2 / n));
    CHECK(std::abs(moment[3]) < 5 * std::sqrt(15 / n));
    CHECK(std::abs(moment[4] - 3) < 5 * std::sqrt(96 / n));
    for (size_t lag = 1; lag <= 4; ++lag) CHECK(std::abs(product[lag]) < 5 / std::sqrt(n));
    const auto expect_tail = [&](int64_t seen, double limit) {
      const double expected = n * std::erfc(limit / std::numbers::sqrt2);
      CHECK(std::abs(double(seen) - expected) < 5 * std::sqrt(expected));
    };
    expect_tail(beyond_3, 3), expect_tail(beyond_4, 4);
    double chi_square = 0;
    for (const int64_t c : count) chi_square += (double(c) - n / kBins) * (double(c) - n / kBins) / (n / kBins);
    CHECK(std::abs(chi_square - (kBins - 1)) < 5 * std::sqrt(2.0 * (kBins - 1)));
  }
}

TEST_CASE("the public functions are those of the chosen kernels") {
  const ElementwiseKernels& table = *process_kernels().kernels.elementwise;
  std::vector<float> a(37), b(37);
  fill_normal(kKey, 6, a.data(), 37);
  table.random_normal(kKey.sequence(), 6, b.data(), 37);
  CHECK(same_bits(a, b));
  fill_uniform(kKey, 6, a.data(), 37);
  table.random_uniform(kKey.sequence(), 6, b.data(), 37);
  CHECK(same_bits(a, b));
}
