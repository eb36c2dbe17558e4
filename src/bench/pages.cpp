// Products and the optimiser's pass on explicit, transparent and plain pages, in turns.
#include "ditrain/platform/pages.hpp"

#include <fmt/format.h>

#include <map>
#include <memory>

#include "ditrain/bench/arrays.hpp"
#include "ditrain/bench/memory.hpp"
#include "ditrain/nn/model_config.hpp"
#include "ditrain/ops/linear.hpp"
#include "ditrain/optim/optimizer.hpp"
#include "turns.hpp"

namespace ditrain::bench {
namespace {

// Memory of one kind of pages.
class PagesOfOneKind final : public memory::Allocator {
 public:
  explicit PagesOfOneKind(platform::PagePolicy policy) : policy_(policy) {}
  std::string name() const override { return std::string(word_of(policy_)); }
  platform::PagePolicy policy() const { return policy_; }
  /// Why some of it has other pages; "": all is as asked for.
  const std::string& note() const { return note_; }

 private:
  void* allocate_block(size_t bytes) override {
    platform::PageBlock block(bytes, policy_);
    if (note_.empty()) note_ = block.note();
    void* data = block.data();
    blocks_.emplace(data, std::move(block));
    return data;
  }
  void deallocate_block(void* p, size_t) override { blocks_.erase(p); }

  const platform::PagePolicy policy_;
  std::map<void*, platform::PageBlock> blocks_ = {};
  std::string note_;
};

// A row for each kind of pages. work(pages): what a contender calls, on arrays of those pages.
using MakeWork = std::function<std::function<void()>(PagesOfOneKind&)>;
void run_in_turns(Harness& harness, const std::string& name, const MakeWork& work, double flop, double bytes) {
  using platform::PagePolicy;
  PagesOfOneKind kinds[] = {PagesOfOneKind(PagePolicy::kPlain), PagesOfOneKind(PagePolicy::kTransparent),
                            PagesOfOneKind(PagePolicy::kExplicit)};
  std::vector<Contender> contenders;
  for (PagesOfOneKind& pages : kinds) contenders.push_back({pages.name(), work(pages)});
  take_turns(contenders, harness.effort().repeats);
  for (size_t i = 0; i < contenders.size(); ++i) {
    const Contender& c = contenders[i];
    const std::string& note = kinds[i].note();
    Row row = timed_row(name + " " + c.name, "f32", c.seconds);
    if (flop > 0) row.gflops = flop / row.time.median_s * 1e-9;
    if (bytes > 0) row.gb_s = bytes / row.time.median_s * 1e-9;
    row.details = {{"pages", note.empty() ? c.name : "not " + c.name},
                   {"speed_to_plain", contenders.front().ratio_to(c)}};
    harness.add(row);
    if (!note.empty()) harness.note(note);
  }
}

}  // namespace

void bench_pages(Harness& harness, const nn::ModelConfig& model, int64_t batch) {
  ops::Context& ctx = harness.ctx();
  const int64_t C = model.hidden_size, F = int64_t(double(C) * model.mlp_ratio), M = batch * model.tokens();
  const auto product = [&](PagesOfOneKind& pages) {
    const auto tensor = [&](Shape shape) {
      Tensor t(shape, DType::kF32, pages);
      copy(random_tensor(ctx, shape, -1, 1, DType::kF32), t);
      return t;
    };
    return [&ctx, x = tensor({M, C}), w = tensor({F, C}), b = tensor({F}), y = tensor({M, F})] {
      ops::linear_forward(ctx, x, w, b, y);
    };
  };
  run_in_turns(harness, fmt::format("product {} x {} x {}", M, F, C), product, 2.0 * double(M) * double(F) * double(C),
               0);
  const int64_t n = harness.effort().cold_arrays ? 2 * 18 * C * C : C * C;  // the weights of two blocks
  const auto update = [&](PagesOfOneKind& pages) {
    const auto store = std::make_shared<autograd::ParameterStore>();
    store->add("w", {n});
    store->allocate(autograd::ParameterStore::For::kTraining, DType::kF32,
                    {.home = &pages, .states = optim::state_arrays()});
    copy(random_tensor(ctx, {n}, -1, 1, DType::kF32), store->values);
    copy(store->values, store->grads);
    return [&ctx, store] { optim::adamw_ema_step(ctx, {}, {.step = 10, .lr = 1e-4, .ema_decay = 0.9999}, *store); };
  };
  run_in_turns(harness, "AdamW+EMA", update, 0, double(n) * sizeof(float) * 9);
}

}  // namespace ditrain::bench
