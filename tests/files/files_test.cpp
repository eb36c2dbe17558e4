#include "ditrain/files/files.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cmath>
#include <fstream>

#include "ditrain/base/error.hpp"
#include "ditrain/files/checkpoint_folder.hpp"
#include "ditrain/files/crc32.hpp"
#include "file_size_limit.hpp"
#include "support/files.hpp"
#include "support/without_rights.hpp"

using namespace ditrain;
using namespace ditrain::files;
using Catch::Contains;

namespace {

size_t num_entries(const std::string& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

}  // namespace

TEST_CASE("a file is replaced as a whole or not at all") {
  TemporaryFolder folder;
  const std::string path = folder / "state.json";
  write_file_atomically(path, "one");
  write_file_atomically(path, "two");
  CHECK(get_file(path) == "two");
  {
    const FileSizeLimit limit(10);
    CHECK_THROWS_WITH(write_file_atomically(path, std::string(11, 'x')), Contains("File too large"));
  }
  CHECK(get_file(path) == "two");
  CHECK(num_entries(folder.path()) == 1);
  std::filesystem::create_directory(folder / "taken");
  CHECK_THROWS_WITH(write_file_atomically(folder / "taken", "x"), Contains("cannot replace the file"));
  CHECK(num_entries(folder.path()) == 2);
  CHECK_THROWS_AS(write_file_atomically(folder / "absent/x", "x"), RunError);
}

TEST_CASE("a link stays, and its target is written") {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder / "results");
  std::filesystem::create_symlink("results/report.json", folder / "link");
  std::filesystem::create_symlink(folder / "link", folder / "second");
  for (const char* content : {"one", "two"}) {  // the target is not there yet; it is
    check_output_file(folder / "second");
    write_file_atomically(folder / "second", content);
    CHECK(get_file(folder / "results/report.json") == content);
  }
  CHECK(std::filesystem::is_symlink(folder / "link"));
  CHECK(std::filesystem::is_symlink(folder / "second"));
  CHECK(num_entries(folder.path()) == 3);
  CHECK(num_entries(folder / "results") == 1);
  std::filesystem::create_symlink("absent/report.json", folder / "astray");
  CHECK_THROWS_WITH(check_output_file(folder / "astray"), Contains("no folder " + folder / "absent"));
  std::filesystem::create_symlink("loop", folder / "loop");
  CHECK_THROWS_WITH(check_output_file(folder / "loop"), Contains("symbolic links"));
}

TEST_CASE("no device is replaced, nor a descriptor of a process") {
  TemporaryFolder folder;
  std::filesystem::create_symlink("/dev/stdout", folder / "link");
  for (const std::string& path : {std::string("/dev/stdout"), std::string("/proc/self/fd/1"),
                                  std::string("/dev/ditrain.json"), folder / "link"}) {
    CAPTURE(path);
    CHECK_THROWS_AS(check_output_file(path), InputError);
    CHECK_THROWS_WITH(PendingFile(path), Contains("below /dev or /proc; try the name of a file in another folder"));
  }
  CHECK_NOTHROW(PendingFile("/dev/shm/ditrain.json"));
}

TEST_CASE("a file writer keeps what is finished and removes what is not") {
  TemporaryFolder folder;
  {
    FileWriter file(folder / "unfinished");
    file.write("abc", 3);
  }
  CHECK(!std::filesystem::exists(folder / "unfinished"));
  FileWriter file(folder / "finished");
  file.write("abcdef", 6);
  file.overwrite(1, "XY", 2);
  CHECK_THROWS_AS(file.overwrite(5, "XY", 2), LogicFault);
  file.finish();
  CHECK_THROWS_AS(file.write("x", 1), LogicFault);
  CHECK(get_file(folder / "finished") == "aXYdef");
}

TEST_CASE("text files are read up to a limit") {
  TemporaryFolder folder;
  const std::string content(100'000, 'x');
  put_file(folder / "f", content);
  CHECK(read_text_file(folder / "f", 100'000) == content);
  CHECK_THROWS_WITH(read_text_file(folder / "f", 99'999), Contains("too large; expected at most 99999 bytes"));
  CHECK_THROWS_AS(read_text_file(folder / "f", 0), InputError);
  CHECK_THROWS_WITH(read_text_file(folder / "absent", 10), Contains("cannot open the file; got No such file"));
  CHECK_THROWS_WITH(read_text_file(folder.path(), 10), Contains("not a regular file"));
  put_file(folder / "empty", "");
  CHECK(read_text_file(folder / "empty", 0).empty());
  // Files whose size is unknown before reading.
  CHECK(read_text_file("/proc/self/status", 1 << 20).starts_with("Name:"));
  // A FIFO must not make the program wait.
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(read_text_file(folder / "fifo", 10), Contains("not a regular file"));
}

TEST_CASE("lines are appended") {
  TemporaryFolder folder;
  append_line(folder / "metrics.jsonl", "{}");
  append_line(folder / "metrics.jsonl", "{\"step\": 1}");
  CHECK(get_file(folder / "metrics.jsonl") == "{}\n{\"step\": 1}\n");
  CHECK_THROWS_WITH(append_line("/dev/full", "x"), Contains("appending 2 bytes failed; got No space left"));
}

TEST_CASE("a line that fits only in part is taken back") {
  TemporaryFolder folder;
  append_line(folder / "log", "first");
  {
    const FileSizeLimit limit(10);
    CHECK_THROWS_WITH(append_line(folder / "log", "second"), Contains("appending 7 bytes failed; got only 4 written"));
  }
  CHECK(get_file(folder / "log") == "first\n");
  append_line(folder / "log", "third");
  CHECK(get_file(folder / "log") == "first\nthird\n");
}

TEST_CASE("output folders are made with their parents, and what is in the way is named") {
  TemporaryFolder folder;
  make_output_folder(folder / "a/b/c");
  make_output_folder(folder / "a/b/c");
  CHECK(std::filesystem::is_directory(folder / "a/b/c"));
  put_file(folder / "file", "x");
  CHECK_THROWS_AS(make_output_folder(folder / "file/sub"), InputError);
  CHECK_THROWS_WITH(make_output_folder("/proc/ditrain"), Contains("[/proc/ditrain]"));
}

TEST_CASE("output folders are made where names can be made, though not listed") {
  TemporaryFolder folder;
  REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
  std::filesystem::create_directory(folder / "box");
  REQUIRE(::chmod((folder / "box").c_str(), 01733) == 0);
  {
    const WithoutRights user;
    CHECK_NOTHROW(make_output_folder(folder / "box/run/samples"));
  }
  CHECK(std::filesystem::is_directory(folder / "box/run/samples"));
}

TEST_CASE("output folders are made beside the target of a link") {
  TemporaryFolder folder;
  std::filesystem::create_directories(folder / "other/target");
  std::filesystem::create_directories(folder / "other/runs");
  std::filesystem::create_directory_symlink("other/target", folder / "link");
  CHECK_NOTHROW(make_output_folder(folder / "link/../runs/a/b"));
  CHECK(std::filesystem::is_directory(folder / "other/runs/a/b"));
}

TEST_CASE("what killed writers left in a folder is removed, and nothing else") {
  TemporaryFolder folder;
  put_file(folder / ".config.yaml.tmp_0123456789abcdef", "x");
  put_file(folder / ".notes.tmp_2024.tmp_0123456789abcdef", "x");
  const std::vector<std::string> others = {".config.yaml",
                                           "config.yaml",
                                           ".notes.tmp_mine",
                                           ".notes.tmp_2024",
                                           ".notes.tmp_0123456789abcdef0",
                                           ".notes.tmp_0123456789abcde_",
                                           ".tmp_0123456789abcdef",
                                           "a.tmp_0123456789abcdef"};
  for (const std::string& name : others) put_file(folder / name, "x");
  std::filesystem::create_directory(folder / ".folder.tmp_1");
  remove_stale_files(folder.path());
  CHECK(num_entries(folder.path()) == others.size() + 1);
  for (const std::string& name : others) CHECK(std::filesystem::exists(folder / name));
  CHECK_NOTHROW(remove_stale_files(folder / "absent"));
}

TEST_CASE("an error of the path is one of the input, any other says nothing of the file") {
  CHECK_THROWS_AS(fail_to_read("f", "cannot open the file", ENOENT), OpenError);
  CHECK_THROWS_AS(fail_to_read("f", "cannot open the file", EACCES), OpenError);
  for (const int error : {EIO, ESTALE, EMFILE, ENFILE, EINTR, EAGAIN, ENOMEM})
    CHECK_THROWS_AS(fail_to_read("f", "cannot read the file", error), RunError);
  CHECK_THROWS_WITH(fail_to_read("f", "cannot read the file", EIO), "[f] cannot read the file; got Input/output error");
}

TEST_CASE("a file that is there under the name of data, weights or a config is no report of before") {
  TemporaryFolder folder;
  for (const char* name : {"config.yaml", "scene.tif", "weights.safetensors", "statistics.npz"}) {
    check_output_file(folder / name);
    write_file_atomically(folder / name, "kept");
    CHECK_THROWS_WITH(check_output_file(folder / name), Contains("whose name is that of another kind"));
  }
  check_output_file(folder / "statistics.npz", ".npz");
  write_file_atomically(folder / "rows.json", "[]");
  check_output_file(folder / "rows.json");
}

TEST_CASE("whether a file can be written is found out without leaving anything") {
  TemporaryFolder folder;
  put_file(folder / "file", "old");
  check_output_file(folder / "file");
  check_output_file(folder / "new");
  CHECK(get_file(folder / "file") == "old");
  CHECK(num_entries(folder.path()) == 1);
  const auto refused = [&](const std::string& path, const std::string& text) {
    CHECK_THROWS_AS(check_output_file(path), InputError);
    CHECK_THROWS_WITH(check_output_file(path),
                      Contains("[" + path + "] cannot write this file; got ") && Contains(text));
  };
  refused(folder / "a/b/new", "no folder " + folder / "a/b" + "; try mkdir -p " + folder / "a/b");
  refused(folder / "file/new", "which is not a folder");
  refused(folder.path(), "a folder; try the name of a file in it");
  refused("/dev/null", "a device");
  refused("/proc/ditrain.json", "below /dev or /proc");
}

TEST_CASE("a folder that is not there cannot be made durable") {
  TemporaryFolder folder;
  CHECK_THROWS_AS(fsync_directory(folder / "absent"), RunError);
}

TEST_CASE("crc32 equals the published check value, in pieces too") {
  CHECK(crc32(0, "123456789", 9) == 0xCBF43926u);
  CHECK(crc32(0, "", 0) == 0);
  CHECK(crc32(0xCBF43926u, nullptr, 0) == 0xCBF43926u);
  const std::string text(1000, 'q');
  for (size_t cut = 0; cut < 20; ++cut)
    CHECK(crc32(crc32(0, text.data(), cut), text.data() + cut, text.size() - cut) == crc32(0, text.data(), 1000));
}

TEST_CASE("free bytes are those of the nearest folder that exists, and unknown where the system counts no blocks") {
  const TemporaryFolder scratch;
  const auto here = files::free_bytes(scratch.path()), below = files::free_bytes(scratch / "not/there/yet");
  REQUIRE((here && below));
  CHECK(*here > 0);
  CHECK(std::abs(*here - *below) < 0.1 * *here);
  CHECK_FALSE(files::free_bytes("/proc"));
}

TEST_CASE("checkpoints are counted for hints, which end no run") {
  const TemporaryFolder scratch;
  std::ofstream(scratch / "file") << "no folder";
  CHECK(files::count_checkpoints(scratch / "none") == 0);
  CHECK(files::count_checkpoints(scratch / "file") == 0);
}
