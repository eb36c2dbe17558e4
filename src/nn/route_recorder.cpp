#include "route_recorder.hpp"

#include <algorithm>
#include <utility>

#include "ditrain/base/error.hpp"
#include "ditrain/ops/tokens.hpp"

namespace ditrain::nn {

/// An end of a route. The tokens that take it stay where they are meanwhile: in the tensor that the block behind the
/// route reads, and their gradient in that of the residual stream. So a route keeps nothing, and its ends move only the
/// tokens that go through the blocks. K: those of a sample.
class RouteEnd final : public autograd::Node {
 public:
  enum class Which { kBegin, kEnd };
  RouteEnd(autograd::Tape& tape, Which which, int64_t block, int64_t width, const TokenStream& all,
           const TokenStream& inside)
      : Node("blocks." + std::to_string(block) + (which == Which::kBegin ? ".tokens_leave" : ".tokens_return"), {}),
        which_(which),
        all_(all),
        inside_(inside) {
    if (which == Which::kEnd) x_BKC = tape.temporary("x_returns", {all.batch, inside.tokens, width});
  }

  void forward(ops::Context& ctx) override {
    if (which_ == Which::kEnd) return put(ctx, x_BKC, x_BTC);
    const std::vector<int64_t>& remaining = all_.inputs->remaining_tokens[size_t(inside_.route)];
    DITRAIN_CHECK(std::all_of(remaining.begin(), remaining.end(), [&](int64_t t) { return t >= 0 && t < all_.tokens; }),
                  "the numbers of tokens that stay");
    take(ctx, x_BTC, x_BKC);
  }

  void backward(ops::Context& ctx, Gradients) override {
    if (which_ == Which::kEnd) return take(ctx, all_.dx_BTC, inside_.dx_BTC);
    put(ctx, inside_.dx_BTC, all_.dx_BTC);
  }

  ActivationRef x_BTC;  // of all tokens: written by the node before the route, read by the one behind it
  ActivationRef x_BKC;  // kBegin: input of the route's first block; kEnd: output of its last one

 private:
  // Those that stay, out of all tokens and back to their places.
  void take(ops::Context& ctx, const ActivationRef& all, const ActivationRef& some) const {
    ctx.over_samples(all_.batch, [&](ops::Context& part, const Samples& s) {
      ops::gather_tokens(part, of(all, s), inside_.places(s), of(some, s));
    });
  }
  void put(ops::Context& ctx, const ActivationRef& some, const ActivationRef& all) const {
    ctx.over_samples(all_.batch, [&](ops::Context& part, const Samples& s) {
      ops::scatter_tokens(part, of(some, s), inside_.places(s), of(all, s));
    });
  }

  Which which_;
  TokenStream all_, inside_;
};

void RouteRecorder::before(int64_t block, Connect& connect) {
  const Routes& routes = pass_.options.routes;
  if (next_ == routes.size() || routes[next_].from != block) return;
  TokenStream& inside = pass_.stream;
  inside.route = int64_t(next_), inside.tokens = routes[next_].remaining_tokens(all_.tokens);
  const Shape BKC{all_.batch, inside.tokens, width_};
  if (all_.dx_BTC != nullptr) inside.dx_BTC = pass_.tape.temporary("dx_kept", BKC);
  if (all_.partial_BTC != nullptr) inside.partial_BTC = pass_.tape.temporary("partial", BKC);
  begin_ = &pass_.tape.record<RouteEnd>(RouteEnd::Which::kBegin, block, width_, all_, inside);
  connect_begin_ = std::exchange(connect, [begin = begin_](ActivationRef x) { begin->x_BKC = std::move(x); });
}

void RouteRecorder::behind(int64_t block, Connect& connect) {
  const Routes& routes = pass_.options.routes;
  if (next_ == routes.size() || routes[next_].to != block) return;
  RouteEnd& end = pass_.tape.record<RouteEnd>(RouteEnd::Which::kEnd, block, width_, all_, pass_.stream);
  connect(end.x_BKC);
  connect = [begin = begin_, &end, connect_begin = std::exchange(connect_begin_, {})](const ActivationRef& x) {
    connect_begin(x);
    begin->x_BTC = end.x_BTC = x;
  };
  pass_.stream = all_;
  ++next_;
}

}  // namespace ditrain::nn
