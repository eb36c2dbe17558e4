#include "state_writer.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/platform/affinity.hpp"

namespace ditrain::checkpoint {
namespace {

constexpr size_t kThreads = 2;  // one copies and sums while the disk works for the other

bool overlap(const parallel::Range& a, const parallel::Range& b) { return a.begin < b.end && b.begin < a.end; }

}  // namespace

StateWriter::StateWriter(const std::string& folder, size_t num_files, std::vector<StatePiece> pieces,
                         std::span<std::byte> buffer, std::vector<int> pus, dist::Communicator& comm)
    : files_(num_files), buffer_(buffer), pus_(std::move(pus)), comm_(comm) {
  for (const StatePiece& piece : pieces) items_.push_back({piece});
  unread_ = unwritten_ = items_.size();
  const bool made_files = comm.rank() == 0;  // their beginnings are not synced yet
  try {
    for (size_t i = 0; i < files_.size(); ++i)
      if (made_files || std::any_of(pieces.begin(), pieces.end(), [&](const auto& piece) { return piece.file == i; }))
        files_[i] = std::make_unique<files::PieceFile>(folder + "/" + kTensorFiles[i]);
  } catch (const RunError&) {
    end(std::current_exception());
    return;
  }
  if (items_.empty() && !made_files) {  // other ranks write all there is
    end(nullptr);
    return;
  }
  try {
    const size_t num_threads = std::clamp(items_.size(), size_t{1}, kThreads);
    for (size_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {  // fewer threads do it, too
    if (threads_.empty()) end(std::current_exception());
  }
}

StateWriter::~StateWriter() {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

// After an error no piece is begun any more; those that another thread is at are still read.
void StateWriter::end(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (error && !error_) error_ = std::move(error);
  for (Item& item : items_)
    if (item.state == PieceState::kWaiting) item.state = PieceState::kReleased, --unread_;
  done_ = true;
  seconds_ = now_s() - begin_s_;
  changed_.notify_all();
}

// Pieces that are still read from the arenas come first, because an update may wait for them; then the buffered ones.
StateWriter::Item* StateWriter::next() {
  while (next_waiting_ < items_.size() && items_[next_waiting_].state != PieceState::kWaiting) ++next_waiting_;
  if (next_waiting_ < items_.size()) {
    Item* item = &items_[next_waiting_++];
    item->state = PieceState::kBeingWritten;
    return item;
  }
  if (copied_.empty()) return nullptr;
  Item* item = copied_.back();
  copied_.pop_back();
  return item;
}

bool StateWriter::write_next(const files::PieceFile::Staging& staging) {
  Item* item = nullptr;
  {
    std::unique_lock lock(mutex_);
    // Pieces that are being copied come into the buffer soon.
    changed_.wait(lock, [&] { return cancelled_ || done_ || unwritten_ == 0 || (item = next()) != nullptr; });
    if (item == nullptr) return false;
  }
  std::exception_ptr error;
  try {
    write(*item, staging);
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    if (error && !error_) error_ = error;  // before another thread can think that all is written
    if (item->state == PieceState::kBeingWritten) --unread_;
    item->state = PieceState::kReleased;
    --unwritten_;
    changed_.notify_all();
  }
  if (error) std::rethrow_exception(error);
  return true;
}

void StateWriter::write(Item& item, const files::PieceFile::Staging& staging) const {
  CheckedPiece& place = item.piece.place;
  std::optional<Pin<void>> pin;
  if (item.copy == nullptr) pin.emplace(item.piece.data, Access::kRead);
  const auto* data = pin ? static_cast<const std::byte*>(pin->get()) : item.copy;
  const auto n = int64_t(place.bytes() / sizeof(float));
  if (kernels::find_non_finite(reinterpret_cast<const float*>(data), n) >= 0)
    throw RunError({.where = files_[item.piece.file]->path(),
                    .what = "the state of the run holds a number that is not finite: no run could go on from it"});
  files::Checksum sum;
  for (uint64_t row = 0; row < place.rows; ++row)
    files_[item.piece.file]->write(place.offset + row * place.stride, data + row * place.run, place.run, sum, staging);
  place.checksum = sum.value();
}

void StateWriter::work() try {
  const dist::DiskWork disk_work(comm_);
  if (!pus_.empty()) platform::set_affinity_mask(pus_);
  const files::PieceFile::Staging staging;
  while (write_next(staging)) disk_work.moved();
  {
    const std::lock_guard lock(mutex_);
    if (cancelled_ || done_ || error_ || unwritten_ > 0 || std::exchange(syncing_, true)) return;
  }
  for (const auto& file : files_)
    if (file) file->sync(), disk_work.moved();
  end(nullptr);
} catch (...) {
  end(std::current_exception());
}

void StateWriter::before_update(const parallel::Range& arena, ops::Context& ctx) {
  std::vector<Item*> take, wait_for;
  {
    const std::lock_guard lock(mutex_);
    if (unread_ == 0) return;
    for (Item& item : items_) {
      if (!overlap(item.piece.arena, arena)) continue;
      const size_t bytes = item.piece.place.bytes();
      if (item.state == PieceState::kWaiting && copied_bytes_ + bytes <= buffer_.size()) {
        item.state = PieceState::kBeingCopied;
        take.push_back(&item);
        copied_bytes_ += bytes;
      } else if (item.state == PieceState::kWaiting || item.state == PieceState::kBeingWritten) {
        wait_for.push_back(&item);
      }
    }
  }
  size_t at = copied_bytes_;
  std::vector<std::byte*> to(take.size());
  for (size_t i = take.size(); i-- > 0;) to[i] = buffer_.data() + (at -= take[i]->piece.place.bytes());
  ctx.for_range(ops::WorkKind::kOptimizer, int64_t(take.size()), 1,
                [&](int64_t begin, int64_t end, const parallel::Worker&) {
                  for (int64_t i = begin; i < end; ++i)
                    std::memcpy(to[size_t(i)], Pin<void>(take[size_t(i)]->piece.data, Access::kRead).get(),
                                take[size_t(i)]->piece.place.bytes());
                });
  std::unique_lock lock(mutex_);
  for (size_t i = 0; i < take.size(); ++i) {
    take[i]->copy = to[i];
    take[i]->state = PieceState::kCopied;
    copied_.push_back(take[i]);
    --unread_;
  }
  changed_.notify_all();
  changed_.wait(lock, [&] {
    return std::all_of(wait_for.begin(), wait_for.end(),
                       [](const Item* item) { return item->state == PieceState::kReleased; });
  });
}

bool StateWriter::reads_state() const {
  const std::lock_guard lock(mutex_);
  return unread_ > 0;
}

bool StateWriter::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void StateWriter::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_; });
}

std::vector<StatePiece> StateWriter::written() const {
  const std::lock_guard lock(mutex_);
  DITRAIN_CHECK(done_, "a checkpoint that is still written");
  if (error_) std::rethrow_exception(error_);
  std::vector<StatePiece> pieces;
  for (const Item& item : items_) pieces.push_back(item.piece);
  return pieces;
}

}  // namespace ditrain::checkpoint
