// Products and the optimiser's pass on explicit, transparent and plain pages, in turns.
#include "ditrain/platform/pages.hpp"

#include <fmt/format.h>

#include <limits>
#include <map>
#include <memory>

#include "ditrain/base/clock.hpp"
#include "ditrain/bench/arrays.hpp"
#include "ditrain/bench/memory.hpp"
#include "ditrain/nn/dit_config.hpp"
#include "ditrain/ops/linear.hpp"
#include "ditrain/optim/optimizer.hpp"
#include "quantile.hpp"

namespace ditrain::bench {
namespace {

// Memory of one kind of pages.
class PagesOfOneKind final : public memory::Allocator {
 public:
  explicit PagesOfOneKind(platform::PageWish wish) : wish_(wish) {}
  std::string name() const override { return std::string(word_of(wish_)); }
  platform::PageWish wish() const { return wish_; }
  /// Why some of it has other pages; "": all is as wished.
  const std::string& note() const { return note_; }

 private:
  void* allocate_block(size_t bytes) override {
    platform::PageBlock block(bytes, wish_);
    if (note_.empty()) note_ = block.note();
    void* data = block.data();
    blocks_.emplace(data, std::move(block));
    return data;
  }
  void deallocate_block(void* p, size_t) override { blocks_.erase(p); }

  const platform::PageWish wish_;
  std::map<void*, platform::PageBlock> blocks_ = {};
  std::string note_;
};

// The work of one kind of pages, and its times.
struct Contender {
  explicit Contender(platform::PageWish wish) : pages(wish) {}
  PagesOfOneKind pages;
  std::function<void()> work;
  std::vector<double> seconds = {};
};

using Contenders = std::vector<std::unique_ptr<Contender>>;

Contenders contenders() {
  Contenders all;
  for (const auto wish : {platform::PageWish::kPlain, platform::PageWish::kTransparent, platform::PageWish::kExplicit})
    all.push_back(std::make_unique<Contender>(wish));
  return all;
}

void run_in_turns(Harness& harness, const std::string& name, const Contenders& all, double flop, double bytes) {
  for (int64_t i = -1; i < harness.effort().repeats; ++i)
    for (const auto& c : all) {
      const double start = now_s();
      c->work();
      if (i >= 0) c->seconds.push_back(now_s() - start);
    }
  for (const auto& c : all) {
    Row row{.name = name + " " + c->pages.name(), .dtype = "f32"};
    row.share = std::numeric_limits<double>::quiet_NaN();
    row.time = {quantile(c->seconds, 0.5), quantile(c->seconds, 0), quantile(c->seconds, 0.9),
                int64_t(c->seconds.size())};
    if (flop > 0) row.gflops = flop / row.time.median_s * 1e-9;
    if (bytes > 0) row.gb_s = bytes / row.time.median_s * 1e-9;
    row.details = {{"pages", c->pages.note().empty() ? c->pages.name() : "not " + c->pages.name()},
                   {"speed_to_plain", median_ratio(all.front()->seconds, c->seconds)}};
    harness.add(row);
    if (!c->pages.note().empty()) harness.note(c->pages.note());
  }
}

}  // namespace

void bench_pages(Harness& harness, const nn::DitConfig& model, int64_t batch) {
  ops::Context& ctx = harness.ctx();
  const int64_t C = model.hidden_size, F = int64_t(double(C) * model.mlp_ratio), M = batch * model.tokens();
  Contenders products = contenders();
  for (const auto& c : products) {
    const auto tensor = [&](Shape shape) {
      Tensor t(shape, DType::kF32, c->pages);
      copy(random_tensor(ctx, shape, -1, 1, DType::kF32), t);
      return t;
    };
    c->work = [&ctx, x = tensor({M, C}), w = tensor({F, C}), b = tensor({F}), y = tensor({M, F})] {
      ops::linear_forward(ctx, x, w, b, y);
    };
  }
  run_in_turns(harness, fmt::format("product {} x {} x {}", M, F, C), products, 2.0 * double(M) * double(F) * double(C),
               0);
  Contenders updates = contenders();
  const int64_t n = harness.effort().cold_arrays ? 2 * 18 * C * C : C * C;  // the weights of two blocks
  std::vector<std::unique_ptr<autograd::ParameterStore>> stores;            // their memory is that of the contenders
  for (const auto& c : updates) {
    stores.push_back(std::make_unique<autograd::ParameterStore>());
    autograd::ParameterStore& store = *stores.back();
    store.add("w", {n});
    store.allocate(autograd::ParameterStore::For::kTraining, DType::kF32, {.home = &c->pages});
    copy(random_tensor(ctx, {n}, -1, 1, DType::kF32), store.values);
    copy(store.values, store.grads);
    c->work = [&ctx, &store] { optim::adamw_ema_step(ctx, {}, {.step = 10, .lr = 1e-4, .ema_decay = 0.9999}, store); };
  }
  run_in_turns(harness, "AdamW+EMA", updates, 0, double(n) * sizeof(float) * 9);
}

}  // namespace ditrain::bench
