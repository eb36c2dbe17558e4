// Matrix products and convolutions of other libraries, to measure beside ours. OpenBLAS and BLIS are loaded at run time
// if they are installed; oneDNN is a component of the build (DITRAIN_ONEDNN in cmake/dependencies.cmake).
//
//   const auto peer = load_peer(Library::kOpenBlas, threads, pus);
//   if (peer->can(args)) peer->gemm(args);
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ditrain/base/words.hpp"
#include "ditrain/kernels/gemm.hpp"
#include "ditrain/nn/autoencoder.hpp"

namespace ditrain::bench {

class Harness;

enum class Library { kOpenBlas, kBlis, kOneDnn };
inline constexpr Word<Library> kLibraries[] = {
    {"openblas", Library::kOpenBlas}, {"blis", Library::kBlis}, {"onednn", Library::kOneDnn}};
constexpr std::span<const Word<Library>> words_of(Library) { return kLibraries; }

/// One library with its threads.
/// Threads:  one thread calls gemm() at a time, always the same one; the library brings its own others. Settings are
///           those of the whole process: one peer of a library at a time.
class Peer {
 public:
  virtual ~Peer() = default;
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const std::string& name() const { return name_; }                ///< with the version: "OpenBLAS 0.3.21"
  const std::string& description() const { return description_; }  ///< the same, ", SkylakeX kernels, 2 thread(s)"

  /// Whether the library has this product: no bias, normalisation, epilogue or row sums; f32 throughout, or (oneDNN, on
  /// a CPU that it has bf16 products for) bf16 operands with an f32 or bf16 result, bf16 arithmetic.
  virtual bool can(const kernels::GemmArgs& args) const = 0;

  /// c = (accumulate ? c : 0) + op(a) op(b) on all threads of the library.
  /// Math:     the library chooses the order of sums; it may change with the number of threads
  /// Errors:   RunError if the library reports one; LogicFault for what can() refuses
  virtual void gemm(const kernels::GemmArgs& args) = 0;

  /// What computes a convolution of several images without a bias once per call, on random numbers of the library's
  /// own, in whatever layouts it likes best, its weights packed beforehand. The direct algorithm, the one whose
  /// arithmetic is ours. Empty: the library has no such convolution. Valid while the peer lives.
  virtual std::function<void()> convolution(const nn::AutoencoderConv&, int64_t images, DType) {
    return static_cast<void>(images), nullptr;
  }

 protected:
  Peer(std::string name, const std::string& kernels, int threads)
      : name_(std::move(name)), description_(name_ + kernels + ", " + std::to_string(threads) + " thread(s)") {}

 private:
  std::string name_, description_;
};

/// Calls of one shape until a peer has settled on its fastest way to compute it.
inline constexpr int kPeerTrials = 6;

/// Loads the library, asks it for `threads` threads and chooses its best settings:
///   openblas  OPENBLAS_CORETYPE=SkylakeX where the CPU has AVX-512 and it would take narrower kernels;
///             OPENBLAS_THREAD_TIMEOUT: its idle threads sleep after some 50 us
///   blis      BLIS_ARCH_TYPE likewise, where it does not know the CPU
///   onednn    dnnl_sgemm or a matmul primitive, for every shape the one that was faster in the first kPeerTrials calls
/// Environment variables that are set already stay.
/// pus       hardware threads that the library may use: the calling thread is let onto them during its calls;
///           empty: the affinity stays as it is
/// Errors:   InputError that names the package, if the library is not installed or not in this build
std::unique_ptr<Peer> load_peer(Library library, int threads, const std::vector<int>& pus = {});

/// The same on the harness's cores, with a note: the description and `more`, or why there is no such peer (then null).
std::unique_ptr<Peer> load_peer(Library library, Harness& harness, const std::string& more = "");

using Peers = std::vector<std::unique_ptr<Peer>>;
/// All that there are, with a note for every library.
Peers load_peers(Harness& harness);

}  // namespace ditrain::bench
