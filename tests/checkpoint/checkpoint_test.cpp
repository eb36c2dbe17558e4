// Checkpoints written beside an update of the state, read back, damaged and told apart.
#include "ditrain/checkpoint/checkpoint.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

#include "dist/thread_world.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/checkpoint/saver.hpp"
#include "ditrain/files/checkpoint_folder.hpp"
#include "ditrain/nn/model.hpp"
#include "ditrain/optim/optimizer.hpp"
#include "files/file_size_limit.hpp"
#include "support/files.hpp"
#include "support/random_tensor.hpp"
#include "support/save_checkpoint.hpp"
#include "support/small_config.hpp"
#include "support/workers.hpp"

using namespace ditrain;
using namespace ditrain::test;
using autograd::ParameterStore;
using Catch::Contains;
using checkpoint::CheckpointSaver;
namespace fs = std::filesystem;

namespace {

/// A model of some MB with random weights and states.
struct State {
  explicit State(int64_t width = 96) : model(config(width).model), team({.num_workers = 2}), ctx(team) {
    ParameterStore& p = model.parameters();
    p.allocate(ParameterStore::For::kTraining, DType::kF32, {.states = optim::state_arrays()});
    for (const Tensor* arena : arenas())
      for (const autograd::Parameter* q : p.state_dict())
        if (q->trainable) copy(random_tensor(q->shape, seed++), p.view(*arena, *q));
  }
  static config::Config config(int64_t width) {
    config::Config c = small_config();
    c.model.hidden_size = width;
    return c;
  }
  std::vector<const Tensor*> arenas() {
    ParameterStore& p = model.parameters();
    return {&p.values, &p.ema, &p.states[0].data, &p.states[1].data};
  }
  std::vector<std::vector<float>> values() {
    std::vector<std::vector<float>> all;
    for (const Tensor* arena : arenas()) all.push_back(to_vector(*arena));
    return all;
  }
  CheckpointSaver::Setup setup(const std::string& dir, size_t buffer_bytes = 0) {
    return {.checkpoints_dir = dir,
            .config = {},
            .mine = {.parts = {{0, model.parameters().arena_size()}}},
            .buffer_bytes = buffer_bytes};
  }
  /// Writes a checkpoint of step 3 and returns its folder.
  std::string save(const std::string& dir) { return save_checkpoint(dir, at_step(3), model.parameters()); }
  static checkpoint::CheckpointState at_step(int64_t step) {
    return {.step = step, .optimizer_step = step, .isa = "x", .kernels = "y", .version = "z", .config_yaml = "c: 1"};
  }

  uint64_t seed = 1;
  nn::Model model;
  parallel::Team team;
  ops::Context ctx;
  std::unique_ptr<dist::Communicator> comm = dist::make_null_communicator();
};

constexpr size_t kTooLarge = size_t{1} << 60;  // bytes that no address space has

}  // namespace

TEST_CASE("a checkpoint holds the state as it was, though updates go on while it is written") {
  const size_t buffer = GENERATE(size_t{0}, size_t{1} << 18, size_t{64} << 20, kTooLarge);
  CAPTURE(buffer);
  TemporaryFolder folder;
  State state(192);
  const auto before = state.values();
  CheckpointSaver saver(state.setup(folder / "c", buffer), state.model.parameters(), *state.comm, state.ctx);
  REQUIRE_FALSE(saver.start(State::at_step(3)));
  const int64_t n = state.model.parameters().arena_size(), slice = n / 7 + 1;
  for (int64_t end = n; end > 0; end -= slice) {  // as updates come: from the arenas' end
    const parallel::Range range{std::max<int64_t>(0, end - slice), end};
    saver.before_update(range);
    for (const Tensor* arena : state.arenas()) {
      const Pin<float> p(*arena);
      std::fill(p + range.begin, p + range.end, -1.0f);
    }
  }
  const auto outcome = saver.finish();
  REQUIRE(outcome);
  CHECK(outcome->problem.empty());
  CHECK(outcome->step == 3);
  CHECK(outcome->folder == folder / "c/step_00000003");
  CHECK_NOTHROW(checkpoint::check_checkpoint(outcome->folder));
  State again(192);
  checkpoint::load_training_state(outcome->folder, again.model.parameters());
  CHECK(again.values() == before);
}

TEST_CASE("a buffer of checkpoints that cannot be mapped is missed once, and they are written without it") {
  TemporaryFolder folder;
  State state;
  log::open_file(folder / "log.txt");
  CheckpointSaver saver(state.setup(folder / "c", kTooLarge), state.model.parameters(), *state.comm, state.ctx);
  for (const int64_t step : {3, 4}) {
    REQUIRE_FALSE(saver.start(State::at_step(step)));
    const auto outcome = saver.finish();
    REQUIRE(outcome);
    CHECK(outcome->problem.empty());
  }
  log::close_file();
  const std::string log = get_file(folder / "log.txt");
  const size_t at = log.find("checkpoints have no buffer (checkpoint.buffer_gib)");
  REQUIRE(at != log.npos);
  CHECK(log.find("checkpoints have no buffer", at + 1) == log.npos);
}

TEST_CASE("groups of ranks find their own state in a checkpoint, and another number of groups the mean") {
  TemporaryFolder folder;
  std::vector<std::unique_ptr<State>> groups;
  ThreadWorld world{.ranks = 2};
  for (int g = 0; g < 2; ++g) {
    groups.push_back(std::make_unique<State>());
    ParameterStore& p = groups.back()->model.parameters();
    for (autograd::OptimizerState& state : p.states) state.declared.of_group = true;
    copy(random_tensor({p.arena_size()}, uint64_t(7 + g)), p.states[1].data);
  }
  std::string saved;
  run_ranks(world, [&](ThreadCommunicator& comm) {
    State& state = *groups[size_t(comm.rank())];
    CheckpointSaver::Setup setup = state.setup(folder / "c");
    setup.mine.shared = setup.mine.frozen = comm.rank() == 0;
    setup.mine.group = comm.rank(), setup.mine.groups = 2;
    CheckpointSaver saver(setup, state.model.parameters(), comm, state.ctx);
    checkpoint::CheckpointState at = State::at_step(3);
    at.world_size = at.groups = 2;
    saver.start(at);
    const auto outcome = saver.finish();
    if (comm.rank() == 0 && outcome->problem.empty()) saved = outcome->folder;
  });
  REQUIRE_NOTHROW(checkpoint::check_checkpoint(saved));
  const auto load = [&](const checkpoint::GroupPlace& place) {
    auto state = std::make_unique<State>();
    for (autograd::OptimizerState& s : state->model.parameters().states) s.declared.of_group = true;
    checkpoint::load_training_state(saved, state->model.parameters(), {}, {}, place);
    return state;
  };
  const auto of = [](State& state) {  // what parameters have; nothing between them is in a file
    std::vector<float> all;
    for (const autograd::Parameter* p : state.model.parameters().state_dict())
      if (p->trainable)
        for (const float x : to_vector(state.model.parameters().view(state.model.parameters().states[1].data, *p)))
          all.push_back(x);
    return all;
  };
  const std::vector<float> a = of(*groups[0]), b = of(*groups[1]);
  CHECK(a != b);
  CHECK(of(*load({.group = 0, .groups = 2})) == a);
  CHECK(of(*load({.group = 1, .groups = 2})) == b);
  const std::vector<float> mean = of(*load({.group = 2, .groups = 3}));
  for (size_t i = 0; i < a.size(); i += 97) CHECK(mean[i] == 0.5f * (a[i] + b[i]));
  CHECK(to_vector(load({.group = 1, .groups = 2})->model.parameters().values) ==
        to_vector(groups[0]->model.parameters().values));
}

TEST_CASE("a rank whose shards are all elements, in another order than the arena, finds each in its place") {
  TemporaryFolder folder;
  State state(32);
  const std::string saved = state.save(folder / "c");
  nn::Model model(State::config(32).model);
  ParameterStore& p = model.parameters();
  const int64_t n = p.arena_size(), cut = n - 4096;
  const std::vector<autograd::ArenaSlice> parts{{cut, n}, {0, cut}};  // buckets come from the arena's end
  p.allocate(ParameterStore::For::kTraining, DType::kF32, {.states = optim::state_arrays(), .state_parts = parts});
  REQUIRE(p.kept.size() == n);
  checkpoint::load_training_state(saved, p, [&](const Tensor& whole, const autograd::OptimizerState& mine) {
    for (const autograd::ArenaSlice& part : parts) copy(whole.slice(part.begin, {part.size()}), mine.of(part));
  });
  CHECK(to_vector(p.values) == state.values()[0]);
  const std::vector<autograd::OptimizerState> loaded{p.ema_state(), p.states[0], p.states[1]};
  for (size_t i = 0; i < loaded.size(); ++i)
    for (const autograd::ArenaSlice& part : parts)
      CHECK(to_vector(loaded[i].of(part)) == to_vector(state.arenas()[i + 1]->slice(part.begin, {part.size()})));
}

TEST_CASE("a checkpoint is whole only after all ranks have said so") {
  TemporaryFolder folder;
  State state;
  CheckpointSaver saver(state.setup(folder / "c"), state.model.parameters(), *state.comm, state.ctx);
  CHECK_FALSE(saver.is_writing());
  CHECK_FALSE(saver.finish());
  REQUIRE_FALSE(saver.start(State::at_step(3)));
  CHECK(saver.is_writing());
  CHECK(files::list_checkpoints(folder / "c").empty());
  std::optional<checkpoint::SaveOutcome> outcome;
  int advances = 0;
  while (!outcome) {
    while (saver.waits()) std::this_thread::yield();
    outcome = saver.advance();
    ++advances;
  }
  CHECK(advances == 2);  // parts, commit
  CHECK_FALSE(saver.is_writing());
  CHECK(files::list_checkpoints(folder / "c") == std::vector<int64_t>{3});
}

TEST_CASE("a saver that ends while it writes leaves no checkpoint, and nothing else") {
  TemporaryFolder folder;
  State state(192);
  {
    CheckpointSaver saver(state.setup(folder / "c"), state.model.parameters(), *state.comm, state.ctx);
    REQUIRE_FALSE(saver.start(State::at_step(3)));
  }
  CHECK(fs::is_empty(folder / "c"));
}

TEST_CASE("a checkpoint that cannot be written is reported, and updates go on") {
  TemporaryFolder folder;
  State state;
  CheckpointSaver saver(state.setup(folder / "c"), state.model.parameters(), *state.comm, state.ctx);
  {
    const FileSizeLimit limit(1000);
    const auto outcome = saver.start(State::at_step(3));
    REQUIRE(outcome);
    CHECK_THAT(outcome->problem, Contains("model.safetensors") && Contains("File too large"));
  }
  CHECK(fs::is_empty(folder / "c"));
  CHECK_FALSE(saver.is_writing());
  saver.before_update({0, 10});
  // The writing itself: a file that is taken away.
  REQUIRE_FALSE(saver.start(State::at_step(4)));
  const auto unfinished = fs::directory_iterator(folder / "c")->path();
  REQUIRE(unfinished.filename().string().starts_with(".tmp_step_00000004."));
  REQUIRE(fs::remove(unfinished / "ema.safetensors"));
  const auto outcome = saver.finish();
  REQUIRE(outcome);
  CHECK(outcome->problem != "");
  CHECK(fs::is_empty(folder / "c"));
}

TEST_CASE("a state with a number that is not finite is no checkpoint") {
  TemporaryFolder folder;
  State state(32);
  const Tensor* arena = state.arenas()[GENERATE(size_t{0}, size_t{1}, size_t{3})];
  const autograd::Parameter& parameter = state.model.parameters().find("blocks.1.attn.qkv.weight");
  Pin<float> values(state.model.parameters().view(*arena, parameter));
  const float sound = values[100];
  values[100] = GENERATE(INFINITY, -INFINITY, NAN);
  CheckpointSaver saver(state.setup(folder / "c"), state.model.parameters(), *state.comm, state.ctx);
  REQUIRE_FALSE(saver.start(State::at_step(3)));
  const auto refused = saver.finish();
  REQUIRE(refused);
  CHECK_THAT(refused->problem, Contains(".safetensors") && Contains("not finite"));
  CHECK(fs::is_empty(folder / "c"));
  values[100] = sound;
  REQUIRE_FALSE(saver.start(State::at_step(4)));
  const auto outcome = saver.finish();
  REQUIRE(outcome);
  CHECK(outcome->problem.empty());
}

TEST_CASE("every flipped bit of a checkpoint is found, when it is checked and when it is loaded") {
  TemporaryFolder folder;
  State state(32);
  const std::string saved = state.save(folder / "c");
  REQUIRE_NOTHROW(checkpoint::check_checkpoint(saved));
  std::mt19937_64 random(7);
  for (const char* file : files::kCheckpointFiles) {
    const std::string path = saved + "/" + file;
    const uint64_t bits = 8 * fs::file_size(path);
    // The ends, where headers and padding are, and places between.
    for (int i = 0; i < 40; ++i) {
      const uint64_t bit = i < 8 ? uint64_t(i) * 9 : i < 16 ? bits - 1 - uint64_t(i - 8) * 9 : random() % bits;
      CAPTURE(file, bit);
      flip_bit(path, bit);
      CHECK_THROWS_AS(checkpoint::check_checkpoint(saved), InputError);
      CHECK_THROWS_AS(checkpoint::load_training_state(saved, state.model.parameters()), InputError);
      flip_bit(path, bit);
    }
  }
  CHECK_NOTHROW(checkpoint::check_checkpoint(saved));
}

TEST_CASE("power averages have a file of their own, and snapshots that stay") {
  TemporaryFolder folder;
  const auto state_with_averages = [](std::unique_ptr<nn::Model>& model) -> ParameterStore& {
    model = std::make_unique<nn::Model>(State::config(32).model);
    ParameterStore& p = model->parameters();
    p.allocate(ParameterStore::For::kTraining, DType::kF32,
               {.states = optim::state_arrays({}, optim::EmaConfig{.snapshots_every = 2})});
    return p;
  };
  std::unique_ptr<nn::Model> model, other;
  ParameterStore& p = state_with_averages(model);
  uint64_t seed = 1;
  for (const autograd::OptimizerState& state : p.states)
    for (const autograd::Parameter* q : p.state_dict())
      if (q->trainable) copy(random_tensor(q->shape, seed++), p.view(state.data, *q));
  Workers crew;
  const auto comm = dist::make_null_communicator();
  CheckpointSaver saver({.checkpoints_dir = folder / "c",
                         .config = {.keep_last = 1},
                         .snapshots_dir = folder / "s",
                         .mine = {.parts = {{0, p.arena_size()}}}},
                        p, *comm, crew.ctx);
  for (const int64_t step : {2, 3, 4}) {
    REQUIRE_FALSE(saver.start(State::at_step(step), step % 2 == 0));
    const auto outcome = saver.finish();
    REQUIRE(outcome);
    CHECK(outcome->problem.empty());
  }
  CHECK(files::list_checkpoints(folder / "c") == std::vector<int64_t>{4});
  CHECK(files::list_kept(folder / "s") == std::vector<int64_t>{2, 4});
  const std::string saved = folder / "c/step_00000004", averages = saved + "/averages.safetensors";
  CHECK_NOTHROW(checkpoint::check_checkpoint(saved));
  CHECK(fs::hard_link_count(averages) == 2);
  ParameterStore& again = state_with_averages(other);
  checkpoint::load_training_state(saved, again);
  for (size_t i = 0; i < p.states.size(); ++i) CHECK(to_vector(again.states[i].data) == to_vector(p.states[i].data));
  // A store without averages does not read them.
  State plain(32);
  CHECK_NOTHROW(checkpoint::load_training_state(saved, plain.model.parameters()));

  flip_bit(averages, 8 * fs::file_size(averages) - 5);
  CHECK_THROWS_WITH(checkpoint::check_checkpoint(saved), Contains("averages.safetensors") && Contains("damaged"));
  CHECK_THROWS_AS(checkpoint::load_training_state(saved, again), InputError);
  fs::remove(averages);
  CHECK_THROWS_WITH(checkpoint::load_training_state(saved, again), Contains("averages.safetensors"));
  // A run that goes back puts later snapshots aside until its next checkpoint is whole.
  CHECK(files::discard_checkpoints_after(folder / "s", 3).size() == 1);
  CHECK(files::list_kept(folder / "s") == std::vector<int64_t>{2});
  REQUIRE_FALSE(saver.start(State::at_step(5)));
  REQUIRE(saver.finish());
  CHECK(std::distance(fs::directory_iterator(folder / "s"), fs::directory_iterator()) == 1);
}

TEST_CASE("files of another checkpoint, shorter and longer ones are found") {
  TemporaryFolder folder;
  State state(32), other(32);
  fill_zero(other.model.parameters().values);
  const std::string saved = state.save(folder / "c"), elsewhere = other.save(folder / "d");
  const std::string path = saved + "/model.safetensors", content = get_file(path);
  put_file(path, get_file(elsewhere + "/model.safetensors"));
  CHECK_THROWS_WITH(checkpoint::check_checkpoint(saved), Contains("model.safetensors") && Contains("damaged"));
  put_file(path, content + "x");
  CHECK_THROWS_AS(checkpoint::check_checkpoint(saved), InputError);
  put_file(path, content.substr(0, content.size() - 1));
  CHECK_THROWS_AS(checkpoint::check_checkpoint(saved), InputError);
  CHECK(checkpoint::newest_intact_beside(saved).empty());
  fs::rename(elsewhere, folder / "c/step_00000002");
  CHECK(checkpoint::newest_intact_beside(saved) == folder / "c/step_00000002");
}

TEST_CASE("checksums that do not fit the tensors are refused, whoever signed them") {
  TemporaryFolder folder;
  State state(32);
  const std::string saved = state.save(folder / "c");
  const checkpoint::CheckpointState sound = checkpoint::read_checkpoint_state(saved);
  const auto refused = [&](const auto& change) {
    checkpoint::CheckpointState changed = sound;
    change(changed.files.at("model.safetensors").pieces);
    checkpoint::write_checkpoint_state(saved, changed);
    CHECK_THROWS_AS(checkpoint::check_checkpoint(saved), InputError);
    CHECK_THROWS_AS(checkpoint::load_training_state(saved, state.model.parameters()), InputError);
  };
  using Pieces = std::vector<checkpoint::CheckedPiece>;
  refused([](Pieces& p) { p.pop_back(); });
  refused([](Pieces& p) { p[2].run += p[3].run, p.erase(p.begin() + 3); });    // over two tensors
  refused([](Pieces& p) { p[0].run += p[1].run, p.erase(p.begin() + 1); });    // over the header and a tensor
  refused([](Pieces& p) { p[2].run += 4, p[3].offset += 4, p[3].run -= 4; });  // over a border
  refused([](Pieces& p) { p[2] = p[1]; });
  refused([](Pieces& p) { p[2].offset += 4; });  // a gap before it, and as many bytes twice
  refused([](Pieces& p) { p[2].offset = ~uint64_t{0} - 3; });
  refused([](Pieces& p) { p[2].rows = uint64_t{1} << 62, p[2].stride = 4; });
  // Sums that wrap: bytes of all pieces, and their runs.
  checkpoint::CheckpointState huge = sound;
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  huge.files.at("model.safetensors") = {kHalf, {{0, 1, kHalf, 1}, {0, 1, kHalf, 1}, {0, kHalf}}};
  checkpoint::write_checkpoint_state(saved, huge);
  CHECK_THROWS_AS(checkpoint::check_checkpoint(saved), InputError);
  checkpoint::write_checkpoint_state(saved, sound);
  CHECK_NOTHROW(checkpoint::check_checkpoint(saved));
}

TEST_CASE("a state has the names of the classes, and labels that stand for others are found") {
  TemporaryFolder folder;
  State state(32);
  checkpoint::CheckpointState at = State::at_step(3);
  at.class_names = {"cat", "a \"dog\"", "M\xc3\xbcll"};
  const std::string saved = save_checkpoint(folder / "c", at, state.model.parameters());
  CHECK(checkpoint::read_checkpoint_state(saved).class_names == at.class_names);
  CHECK(checkpoint::read_checkpoint_state(state.save(folder / "of_earlier_version")).class_names.empty());

  using Names = std::vector<std::string>;
  CHECK(checkpoint::other_class({"a", "b"}, Names{"a", "c", "d"}) == "label 1 was b, is c");
  CHECK(checkpoint::other_class({"a", "b"}, Names{"a", "b", "c"}).empty());  // a new class comes last
  CHECK(checkpoint::other_class({}, Names{"a"}).empty());
}

TEST_CASE("an edited state is refused, with or without checksums") {
  TemporaryFolder folder;
  State state(32);
  const std::string saved = state.save(folder / "c"), path = saved + "/state.json", content = get_file(path);
  const auto replaced = [](std::string text, const std::string& a, const std::string& b) {
    REQUIRE_THAT(text, Contains(a));
    return text.replace(text.find(a), a.size(), b);
  };
  put_file(path, replaced(content, "\"step\": 3", "\"step\": 4"));
  CHECK_THROWS_WITH(checkpoint::read_checkpoint_state(saved), Contains("edited"));
  // What versions without checksums wrote.
  const std::string old =
      replaced(content.substr(0, content.find(",\n  \"files\"")) + "\n}\n", "  \"format\": 2,\n", "");
  put_file(path, old);
  CHECK(checkpoint::read_checkpoint_state(saved).step == 3);
  CHECK_NOTHROW(checkpoint::load_training_state(saved, state.model.parameters()));
  CHECK_THROWS_WITH(checkpoint::check_checkpoint(saved), Contains("no checksums"));
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"\"step\": 3", "\"step\": 1e18"},
                                                        {"\"step\": 3", "\"step\": -1"},
                                                        {"\"step\": 3", "\"step\": \"3\""},
                                                        {"\"step\": 3", "\"step\": 4"},  // with optimizer_step 3
                                                        {"\"world_size\": 1", "\"world_size\": -1"},
                                                        {"\"world_size\": 1", "\"world_size\": 0"},
                                                        {"\"skipped_steps\": 0", "\"skipped_steps\": 4"},
                                                        {"\"isa\": \"x\"", "\"isa\": 1"}}) {
    CAPTURE(to);
    put_file(path, replaced(old, from, to));
    CHECK_THROWS_AS(checkpoint::read_checkpoint_state(saved), InputError);
  }
}
