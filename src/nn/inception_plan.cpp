#include "inception_plan.hpp"

#include "ditrain/base/error.hpp"
#include "ditrain/nn/inception.hpp"
#include "placement.hpp"

namespace ditrain::nn {
namespace {

struct Branch {
  const char* name;
  int64_t outputs;
};

class InceptionBuilder {
 public:
  InceptionBuilder() { now_ = plan.input = add_value(kInceptionSide, 3); }

  const InceptionView& now() const { return now_; }
  int64_t side(const InceptionView& v) const { return plan.values[size_t(v.value)].side; }

  InceptionView add_value(int64_t side, int64_t channels) {
    const int step = int(plan.steps.size());
    plan.values.push_back({.side = side, .channels = channels, .first = step, .last = step});
    return {int(plan.values.size()) - 1, 0, channels};
  }
  // Several convolutions of the same pixels, whose outputs lie side by side in y.
  void joined(const std::string& block, const std::vector<Branch>& branches, const InceptionView& x,
              const InceptionView& y, const ops::Conv2d& conv = {}) {
    InceptionConv c{.inputs = x.count, .conv = conv};
    for (const Branch& b : branches) {
      c.names.push_back(block + (block.empty() ? "" : ".") + b.name);
      c.outputs.push_back(b.outputs);
    }
    plan.macs += double(side(y) * side(y) * y.count) * double(x.count * conv.kernel_h * conv.kernel_w);
    plan.convs.push_back(c);
    add_step({.x = x, .y = y, .conv = int(plan.convs.size()) - 1});
  }
  void conv(const std::string& name, const InceptionView& x, const InceptionView& y, const ops::Conv2d& conv) {
    joined("", {{name.c_str(), y.count}}, x, y, conv);
  }
  // The same into a value of its own.
  InceptionView conv(const std::string& name, const InceptionView& x, int64_t outputs, const ops::Conv2d& c) {
    const int64_t pad = c.pad_top + c.pad_bottom;
    const InceptionView y = add_value((side(x) + pad - c.kernel_h) / c.stride_h + 1, outputs);
    conv(name, x, y, c);
    return y;
  }
  void pool(const InceptionView& x, const InceptionView& y, const ops::Pool& p) {
    add_step({.x = x, .y = y, .pool = p});
  }
  InceptionView pool(const InceptionView& x, const ops::Pool& p) {
    const InceptionView y = add_value((side(x) + 2 * p.pad - p.size) / p.stride + 1, x.count);
    pool(x, y, p);
    return y;
  }
  void finish(const std::string& module, const InceptionView& y) {
    plan.steps.back().module = module, plan.steps.back().shown = now_ = y;
  }
  void keep_to_the_end(const InceptionView& v) { plan.values[size_t(v.value)].last = int(plan.steps.size()); }

  InceptionPlan plan;

 private:
  void add_step(const InceptionStep& step) {
    const int now = int(plan.steps.size());
    for (const InceptionView* v : {&step.x, &step.y}) plan.values[size_t(v->value)].last = now;
    plan.steps.push_back(step);
  }
  InceptionView now_;
};

ops::Conv2d valid(int64_t k, int64_t stride) {
  return {.kernel_h = k, .kernel_w = k, .stride_h = stride, .stride_w = stride};
}
ops::Conv2d same(int64_t h, int64_t w) {
  return {.kernel_h = h, .kernel_w = w, .pad_top = h / 2, .pad_left = w / 2, .pad_bottom = h / 2, .pad_right = w / 2};
}
constexpr ops::Pool kHalving{.kind = ops::Pool::Kind::kMax, .size = 3, .stride = 2};
constexpr ops::Pool kAverage{.kind = ops::Pool::Kind::kAverage, .size = 3, .stride = 1, .pad = 1};
constexpr ops::Pool kMaximum{.kind = ops::Pool::Kind::kMax, .size = 3, .stride = 1, .pad = 1};

// The block's value: first the results that other branches read, then what the block gives.
struct Sides {
  InceptionView inner, given;
};
Sides make_sides(InceptionBuilder& b, int64_t side, int64_t inner, int64_t given) {
  const InceptionView all = b.add_value(side, inner + given);
  return {all.part(0, inner), all.part(inner, given)};
}

// 5b, 5c, 5d: 1x1; 5x5; two 3x3; average and 1x1.
void block_a(InceptionBuilder& b, const std::string& name, int64_t pooled) {
  const InceptionView x = b.now();
  const auto [inner, y] = make_sides(b, b.side(x), 48 + 64, 224 + pooled);
  b.joined(name, {{"branch5x5_1", 48}, {"branch3x3dbl_1", 64}, {"branch1x1", 64}}, x, {y.value, 0, 48 + 64 + 64});
  b.conv(name + ".branch5x5_2", inner.part(0, 48), y.part(64, 64), same(5, 5));
  const InceptionView middle = b.conv(name + ".branch3x3dbl_2", inner.part(48, 64), 96, same(3, 3));
  b.conv(name + ".branch3x3dbl_3", middle, y.part(128, 96), same(3, 3));
  b.conv(name + ".branch_pool", b.pool(x, kAverage), y.part(224, pooled), {});
  b.finish(name, y);
}

// 6a: to half the side.
void block_b(InceptionBuilder& b, const std::string& name) {
  const InceptionView x = b.now(), y = b.add_value((b.side(x) - 3) / 2 + 1, 384 + 96 + x.count);
  b.conv(name + ".branch3x3", x, y.part(0, 384), valid(3, 2));
  InceptionView t = b.conv(name + ".branch3x3dbl_1", x, 64, {});
  t = b.conv(name + ".branch3x3dbl_2", t, 96, same(3, 3));
  b.conv(name + ".branch3x3dbl_3", t, y.part(384, 96), valid(3, 2));
  b.pool(x, y.part(480, x.count), kHalving);
  b.finish(name, y);
}

// 6b to 6e: 1x1; 7x7 as 1x7 and 7x1; the same twice; average and 1x1. n: channels inside the branches.
void block_c(InceptionBuilder& b, const std::string& name, int64_t n) {
  const InceptionView x = b.now();
  const auto [inner, y] = make_sides(b, b.side(x), 2 * n, 768);
  b.joined(name, {{"branch7x7_1", n}, {"branch7x7dbl_1", n}, {"branch1x1", 192}}, x, {y.value, 0, 2 * n + 192});
  InceptionView t = b.conv(name + ".branch7x7_2", inner.part(0, n), n, same(1, 7));
  b.conv(name + ".branch7x7_3", t, y.part(192, 192), same(7, 1));
  t = b.conv(name + ".branch7x7dbl_2", inner.part(n, n), n, same(7, 1));
  t = b.conv(name + ".branch7x7dbl_3", t, n, same(1, 7));
  t = b.conv(name + ".branch7x7dbl_4", t, n, same(7, 1));
  b.conv(name + ".branch7x7dbl_5", t, y.part(384, 192), same(1, 7));
  b.conv(name + ".branch_pool", b.pool(x, kAverage), y.part(576, 192), {});
  b.finish(name, y);
}

// 7a: to half the side.
void block_d(InceptionBuilder& b, const std::string& name) {
  const InceptionView x = b.now(), inner = b.add_value(b.side(x), 2 * 192);
  const InceptionView y = b.add_value((b.side(x) - 3) / 2 + 1, 320 + 192 + x.count);
  b.joined(name, {{"branch3x3_1", 192}, {"branch7x7x3_1", 192}}, x, inner);
  b.conv(name + ".branch3x3_2", inner.part(0, 192), y.part(0, 320), valid(3, 2));
  InceptionView t = b.conv(name + ".branch7x7x3_2", inner.part(192, 192), 192, same(1, 7));
  t = b.conv(name + ".branch7x7x3_3", t, 192, same(7, 1));
  b.conv(name + ".branch7x7x3_4", t, y.part(320, 192), valid(3, 2));
  b.pool(x, y.part(512, x.count), kHalving);
  b.finish(name, y);
}

// 7b, 7c: 1x1; 3x3 as 1x3 beside 3x1; 3x3 and the same; a pool and 1x1.
void block_e(InceptionBuilder& b, const std::string& name, const ops::Pool& pool) {
  const InceptionView x = b.now();
  const auto [inner, y] = make_sides(b, b.side(x), 384 + 448, 2048);
  b.joined(name, {{"branch3x3_1", 384}, {"branch3x3dbl_1", 448}, {"branch1x1", 320}}, x, {y.value, 0, 384 + 448 + 320});
  b.conv(name + ".branch3x3_2a", inner.part(0, 384), y.part(320, 384), same(1, 3));
  b.conv(name + ".branch3x3_2b", inner.part(0, 384), y.part(704, 384), same(3, 1));
  const InceptionView t = b.conv(name + ".branch3x3dbl_2", inner.part(384, 448), 384, same(3, 3));
  b.conv(name + ".branch3x3dbl_3a", t, y.part(1088, 384), same(1, 3));
  b.conv(name + ".branch3x3dbl_3b", t, y.part(1472, 384), same(3, 1));
  b.conv(name + ".branch_pool", b.pool(x, pool), y.part(1856, 192), {});
  b.finish(name, y);
}

}  // namespace

InceptionPlan plan_inception() {
  InceptionBuilder b;
  const auto conv = [&](const std::string& name, int64_t outputs, const ops::Conv2d& c) {
    b.finish(name, b.conv(name, b.now(), outputs, c));
  };
  conv("Conv2d_1a_3x3", 32, valid(3, 2));
  conv("Conv2d_2a_3x3", 32, valid(3, 1));
  conv("Conv2d_2b_3x3", 64, same(3, 3));
  b.finish("block0", b.pool(b.now(), kHalving));
  conv("Conv2d_3b_1x1", 80, {});
  conv("Conv2d_4a_3x3", 192, valid(3, 1));
  b.finish("block1", b.pool(b.now(), kHalving));
  block_a(b, "Mixed_5b", 32), block_a(b, "Mixed_5c", 64), block_a(b, "Mixed_5d", 64);
  block_b(b, "Mixed_6a");
  block_c(b, "Mixed_6b", 128), block_c(b, "Mixed_6c", 160), block_c(b, "Mixed_6d", 160);
  b.plan.spatial = b.now().part(0, kInceptionSpatialChannels);
  block_c(b, "Mixed_6e", 192);
  block_d(b, "Mixed_7a");
  block_e(b, "Mixed_7b", kAverage), block_e(b, "Mixed_7c", kMaximum);
  b.plan.features = b.now();
  b.keep_to_the_end(b.plan.features), b.keep_to_the_end(b.plan.spatial);
  DITRAIN_CHECK(b.plan.features.count == kInceptionFeatures && b.side(b.plan.spatial) == kInceptionSpatialSide,
                "the plan of another network");
  b.plan.elements = place(b.plan.values);
  return std::move(b.plan);
}

}  // namespace ditrain::nn
