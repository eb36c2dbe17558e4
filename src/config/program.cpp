#include "ditrain/config/program.hpp"

#include <chrono>
#include <thread>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/config/command_line.hpp"
#include "ditrain/platform/launcher.hpp"

namespace ditrain::config {

int run_mpi_program(const char* name, int argc, char** argv, const std::function<int(dist::Communicator&)>& body) {
  open_standard_streams();
  std::unique_ptr<dist::Communicator> comm;
  if (!dist::mpi_launcher().empty()) platform::end_with_launcher(platform::find_launcher(), name);
  const int code = run_program(name, [&] {
    comm = dist::make_communicator(&argc, &argv);
    log::set_rank(comm->rank(), comm->world_size());
    try {
      return body(*comm);
    } catch (const dist::TimeoutError&) {
      throw;  // rank 0 had its time already, while this rank still answered
    } catch (...) {
      // What all ranks find wrong is said once: rank 0 speaks first and ends the job.
      if (comm->rank() != 0) std::this_thread::sleep_for(std::chrono::seconds(3));
      throw;
    }
  });
  const bool failed = code == kExitFailed || code == kExitBadInput;
  if (failed && comm != nullptr && comm->world_size() > 1) comm->abort(code);
  return code;
}

}  // namespace ditrain::config
