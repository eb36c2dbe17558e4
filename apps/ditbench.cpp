// ditbench: measures this machine with the code that trains.
#include <cstdio>

#include "ditrain/base/error.hpp"
#include "ditrain/io/files.hpp"
#include "ditrain/train/bench.hpp"
#include "ditrain/train/command_line.hpp"

using namespace ditrain;
using namespace ditrain::train;

namespace {

int body(int argc, char** argv) {
  CommandLine line("ditbench", "measure whole training steps, with the FMA peak of the same cores beside them",
                   {{"model", "M", "DiT-S/2 ... DiT-XL/8", "DiT-S/2"},
                    {"batch", "N", "images a step", "8"},
                    {"threads", "T", "worker threads (default: all cores this process may use)"},
                    {"recompute", "MODE", "none, selective or block, as train.recompute", "selective"},
                    {"repeats", "N", "timed steps after a first one that warms up", "5"},
                    {"json", "FILE", "write the rows as JSON too"}},
                   "step");
  if (!line.parse(argc, argv)) return kExitDone;
  if (line.positional() != std::vector<std::string>{"step"})
    throw InputError({.where = "command line",
                      .what = "what to measure",
                      .got = line.positional().empty() ? "nothing" : line.positional().front(),
                      .expected = "step (the one bench of this version)"});
  StepBench bench;
  bench.model = line.get("model");
  bench.batch = line.get_int("batch", 1, 1 << 20);
  bench.threads = line.has("threads") ? line.get_int("threads", 1, 4096) : 0;
  bench.repeats = line.get_int("repeats", 1, 1000);
  bench.recompute = line.get("recompute");
  const BenchReport report = bench_step(bench);
  std::fputs(describe(report).c_str(), stdout);
  if (line.has("json")) io::write_file_atomically(line.get("json"), to_json(report));
  return kExitDone;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("ditbench", [&] { return body(argc, argv); });
}
