// Kernels for units that this machine may lack, on models of those units in plain C++.
#pragma once
#include "../../src/kernels/instruction_sets.hpp"

namespace ditrain::kernels {

std::vector<InstructionSet> models();  ///< none where this build has no models

}  // namespace ditrain::kernels
