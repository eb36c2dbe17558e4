// Checkpoints of states of which this rank keeps a part.
#include "ditrain/checkpoint/checkpoint.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "io/file_size_limit.hpp"
#include "support/random_tensor.hpp"
#include "support/small_config.hpp"

using namespace ditrain;
using namespace ditrain::test;
using autograd::ParameterStore;

namespace {

/// A store that keeps the last quarter of its states, and these states whole, as if other ranks had the rest.
struct Part {
  Part() : model(small_config().model) {
    ParameterStore& p = model.parameters();
    n = p.arena_size(), kept = n / 4;
    p.allocate(ParameterStore::For::kTraining, DType::kF32, memory::system_memory(), nullptr, kept);
    // Whole arenas with zeros between parameters, as training has them.
    for (uint64_t seed : {1, 2, 3}) {
      whole.emplace_back(Shape{n});
      for (const autograd::Parameter* q : p.state_dict())
        if (q->trainable) copy(random_tensor(q->shape, seed), p.view(whole.back(), *q));
    }
    for (size_t i = 0; i < 3; ++i) keep(whole[i], *states()[i]);
    copy(whole[0], p.values);
  }
  std::vector<Tensor*> states() {
    ParameterStore& p = model.parameters();
    return {&p.ema, &p.exp_avg, &p.exp_avg_sq};
  }
  void keep(const Tensor& from, const Tensor& state) const { copy(from.slice(n - kept, {kept}), state); }
  /// Counts what it is asked for, in order.
  checkpoint::WholeState gather(std::vector<size_t>& asked) {
    return [this, &asked](const Tensor& state) -> const Tensor& {
      for (size_t i = 0; i < 3; ++i)
        if (states()[i] == &state) asked.push_back(i);
      return whole.at(asked.back());
    };
  }

  nn::Dit model;
  int64_t n = 0, kept = 0;
  std::vector<Tensor> whole;
};

const std::vector<size_t> kAll = {0, 1, 2};

}  // namespace

TEST_CASE("a checkpoint of parts is that of the whole, and any part can be read from it") {
  TemporaryFolder folder;
  Part part;
  std::vector<size_t> asked, elsewhere;
  checkpoint::CheckpointState state;
  state.step = 3;
  const std::string saved = checkpoint::save_checkpoint(folder / "checkpoints", state, part.model.parameters(), {},
                                                        nullptr, part.gather(asked));
  CHECK(asked == kAll);
  checkpoint::accompany_checkpoint(part.model.parameters(), part.gather(elsewhere));
  CHECK(elsewhere == kAll);

  nn::Dit full(small_config().model);
  full.parameters().allocate(ParameterStore::For::kTraining);
  checkpoint::load_training_state(saved, full.parameters());
  CHECK(to_vector(full.parameters().ema) == to_vector(part.whole[0]));
  CHECK(to_vector(full.parameters().exp_avg) == to_vector(part.whole[1]));
  CHECK(to_vector(full.parameters().exp_avg_sq) == to_vector(part.whole[2]));

  Part again;
  for (const Tensor* t : again.states()) fill_zero(*t);
  checkpoint::load_training_state(saved, again.model.parameters(),
                                  [&](const Tensor& whole, const Tensor& kept) { again.keep(whole, kept); });
  for (size_t i = 0; i < 3; ++i) CHECK(to_vector(*again.states()[i]) == to_vector(*part.states()[i]));
}

TEST_CASE("a rank that cannot write a checkpoint still takes part in what the others wait for") {
  Part part;
  // Nothing at all, the EMA, or the moments do not fit.
  for (const rlim_t room : {rlim_t{0}, rlim_t(part.n * 4 - 1000), rlim_t(part.n * 8 - 1000)}) {
    CAPTURE(room);
    TemporaryFolder folder;
    std::vector<size_t> asked;
    const FileSizeLimit limit(room);
    CHECK_THROWS_AS(checkpoint::save_checkpoint(folder / "checkpoints", {}, part.model.parameters(), {}, nullptr,
                                                part.gather(asked)),
                    RunError);
    CHECK(asked == kAll);
    CHECK(std::filesystem::is_empty(folder / "checkpoints"));
  }
}
