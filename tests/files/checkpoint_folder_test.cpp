#include "ditrain/files/checkpoint_folder.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>

#include "ditrain/base/error.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "file_size_limit.hpp"
#include "support/files.hpp"
#include "support/without_rights.hpp"

using namespace ditrain;
using namespace ditrain::files;
namespace fs = std::filesystem;
using Catch::Contains;
using Steps = std::vector<int64_t>;

namespace {

void fill(const std::string& folder, const std::string& content) {
  for (const char* name : kCheckpointFiles) put_file(folder + "/" + name, content);
}

void commit_step(const std::string& dir, int64_t step, const std::string& content = "x") {
  CheckpointWriter writer(dir, step);
  fill(writer.folder(), content);
  writer.commit();
}

std::vector<std::string> hidden_names(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir))
    if (entry.path().filename().string().starts_with(".")) names.push_back(entry.path().filename().string());
  return names;
}

void point_latest_to(const std::string& dir, const std::string& target) {
  fs::remove(dir + "/latest");
  fs::create_symlink(target, dir + "/latest");
}

// Runs `body` in a child that is killed by itself there; true if it died of SIGKILL.
template <class Body>
bool killed(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

int symlink_error = 0;  // with which a file system without symlinks refuses them

}  // namespace

// In the place of that of the C library.
extern "C" int symlink(const char* target, const char* path) noexcept {
  if (symlink_error != 0) return errno = symlink_error, -1;
  return int(::syscall(SYS_symlinkat, target, AT_FDCWD, path));
}

TEST_CASE("a checkpoint appears with commit, and latest is a relative symlink to it") {
  TemporaryFolder folder;
  const std::string dir = folder / "out/checkpoints";
  CHECK(list_checkpoints(dir).empty());
  CHECK(!latest_checkpoint(dir));
  {
    CheckpointWriter writer(dir, 1000);
    fill(writer.folder(), "x");
    CHECK(!latest_checkpoint(dir));
    writer.commit();
  }
  CHECK(fs::read_symlink(dir + "/latest") == "step_00001000");
  CHECK(latest_checkpoint(dir) == dir + "/step_00001000");
  CHECK(get_file(dir + "/step_00001000/state.json") == "x");
  CHECK(hidden_names(dir).empty());
  commit_step(dir, 200'000'000);
  commit_step(dir, 0);
  CHECK(list_checkpoints(dir) == Steps{0, 1000, 200'000'000});
  CHECK(latest_checkpoint(dir) == dir + "/step_00000000");
}

TEST_CASE("without commit nothing stays, and an incomplete checkpoint cannot be committed") {
  TemporaryFolder folder;
  {
    CheckpointWriter writer(folder.path(), 5);
    put_file(writer.folder() + "/model.safetensors", "x");
    CHECK_THROWS_AS(writer.commit(), LogicFault);
  }
  CHECK(hidden_names(folder.path()).empty());
  CHECK(!latest_checkpoint(folder.path()));
}

TEST_CASE("a step that is written again replaces the old one") {
  TemporaryFolder folder;
  commit_step(folder.path(), 7, "old");
  commit_step(folder.path(), 7, "new");
  CHECK(get_file(folder / "step_00000007/model.safetensors") == "new");
  CHECK(list_checkpoints(folder.path()) == Steps{7});
  CHECK(hidden_names(folder.path()).empty());
}

TEST_CASE("latest falls back to the highest complete step when it is broken") {
  TemporaryFolder folder;
  const std::string& dir = folder.path();
  for (const int64_t step : {1, 2, 3}) commit_step(dir, step);
  point_latest_to(dir, "step_00000002");  // a user who goes back
  CHECK(latest_checkpoint(dir) == folder / "step_00000002");
  point_latest_to(dir, "step_00000009");
  CHECK(latest_checkpoint(dir) == folder / "step_00000003");
  point_latest_to(dir, "../somewhere");
  CHECK(latest_checkpoint(dir) == folder / "step_00000003");
  fs::remove(dir + "/latest");
  CHECK(latest_checkpoint(dir) == folder / "step_00000003");
  fs::remove(dir + "/step_00000003/optimizer.safetensors");
  point_latest_to(dir, "step_00000003");
  CHECK(latest_checkpoint(dir) == folder / "step_00000002");
  CHECK(list_checkpoints(dir) == Steps{1, 2});
}

TEST_CASE("a checkpoint that lacks a file is a candidate to resume from, with the file's name") {
  TemporaryFolder folder;
  const std::string& dir = folder.path();
  for (const int64_t step : {1, 2, 3}) commit_step(dir, step);
  fs::remove(dir + "/step_00000002/state.json");
  CHECK(missing_file(dir + "/step_00000002") == "state.json");
  CHECK(missing_file(dir + "/step_00000001").empty());
  point_latest_to(dir, "step_00000002");
  CHECK(checkpoints_to_resume(dir) ==
        std::vector<std::string>{folder / "step_00000002", folder / "step_00000003", folder / "step_00000001"});
  CHECK(discard_checkpoints_after(dir, 1) ==
        std::vector<std::string>{folder / "discarded_step_00000002", folder / "discarded_step_00000003"});
}

TEST_CASE("what the system does not tell is an error, not a checkpoint less") {
  TemporaryFolder folder;
  const std::string& dir = folder.path();
  for (const int64_t step : {1, 2}) commit_step(dir, step);
  fs::remove(dir + "/step_00000002/ema.safetensors");
  fs::create_symlink("ema.safetensors", dir + "/step_00000002/ema.safetensors");  // a link to itself
  CHECK_THROWS_WITH(list_checkpoints(dir), Contains("step_00000002/ema.safetensors") && Contains("symbolic links"));
  CHECK_THROWS_AS(latest_checkpoint(dir), RunError);
  CHECK_THROWS_AS(discard_checkpoints_after(dir + "/latest/model.safetensors", 0), OpenError);
  CHECK_NOTHROW(prune_checkpoints(dir, 1, 0));
  CHECK(fs::exists(dir + "/step_00000001/ema.safetensors"));
}

TEST_CASE("a writer that outlives its run writes into nothing of the next one") {
  TemporaryFolder folder;
  const std::string& dir = folder.path();
  CheckpointWriter old(dir, 7);
  fill(old.folder(), "old");
  remove_stale_temporaries(dir);  // what the next run does
  CheckpointWriter next(dir, 7);
  CHECK(next.folder() != old.folder());
  fill(next.folder(), "next");
  CHECK_THROWS(old.commit());
  next.commit();
  CHECK(get_file(folder / "step_00000007/model.safetensors") == "next");
  CHECK(list_checkpoints(dir) == Steps{7});
}

TEST_CASE("a commit that ends between its two renames is finished by the next run") {
  TemporaryFolder folder;
  const std::string& dir = folder.path();
  commit_step(dir, 1);
  fs::create_directory(folder / "step_00000002");
  fill(folder / "step_00000002", "x");
  fs::create_symlink("step_00000002", folder / ".tmp_latest.0123456789abcdef");
  SECTION("if nobody made another link since") {
    remove_stale_temporaries(dir);
    CHECK(fs::read_symlink(folder / "latest") == "step_00000002");
  }
  SECTION("not if its checkpoint is not whole") {
    fs::remove(folder / "step_00000002/state.json");
    remove_stale_temporaries(dir);
    CHECK(fs::read_symlink(folder / "latest") == "step_00000001");
  }
  SECTION("not if somebody did") {
    const timespec times[2] = {{0, 0}, {0, 0}};
    REQUIRE(::utimensat(AT_FDCWD, (folder / ".tmp_latest.0123456789abcdef").c_str(), times, AT_SYMLINK_NOFOLLOW) == 0);
    remove_stale_temporaries(dir);
    CHECK(fs::read_symlink(folder / "latest") == "step_00000001");
  }
  CHECK(hidden_names(dir).empty());
}

TEST_CASE("a commit that cannot set latest leaves a whole checkpoint, from which the next run goes on") {
  TemporaryFolder folder;
  const std::string& dir = folder.path();
  commit_step(dir, 1);
  fs::remove(folder / "latest");
  fs::create_directories(folder / "latest/in the way");
  CHECK_THROWS_AS(commit_step(dir, 2), RunError);
  CHECK(list_checkpoints(dir) == Steps{1, 2});
  fs::remove_all(folder / "latest");
  point_latest_to(dir, "step_00000001");
  const timespec times[2] = {{0, 0}, {0, 0}};  // as it was before
  REQUIRE(::utimensat(AT_FDCWD, (folder / "latest").c_str(), times, AT_SYMLINK_NOFOLLOW) == 0);
  remove_stale_temporaries(dir);
  CHECK(latest_checkpoint(dir) == folder / "step_00000002");
  CHECK(hidden_names(dir).empty());
}

TEST_CASE("a commit whose new names cannot be synced is finished by the next run") {
  TemporaryFolder folder;
  const std::string& dir = folder.path();
  commit_step(dir, 1);
  REQUIRE(::chmod(dir.c_str(), 0333) == 0);  // it can be written, but not opened, as syncing wants it
  {
    const WithoutRights user;
    CHECK_THROWS_WITH(commit_step(dir, 2), Contains("cannot open the folder"));
  }
  REQUIRE(::chmod(dir.c_str(), 0755) == 0);
  remove_stale_temporaries(dir);
  CHECK(latest_checkpoint(dir) == folder / "step_00000002");
  CHECK(hidden_names(dir).empty());
}

TEST_CASE("what a commit has replaced and cannot remove stays until the next run, which is no error") {
  TemporaryFolder folder;
  const std::string& dir = folder.path();
  commit_step(dir, 7, "old");
  REQUIRE(::chmod(dir.c_str(), 0777) == 0);
  REQUIRE(::chmod((folder / "step_00000007").c_str(), 0555) == 0);
  {
    const WithoutRights user;
    CHECK_NOTHROW(commit_step(dir, 7, "new"));
  }
  CHECK(get_file(latest_checkpoint(dir).value() + "/model.safetensors") == "new");
  CHECK(list_checkpoints(dir) == Steps{7});
  REQUIRE(hidden_names(dir).size() == 1);
  fs::permissions(folder / hidden_names(dir)[0], fs::perms::owner_all);
  remove_stale_temporaries(dir);
  CHECK(hidden_names(dir).empty());
  CHECK(get_file(folder / "step_00000007/model.safetensors") == "new");
}

TEST_CASE("only canonical names of steps count") {
  TemporaryFolder folder;
  for (const char* name : {"step_1", "step_000000001", "step_-0000001", "step_0000000x", "step_00000001x", "step_",
                           "step_99999999999999999999", ".tmp_step_00000001", "xstep_00000001"}) {
    fs::create_directory(folder / name);
    fill(folder / name, "x");
  }
  CHECK(list_checkpoints(folder.path()).empty());
  CHECK(!latest_checkpoint(folder.path()));
}

TEST_CASE("pruning keeps the last, every M-th, the newest and what latest names") {
  TemporaryFolder folder;
  const std::string& dir = folder.path();
  for (int64_t step = 100; step <= 1000; step += 100) commit_step(dir, step);
  prune_checkpoints(dir, 20, 0);
  CHECK(list_checkpoints(dir).size() == 10);
  prune_checkpoints(dir, 3, 400);
  CHECK(list_checkpoints(dir) == Steps{400, 800, 900, 1000});
  point_latest_to(dir, "step_00000800");
  prune_checkpoints(dir, 0, 0);
  CHECK(list_checkpoints(dir) == Steps{800, 1000});
  CHECK(hidden_names(dir).empty());
}

TEST_CASE("old checkpoints that cannot be removed stay, which is no error") {
  TemporaryFolder folder;
  const std::string& dir = folder.path();
  for (const int64_t step : {1, 2, 3}) commit_step(dir, step);
  for (const mode_t mode : {0555, 0000}) {  // no writing, and no listing either
    REQUIRE(::chmod(dir.c_str(), mode) == 0);
    {
      const WithoutRights user;
      CHECK_NOTHROW(prune_checkpoints(dir, 1, 0));
    }
    REQUIRE(::chmod(dir.c_str(), 0755) == 0);
    CHECK(list_checkpoints(dir) == Steps{1, 2, 3});
  }
  prune_checkpoints(dir, 1, 0);
  CHECK(list_checkpoints(dir) == Steps{3});
}

TEST_CASE("stale temporaries are cleared, checkpoints and foreign files stay") {
  TemporaryFolder folder;
  const std::string& dir = folder.path();
  commit_step(dir, 1);
  for (const char* name : {".tmp_step_00000002", ".deleted_step_00000003", ".old_step_00000001", ".old_step_00000004",
                           ".tmp_step_00000002.00ff00ff00ff00ff", ".deleted_discarded_step_00000003.00ff00ff00ff00ff",
                           ".old_step_00000001.00ff00ff00ff00ff"}) {
    fs::create_directory(folder / name);
    put_file(folder / name + "/model.safetensors", "part");
  }
  for (const char* name : {".tmp_latest", ".tmp_latest.00ff00ff00ff00ff", ".tmp_best.00ff00ff00ff00ff"})
    fs::create_symlink("step_00000002", folder / name);
  put_file(folder / ".tmp_notes", "mine");
  remove_stale_temporaries(dir);
  CHECK(hidden_names(dir) == std::vector<std::string>{".tmp_notes"});
  CHECK(list_checkpoints(dir) == Steps{1});
  remove_stale_temporaries(folder / "absent");
}

TEST_CASE("a checkpoint set aside for a replacement that never came gets its name back") {
  TemporaryFolder folder;
  commit_step(folder.path(), 4, "precious");
  fs::rename(folder / "step_00000004", folder / GENERATE(".old_step_00000004", ".old_step_00000004.00ff00ff00ff00ff"));
  CHECK(!latest_checkpoint(folder.path()));
  remove_stale_temporaries(folder.path());
  CHECK(latest_checkpoint(folder.path()) == folder / "step_00000004");
  CHECK(get_file(folder / "step_00000004/state.json") == "precious");
}

TEST_CASE("a writer killed half way through a file leaves the last good checkpoint") {
  TemporaryFolder folder;
  const std::string& dir = folder.path();
  commit_step(dir, 10, "good");
  for (const int64_t step : {20, 10}) {  // a new step, and the same one again
    REQUIRE(killed([&] {
      CheckpointWriter writer(dir, step);
      fill(writer.folder(), "finished files");
      FileWriter half(writer.folder() + "/model.safetensors");
      half.write("half of", 7);
      ::kill(::getpid(), SIGKILL);
    }));
    CHECK(hidden_names(dir).size() == 1);
    CHECK(list_checkpoints(dir) == Steps{10});
    CHECK(latest_checkpoint(dir) == folder / "step_00000010");
    remove_stale_temporaries(dir);
    CHECK(hidden_names(dir).empty());
    CHECK(get_file(folder / "step_00000010/model.safetensors") == "good");
  }
}

TEST_CASE("a new writer of a step starts from an empty folder") {
  TemporaryFolder folder;
  REQUIRE(killed([&] {
    CheckpointWriter writer(folder.path(), 3);
    put_file(writer.folder() + "/rubbish", "x");
    ::kill(::getpid(), SIGKILL);
  }));
  const CheckpointWriter writer(folder.path(), 3);
  CHECK(fs::is_empty(writer.folder()));
}

TEST_CASE("a disk that fills up while a checkpoint is written leaves the last good one") {
  TemporaryFolder folder;
  commit_step(folder.path(), 1, "good");
  const std::vector<float> weights(10'000, 1.0f);
  const auto save = [&] {
    CheckpointWriter writer(folder.path(), 2);
    fill(writer.folder(), "x");
    weights::write_safetensors(writer.folder() + "/model.safetensors", {{"w", "F32", {10'000}, weights.data()}});
    writer.commit();
  };
  {
    const FileSizeLimit limit(20'000);
    CHECK_THROWS_AS(save(), RunError);
  }
  CHECK(latest_checkpoint(folder.path()) == folder / "step_00000001");
  CHECK(hidden_names(folder.path()).empty());
  save();
  CHECK(latest_checkpoint(folder.path()) == folder / "step_00000002");
}

TEST_CASE("a file system without symlinks has whole checkpoints and no latest, not one that is old") {
  TemporaryFolder folder;
  const std::string& dir = folder.path();
  commit_step(dir, 1);
  link_best(dir, 1);
  symlink_error = GENERATE(EPERM, EOPNOTSUPP, ENOSYS);
  CHECK_NOTHROW(commit_step(dir, 2));
  CHECK_NOTHROW(link_best(dir, 2));
  CHECK_NOTHROW(discard_checkpoints_after(dir, 2));
  symlink_error = 0;
  CHECK(latest_checkpoint(dir) == folder / "step_00000002");
  CHECK(!fs::is_symlink(folder / "latest"));
  CHECK(!best_checkpoint(dir));
  CHECK(hidden_names(dir).empty());
  prune_checkpoints(dir, 1, 0);
  CHECK(list_checkpoints(dir) == Steps{2});
  commit_step(dir, 3);
  CHECK(fs::read_symlink(folder / "latest") == "step_00000003");
}

TEST_CASE("a folder in the place of a link, as in a copy that followed links, gives way") {
  TemporaryFolder folder;
  const std::string& dir = folder.path();
  commit_step(dir, 1);
  fs::remove(dir + "/latest");
  fs::copy(dir + "/step_00000001", dir + "/latest", fs::copy_options::recursive);
  CHECK_NOTHROW(commit_step(dir, 2));
  CHECK(fs::read_symlink(dir + "/latest") == "step_00000002");
  CHECK(list_checkpoints(dir) == Steps{1, 2});
}

TEST_CASE("the best checkpoint is none any more when its step is discarded") {
  TemporaryFolder folder;
  const std::string& dir = folder.path();
  for (const int64_t step : {1, 2, 3}) commit_step(dir, step);
  link_best(dir, 2);
  discard_checkpoints_after(dir, 2);
  CHECK(best_checkpoint(dir) == 2);
  discard_checkpoints_after(dir, 1);
  CHECK_FALSE(fs::is_symlink(dir + "/best"));  // a new second step would be another one
}

TEST_CASE("a symlink that fails for another reason leaves no checkpoint") {
  TemporaryFolder folder;
  symlink_error = EIO;
  CHECK_THROWS_WITH(commit_step(folder.path(), 1), Contains("cannot create the symlink; got Input/output error"));
  symlink_error = 0;
  CHECK(list_checkpoints(folder.path()).empty());
  CHECK(hidden_names(folder.path()).empty());
}
