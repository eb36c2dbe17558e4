#include "models.hpp"

#include "../../src/kernels/isa/unit_listener.hpp"

namespace ditrain::kernels {

thread_local UnitListener* unit_listener = nullptr;

#ifdef DITRAIN_KERNEL_MODELS
namespace amx_model {
extern const ProductKernels bf16_products;
extern const AttentionKernels attention;
}  // namespace amx_model

std::vector<InstructionSet> models() {
  for (const InstructionSet& set : instruction_sets())  // what is around the model is compiled as for this one
    if (set.name == std::string("avx512_bf16"))
      return {{"amx_model",
               set.obstacle,
               {.bf16_products = &amx_model::bf16_products, .bf16_attention = &amx_model::attention}}};
  return {};
}
#else
std::vector<InstructionSet> models() { return {}; }
#endif

}  // namespace ditrain::kernels
