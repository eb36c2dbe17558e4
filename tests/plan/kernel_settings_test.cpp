// Section kernels of a config made real: products, and cache blocks from tuning files good and bad.
#include "ditrain/plan/kernel_settings.hpp"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/kernels/dispatch.hpp"
#include "ditrain/platform/cpu.hpp"
#include "support/message_of.hpp"
#include "support/workers.hpp"

using namespace ditrain;
using Catch::Contains;
using ditrain::test::message_of;
namespace fs = std::filesystem;

namespace {

/// Sets an environment variable, or removes it (null), for its lifetime.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* now = std::getenv(name)) before_ = now;
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~Environment() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

/// A new folder, and no tuning file of this user anywhere else; the cache blocks are put back.
struct Sandbox {
  ~Sandbox() { kernels::set_gemm_blocking(blocking); }
  std::string operator/(const std::string& name) const { return folder / name; }
  std::string write(const std::string& text, const std::string& name = "tuning.json") const {
    std::ofstream(folder / name, std::ios::binary) << text;
    return folder / name;
  }
  const TemporaryFolder folder;
  const kernels::GemmBlocking blocking = kernels::gemm_blocking();
  const Environment no_file{"DITRAIN_TUNING", nullptr}, config_home{"XDG_CONFIG_HOME", (folder / "xdg").c_str()},
      home{"HOME", (folder / "home").c_str()};
};

/// The line for reports of a run with these settings.
std::string applied(const config::Config& config, ops::Context& ctx) {
  platform::Topology topology;
  topology.l2_bytes = 3 << 20, topology.l2_caches = 1, topology.l3_bytes = 60 << 20, topology.l3_caches = 1;
  return plan::apply_kernel_settings(config, topology, ctx);
}
std::string applied(const std::string& tuned) {
  test::Workers crew(2);
  config::Config config;
  config::apply_set(config, "kernels.tuned=" + tuned);
  return applied(config, crew.ctx);
}

std::string refusal_of_tuning(const std::string& tuned) {
  return message_of([&] { applied(tuned); });
}

bool blocks_are(int64_t rows, int64_t cols) {
  const kernels::GemmBlocking b = kernels::gemm_blocking();
  return b.rows == rows && b.cols == cols;
}

// Derived from the caches in `applied`: 3 MiB / 3 and 60 MiB / 6 in steps of kSumChunk floats.
const kernels::GemmBlocking kFromCaches = kernels::derived_gemm_blocking(3 << 20, 60 << 20);
const int64_t kDerivedRows = kFromCaches.rows, kDerivedCols = kFromCaches.cols;
const std::string kDerived =
    "blocks " + std::to_string(kDerivedRows) + " x " + std::to_string(kDerivedCols) + " derived from caches";

plan::Tuning tuning_of_here(int64_t rows, int64_t cols) {
  return {platform::cpu_model_name(), kernels::chosen_isa(), {kDerivedRows, kDerivedCols}, {rows, cols}};
}

}  // namespace

TEST_CASE("the default tuning file: DITRAIN_TUNING, then XDG_CONFIG_HOME, then HOME") {
  const Sandbox box;
  CHECK(plan::default_tuning_path() == box / "xdg/ditrain/tuning.json");
  const Environment no_config_home("XDG_CONFIG_HOME", "");
  CHECK(plan::default_tuning_path() == box / "home/.config/ditrain/tuning.json");
  {
    const Environment explicit_file("DITRAIN_TUNING", "/a/b");
    CHECK(plan::default_tuning_path() == "/a/b");
  }
  const Environment no_home("HOME", nullptr);
  CHECK(plan::default_tuning_path().empty());
  CHECK_THAT(applied("auto"), Contains(kDerived + " (no folder for a tuning file)"));
}

TEST_CASE("derived blocks take a core's share of the caches that cores have in common") {
  platform::Topology own;
  own.cores = 8, own.l2_bytes = 1 << 20, own.l2_caches = 8, own.l3_bytes = 32 << 20, own.l3_caches = 1;
  platform::Topology common = own;
  common.l2_caches = 1, common.l2_bytes = 8 << 20;
  CHECK(plan::derived_blocking(own).rows == plan::derived_blocking(common).rows);
  CHECK(plan::derived_blocking(own).cols == plan::derived_blocking(common).cols);
  common.l2_bytes = 16 << 20;
  CHECK(plan::derived_blocking(common).rows > plan::derived_blocking(own).rows);
}

TEST_CASE("without a tuning file the blocks follow the caches, and the report says so") {
  const Sandbox box;
  kernels::set_gemm_blocking({1, 1});
  CHECK(applied("auto") ==
        "products: own, fused; " + kDerived + " (no tuning file " + plan::default_tuning_path() + ")");
  CHECK(blocks_are(kDerivedRows, kDerivedCols));
}

TEST_CASE("a tuning file of this machine is taken, unless kernels.tuned is off") {
  const Sandbox box;
  plan::write_tuning(tuning_of_here(84, 640), plan::default_tuning_path());  // makes the folders
  CHECK(applied("auto") == "products: own, fused; blocks 84 x 640 from " + plan::default_tuning_path());
  CHECK(blocks_are(84, 640));
  CHECK_THAT(applied("off"), Contains(kDerived + " (kernels.tuned: off)"));
  CHECK(blocks_are(kDerivedRows, kDerivedCols));
  plan::write_tuning(tuning_of_here(56, 320), box / "other.json");
  CHECK_THAT(applied(box / "other.json"), Contains("blocks 56 x 320 from " + box / "other.json"));
  const Environment file("DITRAIN_TUNING", (box / "other.json").c_str());
  CHECK_THAT(applied("auto"), Contains("blocks 56 x 320 from "));
}

TEST_CASE("a tuning file reads back as it was written") {
  const Sandbox box;
  const plan::Tuning t{"a \"CPU\" \\ \n name", "sve2_128", {7, 9}, {1, 1 << 20}};
  plan::write_tuning(t, box / "t.json");
  const plan::Tuning back = plan::read_tuning(box / "t.json");
  CHECK((back.cpu == t.cpu && back.isa == t.isa && back.derived == t.derived && back.blocking == t.blocking));
  CHECK_THROWS_WITH(plan::write_tuning(t, box.write("", "file") + "/t.json"), Contains(box / "file"));
}

TEST_CASE(
    "a tuning of another processor, instruction set or share of caches: auto leaves it alone, by name it is refused") {
  const Sandbox box;
  plan::Tuning t = tuning_of_here(84, 640);
  std::string wrong;
  SECTION("processor") {
    t.cpu = "Some Other CPU";
    wrong = " was made on Some Other CPU, not " + platform::cpu_model_name();
  }
  SECTION("instruction set") {
    t.isa = "mmx";
    wrong = " was made for mmx kernels, not " + kernels::chosen_isa();
  }
  SECTION("caches") {
    t.derived = {7, 9};
    wrong = " was made where the caches give blocks 7 x 9, not " + std::to_string(kDerivedRows) + " x " +
            std::to_string(kDerivedCols);
  }
  const std::string path = plan::default_tuning_path();
  plan::write_tuning(t, path);
  CHECK_THAT(applied("auto"), Contains(kDerived + " (" + path + wrong + ")"));
  CHECK(blocks_are(kDerivedRows, kDerivedCols));
  CHECK(refusal_of_tuning(path) ==
        "[tuning] " + path + wrong + "; try ditbench tune, which writes such a file, or --set kernels.tuned=off");
}

TEST_CASE("what is no tuning file is refused with its name and the program that writes one") {
  const Sandbox box;
  const std::string path = box / "tuning.json";
  const auto message = [&](const std::string& text) { return refusal_of_tuning(box.write(text)); };
  const std::string here = R"({"cpu": "x", "isa": "y", "derived": {"block_rows": 1, "block_cols": 1}, "gemm": )";
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[1, 2]"), std::string("7"), std::string("{}"),
        std::string("\xff\xfe\0\1", 4), std::string(60000, '['), here + "{}}", here + "[1, 2]}",
        here + R"({"block_rows": 84}})", std::string(70000, ' ')}) {
    INFO(text.substr(0, 100));
    CHECK_THAT(message(text), Catch::StartsWith("[tuning] ") && Contains(path) && Contains("try ditbench tune"));
    CHECK_THAT(message(text), !Contains("json.exception"));
  }
  CHECK_THAT(message("{"), Contains(path + " is not a tuning: not JSON at line 1, column 2: "));
  for (const char* size : {"0", "-5", "1048577", "18446744073709551615", "1e30", "84.5", "\"84\"", "true", "null"}) {
    INFO(size);
    const std::string text = here + "{\"block_rows\": " + size + ", \"block_cols\": 64}}";
    CHECK_THAT(message(text), Contains(path) && Contains("block size out of range") && Contains("try ditbench tune"));
  }
  // Not damaged, but older: without what the caches gave.
  const std::string older =
      R"(, "isa": ")" + kernels::chosen_isa() + R"(", "gemm": {"block_rows": 84, "block_cols": 64}})";
  CHECK_THAT(message(R"({"cpu": ")" + platform::cpu_model_name() + '"' + older),
             Contains(path + " does not say for which caches it was made"));
  for (const std::string& absent : {box / "absent.json", box / ""}) {
    INFO(absent);
    CHECK_THAT(refusal_of_tuning(absent),
               Catch::StartsWith("[tuning] ") && Contains(absent) && Contains("try ditbench tune"));
  }
  // A damaged default file is an error too, not a reason to go on silently without it.
  fs::create_directories(fs::path(plan::default_tuning_path()).parent_path());
  std::ofstream(plan::default_tuning_path()) << "{";
  CHECK_THAT(refusal_of_tuning("auto"), Contains(plan::default_tuning_path()) && Contains("try ditbench tune"));
}

TEST_CASE("kernels.gemm and kernels.fuse decide what computes the products") {
  const Sandbox box;
  parallel::Team team({.num_workers = 2});
  ops::Context ctx(team);
  config::Config config;
  CHECK_THAT(applied(config, ctx), Catch::StartsWith("products: own, fused; "));
  CHECK((ctx.gemm_settings.backend == ops::GemmBackend::kOwn && ctx.gemm_settings.fuse));
  config.kernels.fuse = false;
  CHECK_THAT(applied(config, ctx), Catch::StartsWith("products: own, passes around them; "));
  CHECK((ctx.gemm_settings.backend == ops::GemmBackend::kOwn && !ctx.gemm_settings.fuse));
  config.kernels.fuse = true, config.kernels.gemm = config::Gemm::kRef;
  CHECK_THAT(applied(config, ctx), Catch::StartsWith("products: ref, passes around them; "));
  CHECK(ctx.gemm_settings.backend == ops::GemmBackend::kReference);
}
