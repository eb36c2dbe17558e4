// Ranks that share a replica give what the whole model gives. They are threads of this process.
#include "ditrain/nn/tensor_parallel.hpp"

#include <barrier>
#include <catch2/catch.hpp>
#include <cmath>
#include <thread>

#include "ditrain/base/error.hpp"
#include "small_model.hpp"
#include "support/compare.hpp"
#include "support/random_tensor.hpp"

using namespace ditrain;
using namespace ditrain::test;
using autograd::Gradients;
using autograd::Mode;
using autograd::Parameter;
using autograd::ParameterStore;

namespace {

constexpr int64_t kBatch = 3;

nn::ModelConfig small() { return small_model(2); }

/// Sums what the threads of a group bring, for each of them in the order of the ranks.
class ThreadSum {
 public:
  explicit ThreadSum(int ranks) : parts_(size_t(ranks)), met_(ranks) {}
  std::function<void(float*, int64_t)> of(int rank) {
    return [this, rank](float* data, int64_t n) {
      parts_[size_t(rank)].assign(data, data + n);
      met_.arrive_and_wait();
      for (int64_t i = 0; i < n; ++i) {
        data[i] = 0;
        for (const auto& part : parts_) data[i] += part[size_t(i)];
      }
      if (rank == 0) ++sums_;
      met_.arrive_and_wait();
    };
  }
  int sums() const { return sums_; }

 private:
  std::vector<std::vector<float>> parts_;
  std::barrier<> met_;
  int sums_ = 0;
};

/// This rank's part of a full tensor.
Tensor part_of(const Tensor& full, const Parameter& p) {
  const Tensor part(p.shape);
  p.part.take(Pin<float>(full), Pin<float>(part));
  return part;
}

/// The model on one rank and on several, with the same weights.
struct SharedReplica {
  SharedReplica(int ranks, const nn::PassOptions& options, int workers = 1, const nn::ModelConfig& config = small())
      : sum(ranks), whole(config, kBatch, options) {
    whole.run(Gradients::kOverwrite);
    for (int rank = 0; rank < ranks; ++rank)
      group.push_back(std::make_unique<Rig>(config, kBatch, options, Crew{workers}, Mode::kTraining,
                                            nn::TensorParallel{rank, ranks, sum.of(rank)}));
    for (auto& rig : group) {
      for (Parameter* p : rig->model.parameters().state_dict())
        copy(part_of(whole.model.parameters().find(p->name).value, *p), p->value);
      rig->round_weights();
    }
    std::vector<std::thread> threads;
    for (auto& rig : group) threads.emplace_back([&rig] { rig->run(Gradients::kOverwrite); });
    for (std::thread& thread : threads) thread.join();
  }
  /// Largest relative L2 error of an output or a gradient on any rank.
  double worst() {
    double largest = 0;
    const auto distance = [](const Tensor& got, const Tensor& want, const Tensor& scale) {
      return relative_l2(to_vector(got), to_vector(want), to_vector(scale));
    };
    for (auto& rig : group) {
      largest = std::max(largest, distance(rig->pass.out(), whole.pass.out(), whole.pass.out()));
      largest = std::max(largest, distance(rig->pass.dimage(), whole.pass.dimage(), whole.pass.dimage()));
      for (Parameter* p : rig->model.parameters().state_dict()) {
        if (!p->trainable) continue;
        const Tensor want = part_of(whole.model.parameters().find(p->name).grad, *p);
        // Shifts of keys move all scores of a query alike: their gradient is 0 but for noise, held against the scales'.
        const bool noise = p->name.ends_with("k_norm.bias");
        const std::string scale = noise ? p->name.substr(0, p->name.size() - 4) + "weight" : p->name;
        largest = std::max(largest, distance(p->grad, want, noise ? rig->model.parameters().find(scale).grad : want));
      }
    }
    return largest;
  }
  ThreadSum sum;
  Rig whole;
  std::vector<std::unique_ptr<Rig>> group;
};

}  // namespace

TEST_CASE("ranks that share a replica: outputs and gradients are those of the whole model") {
  const int ranks = GENERATE(2, 4), workers = GENERATE(1, 2);
  const nn::Recompute recompute = GENERATE(nn::Recompute::kNone, nn::Recompute::kSelective, nn::Recompute::kBlock);
  CAPTURE(ranks, workers, int(recompute));
  SharedReplica c(ranks, {.want_input_gradient = true, .recompute = recompute}, workers);
  CHECK(c.worst() < 2e-6);  // the order of sums differs: some eps, 6e-8, of each of about 50 sums on the way
  // Two sums per block forward and two backward; those of the forward pass again in blocks that are recomputed, which
  // the last one, still there, is not.
  const int depth = int(small().depth);
  CHECK(c.sum.sums() == 4 * depth + (recompute == nn::Recompute::kBlock ? 2 * (depth - 1) : 0));
}

TEST_CASE("ranks that share a replica sum the gradients of scales that all heads share") {
  nn::ModelConfig config = small();
  config.qk_norm = GENERATE(nn::QkNorm::kRms, nn::QkNorm::kLayer);
  SharedReplica c(GENERATE(2, 4), {.want_input_gradient = true}, 2, config);
  CHECK(c.worst() < 2e-6);
  CHECK(c.sum.sums() == 5 * int(config.depth));  // one of each block's backward is that of the scales
}

TEST_CASE("ranks that share a replica of a block and of patches in all their variants") {
  nn::ModelConfig config = small();
  config.norm = nn::Norm::kRms, config.mlp = nn::Mlp::kSwiglu, config.position = nn::Position::kRope;
  config.mlp_ratio = 3;  // 64 columns for SwiGLU
  config.patch_overlap = 1, config.patch_bottleneck = 6;
  SharedReplica c(GENERATE(2, 4), {.want_input_gradient = true}, 2, config);
  CHECK(c.worst() < 2e-6);
  CHECK(c.sum.sums() == 4 * int(config.depth));
}

TEST_CASE("ranks that share a replica of a model with routes") {
  nn::ModelConfig config = small();
  config.depth = 4, config.position = nn::Position::kRope;
  const DType precision = GENERATE(DType::kF32, DType::kBF16);
  const nn::Recompute recompute = GENERATE(nn::Recompute::kSelective, nn::Recompute::kBlock);
  SharedReplica c(2,
                  {.want_input_gradient = true,
                   .recompute = recompute,
                   .precision = precision,
                   .routes = {{0.5, 0, 1}, {0.25, 3, 3}}},
                  2, config);
  CHECK(c.worst() < (precision == DType::kF32 ? 2e-6 : 2e-2));
}

TEST_CASE("ranks that share a replica of a U-ViT") {
  nn::ModelConfig config = small();
  config.kind = nn::ModelKind::kUvit, config.depth = 5;
  const nn::Recompute recompute = GENERATE(nn::Recompute::kSelective, nn::Recompute::kBlock);
  SharedReplica c(GENERATE(2, 4), {.want_input_gradient = true, .recompute = recompute}, 2, config);
  CHECK(c.worst() < 2e-6);
  CHECK(c.sum.sums() == 4 * 5 + (recompute == nn::Recompute::kBlock ? 4 : 0));
}

TEST_CASE("ranks that share a replica: what each has in full has the same bits on all") {
  SharedReplica c(4, {.want_input_gradient = true});
  for (auto& rig : c.group) {
    CHECK(to_vector(rig->pass.out()) == to_vector(c.group[0]->pass.out()));
    for (Parameter* p : rig->model.parameters().state_dict())
      if (p->trainable && p->part.whole())
        CHECK(to_vector(p->grad) == to_vector(c.group[0]->model.parameters().find(p->name).grad));
  }
}

TEST_CASE("ranks that share a replica: in bf16 the same but for roundings") {
  SharedReplica c(2, {.want_input_gradient = true, .precision = DType::kBF16});
  CHECK(c.worst() < 0.02);  // two passes in bf16 that round independently: see dit_test
  CHECK(c.worst() > 1e-5);
}

TEST_CASE("ranks that share a replica hold the parts of its tensors, which together are the whole") {
  nn::Model whole(small());
  whole.parameters().allocate(ParameterStore::For::kInference);
  nn::initialise(whole, 3);
  std::vector<std::vector<float>> joined;
  for (const Parameter* p : whole.parameters().state_dict()) joined.emplace_back(size_t(p->size()), NAN);
  int64_t elements = 0;
  for (int rank = 0; rank < 4; ++rank) {
    nn::Model model(small(), {rank, 4});
    model.parameters().allocate(ParameterStore::For::kInference);
    nn::initialise(model, 3);
    const auto state_dict = model.parameters().state_dict();
    for (size_t i = 0; i < state_dict.size(); ++i)
      state_dict[i]->part.put(Pin<float>(state_dict[i]->value), joined[i].data());
    elements = model.parameters().num_parameters();
    CHECK(model.parameters().find("blocks.1.attn.qkv.weight").shape == Shape{24, 32});
    CHECK(model.parameters().find("blocks.1.attn.qkv.bias").shape == Shape{24});
    CHECK(model.parameters().find("blocks.1.attn.proj.weight").shape == Shape{32, 8});
    CHECK(model.parameters().find("blocks.1.mlp.fc1.weight").shape == Shape{32, 32});
    CHECK(model.parameters().find("blocks.1.mlp.fc2.weight").shape == Shape{32, 32});
    CHECK(model.parameters().find("blocks.1.mlp.fc2.bias").part.whole());
    CHECK(model.parameters().find("blocks.1.mlp.fc2.weight").full_shape == Shape{32, 128});
  }
  const auto all = whole.parameters().state_dict();
  for (size_t i = 0; i < all.size(); ++i) CHECK(joined[i] == to_vector(all[i]->value));
  CHECK(elements < whole.parameters().num_parameters());
}

TEST_CASE("heads that do not divide over ranks are our own fault here") {
  CHECK_THROWS_AS(nn::Model(small(), {0, 3}), LogicFault);
}
