// Applies section `kernels` of a config: which code computes the GEMMs, and cache blocks from a tuning file or from the
// sizes of the caches.
#pragma once
#include <string>

#include "ditrain/config/config.hpp"
#include "ditrain/kernels/gemm.hpp"
#include "ditrain/ops/context.hpp"
#include "ditrain/platform/topology.hpp"

namespace ditrain::plan {

/// The result of `ditbench tune` on one machine.
struct Tuning {
  std::string cpu, isa;
  kernels::GemmBlocking derived;  ///< blocks derived from the caches there: a tuning fits only if they agree here
  kernels::GemmBlocking blocking;
};

/// The path is $DITRAIN_TUNING, else $XDG_CONFIG_HOME/ditrain/tuning.json, else ~/.config/ditrain/tuning.json; ""
/// without a home.
std::string default_tuning_path();
/// Errors:   InputError "[tuning] ..." that names the file and the program that writes one, for a file that cannot be
///           read or does not hold a tuning
Tuning read_tuning(const std::string& path);
/// Makes the folders on the way. Errors: InputError or RunError that names the folder or file
void write_tuning(const Tuning& tuning, const std::string& path);

/// Derives cache blocks from the cache sizes; of a shared cache a core counts its share.
kernels::GemmBlocking derived_blocking(const platform::Topology& topology);

/// Sets the cache blocks of this process, on which the scratch of products depends. kernels.tuned: auto takes the
/// default tuning file if it exists and is of this processor and instruction set; off derives the blocks from the
/// caches; anything else is a file that must exist and fit. Returns where they come from.
/// Errors:   InputError for a wrong tuning file
std::string set_blocking(const config::KernelsConfig& kernels, const platform::Topology& topology);
/// set_blocking, and the GEMM code of ctx as config.kernels says.
/// Returns a line for reports, "products: own, fused; blocks 168 x 1152 derived from caches (no tuning file PATH)".
/// Errors:   as set_blocking
std::string apply_kernel_settings(const config::Config& config, const platform::Topology& topology, ops::Context& ctx);

}  // namespace ditrain::plan
