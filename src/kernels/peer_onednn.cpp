// oneDNN 2.x and 3.x as a peer. Types of its C interface that differ between versions are only passed through: opaque
// pointers (3.x) or structures (2.x) in a buffer larger than any of them.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "peer_library.hpp"

namespace ditrain::kernels {
namespace {

enum DataType : int { kDnnlBF16 = 2, kDnnlF32 = 3 };
enum Runtime : unsigned { kOpenMp = 2 };
enum Argument : int { kSource = 1, kDestination = 17, kWeights = 33 };
enum Query : int { kSourceLayout = 129, kWeightsLayout = 131, kDestinationLayout = 133 };
constexpr int kCpuEngine = 1, kInOrder = 1, kMaxDims = 12, kAnyLayout = 1, kForInference = 96, kDirect = 1;
using Dims = std::array<int64_t, kMaxDims>;
using Handle = void*;  // engine, stream, primitive, memory, attribute, ...

struct Version {  // dnnl_version_t
  int major, minor, patch;
  const char* hash;
  unsigned cpu_runtime, gpu_runtime;
};
struct ExecArgument {  // dnnl_exec_arg_t
  int argument;
  Handle memory;
};
// Larger than dnnl_memory_desc_t and dnnl_matmul_desc_t of 2.x (about 0.7 and 3 KB in 2.6).
struct alignas(64) Structure {
  std::array<std::byte, 16384> bytes = {};
};

using Sgemm = int(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                  const float* b, int64_t ldb, float beta, float* c, int64_t ldc);

// What makes two products the same to a primitive.
using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool, bool, DType, DType, DType>;
Key key_of(const GemmArgs& g) {
  return {g.m,          g.n,      g.k,      g.lda,   g.ldb, g.ldc, g.trans_a == Trans::kYes, g.trans_b == Trans::kYes,
          g.accumulate, g.a_type, g.b_type, g.c_type};
}

struct Matrix {
  int64_t rows, cols, row_stride, col_stride;
  DType type;
};
Matrix matrix(int64_t rows, int64_t cols, int64_t ld, Trans trans, DType type) {
  return trans == Trans::kYes ? Matrix{rows, cols, 1, ld, type} : Matrix{rows, cols, ld, 1, type};
}
int type_of(DType type) { return type == DType::kBF16 ? kDnnlBF16 : kDnnlF32; }

// An object of the library and the function that ends it.
class Owned {
 public:
  using Destroy = int(Handle);
  Owned() = default;
  Owned(Handle handle, Destroy* destroy) : handle_(handle), destroy_(destroy) {}
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), destroy_(other.destroy_) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_), std::swap(destroy_, other.destroy_);
    return *this;
  }
  ~Owned() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
  Destroy* destroy_ = nullptr;
};

// A memory descriptor: a structure (2.x) or an object (3.x).
struct Descriptor {
  std::unique_ptr<Structure> structure = {};
  Owned object = {};
  const void* get() const { return structure != nullptr ? structure.get() : object.get(); }
};

// The two ways to a product and how long they took; the first calls try both in turn.
struct Plan {
  Owned primitive, source, weights, destination;
  bool has_sgemm = false;
  int calls = 0;
  double best_s[2] = {1e300, 1e300};  // sgemm, primitive
};

// A convolution with arrays in the layouts that the library chose.
struct ConvPlan {
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  Owned primitive, source, weights, destination;
  std::vector<std::unique_ptr<void, Free>> arrays = {};
};

class OneDnn final : public Peer {
 public:
  OneDnn(int threads, const std::vector<int>& pus);

  std::string description() const override {
    return "oneDNN " + std::to_string(version_.major) + "." + std::to_string(version_.minor) + "." +
           std::to_string(version_.patch) + ", " + std::to_string(threads_) + " thread(s)";
  }
  bool can(const GemmArgs& g) const override;
  void gemm(const GemmArgs& g) override;
  std::function<void()> convolution(const ConvSizes& sizes) override;

 private:
  void check(int status, const char* what) const {
    if (status == 0) return;
    const std::string got = "status " + std::to_string(status);
    throw RunError({.where = "oneDNN", .what = std::string(what) + " failed", .got = got});
  }
  template <class... Args>
  void call(const char* function, Args... args) const {
    check(library_.get<int(Args...)>(function)(args...), function);
  }
  /// The object that `create` writes to its first argument; `destroy` ends it.
  template <class... Args>
  Owned make(const char* create, const char* destroy, Args... args) const {
    Handle handle = nullptr;
    call(create, &handle, args...);
    return {handle, library_.get<Owned::Destroy>(destroy)};
  }

  Descriptor describe(const Matrix& m) const;
  Owned make_attribute(bool accumulate, DType type) const;
  Owned make_primitive(const void* a, const void* b, const void* c, Handle attribute) const;
  Owned make_memory(const Descriptor& descriptor) const;
  Descriptor describe_any(const Dims& dims, DType type) const;
  Owned describe_convolution(const ConvSizes& s) const;
  Owned make_filled(Handle description, Query layout, DType type, ConvPlan& plan) const;
  Plan make_plan(const GemmArgs& g) const;
  Plan& plan_of(const GemmArgs& g);
  void run_sgemm(const GemmArgs& g) const;
  void run_primitive(const Plan& plan, const GemmArgs& g) const;

  PeerLibrary library_;
  int threads_;
  std::vector<int> pus_;
  Version version_;
  bool structures_;  // descriptors are structures
  void (*set_omp_threads_)(int);
  Sgemm* sgemm_;
  int (*set_data_)(Handle memory, void* data);
  int (*execute_)(Handle primitive, Handle stream, int num_arguments, const ExecArgument* arguments);
  int (*wait_)(Handle stream);
  Owned engine_, stream_;
  bool has_bf16_ = false;
  std::map<Key, Plan> plans_;
};

OneDnn::OneDnn(int threads, const std::vector<int>& pus)
    : library_("oneDNN", {"libdnnl.so.3", "libdnnl.so.2"}, "libdnnl2"),
      threads_(threads),
      pus_(pus),
      version_(*library_.get<const Version*()>("dnnl_version")()),
      structures_(version_.major < 3),
      set_omp_threads_(library_.find<void(int)>("omp_set_num_threads")),
      sgemm_(library_.get<Sgemm>("dnnl_sgemm")),
      set_data_(library_.get<int(Handle, void*)>("dnnl_memory_set_data_handle")),
      execute_(library_.get<int(Handle, Handle, int, const ExecArgument*)>("dnnl_primitive_execute")),
      wait_(library_.get<int(Handle)>("dnnl_stream_wait")) {
  if (version_.cpu_runtime != kOpenMp || set_omp_threads_ == nullptr)
    throw InputError({.where = "kernels",
                      .what = library_.file() + " is a oneDNN whose threads cannot be counted",
                      .got = "threading runtime " + std::to_string(version_.cpu_runtime),
                      .expected = "one built for OpenMP"});
  set_omp_threads_(threads_);
  engine_ = make("dnnl_engine_create", "dnnl_engine_destroy", kCpuEngine, size_t{0});
  stream_ = make("dnnl_stream_create", "dnnl_stream_destroy", engine_.get(), unsigned(kInOrder));
  GemmArgs probe{.m = 2, .n = 2, .k = 2, .lda = 2, .ldb = 2, .ldc = 2};
  probe.a_type = probe.b_type = DType::kBF16;
  try {
    plan_of(probe);
    has_bf16_ = true;
  } catch (const RunError&) {  // "unimplemented": the CPU has too little for bf16
  }
}

bool OneDnn::can(const GemmArgs& g) const {
  const bool bf16 = g.a_type == DType::kBF16 && g.b_type == DType::kBF16 && g.arithmetic == DType::kBF16;
  return is_plain(g) && (is_f32(g) || (bf16 && has_bf16_ && !(g.accumulate && g.c_type != DType::kF32)));
}

Descriptor OneDnn::describe(const Matrix& m) const {
  const Dims dims = {m.rows, m.cols}, strides = {m.row_stride, m.col_stride};
  const int type = type_of(m.type);
  if (!structures_)
    return {.object = make("dnnl_memory_desc_create_with_strides", "dnnl_memory_desc_destroy", 2, dims.data(), type,
                           strides.data())};
  Descriptor d{.structure = std::make_unique<Structure>()};
  call("dnnl_memory_desc_init_by_strides", static_cast<void*>(d.structure.get()), 2, dims.data(), type, strides.data());
  return d;
}

Owned OneDnn::make_attribute(bool accumulate, DType type) const {
  Owned attribute = make("dnnl_primitive_attr_create", "dnnl_primitive_attr_destroy");
  if (!accumulate) return attribute;
  const Owned after = make("dnnl_post_ops_create", "dnnl_post_ops_destroy");
  if (structures_)
    call("dnnl_post_ops_append_sum", after.get(), 1.0f);
  else
    call("dnnl_post_ops_append_sum", after.get(), 1.0f, int32_t{0}, type_of(type));
  call("dnnl_primitive_attr_set_post_ops", attribute.get(), after.get());
  return attribute;
}

Owned OneDnn::make_primitive(const void* a, const void* b, const void* c, Handle attribute) const {
  const void* no_bias = nullptr;
  const auto made_from = [&](const Owned& description) {
    return make("dnnl_primitive_create", "dnnl_primitive_destroy", description.get());
  };
  if (!structures_)
    return made_from(make("dnnl_matmul_primitive_desc_create", "dnnl_primitive_desc_destroy", engine_.get(), a, b,
                          no_bias, c, attribute));
  const auto operation = std::make_unique<Structure>();
  void* const p = operation.get();
  call("dnnl_matmul_desc_init", p, a, b, no_bias, c);
  return made_from(
      make("dnnl_primitive_desc_create", "dnnl_primitive_desc_destroy", p, attribute, engine_.get(), Handle{}));
}

Owned OneDnn::make_memory(const Descriptor& descriptor) const {
  return make("dnnl_memory_create", "dnnl_memory_destroy", descriptor.get(), engine_.get(), Handle{});
}

Plan OneDnn::make_plan(const GemmArgs& g) const {
  const Descriptor a = describe(matrix(g.m, g.k, g.lda, g.trans_a, g.a_type));
  const Descriptor b = describe(matrix(g.k, g.n, g.ldb, g.trans_b, g.b_type));
  const Descriptor c = describe(matrix(g.m, g.n, g.ldc, Trans::kNo, g.c_type));
  const Owned attribute = make_attribute(g.accumulate, g.c_type);
  Plan plan;
  plan.has_sgemm = is_f32(g);
  plan.primitive = make_primitive(a.get(), b.get(), c.get(), attribute.get());
  plan.source = make_memory(a), plan.weights = make_memory(b), plan.destination = make_memory(c);
  return plan;
}

Plan& OneDnn::plan_of(const GemmArgs& g) {
  const auto found = plans_.find(key_of(g));
  return found != plans_.end() ? found->second : plans_.emplace(key_of(g), make_plan(g)).first->second;
}

// Four dimensions in a layout that the library may choose.
Descriptor OneDnn::describe_any(const Dims& dims, DType type) const {
  if (!structures_)
    return {.object = make("dnnl_memory_desc_create_with_tag", "dnnl_memory_desc_destroy", 4, dims.data(),
                           type_of(type), kAnyLayout)};
  Descriptor d{.structure = std::make_unique<Structure>()};
  call("dnnl_memory_desc_init_by_tag", static_cast<void*>(d.structure.get()), 4, dims.data(), type_of(type),
       kAnyLayout);
  return d;
}

Owned OneDnn::describe_convolution(const ConvSizes& s) const {
  const auto outputs = [](int64_t n, int64_t before, int64_t after, int64_t kernel, int64_t stride) {
    return (n + before + after - kernel) / stride + 1;
  };
  const Descriptor x = describe_any({s.images, s.channels, s.height, s.width}, s.type);
  const Descriptor w = describe_any({s.outputs, s.channels, s.kernel_h, s.kernel_w}, s.type);
  const Descriptor y =
      describe_any({s.images, s.outputs, outputs(s.height, s.pad_top, s.pad_bottom, s.kernel_h, s.stride_h),
                    outputs(s.width, s.pad_left, s.pad_right, s.kernel_w, s.stride_w)},
                   s.type);
  const Dims strides = {s.stride_h, s.stride_w}, before = {s.pad_top, s.pad_left}, after = {s.pad_bottom, s.pad_right},
             dilations = {};
  const void* no_bias = nullptr;
  const Handle no_attribute = nullptr;
  if (!structures_)
    return make("dnnl_convolution_forward_primitive_desc_create", "dnnl_primitive_desc_destroy", engine_.get(),
                kForInference, kDirect, x.get(), w.get(), no_bias, y.get(), strides.data(), dilations.data(),
                before.data(), after.data(), no_attribute);
  const auto operation = std::make_unique<Structure>();
  void* const p = operation.get();
  call("dnnl_convolution_forward_desc_init", p, kForInference, kDirect, x.get(), w.get(), no_bias, y.get(),
       strides.data(), before.data(), after.data());
  return make("dnnl_primitive_desc_create", "dnnl_primitive_desc_destroy", p, no_attribute, engine_.get(), Handle{});
}

// An array in the layout that a convolution wants, of random numbers: untouched pages would all be the same zeros.
Owned OneDnn::make_filled(Handle description, Query layout, DType type, ConvPlan& plan) const {
  const void* descriptor =
      library_.get<const void*(Handle, int, int)>("dnnl_primitive_desc_query_md")(description, layout, 0);
  const size_t bytes = library_.get<size_t(const void*)>("dnnl_memory_desc_get_size")(descriptor);
  plan.arrays.emplace_back(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
  void* const array = plan.arrays.back().get();
  uint32_t state = 1;
  const size_t n = bytes / dtype_bytes(type);
  for (size_t i = 0; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    const float x = float(state >> 8) * 0x1p-24f - 0.5f;
    if (type == DType::kF32)
      static_cast<float*>(array)[i] = x;
    else
      static_cast<BFloat16*>(array)[i] = to_bf16(x);
  }
  return make("dnnl_memory_create", "dnnl_memory_destroy", descriptor, engine_.get(), static_cast<Handle>(array));
}

std::function<void()> OneDnn::convolution(const ConvSizes& sizes) {
  if (sizes.type == DType::kBF16 && !has_bf16_) return {};
  const AffinityScope scope(pus_);
  set_omp_threads_(threads_);
  const auto plan = std::make_shared<ConvPlan>();
  const Owned description = describe_convolution(sizes);
  plan->primitive = make("dnnl_primitive_create", "dnnl_primitive_destroy", description.get());
  plan->source = make_filled(description.get(), kSourceLayout, sizes.type, *plan);
  plan->weights = make_filled(description.get(), kWeightsLayout, sizes.type, *plan);
  plan->destination = make_filled(description.get(), kDestinationLayout, sizes.type, *plan);
  return [this, plan] {
    const AffinityScope on_all(pus_);
    set_omp_threads_(threads_);
    const ExecArgument arguments[] = {
        {kSource, plan->source.get()}, {kWeights, plan->weights.get()}, {kDestination, plan->destination.get()}};
    check(execute_(plan->primitive.get(), stream_.get(), 3, arguments), "dnnl_primitive_execute");
    check(wait_(stream_.get()), "dnnl_stream_wait");
  };
}

void OneDnn::run_sgemm(const GemmArgs& g) const {
  const auto letter = [](Trans t) { return t == Trans::kYes ? 'T' : 'N'; };
  check(sgemm_(letter(g.trans_a), letter(g.trans_b), g.m, g.n, g.k, 1.0f, static_cast<const float*>(g.a), g.lda,
               static_cast<const float*>(g.b), g.ldb, g.accumulate ? 1.0f : 0.0f, static_cast<float*>(g.c), g.ldc),
        "dnnl_sgemm");
}

void OneDnn::run_primitive(const Plan& plan, const GemmArgs& g) const {
  check(set_data_(plan.source.get(), const_cast<void*>(g.a)), "dnnl_memory_set_data_handle");
  check(set_data_(plan.weights.get(), const_cast<void*>(g.b)), "dnnl_memory_set_data_handle");
  check(set_data_(plan.destination.get(), g.c), "dnnl_memory_set_data_handle");
  const ExecArgument arguments[] = {
      {kSource, plan.source.get()}, {kWeights, plan.weights.get()}, {kDestination, plan.destination.get()}};
  check(execute_(plan.primitive.get(), stream_.get(), 3, arguments), "dnnl_primitive_execute");
  check(wait_(stream_.get()), "dnnl_stream_wait");
}

void OneDnn::gemm(const GemmArgs& g) {
  DITRAIN_CHECK(can(g), "a product that oneDNN does not have");
  const AffinityScope scope(pus_);
  set_omp_threads_(threads_);  // of the calling thread
  Plan& plan = plan_of(g);
  const bool trying = plan.has_sgemm && plan.calls < kPeerTrials;
  const int way = !plan.has_sgemm ? 1 : trying ? plan.calls % 2 : int(plan.best_s[1] < plan.best_s[0]);
  const double start = trying ? now_s() : 0;
  way == 0 ? run_sgemm(g) : run_primitive(plan, g);
  if (!trying) return;
  plan.best_s[way] = std::min(plan.best_s[way], now_s() - start);
  ++plan.calls;
}

}  // namespace

std::unique_ptr<Peer> load_onednn(int threads, const std::vector<int>& pus) {
  set_unless_set("GOMP_SPINCOUNT", "2000");  // pauses
  return std::make_unique<OneDnn>(threads, pus);
}

}  // namespace ditrain::kernels
