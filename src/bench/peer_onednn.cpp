// oneDNN 2.x as a peer; peer_onednn_none.cpp stands for it in a build without its headers. 3.x has another interface.
#include <omp.h>

#include <algorithm>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/kernels/random.hpp"
#include "peer_library.hpp"

namespace ditrain::bench {
namespace {

using dnnl::memory;
using kernels::GemmArgs;
using kernels::Trans;

// What makes two products the same to a primitive.
using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool, bool, DType, DType, DType>;
Key key_of(const GemmArgs& g) {
  return {g.m,          g.n,      g.k,      g.lda,   g.ldb, g.ldc, g.trans_a == Trans::kYes, g.trans_b == Trans::kYes,
          g.accumulate, g.a_type, g.b_type, g.c_type};
}

memory::data_type type_of(DType type) {
  return type == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
}
memory::desc matrix(int64_t rows, int64_t cols, int64_t ld, Trans trans, DType type) {
  return {{rows, cols}, type_of(type), trans == Trans::kYes ? memory::dims{1, ld} : memory::dims{ld, 1}};
}
// Four dimensions in a layout that the library may choose.
memory::desc any_layout(const memory::dims& dims, DType type) { return {dims, type_of(type), memory::format_tag::any}; }

// A primitive with its arrays.
struct Bound {
  dnnl::primitive primitive;
  memory source, weights, destination;
  void run(dnnl::stream stream) const {
    primitive.execute(stream, {{DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, destination}});
    stream.wait();
  }
};

// The two ways to a product and how long they took; the first calls try both in turn.
struct Plan {
  Bound bound;
  bool has_sgemm = false;
  int calls = 0;
  double best_s[2] = {1e300, 1e300};  // sgemm, primitive
};

// f(), with the library's errors as ours.
template <class F>
auto checked(const F& f) {
  try {
    return f();
  } catch (const dnnl::error& e) {
    throw RunError({.where = "oneDNN", .what = e.what(), .got = "status " + std::to_string(e.status)});
  }
}

std::string version_text() {
  const dnnl::version_t& v = *dnnl::version();
  return "oneDNN " + std::to_string(v.major) + "." + std::to_string(v.minor) + "." + std::to_string(v.patch);
}

class OneDnn final : public Peer {
 public:
  OneDnn(int threads, const std::vector<int>& pus) : Peer(version_text(), "", threads), threads_(threads), pus_(pus) {
    GemmArgs probe{.m = 2, .n = 2, .k = 2, .lda = 2, .ldb = 2, .ldc = 2};
    probe.a_type = probe.b_type = DType::kBF16;
    try {
      make_plan(probe);
      has_bf16_ = true;
    } catch (const dnnl::error&) {  // "unimplemented": the CPU has too little for bf16
    }
  }

  bool can(const GemmArgs& g) const override {
    const bool bf16 = g.a_type == DType::kBF16 && g.b_type == DType::kBF16 && g.arithmetic == DType::kBF16;
    return is_plain(g) && (is_f32(g) || (bf16 && has_bf16_ && !(g.accumulate && g.c_type != DType::kF32)));
  }

  void gemm(const GemmArgs& g) override {
    DITRAIN_CHECK(can(g), "a product that oneDNN does not have");
    on_all_threads([&] {
      Plan& plan = plan_of(g);
      const bool trying = plan.has_sgemm && plan.calls < kPeerTrials;
      const int way = !plan.has_sgemm ? 1 : trying ? plan.calls % 2 : int(plan.best_s[1] < plan.best_s[0]);
      const double start = trying ? now_s() : 0;
      way == 0 ? run_sgemm(g) : run_primitive(plan.bound, g);
      if (!trying) return;
      plan.best_s[way] = std::min(plan.best_s[way], now_s() - start);
      ++plan.calls;
    });
  }

  std::function<void()> convolution(const nn::AutoencoderConv& conv, int64_t images, DType type) override {
    if (type == DType::kBF16 && !has_bf16_) return {};
    Bound bound;
    on_all_threads([&] { bound = make_convolution(conv, images, type); });
    return [this, bound] { on_all_threads([&] { bound.run(stream_); }); };
  }

 private:
  template <class F>
  void on_all_threads(const F& f) const {
    const AffinityScope scope(pus_);
    omp_set_num_threads(threads_);  // of the calling thread
    checked(f);
  }

  Plan make_plan(const GemmArgs& g) const {
    const memory::desc a = matrix(g.m, g.k, g.lda, g.trans_a, g.a_type);
    const memory::desc b = matrix(g.k, g.n, g.ldb, g.trans_b, g.b_type);
    const memory::desc c = matrix(g.m, g.n, g.ldc, Trans::kNo, g.c_type);
    dnnl::primitive_attr attribute;
    if (g.accumulate) {
      dnnl::post_ops after;
      after.append_sum(1);
      attribute.set_post_ops(after);
    }
    const dnnl::matmul product({{a, b, c}, attribute, engine_});
    return {{product, {a, engine_, nullptr}, {b, engine_, nullptr}, {c, engine_, nullptr}}, is_f32(g)};
  }
  Plan& plan_of(const GemmArgs& g) {
    const auto found = plans_.find(key_of(g));
    return found != plans_.end() ? found->second : plans_.emplace(key_of(g), make_plan(g)).first->second;
  }

  static void run_sgemm(const GemmArgs& g) {
    const auto letter = [](Trans t) { return t == Trans::kYes ? 'T' : 'N'; };
    const dnnl::status status =
        dnnl::sgemm(letter(g.trans_a), letter(g.trans_b), g.m, g.n, g.k, 1.0f, static_cast<const float*>(g.a), g.lda,
                    static_cast<const float*>(g.b), g.ldb, g.accumulate ? 1.0f : 0.0f, static_cast<float*>(g.c), g.ldc);
    dnnl::error::wrap_c_api(dnnl_status_t(status), "dnnl_sgemm failed");
  }
  void run_primitive(const Bound& bound, const GemmArgs& g) const {
    bound.source.set_data_handle(const_cast<void*>(g.a));
    bound.weights.set_data_handle(const_cast<void*>(g.b));
    bound.destination.set_data_handle(g.c);
    bound.run(stream_);
  }

  Bound make_convolution(const nn::AutoencoderConv& c, int64_t images, DType type) const {
    const ops::Conv2d& k = c.conv;
    const auto outputs = [](int64_t n, int64_t before, int64_t after, int64_t kernel, int64_t stride) {
      return (n + before + after - kernel) / stride + 1;
    };
    const memory::desc x = any_layout({images, c.channels, c.height, c.width}, type);
    const memory::desc w = any_layout({c.outputs, c.channels, k.kernel_h, k.kernel_w}, type);
    const memory::desc y =
        any_layout({images, c.outputs, outputs(c.height, k.pad_top, k.pad_bottom, k.kernel_h, k.stride_h),
                    outputs(c.width, k.pad_left, k.pad_right, k.kernel_w, k.stride_w)},
                   type);
    const dnnl::convolution_forward::primitive_desc chosen({dnnl::prop_kind::forward_inference,
                                                            dnnl::algorithm::convolution_direct,
                                                            x,
                                                            w,
                                                            y,
                                                            {k.stride_h, k.stride_w},
                                                            {k.pad_top, k.pad_left},
                                                            {k.pad_bottom, k.pad_right}},
                                                           engine_);
    return {dnnl::convolution_forward(chosen), filled(chosen.src_desc(), type), filled(chosen.weights_desc(), type),
            filled(chosen.dst_desc(), type)};
  }

  // An array of random numbers: untouched pages would all be the same zeros.
  memory filled(const memory::desc& layout, DType type) const {
    memory array(layout, engine_);
    void* const data = array.get_data_handle();
    std::vector<float> values(layout.get_size() / dtype_bytes(type));
    kernels::fill_uniform(RandomKey(0, Stream::kTest, 0), 0, values.data(), int64_t(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      const float x = values[i] - 0.5f;
      type == DType::kF32 ? void(static_cast<float*>(data)[i] = x) : void(static_cast<BFloat16*>(data)[i] = to_bf16(x));
    }
    return array;
  }

  const int threads_;
  const std::vector<int> pus_;
  const dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  const dnnl::stream stream_{engine_};
  bool has_bf16_ = false;
  std::map<Key, Plan> plans_;
};

}  // namespace

std::unique_ptr<Peer> load_onednn(int threads, const std::vector<int>& pus) {
  return checked([&] { return std::make_unique<OneDnn>(threads, pus); });
}

}  // namespace ditrain::bench
