#include "ditrain/checkpoint/checkpoint.hpp"

#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "ditrain/base/error.hpp"
#include "ditrain/io/checkpoint_folder.hpp"
#include "ditrain/io/files.hpp"
#include "ditrain/io/safetensors.hpp"
#include "ditrain/nn/block.hpp"
#include "shared_parts.hpp"

namespace ditrain::checkpoint {
namespace {

namespace fs = std::filesystem;
using autograd::Parameter;
using autograd::ParameterStore;
using nlohmann::json;

constexpr size_t kMaxStateBytes = size_t{4} << 20;
constexpr const char *kExpAvg = ".exp_avg", *kExpAvgSq = ".exp_avg_sq";

// Tensors to write, with the memory of their arenas held in place meanwhile.
class Tensors {
 public:
  Tensors(ParameterStore& parameters, PartCollector* collector) : parameters_(parameters), collector_(collector) {}

  void add(const std::string& name, const Tensor& t) {
    pins_.push_back(std::make_unique<Pin<float>>(t));
    list_.push_back({name, "F32", t.shape(), pins_.back()->get()});
  }
  /// What belongs to a trainable parameter in an arena.
  void add(const std::string& name, const Parameter& p, const Tensor& arena) {
    if (p.part.whole()) return add(name, parameters_.view(arena, p));
    DITRAIN_CHECK(collector_ != nullptr, "no collector for the parts of " + p.name);
    io::TensorToWrite tensor{name, "F32", p.full_shape, nullptr};
    tensor.load = [this, &p, arena] { return collector_->full(p, arena); };
    list_.push_back(std::move(tensor));
  }
  void write(const std::string& path) { io::write_safetensors(path, list_); }

 private:
  ParameterStore& parameters_;
  PartCollector* collector_;
  std::vector<std::unique_ptr<Pin<float>>> pins_;
  std::vector<io::TensorToWrite> list_;
};

void write_weights(const std::string& path, ParameterStore& parameters, const Tensor& arena, PartCollector* collector) {
  Tensors tensors(parameters, collector);
  for (const Parameter* p : parameters.state_dict())
    p->trainable ? tensors.add(p->name, *p, arena) : tensors.add(p->name, p->value);
  tensors.write(path);
}

void write_moments(const std::string& path, ParameterStore& parameters, PartCollector* collector) {
  Tensors tensors(parameters, collector);
  for (const Parameter* p : parameters.state_dict()) {
    if (!p->trainable) continue;
    tensors.add(p->name + kExpAvg, *p, parameters.exp_avg);
    tensors.add(p->name + kExpAvgSq, *p, parameters.exp_avg_sq);
  }
  tensors.write(path);
}

// The states of all ranks, in the order in which all ranks ask for them.
class WholeStates {
 public:
  WholeStates(const ParameterStore& parameters, const WholeState& whole)
      : states_{&parameters.ema, &parameters.exp_avg, &parameters.exp_avg_sq}, whole_(whole) {}
  bool collective() const { return bool(whole_); }
  const Tensor& ema() { return next(0); }
  const Tensor& exp_avg() { return next(1); }
  const Tensor& exp_avg_sq() { return next(2); }
  /// Takes part in all that was not asked for yet: other ranks count on it.
  void finish() {
    while (collective() && !broken_ && asked_ < states_.size()) next(asked_);
  }

 private:
  const Tensor& next(size_t i) {
    DITRAIN_CHECK(i == asked_, "states are asked for in one order");
    const Tensor& state = *states_[asked_++];
    if (!collective()) return state;
    broken_ = true;  // if it throws, the ranks cannot be brought together again
    const Tensor& whole = whole_(state);
    broken_ = false;
    return whole;
  }
  std::array<const Tensor*, 3> states_;
  const WholeState& whole_;
  size_t asked_ = 0;
  bool broken_ = false;
};

// The same file while one moment of all parameters is whole at a time.
void write_moments_in_turn(const std::string& path, ParameterStore& parameters, WholeStates& states) {
  std::vector<io::TensorToWrite> list;
  std::vector<const Parameter*> trainable;
  for (const Parameter* p : parameters.state_dict()) {
    if (!p->trainable) continue;
    trainable.push_back(p);
    for (const char* moment : {kExpAvg, kExpAvgSq}) list.push_back({p->name + moment, "F32", p->shape, nullptr});
  }
  io::SafetensorsWriter writer(path, std::move(list));
  const auto write = [&](const char* moment, const Tensor& arena) {
    for (const Parameter* p : trainable) writer.write(p->name + moment, Pin<float>(parameters.view(arena, *p)));
  };
  write(kExpAvg, states.exp_avg());
  write(kExpAvgSq, states.exp_avg_sq());
  writer.finish();
}

// Errors on the way in name the file first.
[[noreturn]] void bad_tensor(const std::string& file, const std::string& what, const std::string& got = "",
                             const std::string& expected = "", const std::string& advice = "") {
  throw InputError(
      {.where = file,
       .what = what,
       .got = got,
       .expected = expected,
       .hint = advice.empty() ? "a checkpoint of the same model, or the config it was made with" : advice});
}

// Reads exactly the named tensors of one file; anything missing, extra, ill-shaped or not finite is an error.
class ExactReader {
 public:
  explicit ExactReader(const std::string& path) : file_(path) {}

  /// The part of a tensor that the parameter is.
  void read(const std::string& name, const Parameter& parameter, const Tensor& to) {
    const Pin<float> p(to);
    if (parameter.part.whole()) return read(name, parameter.full_shape, p);
    std::vector<float> full(size_t(num_elements(parameter.full_shape)));
    read(name, parameter.full_shape, full.data());
    parameter.part.take(full.data(), p);
  }
  void expect_nothing_else() const {
    for (const io::TensorView& view : file_.tensors())
      if (!read_.contains(view.name))
        bad_tensor(file_.path(), "tensor " + view.name + " is not one of this model's", "", "",
                   nn::advice_on_tensor(view.name, /*extra=*/false));
  }

 private:
  void read(const std::string& name, const Shape& shape, float* to) {
    if (!file_.contains(name))
      bad_tensor(file_.path(), "tensor " + name + " is missing", "", "", nn::advice_on_tensor(name, /*extra=*/true));
    const io::TensorView& view = file_.tensor(name);
    if (view.shape != shape) bad_tensor(file_.path(), "shape of " + name, to_string(view.shape), to_string(shape));
    io::read_f32(view, to);
    for (int64_t i = 0; i < view.num_elements(); ++i)
      if (!std::isfinite(to[i]))
        throw InputError(
            {.where = file_.path(),
             .what = "tensor " + name + " holds a number that is not finite at element " + std::to_string(i),
             .got = std::to_string(to[i]),
             .hint = "an earlier checkpoint"});
    read_.insert(name);
  }

  io::SafetensorsFile file_;
  std::set<std::string> read_;
};

json to_json(const CheckpointState& s) {
  return {{"step", s.step},
          {"optimizer_step", s.optimizer_step},
          {"skipped_steps", s.skipped_steps},
          {"world_size", s.world_size},
          {"isa", s.isa},
          {"kernels", s.kernels},
          {"version", s.version},
          {"config", s.config_yaml}};
}

}  // namespace

namespace {

std::string write_checkpoint(const std::string& checkpoints_dir, const CheckpointState& state,
                             ParameterStore& parameters, const config::CheckpointConfig& config,
                             PartCollector* collector, WholeStates& states) {
  io::CheckpointWriter writer(checkpoints_dir, state.step);
  write_weights(writer.folder() + "/model.safetensors", parameters, parameters.values, collector);
  write_weights(writer.folder() + "/ema.safetensors", parameters, states.ema(), collector);
  const std::string moments = writer.folder() + "/optimizer.safetensors";
  states.collective() ? write_moments_in_turn(moments, parameters, states)
                      : write_moments(moments, parameters, collector);
  io::write_file_atomically(writer.folder() + "/state.json", to_json(state).dump(2) + "\n");
  writer.commit();
  if (config.keep_last > 0) io::prune_checkpoints(checkpoints_dir, config.keep_last, config.keep_every);
  return checkpoints_dir + "/" + io::checkpoint_name(state.step);
}

}  // namespace

std::string save_checkpoint(const std::string& checkpoints_dir, const CheckpointState& state,
                            ParameterStore& parameters, const config::CheckpointConfig& config,
                            plan::TensorGroup* group, const WholeState& whole) {
  DITRAIN_CHECK(group == nullptr || !whole, "parts of replicas, or of states");
  std::optional<PartCollector> of_group;  // first: whatever fails now, the others must not wait
  if (group != nullptr) of_group.emplace(*group, parameters);
  WholeStates states(parameters, whole);
  try {
    const std::string folder =
        write_checkpoint(checkpoints_dir, state, parameters, config, of_group ? &*of_group : nullptr, states);
    if (of_group) of_group->finish();
    return folder;
  } catch (const RunError&) {
    if (of_group) of_group->finish();
    states.finish();
    throw;
  }
}

void help_save_checkpoint(plan::TensorGroup& group, ParameterStore& parameters) { send_parts(group, parameters); }

void accompany_checkpoint(const ParameterStore& parameters, const WholeState& whole) {
  WholeStates(parameters, whole).finish();
}

std::string find_checkpoint(const std::string& path) {
  if (fs::is_regular_file(path + "/state.json")) return path;
  for (const std::string& dir : {path + "/checkpoints", path})
    if (const auto found = io::latest_checkpoint(dir)) return *found;
  throw InputError({.where = "checkpoint",
                    .what = "no complete checkpoint in " + path,
                    .expected = "a checkpoint folder (model, ema, optimizer .safetensors and state.json), a folder of "
                                "such, or a run folder"});
}

CheckpointState read_checkpoint_state(const std::string& folder) {
  const std::string path = folder + "/state.json";
  try {
    const json j = json::parse(io::read_text_file(path, kMaxStateBytes));
    CheckpointState s;
    s.step = j.at("step"), s.optimizer_step = j.at("optimizer_step");
    s.skipped_steps = j.at("skipped_steps"), s.world_size = j.at("world_size");
    s.isa = j.at("isa"), s.kernels = j.at("kernels"), s.version = j.at("version"), s.config_yaml = j.at("config");
    if (s.step < 0 || s.optimizer_step < 0 || s.optimizer_step > s.step)
      throw InputError({.where = path, .what = "impossible step counts", .got = std::to_string(s.step)});
    return s;
  } catch (const json::exception& e) {
    throw InputError(
        {.where = path, .what = std::string("not a state of ditrain: ") + e.what(), .hint = "an earlier checkpoint"});
  }
}

void load_weights(const std::string& file, ParameterStore& parameters, const Tensor& arena) {
  ExactReader reader(file);
  for (const Parameter* p : parameters.state_dict())
    reader.read(p->name, *p, p->trainable ? parameters.view(arena, *p) : p->value);
  reader.expect_nothing_else();
}

void load_training_state(const std::string& folder, ParameterStore& parameters, const KeepState& keep) {
  load_weights(folder + "/model.safetensors", parameters, parameters.values);
  const Tensor& whole = parameters.grads;  // not needed now
  const auto take = [&](const Tensor& state) { keep ? keep(whole, state) : copy(whole, state); };
  load_weights(folder + "/ema.safetensors", parameters, whole);
  take(parameters.ema);
  ExactReader moments(folder + "/optimizer.safetensors");
  for (const auto& [name, state] : {std::pair{kExpAvg, &parameters.exp_avg}, {kExpAvgSq, &parameters.exp_avg_sq}}) {
    for (const Parameter* p : parameters.state_dict())
      if (p->trainable) moments.read(p->name + name, *p, parameters.view(whole, *p));
    take(*state);
  }
  moments.expect_nothing_else();
}

}  // namespace ditrain::checkpoint
