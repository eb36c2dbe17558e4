#include "models.hpp"

namespace ditrain::kernels {

#ifdef DITRAIN_KERNEL_MODELS
namespace amx_model {
extern const KernelTable table;
}

std::vector<IsaCandidate> model_tables() {
  for (const IsaCandidate& c : isa_candidates())  // what is around the model is theirs
    if (c.table->name == std::string("avx512_bf16")) return {{&amx_model::table, c.obstacle}};
  return {};
}
#else
std::vector<IsaCandidate> model_tables() { return {}; }
#endif

}  // namespace ditrain::kernels
