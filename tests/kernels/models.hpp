// Kernels for units that this machine may lack, on models of those units in plain C++.
#pragma once
#include "../../src/kernels/kernel_table.hpp"

namespace ditrain::kernels {

std::vector<IsaCandidate> model_tables();  ///< none where this build has no models

}  // namespace ditrain::kernels
