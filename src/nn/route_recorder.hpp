// Records the ends of the routes of a pass (nn/routing.hpp) between its blocks.
#pragma once
#include <functional>

#include "ditrain/nn/model.hpp"

namespace ditrain::nn {

/// Tells a node of its output, which is the input that the next node keeps and known when that one is recorded.
using Connect = std::function<void(ActivationRef)>;

class RouteEnd;

/// Between the ends of a route the pass has the stream of the tokens that stay: T of its nodes is their number, and
/// dx_BTC their gradient.
class RouteRecorder {
 public:
  /// Once the stream of all tokens is complete.
  RouteRecorder(PassRecord& pass, int64_t width) : pass_(pass), width_(width), all_(pass.stream) {}

  /// Before and behind each block, in their order. `connect` is that of the node before.
  void before(int64_t block, Connect& connect);
  void behind(int64_t block, Connect& connect);

 private:
  PassRecord& pass_;
  int64_t width_;
  const TokenStream all_;
  size_t next_ = 0;  // route
  RouteEnd* begin_ = nullptr;
  Connect connect_begin_;
};

}  // namespace ditrain::nn
