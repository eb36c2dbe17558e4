#include "ditrain/ops/context.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"

namespace ditrain::ops {

Context::Context(parallel::Team& team, ClusterSplit cut)
    : owned_(new Shared{team, cut}), shared_(owned_.get()), gemm_settings(shared_->gemm_settings) {
  shared_->scratch.resize(size_t(team.num_workers()));
  shared_->workspaces.resize(size_t(team.num_clusters()) + 1);
  shared_->shares.emplace_back(team.num_workers());
  for (const int workers : team.cluster_sizes()) shared_->shares.emplace_back(workers);
  shared_->of_workers.resize(size_t(team.num_workers()));
  shared_->without_barriers.resize(size_t(team.num_workers()));
  team.run([&](const parallel::Worker& w) {
    shared_->of_workers[size_t(w.worker)].reset(new Context(*shared_, w, false));
    shared_->without_barriers[size_t(w.worker)].reset(new Context(*shared_, w, true));
  });
}
Context::Context(Shared& shared, const parallel::Worker& mine, bool without_barriers)
    : shared_(&shared), mine_(mine), without_barriers_(without_barriers), gemm_settings(shared.gemm_settings) {}
Context::~Context() = default;

void Context::run_team(parallel::WorkerFunction f) {
  try {
    team().run(f);
  } catch (...) {
    for (parallel::Shares& shares : shared_->shares) shares.reset();
    throw;
  }
  ++shared_->meetings.of_team;
}

void* Context::at_least(Block& block, size_t bytes) {
  if (block.get_deleter().bytes < bytes || block == nullptr) {
    const size_t rounded = std::max(bytes, size_t{1} << 16);
    block.reset();
    block = {memory::system_memory().allocate(rounded), Free{rounded}};
  }
  return block.get();
}

void* Context::scratch(const parallel::Worker& w, size_t bytes) {
  return at_least(shared_->scratch[size_t(mine_ ? mine_->worker : w.worker)], bytes);
}

void* Context::workspace(Workspace slot, size_t bytes) {
  if (shared_->dry) return nullptr;
  if (!mine_) return at_least(shared_->workspaces[0][size_t(slot)], bytes);
  return cluster_workspace(*mine_, slot, bytes);
}

void* Context::cluster_workspace(const parallel::Worker& w, Workspace slot, size_t bytes) {
  const std::lock_guard lock(shared_->growing);
  return at_least(shared_->workspaces[size_t((mine_ ? *mine_ : w).cluster) + 1][size_t(slot)], bytes);
}

void Context::barrier(const parallel::Worker& w) {
  if (mine_ && !without_barriers_) return meet(*mine_);
  team().barrier(w);
  if (w.worker == 0) ++shared_->meetings.of_team;
}

void Context::meet(const parallel::Worker& w) {
  if (w.workers_in_cluster == 1) return;
  team().cluster_barrier(w);
  if (w.worker == 0) ++shared_->meetings.of_cluster;
}

parallel::Worker Context::in_cluster(const parallel::Worker& w) {
  return {.worker = w.worker_in_cluster,
          .num_workers = w.workers_in_cluster,
          .worker_in_cluster = w.worker_in_cluster,
          .workers_in_cluster = w.workers_in_cluster};
}

bool Context::samples_are_cut(int64_t batch) const {
  const int clusters = team().num_clusters();
  return !mine_ && clusters > 1 && shared_->cut == ClusterSplit::kSamples && batch % clusters == 0 &&
         gemm_settings.backend == GemmBackend::kOwn;
}

void expect_shape(const char* op, const char* name, const Tensor& t, const Shape& expected) {
  if (!t.defined() || t.shape() != expected)
    throw ShapeError({.where = op,
                      .what = name,
                      .got = t.defined() ? to_string(t.shape()) : "nothing",
                      .expected = to_string(expected)});
}

}  // namespace ditrain::ops
