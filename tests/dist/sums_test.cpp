#include "ditrain/dist/sums.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "ditrain/base/error.hpp"
#include "support/message_of.hpp"
#include "thread_world.hpp"

using namespace ditrain;
using namespace ditrain::dist;
using ditrain::test::message_of;

namespace {

/// The tree as its definition says, as text.
std::string tree_text(int64_t first, int64_t n) {
  if (n == 1) return std::to_string(first);
  return "(" + tree_text(first, n / 2) + "+" + tree_text(first + n / 2, n - n / 2) + ")";
}

/// The tree that comes out of terms one after the other.
std::string streamed_text(int64_t n) {
  const SumTree tree(n);
  std::vector<std::string> waiting;
  for (int64_t term = 0; term < n; ++term) {
    REQUIRE(int(waiting.size()) == tree.waiting(term));
    std::string sum = std::to_string(term);
    for (int i = 0; i < tree.merges(term); ++i) {
      sum = "(" + waiting.back() + "+" + sum + ")";
      waiting.pop_back();
    }
    waiting.push_back(sum);
    REQUIRE(int(waiting.size()) <= std::max(1, tree.most_waiting() + (term + 1 == n)));
  }
  REQUIRE(waiting.size() == 1);
  return waiting[0];
}

}  // namespace

TEST_CASE("terms that come one after the other are added along the tree") {
  CHECK(streamed_text(5) == "((0+1)+(2+(3+4)))");
  for (int64_t n = 1; n <= 70; ++n) {
    CAPTURE(n);
    CHECK(streamed_text(n) == tree_text(0, n));
    CHECK(SumTree(n).most_waiting() == int(std::ceil(std::log2(double(n)))));
  }
  CHECK_THROWS_AS(SumTree(0), LogicFault);
}

TEST_CASE("sums of 2^k equal parts are subtrees") {
  std::vector<double> terms;
  for (int i = 0; i < 48; ++i) terms.push_back(std::sin(i) * std::pow(10, i % 7));
  double in_order = 0;
  for (const double x : terms) in_order += x;
  const double whole = tree_sum(terms.data(), 48);
  CHECK(whole != in_order);  // else this test would show nothing
  CHECK(whole == Approx(in_order));
  for (const int64_t parts : {2, 4, 8, 16}) {
    std::vector<double> of_parts;
    for (int64_t i = 0; i < parts; ++i) of_parts.push_back(tree_sum(terms.data() + i * 48 / parts, 48 / parts));
    CHECK(tree_sum(of_parts.data(), parts) == whole);
  }
  CHECK(tree_sum(terms.data() + 1, 24, 2) != tree_sum(terms.data(), 24, 2));
}

TEST_CASE("ranks that are no subtrees are refused with their places") {
  const auto refusal = [](int ranks, int ranks_per_node) {
    ThreadWorld world{.ranks = ranks, .ranks_per_node = ranks_per_node};
    return message_of([&] { expect_subtrees(ThreadCommunicator(world, 0)); }, "");
  };
  for (const int ranks : {1, 2, 4, 8})
    for (int ranks_per_node = 1; ranks_per_node <= ranks; ranks_per_node *= 2)
      CHECK(refusal(ranks, ranks_per_node).empty());
  CHECK(refusal(4, 3).find("got nodes 0 0 0 1 of ranks 0, 1, ...") != std::string::npos);
  CHECK(refusal(4, 3).find("--map-by slot") != std::string::npos);
  CHECK_FALSE(refusal(3, 3).empty());
  CHECK_FALSE(refusal(6, 2).empty());
}
