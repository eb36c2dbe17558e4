#include "disk_states.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <stdexcept>

#include "ditrain/files/checksum.hpp"
#include "run.hpp"

namespace ditrain::e2e {
namespace {

namespace fs = std::filesystem;

// The half of a write that a torn one leaves: whole sectors, where it has several.
size_t torn(size_t bytes) { return bytes >= 1024 ? bytes / 2 / 512 * 512 : bytes / 2; }

}  // namespace

void DiskState::write(const std::string& folder) const {
  for (const std::string& path : folders) fs::create_directories(folder + path);
  for (const auto& [path, content] : files) write_file(folder + path, content);
  for (const auto& [path, target] : links) fs::create_symlink(target, folder + path);
}

uint64_t DiskState::hash(const std::string& left_out) const {
  files::Checksum sum;
  const auto add = [&](const std::string& text) {
    const uint64_t bytes = text.size();
    sum.add(&bytes, sizeof bytes);
    sum.add(text.data(), text.size());
  };
  for (const std::string& path : folders) add(path);
  for (const auto* named : {&files, &links})
    for (const auto& [path, content] : *named)
      if (!path.ends_with(left_out)) add(path), add(content);
  return sum.value();
}

DiskRecord::DiskRecord(const std::string& file, const std::string& root) {
  struct stat info {};
  if (::stat(root.c_str(), &info) != 0) throw std::runtime_error("no folder " + root);
  objects_[info.st_ino] = 0;
  parse(read_file(file));
  leave_out_sync_site("");
  const DiskState all = state(size(), [](size_t) { return Fate::kDone; });
  for (const auto& [path, content] : folder_content(root)) {
    const std::string name = path.substr(root.size());
    if (name.ends_with("/log.txt")) continue;
    const auto& named = fs::is_symlink(path) ? all.links : all.files;
    if (!named.contains(name) || named.at(name) != content)
      throw std::runtime_error("the record does not give " + path);
  }
  for (const auto* named : {&all.files, &all.links})
    for (const auto& [path, content] : *named)
      if (!fs::is_symlink(fs::symlink_status(root + path)) && !fs::exists(root + path))
        throw std::runtime_error("the record gives " + path + ", which is not there");
}

void DiskRecord::parse(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    std::istringstream head(text.substr(at, end - at));
    std::string kind;
    uint64_t file = 0, other = 0;
    Operation op;
    size_t bytes = 0;
    if (!(head >> kind >> op.process >> file >> other >> op.offset >> bytes)) throw std::runtime_error("bad record");
    const std::string data = text.substr(end + 1, bytes);
    at = end + 1 + bytes;
    const auto object_at = [&](uint64_t inode) {
      if (!objects_.contains(inode)) throw std::runtime_error(kind + " of a file that was never created");
      return objects_.at(inode);
    };
    const auto make = [&](char what, const std::string& target) {
      kinds_.push_back(what), targets_.push_back(target);
      return int(kinds_.size()) - 1;
    };
    const size_t zero = data.find('\0');
    if (kind == "create" || kind == "mkdir") {
      const int object = objects_[other] = make(kind == "mkdir" ? 'd' : 'f', "");
      op.names = {{{object_at(file), data}, object}};
    } else if (kind == "link") {
      op.names = {{{object_at(file), data.substr(0, zero)}, make('l', data.substr(zero + 1))}};
    } else if (kind == "remove") {
      op.names = {{{object_at(file), data}, -1}};
    } else if (kind == "rename") {
      const Entry from{object_at(file), data.substr(0, zero)}, to{object_at(other), data.substr(zero + 1)};
      op.names = {{from, -1}, {to, names_.at(from)}};
    } else if (kind == "write" || kind == "size") {
      op.file = object_at(file), op.sets_size = kind == "size", op.data = data;
    } else if (kind == "sync") {
      op.synced = object_at(file), op.sync_site = data;
    } else if (kind == "say") {
      op.line = data;
    }
    for (const auto& [entry, object] : op.names) object < 0 ? void(names_.erase(entry)) : void(names_[entry] = object);
    operations_.push_back(std::move(op));
  }
}

// A name that moves between folders lasts once the folder that it moved into was synced.
void DiskRecord::leave_out_sync_site(const std::string& site) {
  std::vector<size_t> open;  // operations that nothing has made to last yet
  for (size_t i = 0; i < operations_.size(); ++i) {
    const Operation& sync = operations_[i];
    operations_[i].lasts_from = size_t(-1);
    if (is_write(i) || is_of_names(i)) open.push_back(i);
    if (sync.synced < 0 || (!site.empty() && sync.sync_site == site)) continue;
    std::erase_if(open, [&](size_t earlier) {
      Operation& op = operations_[earlier];
      const bool is_content = op.file == sync.synced && op.process == sync.process;
      if (!is_content && (op.names.empty() || op.names.back().first.first != sync.synced)) return false;
      op.lasts_from = i;
      return true;
    });
  }
}

std::set<std::string> DiskRecord::sync_sites() const {
  std::set<std::string> sites;
  for (const Operation& op : operations_)
    if (op.synced >= 0) sites.insert(op.sync_site);
  return sites;
}

std::vector<size_t> DiskRecord::pending(size_t cut) const {
  std::vector<size_t> found;
  for (size_t i = 0; i < cut; ++i)
    if ((is_write(i) || !operations_[i].names.empty()) && operations_[i].lasts_from >= cut) found.push_back(i);
  return found;
}

DiskState DiskRecord::state(size_t cut, const std::function<Fate(size_t operation)>& fate) const {
  std::map<int, std::vector<std::pair<size_t, Fate>>> writes;  // by file, in order
  std::map<int, std::map<std::string, int>> folders;
  for (size_t i = 0; i < cut; ++i) {
    const Operation& op = operations_[i];
    const Fate became = op.lasts_from < cut ? Fate::kDone : fate(i);
    if (became == Fate::kLost) continue;
    for (const auto& [entry, object] : op.names)
      object < 0 ? void(folders[entry.first].erase(entry.second)) : void(folders[entry.first][entry.second] = object);
    if (op.file >= 0) writes[op.file].emplace_back(i, became);
  }
  const auto content_of = [&](int file) {
    std::string content;
    for (const auto& [i, became] : writes[file]) {
      const Operation& op = operations_[i];
      const auto begin = size_t(op.offset);
      if (op.sets_size) {
        content.resize(begin, '\0');
        continue;
      }
      const size_t bytes = became == Fate::kTorn ? torn(op.data.size()) : op.data.size();
      content.resize(std::max(content.size(), begin + bytes), '\0');
      if (became != Fate::kZeros) content.replace(begin, bytes, op.data, 0, bytes);
    }
    return content;
  };
  DiskState state;
  const std::function<void(int, const std::string&)> walk = [&](int folder, const std::string& path) {
    state.folders.push_back(path);
    for (const auto& [name, object] : folders[folder]) {
      const std::string at = path + "/" + name;
      if (kinds_[size_t(object)] == 'd') walk(object, at);
      if (kinds_[size_t(object)] == 'f') state.files[at] = content_of(object);
      if (kinds_[size_t(object)] == 'l') state.links[at] = targets_[size_t(object)];
    }
  };
  walk(0, "");
  return state;
}

}  // namespace ditrain::e2e
