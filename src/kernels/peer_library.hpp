// What the loaders of peers share: a library of the system, its functions, the affinity during calls. Internal.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ditrain/kernels/peers.hpp"

namespace ditrain::kernels {

/// A library that stays loaded (its threads may live as long as the process).
class PeerLibrary {
 public:
  /// The first of `files` that loads. Errors: InputError that names them and the package
  PeerLibrary(const std::string& name, std::vector<std::string> files, const std::string& package);

  /// Loads it anew with an environment variable set. False if the variable is set by the user, or if the library could
  /// not be unloaded.
  bool reload_with(const char* variable, const std::string& value);

  const std::string& file() const { return file_; }  ///< the one that was found

  /// A function of the library or of those it depends on; null if there is none.
  template <class F>
  F* find(const char* symbol) const {
    return reinterpret_cast<F*>(address(symbol));
  }
  /// Errors:   InputError if the library has no such function (a version that we do not know)
  template <class F>
  F* get(const char* symbol) const {
    return reinterpret_cast<F*>(checked_address(symbol));
  }

 private:
  void* address(const char* symbol) const;
  void* checked_address(const char* symbol) const;

  std::string name_, file_;
  void* handle_ = nullptr;
};

/// For a library that is loaded next: what the user has set stays. Idle threads of libraries spin for 3 to 25 ms by
/// default, on the cores that our workers need next; 50 us, as our own do, are enough between two products in a row.
void set_unless_set(const char* variable, const char* value);

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
bool is_plain(const GemmArgs& args);
bool is_f32(const GemmArgs& args);

std::unique_ptr<Peer> load_onednn(int threads, const std::vector<int>& pus);

}  // namespace ditrain::kernels
