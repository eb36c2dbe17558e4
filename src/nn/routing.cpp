#include "ditrain/nn/routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "models.hpp"

namespace ditrain::nn {

// Products such as 0.7 * 10 may lie just below the integer that is meant.
int64_t Route::remaining_tokens(int64_t tokens) const {
  constexpr double kRounding = 1e-9;
  return tokens - int64_t(std::floor(double(tokens) * ratio * (1 + kRounding)));
}

int64_t tokens_of_block(const Routes& routes, const ModelConfig& config, int64_t block) {
  for (const Route& route : routes)
    if (block >= route.from && block <= route.to) return route.remaining_tokens(config.tokens());
  return config.tokens();
}

namespace {

// A share in four digits, rounded to the side that is accepted.
std::string four_digits(double x, bool up) {
  constexpr double kRounding = 1e-9;  // of the division
  const double unit = std::pow(10, std::floor(std::log10(x)) - 3), count = x / unit;
  return fmt::format("{:.4g}", (up ? std::ceil(count - kRounding) : std::floor(count + kRounding)) * unit);
}

}  // namespace

void validate(const Routes& routes, const ModelConfig& config) {
  const auto require = [](bool ok, const std::string& what, const std::string& got, const std::string& expected,
                          const std::string& hint) {
    if (!ok) refuse("train.routing", what, got, expected, hint);
  };
  const auto text = [](const Route& r) {
    return fmt::format("{{ratio: {}, from: {}, to: {}}}", r.ratio, r.from, r.to);
  };
  require(routes.empty() || model_row(config.kind).uniform_blocks, "models of this kind have no routes",
          fmt::format("model.kind: {}", word_of(config.kind)), "model.kind: dit", "train.routing: off");
  const int64_t tokens = config.tokens(), last = config.depth - 1;
  for (size_t i = 0; i < routes.size(); ++i) {
    const Route& r = routes[i];
    require(r.ratio > 0 && r.ratio < 1, "the share of tokens that leaves", text(r), "a ratio above 0 and below 1",
            "ratio: 0.5");
    require(r.remaining_tokens(tokens) < tokens, fmt::format("no token of {} leaves", tokens), text(r),
            "a ratio of at least " + four_digits(1 / double(tokens), /*up=*/true), "train.routing: off");
    require(r.remaining_tokens(tokens) > 0, fmt::format("no token of {} stays", tokens), text(r),
            "a ratio of at most " + four_digits(1 - 1 / double(tokens), /*up=*/false), "ratio: 0.5");
    require(
        r.from >= 0 && r.from <= r.to && r.to <= last, "the route does not lie in the model", text(r),
        fmt::format("blocks from 0 to {}, `from` not behind `to`", last),
        fmt::format("from: {}, to: {}", std::min<int64_t>(2, last), std::max(last - 3, std::min<int64_t>(2, last))));
    if (i == 0) continue;
    const Route& before = routes[i - 1];
    require(r.from > before.to, "routes overlap, or are not in the order of their blocks",
            text(before) + ", " + text(r), "each route behind the last block of the one before it",
            fmt::format("from: {}", before.to + 1));
  }
}

// Knuth's selection sampling: a token stays with probability (places left) / (tokens left).
void draw_remaining_tokens(const Route& route, int64_t tokens, const RandomKey& key, uint64_t first,
                           int64_t* remaining) {
  int64_t wanted = route.remaining_tokens(tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    if (key.below(first + uint64_t(t), uint64_t(tokens - t)) >= uint64_t(wanted)) continue;
    *remaining++ = t;
    --wanted;
  }
}

}  // namespace ditrain::nn
