// What the loaders of peers share: a library of the system, the affinity during calls. Internal.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ditrain/bench/peers.hpp"

namespace ditrain::bench {

/// A library that stays loaded (its threads may live as long as the process).
class PeerLibrary {
 public:
  /// Errors: InputError that names the file and the package
  PeerLibrary(const std::string& name, const std::string& file, const std::string& package);

  /// Loads it anew with an environment variable set. False if the variable is set by the user, or if the library could
  /// not be unloaded.
  bool reload_with(const char* variable, const std::string& value);

  /// A function of the library or of those it depends on.
  /// Errors:   InputError if there is none (a version that we do not know)
  template <class F>
  F* get(const char* symbol) const {
    return reinterpret_cast<F*>(address(symbol));
  }

 private:
  void* address(const char* symbol) const;

  std::string name_, file_;
  void* handle_ = nullptr;
};

/// The calling thread may use these PUs during the life of this object; empty: no change.
class AffinityScope {
 public:
  explicit AffinityScope(const std::vector<int>& pus);
  ~AffinityScope();
  AffinityScope(const AffinityScope&) = delete;
  AffinityScope& operator=(const AffinityScope&) = delete;

 private:
  std::vector<int> before_;
};

/// No bias, normalisation, epilogue or row sums.
bool is_plain(const kernels::GemmArgs& args);
bool is_f32(const kernels::GemmArgs& args);

std::unique_ptr<Peer> load_onednn(int threads, const std::vector<int>& pus);

}  // namespace ditrain::bench
