// Token routing (TREAD, Krause et al., arXiv 2501.04765): in training a random share of each sample's tokens skips some
// consecutive blocks and comes back unchanged behind them. These blocks compute and store only the other tokens, in
// forward and backward; positions stay with the tokens. Sampling uses all tokens.
#pragma once
#include <cstdint>
#include <vector>

#include "ditrain/base/random.hpp"
#include "ditrain/nn/model_config.hpp"

namespace ditrain::nn {

/// A route around blocks `from` to `to`, both included and counted from 0.
struct Route {
  double ratio = 0.5;  ///< share of the tokens that takes the route
  int64_t from = 0, to = 0;
  /// Number of tokens, out of `tokens`, that go through the blocks: tokens - floor(tokens ratio).
  int64_t remaining_tokens(int64_t tokens) const;
};
/// Routes in the order of their blocks; no block belongs to two. Empty: all tokens go through all blocks.
using Routes = std::vector<Route>;

/// How many of the tokens go through a block.
int64_t tokens_of_block(const Routes& routes, const ModelConfig& config, int64_t block);

/// Errors:   InputError "[train.routing] ..." for shares outside (0, 1) or that no token or all tokens take, routes
///           that overlap or leave the model, and models without routes
void validate(const Routes& routes, const ModelConfig& config);

/// Draws, for one sample, the tokens that do not take the route: every set of route.remaining_tokens(tokens) tokens is
/// equally likely.
/// Math:     uses numbers first to first + tokens - 1 of the key
/// Shapes:   remaining [route.remaining_tokens(tokens)], ascending
void draw_remaining_tokens(const Route& route, int64_t tokens, const RandomKey& key, uint64_t first,
                           int64_t* remaining);

}  // namespace ditrain::nn
