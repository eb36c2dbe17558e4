#include "ditrain/checkpoint/checkpoint.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "checksums_json.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/files/checkpoint_folder.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/nn/block.hpp"
#include "ditrain/parallel/jobs.hpp"
#include "state_pieces.hpp"

namespace ditrain::checkpoint {
namespace {

namespace fs = std::filesystem;
using autograd::OptimizerState;
using autograd::Parameter;
using autograd::ParameterStore;
using autograd::StateLayout;
using nlohmann::json;

constexpr size_t kMaxStateBytes = size_t{2} << 30;  // some 40 bytes per piece: buckets x ranks x files
constexpr int kFormat = 2;                          // of state.json; 1 had no number and no checksums
constexpr int64_t kMaxSteps = 1'000'000'000'000, kMaxRanks = 1 << 24;
constexpr std::string_view kNoChecksum = "0000000000000000";
constexpr std::string_view kChecksumKey = "  \"checksum\": \"", kEnd = "\"\n}\n";

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

// Reads exactly the named tensors of one file; anything missing, extra, ill-shaped, damaged or not finite is an error.
class ExactReader {
 public:
  explicit ExactReader(const std::string& path) : file_(path), checks_(checks_of(path)) {
    if (checks_) checker_.emplace(file_, *checks_);
  }

  const weights::TensorView& expect(const std::string& name, const Parameter& parameter) {
    if (!file_.contains(name))
      bad_tensor(file_.path(), "tensor " + name + " is missing", "", "", nn::advice_on_tensor(name, /*extra=*/true));
    const weights::TensorView& view = file_.tensor(name);
    if (view.shape != parameter.full_shape)
      bad_tensor(file_.path(), "shape of " + name, to_string(view.shape), to_string(parameter.full_shape));
    names_.insert(name);
    return view;
  }
  /// The part of a tensor that the parameter is, for read().
  void want(const std::string& name, const Parameter& parameter, const Tensor& to) {
    wanted_.push_back({&expect(name, parameter), &parameter, to});
  }
  void read(const std::vector<int>& pus) {
    std::vector<Job> jobs;
    for (const Wanted& w : wanted_) add_jobs(jobs, w);
    parallel::run_jobs(int64_t(jobs.size()), pus, [&](int64_t i) { jobs[size_t(i)](); });
    wanted_.clear();
  }
  void expect_nothing_else() const {
    for (const weights::TensorView& view : file_.tensors())
      if (!names_.contains(view.name))
        bad_tensor(file_.path(), "tensor " + view.name + " is not one of this model's", "", "",
                   nn::advice_on_tensor(view.name, /*extra=*/false));
  }

 private:
  struct Wanted {
    const weights::TensorView* view;
    const Parameter* parameter;
    Tensor to;
  };
  using Job = std::function<void()>;

  // Piece by piece where the checksums are made so: what has just been summed is taken from the cache.
  void add_jobs(std::vector<Job>& jobs, const Wanted& w) const {
    bool with_sums = checker_ && w.view->dtype == "F32" && w.parameter->part.whole();
    if (checker_) {
      const auto [first, last] = checker_->pieces_of(*w.view);
      with_sums = with_sums && checker_->in_order(*w.view);
      for (const CheckedPiece* piece = first; piece != last; ++piece)
        jobs.push_back([this, w, piece, with_sums] {
          checker_->check(*piece, w.view->name, [&](uint64_t offset, const std::byte* data, uint64_t bytes) {
            if (with_sums) take(w, offset, data, bytes);
          });
        });
    }
    if (!with_sums) jobs.push_back([this, w] { read_whole(w); });
  }
  // Bytes of an f32 tensor, which the checker has just read.
  void take(const Wanted& w, uint64_t offset, const std::byte* data, uint64_t bytes) const {
    const auto first = int64_t((offset - w.view->offset) / sizeof(float));
    const Pin<float> pin(w.to);
    float* to = pin.get() + first;
    std::memcpy(to, data, bytes);
    expect_finite(w, to, first, int64_t(bytes / sizeof(float)));
  }
  void read_whole(const Wanted& w) const {
    std::vector<float> full;
    const Pin<float> pin(w.to);
    float* to = pin.get();
    if (!w.parameter->part.whole()) full.resize(size_t(w.view->num_elements())), to = full.data();
    weights::read_f32(*w.view, to);
    expect_finite(w, to, 0, w.view->num_elements());
    if (!full.empty()) w.parameter->part.take(to, pin.get());
  }
  void expect_finite(const Wanted& w, const float* x, int64_t first, int64_t n) const {
    for (int64_t i = 0; i < n; ++i)
      if (!std::isfinite(x[i]))
        throw InputError({.where = file_.path(),
                          .what = "tensor " + w.view->name + " holds a number that is not finite at element " +
                                  std::to_string(first + i),
                          .got = std::to_string(x[i]),
                          .hint = "an earlier checkpoint"});
  }

  weights::SafetensorsFile file_;
  std::optional<CheckedFile> checks_;
  std::optional<FileChecker> checker_;
  std::vector<Wanted> wanted_;
  std::set<std::string> names_;
};

json to_json(const CheckpointState& s) {
  return {{"format", kFormat},
          {"step", s.step},
          {"optimizer_step", s.optimizer_step},
          {"skipped_steps", s.skipped_steps},
          {"skipped_in_a_row", s.skipped_in_a_row},
          {"world_size", s.world_size},
          {"groups", s.groups},
          {"samples", s.samples},
          {"class_names", s.class_names},
          {"isa", s.isa},
          {"kernels", s.kernels},
          {"version", s.version},
          {"config", s.config_yaml}};
}

// The place of the checksum's digits in the text that write_checkpoint_state makes; npos if it is missing.
size_t find_checksum(const std::string& text) {
  const size_t length = kChecksumKey.size() + kNoChecksum.size() + kEnd.size();
  if (text.size() < length || !text.ends_with(kEnd)) return std::string::npos;
  const size_t begin = text.size() - length;
  return text.compare(begin, kChecksumKey.size(), kChecksumKey) == 0 ? begin + kChecksumKey.size() : std::string::npos;
}

// One line for each file: thousands of numbers that nobody reads.
std::string to_text(const CheckpointState& state) {
  std::string text = files::json_text(to_json(state), 2);
  text.resize(text.size() - 2);  // "\n}"
  std::string files;
  for (const auto& [name, file] : state.files)
    files += fmt::format("{}\n    {}: {}", files.empty() ? "" : ",", files::json_text(json(name)),
                         files::json_text(json{{"bytes", file.bytes}, {"pieces", to_json(file.pieces)}}));
  text += fmt::format(",\n  \"files\": {{{}\n  }},\n{}{}{}", files, kChecksumKey, kNoChecksum, kEnd);
  const uint64_t sum = files::checksum_of(text);
  return text.replace(find_checksum(text), kNoChecksum.size(), files::to_hex(sum));
}

void check_own_sum(const std::string& path, std::string text) {
  const size_t at = find_checksum(text);
  const std::string found = at == std::string::npos ? "" : text.substr(at, kNoChecksum.size());
  if (!found.empty()) text.replace(at, kNoChecksum.size(), kNoChecksum);
  const std::string expected = files::to_hex(files::checksum_of(text));
  if (found != expected)
    throw InputError({.where = path,
                      .what = "the file is damaged, or was edited: it is not what was written",
                      .got = found.empty() ? "no checksum" : "checksum " + found,
                      .expected = expected,
                      .hint = "an earlier checkpoint"});
}

// What a run can have written.
void check_ranges(const std::string& path, const CheckpointState& s) {
  const auto require = [&](bool holds, const char* what, int64_t got, const std::string& expected) {
    if (!holds)
      throw InputError({.where = path,
                        .what = std::string("impossible ") + what,
                        .got = std::to_string(got),
                        .expected = expected,
                        .hint = "an earlier checkpoint"});
  };
  require(s.step >= 0 && s.step <= kMaxSteps, "step", s.step, fmt::format("0 to {}", kMaxSteps));
  require(s.skipped_steps >= 0 && s.skipped_steps <= s.step, "skipped_steps", s.skipped_steps,
          fmt::format("0 to step, {}", s.step));
  require(s.skipped_in_a_row >= 0 && s.skipped_in_a_row <= s.skipped_steps, "skipped_in_a_row", s.skipped_in_a_row,
          fmt::format("0 to skipped_steps, {}", s.skipped_steps));
  require(s.optimizer_step == s.step - s.skipped_steps, "optimizer_step", s.optimizer_step,
          fmt::format("step less skipped_steps, {}", s.step - s.skipped_steps));
  require(s.world_size >= 1 && s.world_size <= kMaxRanks, "world_size", s.world_size,
          fmt::format("1 to {}", kMaxRanks));
  require(s.groups >= 1 && s.groups <= s.world_size, "groups", s.groups,
          fmt::format("1 to world_size, {}", s.world_size));
  require(s.samples >= 0, "samples", s.samples, "0 or more");
}

}  // namespace

void write_checkpoint_state(const std::string& folder, const CheckpointState& state) {
  const std::string text = to_text(state);
  if (text.size() > kMaxStateBytes)
    throw RunError({.where = folder + "/state.json",
                    .what = "the state would be too large to be read again",
                    .got = fmt::format("{} bytes", text.size()),
                    .expected = fmt::format("at most {}", kMaxStateBytes),
                    .hint = "a larger dist.bucket_mib, or dist.shard_optimizer: false"});
  files::FileWriter file(folder + "/state.json");
  file.write(text.data(), text.size());
  file.finish();
}

std::string find_checkpoint(const std::string& path) {
  if (fs::is_regular_file(path + "/state.json")) return path;
  for (const std::string& dir : {path + "/checkpoints", path})
    if (const auto found = files::latest_checkpoint(dir)) return *found;
  throw InputError({.where = "checkpoint",
                    .what = "no complete checkpoint in " + path,
                    .expected = "a checkpoint folder (model, ema, optimizer .safetensors and state.json), a folder of "
                                "such, or a run folder"});
}

CheckpointState read_checkpoint_state(const std::string& folder) {
  const std::string path = folder + "/state.json";
  const std::string text = files::read_text_file(path, kMaxStateBytes);
  try {
    const json j = files::parse_json(text);
    CheckpointState s;
    for (const auto& [key, number] : {std::pair{"step", &s.step},
                                      {"optimizer_step", &s.optimizer_step},
                                      {"skipped_steps", &s.skipped_steps},
                                      {"skipped_in_a_row", &s.skipped_in_a_row},
                                      {"world_size", &s.world_size},
                                      {"groups", &s.groups},
                                      {"samples", &s.samples}}) {
      const bool is_newer = number == &s.groups || number == &s.samples || number == &s.skipped_in_a_row;
      if (is_newer && !j.contains(key)) continue;  // of an older version
      if (!j.at(key).is_number_integer())
        throw InputError({.where = path,
                          .what = std::string("bad value of ") + key,
                          .got = files::json_text(j.at(key)),
                          .expected = "a whole number",
                          .hint = "an earlier checkpoint"});
      *number = j.at(key);
    }
    if (j.contains("class_names")) s.class_names = j.at("class_names").get<std::vector<std::string>>();
    s.isa = j.at("isa"), s.kernels = j.at("kernels"), s.version = j.at("version"), s.config_yaml = j.at("config");
    // Versions before checksums wrote neither.
    if (j.contains("format") || j.contains("files") || j.contains("checksum")) {
      check_own_sum(path, text);
      for (const char* name : kTensorFiles)
        if (name != files::kAveragesFile || j.at("files").contains(name))
          s.files[name] = file_from_json(j.at("files").at(name), path);
    }
    check_ranges(path, s);
    return s;
  } catch (const json::exception& e) {
    throw InputError(
        {.where = path, .what = "not a state of ditrain: " + files::json_problem(e), .hint = "an earlier checkpoint"});
  }
}

std::string other_class(const std::vector<std::string>& were, const std::vector<std::string>& are) {
  for (size_t label = 0; label < std::min(were.size(), are.size()); ++label)
    if (were[label] != are[label]) return fmt::format("label {} was {}, is {}", label, were[label], are[label]);
  return "";
}

void expect_readable(const std::string& folder) {
  for (const char* name : files::kCheckpointFiles) {
    const std::string path = folder + "/" + name;
    if (::access(path.c_str(), R_OK) == 0) continue;
    const int error = errno;
    const Problem problem{.where = path, .what = "cannot open the file", .got = std::strerror(error)};
    if (error != ENOENT) throw RunError(problem);
    throw InputError(
        {.where = path, .what = problem.what, .got = problem.got, .hint = "a file system that all nodes share"});
  }
}

void check_checkpoint(const std::string& folder, const std::vector<int>& pus) {
  const CheckpointState state = read_checkpoint_state(folder);
  if (state.files.empty())
    throw InputError({.where = folder, .what = "the checkpoint has no checksums: an earlier version wrote it"});
  for (const auto& [name, file] : state.files) check_file(folder + "/" + name, file, pus);
}

std::string newest_intact_beside(const std::string& folder) {
  const fs::path path = fs::weakly_canonical(fs::path(folder) / "state.json").parent_path();
  for (const std::string& other : files::checkpoints_to_resume(path.parent_path().string())) try {
      if (fs::path(other) == path) continue;
      check_checkpoint(other);
      return other;
    } catch (const Error&) {
    }
  return "";
}

void load_weights(const std::string& file, ParameterStore& parameters, const Tensor& arena,
                  const std::vector<int>& pus) {
  ExactReader reader(file);
  for (const Parameter* p : parameters.state_dict())
    reader.want(p->name, *p, p->trainable ? parameters.view(arena, *p) : p->value);
  reader.expect_nothing_else();
  reader.read(pus);
}

namespace {

using ReadState = std::function<void(const StateLayout*, const Tensor&)>;

// y <- share (y + x); with memory tiers y is in parts
void add_to(const Tensor& x, const Tensor& y, float share) {
  for_common_parts({x, y}, [&](int64_t, const std::vector<Tensor>& parts) {
    const Pin<float> from(parts[0], Access::kRead), to(parts[1]);
    float* const sum = to;
    for (int64_t i = 0; i < parts[1].size(); ++i) sum[i] = share * (sum[i] + from.get()[i]);
  });
}

// The mean over the groups of a checkpoint, of which this run has another number.
void read_mean(const Tensor& to, int groups, const std::function<void(int group, const Tensor& to)>& read) {
  read(0, to);
  const Tensor one(to.shape());
  for (int group = 1; group < groups; ++group) {
    read(group, one);
    add_to(one, to, group + 1 == groups ? 1.0f / float(groups) : 1.0f);
  }
}

}  // namespace

void load_training_state(const std::string& folder, ParameterStore& parameters, const CopyOwnPart& copy_own_part,
                         const std::vector<int>& pus, const GroupPlace& place) {
  const CheckpointState written = read_checkpoint_state(folder);
  const int groups = int(written.groups);
  if (written.files.empty())
    log::info("{} has no checksums, an earlier version wrote it: its files are not checked", folder);
  load_weights(folder + "/model.safetensors", parameters, parameters.model_values(), pus);
  // What this rank keeps all of is read into its place, whose pages `copy_own_part` has touched before with other
  // values; else the gradients, which nobody needs now, take the whole. The shards of a rank may be all elements, too,
  // but in another order.
  const bool is_whole = parameters.keeps_all();
  const auto take = [&](const OptimizerState& state, const ReadState& read) {
    if (!is_whole) read(nullptr, parameters.grads);
    if (copy_own_part) copy_own_part(is_whole ? parameters.values : parameters.grads, state);
    if (is_whole) read(&state.layout, state.data);
  };
  take(parameters.ema_state(),
       [&](const StateLayout*, const Tensor& to) { load_weights(folder + "/ema.safetensors", parameters, to, pus); });
  for (const bool averages : {false, true}) {
    std::vector<const OptimizerState*> states;
    for (const OptimizerState& state : parameters.states)
      if (state.declared.is_average() == averages) states.push_back(&state);
    if (states.empty()) continue;
    ExactReader reader(folder + "/" + kTensorFiles[averages ? 3 : 2]);
    for (const OptimizerState* state : states)
      for (const Parameter* p : parameters.state_dict())
        for (int group = 0; group < (state->declared.of_group ? groups : 1); ++group)
          if (p->trainable && state->declared.holds(p->group))
            reader.expect(state->declared.tensor_of(p->name, group), *p);
    reader.expect_nothing_else();
    for (const OptimizerState* state : states)
      take(*state, [&](const StateLayout* layout, const Tensor& whole) {
        const auto read = [&](int group, const Tensor& to) {
          for (const Parameter* p : parameters.state_dict())
            if (p->trainable && state->declared.holds(p->group))
              reader.want(state->declared.tensor_of(p->name, group), *p,
                          to.slice(layout ? layout->at(p->slice.begin) : p->slice.begin, p->shape));
          reader.read(pus);
        };
        if (state->declared.of_group && groups != place.groups)
          read_mean(whole, groups, read);
        else
          read(place.group, whole);
      });
  }
}

}  // namespace ditrain::checkpoint
