// The tape: order of nodes and hooks, what is kept and what is shared, in training and in inference.
#include "ditrain/autograd/tape.hpp"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <map>
#include <mutex>
#include <thread>

#include "ditrain/base/error.hpp"
#include "support/workers.hpp"

using namespace ditrain;
using namespace ditrain::autograd;

namespace {

using Calls = std::vector<std::string>;

struct Recorder : Node {
  Recorder(Tape& tape, const std::string& name, Calls& calls, std::vector<Parameter*> parameters = {})
      : Node(name, std::move(parameters)), calls_(calls) {
    x = tape.keep(*this, "x", {2, 3});
    buffer = tape.temporary("buffer", {5});
  }
  void forward(ops::Context&) override { calls_.push_back("forward " + name()); }
  void backward(ops::Context&, Gradients) override { calls_.push_back("backward " + name()); }

  ActivationRef x, buffer;

 protected:
  Calls& calls_;
};

struct Recomputer final : Recorder {
  Recomputer(Tape& tape, const std::string& name, Calls& calls) : Recorder(tape, name, calls) {
    h = tape.keep(*this, "h", {7}, KeepPolicy::kRecompute, DType::kBF16);
  }
  void recompute(ops::Context&) override { calls_.push_back("recompute " + name()); }

  ActivationRef h;
};

struct Rig : test::Workers {
  Calls calls;
};

// Notes which thread had which sample.
struct Sampled final : Node {
  Sampled(Tape&, const std::string& name, int64_t batch) : Node(name, {}), batch_(batch), met(size_t(batch)) {}
  int64_t samples() const override { return batch_; }
  void forward_of(ops::Context&, const parallel::Range& s) override {
    for (int64_t i = s.begin; i < s.end; ++i) met[size_t(i)] = std::this_thread::get_id();
  }
  void backward(ops::Context&, Gradients) override {}
  int64_t batch_;
  std::vector<std::thread::id> met;
};

}  // namespace

TEST_CASE("hooks run at the borders of each node, in the order in which they were added") {
  Rig rig;
  Tape tape(Mode::kTraining);
  tape.record<Recorder>("a", rig.calls);
  tape.record<Recorder>("b", rig.calls);
  const auto note = [&](const std::string& what) {
    return [&, what](const Node& node) { rig.calls.push_back(what + " " + node.name()); };
  };
  tape.add_hook(HookPoint::kPostBackward, note("post-backward"));
  tape.add_hook(HookPoint::kPreBackward, note("pre-backward"));
  tape.add_hook(HookPoint::kPostForward, note("post-forward"));
  tape.add_hook(HookPoint::kPreForward, note("pre-forward 1"));
  tape.add_hook(HookPoint::kPreForward, note("pre-forward 2"));

  tape.forward(rig.ctx);
  CHECK(rig.calls == Calls{"pre-forward 1 a", "pre-forward 2 a", "forward a", "post-forward a",  //
                           "pre-forward 1 b", "pre-forward 2 b", "forward b", "post-forward b"});
  rig.calls.clear();
  tape.backward(rig.ctx);
  CHECK(rig.calls == Calls{"pre-backward b", "backward b", "post-backward b",  //
                           "pre-backward a", "backward a", "post-backward a"});
}

TEST_CASE("neighbours whose samples need nothing of each other are one job for clusters that have samples each") {
  Rig rig;
  test::Workers crew(2, 2);
  Tape tape(Mode::kTraining);
  const auto& a = tape.record<Sampled>("a", 4);
  const auto& b = tape.record<Sampled>("b", 4);
  tape.record<Recorder>("c", rig.calls);
  const auto& d = tape.record<Sampled>("d", 6);
  const auto& e = tape.record<Sampled>("e", 4);
  tape.add_hook(HookPoint::kPreForward, [&](const Node& node) { rig.calls.push_back("pre " + node.name()); });
  tape.add_hook(HookPoint::kPostForward, [&](const Node& node) { rig.calls.push_back("post " + node.name()); });
  std::mutex counting;
  std::map<std::string, std::pair<int, int>> entered_and_left;
  tape.add_hook(HookPoint::kEnterForward, [&](const Node& node) {
    const std::lock_guard lock(counting);
    CHECK(entered_and_left[node.name()].second == 0);  // no cluster comes when all have left
    ++entered_and_left[node.name()].first;
  });
  tape.add_hook(HookPoint::kLeaveForward, [&](const Node& node) {
    const std::lock_guard lock(counting);
    CHECK(entered_and_left[node.name()].first == (node.samples() > 0 ? 2 : 1));  // the last cluster leaves
    ++entered_and_left[node.name()].second;
  });
  const int64_t before = crew.ctx.meetings().of_team;
  tape.forward(crew.ctx);
  CHECK(crew.ctx.meetings().of_team - before == 3);  // a and b; d; e
  CHECK(rig.calls == Calls{"pre a", "post a", "pre b", "post b", "pre c", "forward c", "post c", "pre d", "post d",
                           "pre e", "post e"});
  for (const auto& [name, counts] : entered_and_left) {
    CAPTURE(name);
    CHECK(counts == std::pair(name == "c" ? 1 : 2, 1));
  }
  CHECK(entered_and_left.size() == 5);
  for (const Sampled* node : {&a, &b, &d, &e}) {
    const auto half = node->met.begin() + node->batch_ / 2;
    CHECK(std::count(node->met.begin(), half, node->met.front()) == node->batch_ / 2);
    CHECK(std::count(half, node->met.end(), node->met.back()) == node->batch_ / 2);
    CHECK(node->met.front() != node->met.back());
  }
}

TEST_CASE("workers help while the first one of their cluster enters a node, until it has, also where that fails") {
  struct OfSamples final : Node {
    OfSamples(Tape&, const std::string& name) : Node(name, {}) {}
    int64_t samples() const override { return 4; }
    void forward_of(ops::Context&, const parallel::Range&) override {}
    void backward(ops::Context&, Gradients) override {}
  };
  test::Workers crew(5, 2);
  Tape tape(Mode::kTraining);
  tape.record<OfSamples>("a"), tape.record<OfSamples>("b");
  std::atomic<int> helped{0}, entered{0};
  tape.add_hook(HookPoint::kEnterForward, [&](const Node&) {
    const int before = helped;
    while (helped < before + 20) std::this_thread::yield();  // it needs help
    if (++entered == 8) throw RunError({.where = "test", .what = "broken"});
  });
  tape.add_hook(HookPoint::kHelpForward, [&](const Node&) { ++helped; });
  tape.forward(crew.ctx);
  CHECK(entered == 4);  // two clusters at two nodes
  CHECK_THROWS_WITH(tape.forward(crew.ctx), Catch::Contains("broken"));
  // Nobody helps on for one who fails behind a node.
  tape.add_hook(HookPoint::kLeaveForward, [](const Node&) { throw RunError({.where = "test", .what = "left"}); });
  CHECK_THROWS_WITH(tape.forward(crew.ctx), Catch::Contains("left"));
}

TEST_CASE("a node that neither computes a batch nor takes samples is a fault") {
  struct Nothing final : Node {
    Nothing(Tape&, int64_t batch) : Node("nothing", {}), batch_(batch) {}
    int64_t samples() const override { return batch_; }
    void backward(ops::Context&, Gradients) override {}
    int64_t batch_;
  };
  Rig rig;
  Tape tape(Mode::kTraining);
  tape.record<Nothing>(GENERATE(0, 4));
  CHECK_THROWS_AS(tape.forward(rig.ctx), LogicFault);
}

TEST_CASE("what is not kept is written again within the borders of backward, unless it is still there") {
  Rig rig;
  Tape tape(Mode::kTraining);
  const auto& a = tape.record<Recomputer>("a", rig.calls);
  const auto& b = tape.record<Recomputer>("b", rig.calls);
  tape.record<Recorder>("c", rig.calls);
  tape.add_hook(HookPoint::kPreBackward, [&](const Node& node) { rig.calls.push_back("pre-backward " + node.name()); });
  CHECK(a.h == b.h);
  CHECK(a.kept() == std::vector<ActivationRef>{a.x});  // and not h
  CHECK(tape.temporary_bytes() == 5 * sizeof(float) + 7 * sizeof(uint16_t));
  tape.allocate();
  CHECK(a.h->tensor.dtype() == DType::kBF16);

  const Calls backward{"pre-backward c", "backward c",  "pre-backward b", "backward b",
                       "pre-backward a", "recompute a", "backward a"};
  tape.forward(rig.ctx);
  rig.calls.clear();
  tape.backward(rig.ctx);
  CHECK(rig.calls == backward);
  rig.calls.clear();
  tape.backward(rig.ctx);  // by now the memory holds the contents of a
  CHECK(rig.calls == Calls{"pre-backward c", "backward c", "pre-backward b", "recompute b", "backward b",
                           "pre-backward a", "recompute a", "backward a"});
  tape.forward(rig.ctx);
  rig.calls.clear();
  tape.backward(rig.ctx);
  CHECK(rig.calls == backward);
}

TEST_CASE("training keeps a tensor for each node and shares the temporaries") {
  Rig rig;
  Tape tape(Mode::kTraining);
  const auto& a = tape.record<Recorder>("a", rig.calls);
  const auto& b = tape.record<Recorder>("b", rig.calls);
  CHECK(tape.kept_bytes() == 2 * 6 * sizeof(float));
  CHECK(tape.temporary_bytes() == 5 * sizeof(float));
  REQUIRE(b.kept().size() == 1);
  CHECK(b.kept()[0] == b.x);
  CHECK(b.x->name == "b.x");
  CHECK(a.x != b.x);
  CHECK(a.buffer == b.buffer);

  CHECK_FALSE(a.x->tensor.defined());
  tape.allocate();
  CHECK(a.x->tensor.shape() == Shape{2, 3});
  CHECK(&a.x->tensor.storage() != &b.x->tensor.storage());
  CHECK(a.buffer->tensor.shape() == Shape{5});
}

TEST_CASE("inference keeps nothing: nodes share what they would keep, and there is no backward") {
  Rig rig;
  Tape tape(Mode::kInference);
  const auto& a = tape.record<Recorder>("a", rig.calls);
  const auto& b = tape.record<Recorder>("b", rig.calls);
  CHECK(tape.kept_bytes() == 0);
  CHECK(tape.temporary_bytes() == (6 + 5) * sizeof(float));
  CHECK(a.x == b.x);
  CHECK(a.kept().empty());
  CHECK_THROWS_AS(tape.backward(rig.ctx), LogicFault);
  CHECK(rig.calls.empty());
}

TEST_CASE("a temporary has one shape") {
  Tape tape(Mode::kTraining);
  const ActivationRef first = tape.temporary("h", {2, 3});
  CHECK(tape.temporary("h", {2, 3}) == first);
  CHECK_THROWS_AS(tape.temporary("h", {3, 2}), LogicFault);
  CHECK_THROWS_AS(tape.temporary("h", {2, 3}, DType::kBF16), LogicFault);
}

namespace {

/// Recomputes [4, tokens] values, some samples at a time.
struct OfTokens final : Node {
  OfTokens(Tape& tape, const std::string& name, int64_t tokens, Calls& calls) : Node(name, {}), calls_(calls) {
    h = tape.keep(*this, "h", {4, tokens}, KeepPolicy::kRecompute);
  }
  int64_t samples() const override { return 4; }
  void forward_of(ops::Context&, const parallel::Range&) override {}
  void recompute(ops::Context&) override { calls_.push_back("recompute " + name()); }
  void backward(ops::Context&, Gradients) override {}
  ActivationRef h;

 private:
  Calls& calls_;
};

}  // namespace

TEST_CASE("shapes of a temporary share memory where clusters meet between their nodes") {
  Rig rig;
  Tape tape(Mode::kTraining);
  const auto& few = tape.record<OfTokens>("few", 2, rig.calls);
  CHECK_THROWS_AS(tape.record<OfTokens>("too near", 5, rig.calls), LogicFault);
  tape.record<Recorder>("meeting", rig.calls);
  const auto& many = tape.record<OfTokens>("many", 5, rig.calls);
  const auto& as_many = tape.record<OfTokens>("as many", 5, rig.calls);
  tape.record<Recorder>("meeting again", rig.calls);
  const auto& few_again = tape.record<OfTokens>("few again", 2, rig.calls);
  CHECK((few.h == few_again.h && many.h == as_many.h && few.h != many.h));
  CHECK(tape.temporary_bytes() == (4 * 5 + 5) * sizeof(float));  // with the buffer of the others
  tape.allocate();
  CHECK(&few.h->tensor.storage() == &many.h->tensor.storage());
  CHECK((few.h->tensor.shape() == Shape{4, 2} && many.h->tensor.shape() == Shape{4, 5}));
  CHECK(tape.temporaries().size() == 2);
  tape.forward(rig.ctx);
  rig.calls.clear();
  tape.backward(rig.ctx);  // the memory holds the contents of the last node, in whatever shape
  CHECK(rig.calls ==
        Calls{"backward meeting again", "recompute as many", "recompute many", "backward meeting", "recompute few"});
}

TEST_CASE("the slice of a node spans its trainable parameters") {
  Rig rig;
  Tape tape(Mode::kTraining);
  ParameterStore store;
  store.add("before", {16});
  Parameter& w = store.add("w", {16});
  Parameter& frozen = store.add({.name = "frozen", .full_shape = {16}, .trainable = false});
  Parameter& b = store.add("b", {3});
  const auto& node = tape.record<Recorder>("node", rig.calls, std::vector<Parameter*>{&b, &frozen, &w});
  CHECK(node.parameter_slice().begin == 16);
  CHECK(node.parameter_slice().end == 48);
  const auto& none = tape.record<Recorder>("none", rig.calls, std::vector<Parameter*>{&frozen});
  CHECK(none.parameter_slice().begin == none.parameter_slice().end);
}

TEST_CASE("a gradient between distant nodes counts as kept, one for each node that writes it") {
  Rig rig;
  Tape tape(Mode::kTraining);
  Recorder& first = tape.record<Recorder>("first", rig.calls);
  Recorder& last = tape.record<Recorder>("last", rig.calls);
  const size_t kept = tape.kept_bytes(), temporary = tape.temporary_bytes();
  const ActivationRef a = tape.carry(first, "dskip", {2, 3}), b = tape.carry(last, "dskip", {2, 3});
  CHECK(a != b);
  CHECK(b->name == "last.dskip");
  CHECK(tape.kept_bytes() == kept + 2 * 6 * sizeof(float));
  CHECK(tape.temporary_bytes() == temporary);
  CHECK(last.kept().back() == b);
  Tape inference(Mode::kInference);
  Recorder& node = inference.record<Recorder>("a", rig.calls);
  CHECK_THROWS_AS(inference.carry(node, "dskip", {2, 3}), LogicFault);
}
