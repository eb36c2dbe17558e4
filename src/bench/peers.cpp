// Loading of peers, and those with the C interface of BLAS (cblas_sgemm): OpenBLAS and BLIS. oneDNN: peer_onednn.cpp.
#include "ditrain/bench/peers.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <limits>

#include "ditrain/base/error.hpp"
#include "ditrain/bench/harness.hpp"
#include "ditrain/platform/affinity.hpp"
#include "ditrain/platform/cpu.hpp"
#include "peer_library.hpp"

namespace ditrain::bench {

PeerLibrary::PeerLibrary(const std::string& name, const std::string& file, const std::string& package)
    : name_(name), file_(file), handle_(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) return;
  const char* reason = dlerror();
  refuse("ditbench", "cannot load " + name, reason ? reason : "no reason", file,
         "the Debian package " + package + ", or LD_LIBRARY_PATH");
}

bool PeerLibrary::reload_with(const char* variable, const std::string& value) {
  if (std::getenv(variable) != nullptr) return false;
  dlclose(handle_);
  handle_ = dlopen(file_.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);  // still there?
  const bool unloaded = handle_ == nullptr;
  if (unloaded) {
    dlerror();
    setenv(variable, value.c_str(), 1);
    handle_ = dlopen(file_.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  DITRAIN_CHECK(handle_ != nullptr, file_ + " loaded once and not again");
  return unloaded;
}

void* PeerLibrary::address(const char* symbol) const {
  void* p = dlsym(handle_, symbol);
  if (p == nullptr)
    refuse("ditbench", file_ + " is not a " + name_ + " that this program can use",
           "no function " + std::string(symbol), "another version");
  return p;
}

AffinityScope::AffinityScope(const std::vector<int>& pus) {
  if (pus.empty()) return;
  before_ = platform::affinity_mask();
  platform::set_affinity_mask(pus);
}
AffinityScope::~AffinityScope() {
  if (!before_.empty()) platform::set_affinity_mask(before_);
}

using kernels::GemmArgs;

bool is_plain(const GemmArgs& g) {
  return g.bias == nullptr && g.normalise_a.mean == nullptr && g.normalise_b.mean == nullptr && g.patches_a.size == 0 &&
         g.patches_b.size == 0 && g.epilogue.kind == kernels::EpilogueKind::kNone && g.a_row_sums == nullptr &&
         g.window_a.channels == 0 && g.moments.sums == nullptr;
}
bool is_f32(const GemmArgs& g) {
  return g.a_type == DType::kF32 && g.b_type == DType::kF32 && g.c_type == DType::kF32 && g.arithmetic == DType::kF32;
}

namespace {

enum CblasOrder : int { kRowMajor = 101 };
enum CblasTranspose : int { kNoTranspose = 111, kTranspose = 112 };
using CblasSgemm = void(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
                        const float* b, int ldb, float beta, float* c, int ldc);

// A library with 32-bit integers and cblas_sgemm.
class Cblas final : public Peer {
 public:
  Cblas(PeerLibrary library, std::string name, const std::string& kernels, int threads, const std::vector<int>& pus)
      : Peer(std::move(name), ", " + kernels + " kernels", threads),
        library_(std::move(library)),
        sgemm_(library_.get<CblasSgemm>("cblas_sgemm")),
        pus_(pus) {}

  bool can(const GemmArgs& g) const override {
    constexpr int64_t kMax = std::numeric_limits<int>::max();
    for (const int64_t size : {g.m, g.n, g.k, g.lda, g.ldb, g.ldc})
      if (size > kMax) return false;
    return is_plain(g) && is_f32(g);
  }

  void gemm(const GemmArgs& g) override {
    DITRAIN_CHECK(can(g), "a product that " + name() + " does not have");
    const AffinityScope scope(pus_);
    const auto trans = [](kernels::Trans t) { return int(t == kernels::Trans::kYes ? kTranspose : kNoTranspose); };
    sgemm_(kRowMajor, trans(g.trans_a), trans(g.trans_b), int(g.m), int(g.n), int(g.k), 1.0f,
           static_cast<const float*>(g.a), int(g.lda), static_cast<const float*>(g.b), int(g.ldb),
           g.accumulate ? 1.0f : 0.0f, static_cast<float*>(g.c), int(g.ldc));
  }

 private:
  PeerLibrary library_;
  CblasSgemm* sgemm_;
  std::vector<int> pus_;
};

// "OpenBLAS 0.3.21 NO_LAPACKE ..." -> "OpenBLAS 0.3.21"
std::string first_words(const std::string& text, int words) {
  size_t end = 0;
  for (int i = 0; i < words && end != text.npos; ++i) end = text.find(' ', i == 0 ? 0 : end + 1);
  return text.substr(0, end);
}

std::unique_ptr<Peer> load_openblas(int threads, const std::vector<int>& pus) {
  setenv("OPENBLAS_THREAD_TIMEOUT", "17", 0);  // 2^17 cycles; 25 ms would be the default
  PeerLibrary library("OpenBLAS", "libopenblas.so.0", "libopenblas0-pthread");
  const auto core = [&] { return std::string(library.get<const char*()>("openblas_get_corename")()); };
  bool wide = false;
  for (const char* known : {"SkylakeX", "Cooperlake", "SapphireRapids", "Zen4", "Zen5"}) wide |= core() == known;
  if (platform::cpu_features().avx512 && !wide) library.reload_with("OPENBLAS_CORETYPE", "SkylakeX");
  library.get<void(int)>("openblas_set_num_threads")(threads);
  const std::string name = first_words(library.get<const char*()>("openblas_get_config")(), 2), kernels = core();
  return std::make_unique<Cblas>(std::move(library), name, kernels, threads, pus);
}

// BLIS counts its configurations differently in every version.
int blis_number_of(const PeerLibrary& library, const std::string& name) {
  auto* name_of = library.get<const char*(int)>("bli_arch_string");
  const int last = library.get<int()>("bli_arch_query_id")();  // the generic one, which is the last
  for (int i = 0; i < last; ++i)
    if (name == name_of(i)) return i;
  return -1;
}

std::unique_ptr<Peer> load_blis(int threads, const std::vector<int>& pus) {
  PeerLibrary library("BLIS", "libblis.so.4", "libblis4-pthread");
  const auto arch = [&] {
    return std::string(library.get<const char*(int)>("bli_arch_string")(library.get<int()>("bli_arch_query_id")()));
  };
  if (arch() == "generic") {
    const int better = blis_number_of(library, platform::cpu_features().avx512 ? "skx" : "haswell");
    if (better >= 0 && platform::cpu_features().avx2_fma) library.reload_with("BLIS_ARCH_TYPE", std::to_string(better));
  }
  library.get<void(int64_t)>("bli_thread_set_num_threads")(threads);
  const std::string name = std::string("BLIS ") + library.get<const char*()>("bli_info_get_version_str")();
  const std::string kernels = arch();
  return std::make_unique<Cblas>(std::move(library), name, kernels, threads, pus);
}

}  // namespace

std::unique_ptr<Peer> load_peer(Library library, int threads, const std::vector<int>& pus) {
  DITRAIN_CHECK(threads >= 1, std::to_string(threads) + " threads");
  const AffinityScope scope(pus);  // libraries count the cores and start threads while they load
  switch (library) {
    case Library::kOpenBlas:
      return load_openblas(threads, pus);
    case Library::kBlis:
      return load_blis(threads, pus);
    case Library::kOneDnn:
      return load_onednn(threads, pus);
  }
  DITRAIN_CHECK(false, "a library");
}

std::unique_ptr<Peer> load_peer(Library library, Harness& harness, const std::string& more) {
  const std::string word(word_of(library));
  try {
    auto peer = load_peer(library, harness.num_threads(), harness.placement().pus);
    harness.note(word + ": " + peer->description() + more);
    return peer;
  } catch (const InputError& error) {
    harness.note(word + ": left out; " + error.what());
    return nullptr;
  }
}

Peers load_peers(Harness& harness) {
  Peers peers;
  for (const auto& [word, library] : kLibraries)
    if (auto peer = load_peer(library, harness)) peers.push_back(std::move(peer));
  return peers;
}

}  // namespace ditrain::bench
