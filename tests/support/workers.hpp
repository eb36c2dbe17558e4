// A team of workers with the context of ops on it, and teams of several sizes whose results have to be the same bits.
#pragma once
#include <catch2/catch.hpp>
#include <initializer_list>
#include <vector>

#include "ditrain/ops/context.hpp"

namespace ditrain::test {

struct Workers {
  explicit Workers(int number = 1, int clusters = 1) : team({.num_workers = number, .num_clusters = clusters}) {}
  parallel::Team team;
  ops::Context ctx{team};
};

/// The values of a tensor of any type; another result as it is.
inline std::vector<float> comparable(const Tensor& t) {
  const Tensor f32(t.shape());
  copy(t, f32);
  return to_vector(f32);
}
template <class T>
T comparable(T result) {
  return result;
}

/// Calls compute(context) on teams of these numbers of workers, those of more than two in two clusters; REQUIREs the
/// same result of all, and returns it.
template <class F>
auto on_teams(const F& compute, std::initializer_list<int> numbers = {1, 2, 3, 8}) {
  const auto by = [&](int number) {
    Workers workers(number, number > 2 ? 2 : 1);
    return comparable(compute(workers.ctx));
  };
  const auto first = by(*numbers.begin());
  for (const int* number = numbers.begin() + 1; number != numbers.end(); ++number) {
    CAPTURE(*number);
    const auto result = by(*number);
    REQUIRE(result == first);
  }
  return first;
}

}  // namespace ditrain::test
