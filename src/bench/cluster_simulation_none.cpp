// Simulated clusters in a build without SimGrid.
#include "cluster_simulation.hpp"
#include "ditrain/base/error.hpp"

namespace ditrain::bench {

bool has_simgrid() { return false; }

SimulatedStep simulate(const plan::ClusterDescription&, const StepSchedule&, const SimulationOptions&) {
  refuse("ditbench", "this build has no SimGrid, which simulates the messages of a cluster", "",
         "SimGrid 3.32 when ditrain is built",
         "apt-get install libsimgrid-dev (the Debian package), then configure and build again (cmake "
         "-DDITRAIN_SIMGRID=ON)");
}

}  // namespace ditrain::bench
