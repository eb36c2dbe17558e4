#include "models.hpp"

namespace ditrain::kernels {

#ifdef DITRAIN_KERNEL_MODELS
namespace amx_model {
extern const ProductKernels bf16_products;
}

std::vector<InstructionSet> models() {
  for (const InstructionSet& set : instruction_sets())  // what is around the model is compiled as for this one
    if (set.name == std::string("avx512_bf16"))
      return {{"amx_model", set.obstacle, {.bf16_products = &amx_model::bf16_products}}};
  return {};
}
#else
std::vector<InstructionSet> models() { return {}; }
#endif

}  // namespace ditrain::kernels
