// What a disk may hold after a power cut: built from the operations that tests/support/recording_disk.cpp recorded.
//
// Rules, weaker than those of any file system that is in use, so that what holds under them holds there:
// - what a process wrote to a file lasts once that process has synced the file (another node's sync does not help);
// - a name in a folder (created, renamed, removed) lasts once the folder has been synced;
// - of what has not been made to last, any subset is there, in the order in which it was done: a removal may last while
//   the rename before it is lost, and a write may be torn, or leave zeros.
//
//   const DiskRecord record(file, root);
//   record.state(cut, [](size_t operation) { return Fate::kLost; }).write(folder);
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace ditrain::e2e {

/// What became of an operation that nothing had made to last. Of a write, kTorn leaves the first half, and kZeros its
/// length without its content.
enum class Fate { kLost, kDone, kTorn, kZeros };

struct DiskState {
  std::map<std::string, std::string> files = {}, links = {};  ///< by path below the root: content, target
  std::vector<std::string> folders = {};

  void write(const std::string& folder) const;
  /// Of all names and contents but those of files whose path ends with `left_out`.
  uint64_t hash(const std::string& left_out) const;
};

class DiskRecord {
 public:
  /// `root`: the folder that was recorded, as it is now. Throws where what was recorded does not give what is there,
  /// apart from log.txt, whose writes cannot be seen.
  DiskRecord(const std::string& file, const std::string& root);

  size_t size() const { return operations_.size(); }
  /// The line of the log that an operation is; empty for all others.
  const std::string& line(size_t operation) const { return operations_[operation].line; }
  std::set<std::string> sync_sites() const;
  /// From now on, as if the program did not sync there; empty: as it was recorded.
  void leave_out_sync_site(const std::string& site);
  /// Operations before `cut` that nothing has made to last until then.
  std::vector<size_t> pending(size_t cut) const;
  bool is_write(size_t operation) const { return operations_[operation].file >= 0; }
  bool is_of_names(size_t operation) const { return !operations_[operation].names.empty(); }
  DiskState state(size_t cut, const std::function<Fate(size_t operation)>& fate) const;

 private:
  using Entry = std::pair<int, std::string>;  // folder and name
  struct Operation {
    int process = 0;
    int file = -1;  // of a write, or a change of size
    int64_t offset = 0;
    bool sets_size = false;
    std::string data = {};
    std::vector<std::pair<Entry, int>> names = {};  // new objects of names; -1: the name goes
    int synced = -1;                                // file or folder
    std::string line = {}, sync_site = {};
    size_t lasts_from = size_t(-1);  // number of the sync after which nothing can undo it
  };
  void parse(const std::string& text);

  std::vector<Operation> operations_;
  std::vector<std::string> targets_ = {""};  // of links, by object; object 0 is the root
  std::vector<char> kinds_ = {'d'};          // d, f, l
  std::map<uint64_t, int> objects_;          // by inode, now
  std::map<Entry, int> names_;               // now
};

}  // namespace ditrain::e2e
