#include "ditrain/checkpoint/saver.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "checksums_json.hpp"
#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/files/checkpoint_folder.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/memory/allocator.hpp"
#include "ditrain/platform/affinity.hpp"
#include "state_writer.hpp"

namespace ditrain::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kSeconds = "seconds";

// What a rank tells rank 0: the pieces that it wrote, by file, or why it could not, and how long it took.
std::string report_of(const StateWriter& writer) {
  std::map<std::string, std::vector<CheckedPiece>> files;
  json report = json::object();
  try {
    for (const StatePiece& piece : writer.written()) files[kTensorFiles[piece.file]].push_back(piece.place);
  } catch (const std::exception& e) {
    report["problem"] = log::of_rank() + e.what();
  }
  for (const auto& [name, pieces] : files) report[name] = to_json(pieces);
  report[kSeconds] = writer.seconds();
  return files::json_text(report);
}

}  // namespace

struct CheckpointSaver::Buffer {
  explicit Buffer(size_t size)
      : bytes(size), data(size == 0 ? nullptr : static_cast<std::byte*>(memory::system_memory().allocate(size))) {}
  ~Buffer() {
    if (data != nullptr) memory::system_memory().deallocate(data, bytes);
  }
  std::span<std::byte> span() { return {data, bytes}; }

  const size_t bytes;
  std::byte* data;
};

// On rank 0: from the empty folder to the whole checkpoint.
struct CheckpointSaver::Commit {
  Commit(const Setup& s, const CheckpointState& of, bool keeps_averages, dist::Communicator& c)
      : setup(s), state(of), snapshot(keeps_averages), comm(c), writer(s.checkpoints_dir, of.step) {}
  ~Commit() {
    if (thread.joinable()) thread.join();
  }

  void create(const std::string& name, const weights::SafetensorsLayout& layout) {
    files::PieceFile::create(writer.folder() + "/" + name, layout.begin, layout.bytes);
    state.files[name] = {.bytes = layout.bytes,
                         .pieces = {{.run = layout.begin.size(), .checksum = files::checksum_of(layout.begin)}}};
  }

  /// Adds what a rank reports; keeps the first problem.
  void add(const std::string& report) {
    const json all = files::parse_json(report);
    for (const auto& [name, value] : all.items()) {
      if (name == "problem") {
        if (problem.empty()) problem = value;
        continue;
      }
      if (name == kSeconds) {
        written_s = std::max(written_s, value.get<double>());
        continue;
      }
      std::vector<CheckedPiece>& pieces = state.files[name].pieces;
      for (const CheckedPiece& piece : pieces_from_json(value, name)) pieces.push_back(piece);
    }
  }
  /// In a thread of its own, unless a rank had a problem.
  void start() {
    if (!problem.empty()) return void(done = true);
    try {
      thread = std::thread([this] { run_in_thread(); });
    } catch (const std::system_error& e) {
      problem = fmt::format("no thread could be started: {}", e.what());
      done = true;
    }
  }
  void run_in_thread() {
    const dist::DiskWork work(comm);
    const ScopedTimer timer(&committed_s);
    try {
      if (!setup.pus.empty()) platform::set_affinity_mask(setup.pus);
      run([&work] { work.moved(); });
    } catch (const std::exception& e) {
      problem = e.what();
    }
    done = true;
  }
  void run(const files::Progress& moved) {
    for (auto& [name, file] : state.files)
      std::sort(file.pieces.begin(), file.pieces.end(),
                [](const CheckedPiece& a, const CheckedPiece& b) { return a.offset < b.offset; });
    for (const auto& [name, file] : state.files) expect_coverage(file, name);  // ranks that left something out
    write_checkpoint_state(writer.folder(), state);
    moved();
    if (snapshot) keep_snapshot(moved);
    writer.commit();
    moved();
    try {
      clear_old(moved);
    } catch (const Error& e) {  // the new one is whole
      log::warn("old checkpoints stay: {}", e.what());
    }
  }
  // Before the checkpoint has its name: a run that resumes from it has the snapshot.
  void keep_snapshot(const files::Progress& moved) const {
    try {
      files::keep_files(writer.folder(), {files::kAveragesFile, "state.json"}, setup.snapshots_dir, state.step, moved);
    } catch (const RunError& e) {  // the checkpoint is whole, and other snapshots will do
      log::warn("no snapshot of the averages of step {}: {}", state.step, e.what());
    }
  }
  void clear_old(const files::Progress& moved) const {
    const config::CheckpointConfig& config = setup.config;
    if (config.keep_last > 0 && state.skipped_in_a_row <= 1)
      files::prune_checkpoints(setup.checkpoints_dir, config.keep_last, config.keep_every, moved, setup.in_use);
    if (config.keep_discarded) return;
    for (const std::string& folder : {setup.checkpoints_dir, setup.snapshots_dir})
      files::remove_discarded(folder, moved);
  }

  const Setup& setup;
  CheckpointState state;
  const bool snapshot;
  dist::Communicator& comm;
  files::CheckpointWriter writer;
  std::thread thread;
  double written_s = 0, committed_s = 0;
  std::atomic<bool> done{false};
  std::string problem;
};

CheckpointSaver::CheckpointSaver(Setup setup, autograd::ParameterStore& parameters, dist::Communicator& comm,
                                 ops::Context& ctx)
    : setup_(std::move(setup)),
      parameters_(parameters),
      comm_(comm),
      ctx_(ctx),
      layouts_(state_layouts(parameters, setup_.mine.groups)) {}

CheckpointSaver::~CheckpointSaver() = default;

std::optional<SaveOutcome> CheckpointSaver::start(const CheckpointState& state, bool snapshot) {
  DITRAIN_CHECK(phase_ == Phase::kIdle, "a checkpoint while the one before is being written");
  phase_ = Phase::kWriting, step_ = state.step;
  std::string begun[2];  // the folder to write into; the problem
  if (leads()) try {
      const dist::DiskWork work(comm_);
      commit_ = std::make_unique<Commit>(setup_, state, snapshot, comm_);
      for (size_t i = 0; i < layouts_.size(); ++i) commit_->create(kTensorFiles[i], layouts_[i]);
      begun[0] = commit_->writer.folder();
    } catch (const RunError& e) {
      begun[1] = e.what();
    }
  for (std::string& text : begun) text = dist::broadcast_text(comm_, text);
  if (!begun[1].empty()) return end(begun[1]);
  if (!buffer_) buffer_ = make_buffer();
  const dist::DiskWork work(comm_);  // the files are opened
  writer_ = std::make_unique<StateWriter>(begun[0], layouts_.size(), state_pieces(parameters_, layouts_, setup_.mine),
                                          buffer_->span(), setup_.pus, comm_);
  return std::nullopt;
}

// Training must not end for want of a buffer: without it updates wait for the disk.
std::unique_ptr<CheckpointSaver::Buffer> CheckpointSaver::make_buffer() const try {
  return std::make_unique<Buffer>(setup_.buffer_bytes);
} catch (const RunError& e) {
  log::warn("checkpoints have no buffer (checkpoint.buffer_gib), and updates wait until the state is written: {}",
            e.what());
  return std::make_unique<Buffer>(0);
}

bool CheckpointSaver::waits() const {
  if (phase_ == Phase::kWriting) return !writer_->done();
  return phase_ == Phase::kCommitting && commit_ && !commit_->done;
}

std::optional<SaveOutcome> CheckpointSaver::advance() {
  if (phase_ == Phase::kWriting) {
    const std::vector<std::string> reports = comm_.gather_strings(report_of(*writer_));
    writer_.reset();
    phase_ = Phase::kCommitting;
    if (!commit_) return std::nullopt;
    for (const std::string& report : reports) commit_->add(report);
    commit_->start();
    return std::nullopt;
  }
  if (phase_ == Phase::kCommitting) return end(commit_ ? commit_->problem : "");
  return std::nullopt;
}

std::optional<SaveOutcome> CheckpointSaver::finish() {
  std::optional<SaveOutcome> outcome;
  while (is_writing() && !outcome) {
    if (phase_ == Phase::kWriting) writer_->wait();
    if (phase_ == Phase::kCommitting && commit_ && commit_->thread.joinable()) commit_->thread.join();
    outcome = advance();
  }
  return outcome;
}

// Collective where rank 0 alone knows the problem.
SaveOutcome CheckpointSaver::end(std::string problem) {
  double seconds = 0;
  if (commit_) {
    const dist::DiskWork work(comm_);
    if (commit_->thread.joinable()) commit_->thread.join();
    seconds = commit_->written_s + commit_->committed_s;
    commit_.reset();  // an unfinished folder goes
  }
  phase_ = Phase::kIdle;
  return {.step = step_,
          .folder = setup_.checkpoints_dir + "/" + files::checkpoint_name(step_),
          .problem = dist::broadcast_text(comm_, std::move(problem)),
          .seconds = seconds};
}

bool CheckpointSaver::reads_state() const { return writer_ && writer_->reads_state(); }

void CheckpointSaver::before_update(const parallel::Range& arena) {
  if (!writer_) return;
  const ScopedTimer timer(&update_waited_s_);
  writer_->before_update(arena, ctx_);
}

}  // namespace ditrain::checkpoint
