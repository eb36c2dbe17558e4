// Matrix products of other libraries, loaded at run time if they are installed: to measure beside ours and to train
// with instead of ours. Nothing of them is needed to build; every declaration is our own.
//
//   const auto peer = load_peer(Library::kOpenBlas, threads, pus);
//   if (peer->can(args)) peer->gemm(args);
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ditrain/base/words.hpp"
#include "ditrain/kernels/gemm.hpp"

namespace ditrain::kernels {

enum class Library { kOpenBlas, kBlis, kOneDnn };
inline constexpr Word<Library> kLibraries[] = {
    {"openblas", Library::kOpenBlas}, {"blis", Library::kBlis}, {"onednn", Library::kOneDnn}};
constexpr std::span<const Word<Library>> words_of(Library) { return kLibraries; }

/// A convolution of images, all of one type, without a bias.
struct ConvSizes {
  int64_t images = 1, height = 0, width = 0, channels = 0, outputs = 0;
  int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1;
  int64_t pad_top = 0, pad_left = 0, pad_bottom = 0, pad_right = 0;
  DType type = DType::kF32;
};

/// One library with its threads.
/// Threads:  one thread calls gemm() at a time, always the same one; the library brings its own others. Settings are
///           those of the whole process: one peer of a library at a time.
class Peer {
 public:
  virtual ~Peer() = default;
  Peer() = default;
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  virtual std::string description() const = 0;  ///< "OpenBLAS 0.3.21, SkylakeX kernels, 2 thread(s)"

  /// Whether the library has this product: no bias, normalisation, epilogue or row sums; f32 throughout, or (oneDNN, on
  /// a CPU that it has bf16 products for) bf16 operands with an f32 or bf16 result, bf16 arithmetic.
  virtual bool can(const GemmArgs& args) const = 0;

  /// c = (accumulate ? c : 0) + op(a) op(b) on all threads of the library.
  /// Math:     the library chooses the order of sums; it may change with the number of threads
  /// Errors:   RunError if the library reports one; LogicFault for what can() refuses
  virtual void gemm(const GemmArgs& args) = 0;

  /// What computes a convolution once per call, on random numbers of the library's own, in whatever layouts it likes
  /// best, its weights packed beforehand. The direct algorithm, the one whose arithmetic is ours. Empty: the library
  /// has no such convolution. Valid while the peer lives.
  virtual std::function<void()> convolution(const ConvSizes&) { return {}; }
};

/// Calls of one shape until a peer has settled on its fastest way to compute it.
inline constexpr int kPeerTrials = 6;

/// Loads the library, asks it for `threads` threads and chooses its best settings:
///   openblas  OPENBLAS_CORETYPE=SkylakeX where the CPU has AVX-512 and it would take narrower kernels
///   blis      BLIS_ARCH_TYPE likewise, where it does not know the CPU
///   onednn    dnnl_sgemm or a matmul primitive, for every shape the one that was faster in the first kPeerTrials calls
/// and lets its idle threads sleep after some 50 us (OPENBLAS_THREAD_TIMEOUT, GOMP_SPINCOUNT), so that they leave the
/// cores to ours between two products. Environment variables that are set already stay.
/// pus       hardware threads that the library may use: the calling thread is let onto them during its calls;
///           empty: the affinity stays as it is
/// Errors:   InputError if no file of the library is found: names the files and the package
std::unique_ptr<Peer> load_peer(Library library, int threads, const std::vector<int>& pus = {});

}  // namespace ditrain::kernels
