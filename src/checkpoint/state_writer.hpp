// Writes the pieces of a checkpoint beside the training, straight from the arenas. Forward and backward only read
// those; before an update changes some of their bytes, what has not been written of them is copied into a bounded
// buffer, or waited for where that is full.
#pragma once
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "ditrain/base/clock.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/files/piece_file.hpp"
#include "ditrain/ops/context.hpp"
#include "state_pieces.hpp"

namespace ditrain::checkpoint {

class StateWriter {
 public:
  /// Starts to write. Rank 0 has made the files by files::PieceFile::create, and syncs all of them here; the other
  /// ranks sync those that they write to. `buffer` outlives the object. `pus`: cores for its threads. `comm`: its ranks
  /// wait for what is written here.
  StateWriter(const std::string& folder, size_t num_files, std::vector<StatePiece> pieces, std::span<std::byte> buffer,
              std::vector<int> pus, dist::Communicator& comm);
  ~StateWriter();  ///< gives up what has not been written
  StateWriter(const StateWriter&) = delete;
  StateWriter& operator=(const StateWriter&) = delete;

  /// Returns when these elements of the arenas may change: at once where nothing is read any more.
  void before_update(const parallel::Range& arena, ops::Context& ctx);
  bool reads_state() const;  ///< whether before_update has anything to do
  /// Whether all is on the disk, or has failed.
  bool done() const;
  void wait();
  double seconds() const { return seconds_; }  ///< after wait: that writing took
  /// After wait: the pieces with their checksums. Errors: RunError of the first piece that could not be written
  std::vector<StatePiece> written() const;

 private:
  enum class PieceState { kWaiting, kBeingWritten, kBeingCopied, kCopied, kReleased };
  struct Item {
    StatePiece piece;
    PieceState state = PieceState::kWaiting;
    const std::byte* copy = nullptr;  // in the buffer, once there is one
  };
  void work();
  bool write_next(const files::PieceFile::Staging& staging);
  void write(Item& item, const files::PieceFile::Staging& staging) const;
  Item* next();
  void end(std::exception_ptr error);

  std::vector<std::unique_ptr<files::PieceFile>> files_;  // null where this rank writes nothing
  std::span<std::byte> buffer_;
  const std::vector<int> pus_;
  dist::Communicator& comm_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Item> items_;
  size_t next_waiting_ = 0, unread_ = 0, unwritten_ = 0, copied_bytes_ = 0;
  std::vector<Item*> copied_;  // to be written from the buffer
  bool cancelled_ = false, syncing_ = false, done_ = false;
  const double begin_s_ = now_s();
  double seconds_ = 0;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace ditrain::checkpoint
