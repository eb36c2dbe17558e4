// Matrix products (GEMM) and convolutions of other libraries, to compare with ours. OpenBLAS and BLIS are loaded at run
// time if they are installed; oneDNN is a component of the build (DITRAIN_ONEDNN in cmake/dependencies.cmake).
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
/// Threads:  always the same thread calls gemm(); the library has more threads of its own. A library's settings hold
///           for the whole process: use one Peer per library at a time
class Peer {
 public:
  virtual ~Peer() = default;
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const std::string& name() const { return name_; }                ///< "OpenBLAS 0.3.21"
  const std::string& description() const { return description_; }  ///< "OpenBLAS 0.3.21, SkylakeX kernels, 2 thread(s)"

  /// Whether the library can compute this product. It must have no bias, normalisation, epilogue or row sums, and be
  /// f32 throughout, or (oneDNN, where it supports bf16 on this CPU) have bf16 operands, bf16 arithmetic and an f32 or
  /// bf16 result.
  virtual bool can(const kernels::GemmArgs& args) const = 0;

  /// c = (accumulate ? c : 0) + op(a) op(b) on all threads of the library.
  /// Math:     the library chooses the order of sums; it may change with the number of threads
  /// Errors:   RunError if the library reports one; LogicFault for what can() refuses
  virtual void gemm(const kernels::GemmArgs& args) = 0;

  /// Returns a function that computes, per call, one convolution of several images without a bias, on random numbers,
  /// in the library's preferred layouts and with weights packed beforehand. It uses the direct algorithm, which does
  /// the same arithmetic as ours. Empty: the library has no such convolution. Valid while the peer lives.
  virtual std::function<void()> convolution(const nn::AutoencoderConv&, int64_t images, DType) {
    return static_cast<void>(images), nullptr;
  }

 protected:
  Peer(std::string name, const std::string& kernels, int threads)
      : name_(std::move(name)), description_(name_ + kernels + ", " + std::to_string(threads) + " thread(s)") {}

 private:
  std::string name_, description_;
};

/// Number of calls of one shape after which a peer has chosen its fastest algorithm for it.
inline constexpr int kPeerTrials = 6;

/// Loads the library, asks it for `threads` threads and chooses its best settings:
///   openblas  OPENBLAS_CORETYPE=SkylakeX where the CPU has AVX-512 and OpenBLAS would take narrower kernels;
///             OPENBLAS_THREAD_TIMEOUT, so that its idle threads sleep after some 50 us
///   blis      BLIS_ARCH_TYPE likewise, where BLIS does not know the CPU
///   onednn    dnnl_sgemm or a matmul primitive, whichever was faster for a shape in the first kPeerTrials calls
/// Environment variables that are already set stay.
/// pus       hardware threads that the library may use; the calling thread may run on all of them during its calls.
///           Empty: the affinity stays as it is
/// Errors:   InputError that names the package, if the library is not installed or not in this build
std::unique_ptr<Peer> load_peer(Library library, int threads, const std::vector<int>& pus = {});

/// The same on the harness's cores. Adds a note: the description and `more`, or why the library is missing (then null).
std::unique_ptr<Peer> load_peer(Library library, Harness& harness, const std::string& more = "");

using Peers = std::vector<std::unique_ptr<Peer>>;
/// Loads all libraries that are available; adds a note for every library.
Peers load_peers(Harness& harness);

}  // namespace ditrain::bench
