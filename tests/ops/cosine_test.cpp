// Cosines between rows: values and gradients are those of f64, for any team.
#include "ditrain/ops/cosine.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "support/random_tensor.hpp"
#include "support/workers.hpp"

using namespace ditrain;
using namespace ditrain::test;

namespace {

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
  return ab / std::sqrt(aa * bb);
}

std::vector<double> row(const Tensor& t, int64_t r) {
  const std::vector<float> all = to_vector(t);
  const int64_t C = t.shape().back();
  return {all.begin() + r * C, all.begin() + (r + 1) * C};
}

}  // namespace

TEST_CASE("cosines of rows and their gradient by the first are those of f64") {
  const int64_t C = GENERATE(1, 5, 8, 21);
  const Tensor a = random_tensor({2, 3, C}, 1), b = random_tensor({2, 3, C}, 2), before = random_tensor({2, 3, C}, 3);
  std::vector<double> cosines(6);
  constexpr double kScale = -0.7, kStep = 1e-6;
  on_teams([&](ops::Context& ctx) {
    ops::row_cosines(ctx, a, b, cosines.data());
    const Tensor da = clone(before);
    ops::add_row_cosines_gradient(ctx, a, b, cosines.data(), kScale, da);
    for (int64_t r = 0; r < 6; ++r) {
      const std::vector<double> x = row(a, r), y = row(b, r), got = row(da, r), old = row(before, r);
      CHECK(cosines[size_t(r)] == Approx(cosine(x, y)).epsilon(1e-13));
      for (size_t i = 0; i < x.size(); ++i) {
        std::vector<double> above = x, below = x;
        above[i] += kStep, below[i] -= kStep;
        const double slope = (cosine(above, y) - cosine(below, y)) / (2 * kStep);
        CHECK(got[i] == Approx(old[i] + kScale * slope).margin(1e-6));
      }
    }
    return cosines;
  });
}

TEST_CASE("rows of zeros have cosine 0 and give finite gradients") {
  Workers crew;
  const Tensor zero({2, 4}), b = random_tensor({2, 4}, 2), da({2, 4});
  double cosines[2] = {5, 5};
  ops::row_cosines(crew.ctx, zero, b, cosines);
  CHECK((cosines[0] == 0 && cosines[1] == 0));
  ops::add_row_cosines_gradient(crew.ctx, zero, b, cosines, 1, da);
  for (const float x : to_vector(da)) CHECK(std::isfinite(x));
  CHECK_THROWS_AS(ops::row_cosines(crew.ctx, zero, Tensor({2, 5}), cosines), ShapeError);
}
