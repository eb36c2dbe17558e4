// Simulated clusters in a build without SimGrid.
#include "cluster_simulation.hpp"
#include "ditrain/base/error.hpp"

namespace ditrain::bench {

bool has_simgrid() { return false; }

SimulatedStep simulate(const plan::ClusterDescription&, const StepSchedule&, const SimulationOptions&) {
  throw InputError({.where = "ditbench",
                    .what = "this build has no SimGrid, which simulates the messages of a cluster",
                    .expected = "SimGrid 3.32 when ditrain is built",
                    .hint =
                        "apt-get install libsimgrid-dev (the Debian package), then configure and build again (cmake "
                        "-DDITRAIN_SIMGRID=ON)"});
}

}  // namespace ditrain::bench
