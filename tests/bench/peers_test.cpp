#include "ditrain/bench/peers.hpp"

#include "../../src/bench/peer_library.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/platform/affinity.hpp"
#include "kernels/kernel_test_utils.hpp"
#include "support/skip.hpp"

using namespace ditrain;
using namespace ditrain::bench;
using namespace ditrain::kernels;
using Catch::Contains;

namespace {

struct Case {
  int64_t m, n, k;
  bool trans_a, trans_b, accumulate;
};

std::vector<BFloat16> rounded(const std::vector<float>& x) {
  std::vector<BFloat16> y;
  for (const float v : x) y.push_back(to_bf16(v));
  return y;
}

// The product of a case on f32 values that bf16 holds exactly, with row strides longer than the rows.
struct Operands {
  explicit Operands(const Case& c)
      : lda((c.trans_a ? c.m : c.k) + 3),
        ldb((c.trans_b ? c.k : c.n) + 5),
        ldc(c.n + 2),
        a(random_values(lda * (c.trans_a ? c.k : c.m), 1)),
        b(random_values(ldb * (c.trans_b ? c.n : c.k), 2)),
        c0(random_values(ldc * c.m, 3)) {
    for (std::vector<float>* x : {&a, &b})
      for (float& v : *x) v = to_f32(to_bf16(v));
    a16 = rounded(a), b16 = rounded(b);
  }
  GemmArgs args(const Case& c, std::vector<float>& result) {
    result = c0;
    return {.m = c.m,
            .n = c.n,
            .k = c.k,
            .a = a.data(),
            .lda = lda,
            .trans_a = c.trans_a ? Trans::kYes : Trans::kNo,
            .b = b.data(),
            .ldb = ldb,
            .trans_b = c.trans_b ? Trans::kYes : Trans::kNo,
            .c = result.data(),
            .ldc = ldc,
            .accumulate = c.accumulate};
  }
  int64_t lda, ldb, ldc;
  std::vector<float> a, b, c0;
  std::vector<BFloat16> a16, b16;
};

void check(Peer& peer, const Case& c) {
  CAPTURE(peer.description(), c.m, c.n, c.k, c.trans_a, c.trans_b, c.accumulate);
  Operands x(c);
  std::vector<float> expected, got;
  ref::gemm(x.args(c, expected));
  for (int call = 0; call <= kPeerTrials; ++call) {  // every way that the peer tries
    const GemmArgs args = x.args(c, got);
    REQUIRE(peer.can(args));
    peer.gemm(args);
    REQUIRE(difference(got, expected, tolerance(c.k)) == "");
  }
  GemmArgs args = x.args(c, got);
  args.a = x.a16.data(), args.b = x.b16.data();
  args.a_type = args.b_type = args.arithmetic = DType::kBF16;
  if (!peer.can(args)) return;
  peer.gemm(args);
  REQUIRE(difference(got, expected, tolerance(c.k)) == "");
}

std::unique_ptr<Peer> load_if_installed(Library library, int threads, const std::vector<int>& pus = {}) {
  try {
    return load_peer(library, threads, pus);
  } catch (const InputError& e) {
    WARN("left out: " << e.what());
    CHECK_THAT(e.what(), Contains("package"));
    return nullptr;
  }
}

}  // namespace

TEST_CASE("every installed peer computes the product that is described") {
  int installed = 0;
  for (const auto& [name, library] : kLibraries)
    for (const int threads : {1, 2}) {
      const auto peer = load_if_installed(library, threads);
      if (peer == nullptr) continue;
      ++installed;
      CHECK_THAT(peer->description(), Contains(std::to_string(threads) + " thread"));
      for (int bits = 0; bits < 8; ++bits)
        for (const int64_t k : {1, 40, 300})
          check(*peer, {17, 70, k, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0});
    }
  if (installed == 0) SKIP("no library is installed");
}

TEST_CASE("a peer's bf16 result has the type that is asked for") {
  const auto peer = load_if_installed(Library::kOneDnn, 1);
  if (peer == nullptr) SKIP("no oneDNN");
  const Case c{8, 24, 32, false, true, false};
  Operands x(c);
  std::vector<float> expected;
  GemmArgs args = x.args(c, expected);
  ref::gemm(args);
  std::vector<BFloat16> got = rounded(x.c0);
  args.a = x.a16.data(), args.b = x.b16.data(), args.c = got.data();
  args.a_type = args.b_type = args.c_type = args.arithmetic = DType::kBF16;
  if (!peer->can(args)) SKIP("oneDNN has no bf16 products for this CPU");
  peer->gemm(args);
  for (int64_t i = 0; i < c.m; ++i)
    for (int64_t j = 0; j < c.n; ++j) {
      const float want = expected[size_t(i * x.ldc + j)];
      REQUIRE(std::abs(to_f32(got[size_t(i * x.ldc + j)]) - want) <= std::ldexp(std::abs(want), -8) + tolerance(c.k));
    }
  args.accumulate = true;
  CHECK_FALSE(peer->can(args));
}

TEST_CASE("a peer leaves what is more than a plain product to us, and the affinity as it was") {
  const std::vector<int> mask = platform::affinity_mask();
  int installed = 0;
  for (const auto& [name, library] : kLibraries) {
    const auto peer = load_if_installed(library, 2, mask);
    if (peer == nullptr) continue;
    ++installed;
    const Case c{4, 4, 4, false, false, false};
    Operands x(c);
    std::vector<float> result;
    GemmArgs args = x.args(c, result);
    platform::bind_this_thread(mask.front());
    peer->gemm(args);
    CHECK(platform::affinity_mask() == std::vector<int>{mask.front()});
    platform::set_affinity_mask(mask);
    args.bias = x.c0.data();
    CHECK_FALSE(peer->can(args));
    CHECK_THROWS_AS(peer->gemm(args), LogicFault);
  }
  if (installed == 0) SKIP("no library is installed");
}

TEST_CASE("what cannot be loaded is named, with the package that has it") {
  try {
    PeerLibrary("Nothing", "libnothing.so.7", "libnothing7");
    FAIL("loaded what does not exist");
  } catch (const InputError& e) {
    for (const char* part : {"Nothing", "expected libnothing.so.7", "package libnothing7", "No such file"})
      CHECK_THAT(e.what(), Contains(part));
  }
  const PeerLibrary c_library("the C library", "libc.so.6", "libc6");
  CHECK(c_library.get<int()>("getpid") != nullptr);
  CHECK_THROWS_WITH(c_library.get<int()>("cblas_sgemm"), Contains("cblas_sgemm"));
}

TEST_CASE("a library that chose badly is loaded anew, unless the user chose") {
  if (load_if_installed(Library::kOpenBlas, 1) == nullptr) SKIP("no OpenBLAS");
  PeerLibrary library("OpenBLAS", "libopenblas.so.0", "libopenblas0-pthread");
  const auto core = [&] { return std::string(library.get<const char*()>("openblas_get_corename")()); };
  setenv("OPENBLAS_CORETYPE", "Haswell", 1);
  const std::string before = core();
  CHECK_FALSE(library.reload_with("OPENBLAS_CORETYPE", "Prescott"));
  CHECK(core() == before);
  unsetenv("OPENBLAS_CORETYPE");
  // Held twice (load_peer keeps its own): what cannot be unloaded stays as it is.
  CHECK_FALSE(library.reload_with("OPENBLAS_CORETYPE", "Prescott"));
  CHECK(core() == before);
  CHECK(std::getenv("OPENBLAS_CORETYPE") == nullptr);
}

TEST_CASE("a library that is held once can be loaded anew") {
  try {
    PeerLibrary library("OpenBLAS", "libopenblas.so.0", "libopenblas0-pthread");
    const bool reloaded = library.reload_with("OPENBLAS_CORETYPE", "Prescott");
    unsetenv("OPENBLAS_CORETYPE");
    if (!reloaded) SKIP("another test of this process holds the library");
    CHECK(std::string(library.get<const char*()>("openblas_get_corename")()) == "Prescott");
  } catch (const InputError& e) {
    SKIP(e.what());
  }
}
