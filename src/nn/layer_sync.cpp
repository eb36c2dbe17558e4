#include <fmt/format.h>

#include "ditrain/base/error.hpp"
#include "ditrain/ops/cosine.hpp"
#include "layer_sync_node.hpp"
#include "models.hpp"

namespace ditrain::nn {

void validate(const LayerSync& sync, const ModelConfig& config, const Routes& routes) {
  const std::string got = fmt::format("from: {}, to: {}", sync.from, sync.to);
  if (!model_row(config.kind).uniform_blocks)
    refuse("train.layer_sync", "models of this kind do not have it",
           fmt::format("model.kind: {}", word_of(config.kind)), "model.kind: dit", "train.layer_sync: off");
  if (sync.from < 0 || sync.from >= sync.to || sync.to >= config.depth)
    refuse("train.layer_sync", "no two blocks of the model", got,
           fmt::format("from before to, both from 0 to {}", config.depth - 1),
           fmt::format("from: {}, to: {}", config.depth / 4, config.depth / 2));
  if (!routes.empty())
    refuse("train.layer_sync", "compares all tokens behind two blocks, between which routes may take some away", got,
           "train.routing: off", "one of train.layer_sync and train.routing");
}

LayerSyncNode::LayerSyncNode(autograd::Tape&, const LayerSync& sync, const TokenStream& stream,
                             std::shared_ptr<std::vector<double>> cosines)
    : Node("blocks." + std::to_string(sync.from) + ".layer_sync", {}),
      weight_(sync.weight),
      stream_(stream),
      cosines_(std::move(cosines)) {
  cosines_->resize(size_t(stream.batch * stream.tokens));
}

void LayerSyncNode::backward(ops::Context& ctx, Gradients) {
  const double scale = -weight_ / double(stream_.tokens);
  ctx.over_samples(stream_.batch, [&](ops::Context& part, const Samples& s) {
    double* cosines = cosines_->data() + s.begin * stream_.tokens;
    ops::row_cosines(part, of(from_BTC, s), of(to_BTC, s), cosines);
    ops::add_row_cosines_gradient(part, of(from_BTC, s), of(to_BTC, s), cosines, scale, of(stream_.dx_BTC, s));
  });
}

}  // namespace ditrain::nn
