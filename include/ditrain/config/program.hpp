// The outermost frame of programs that may run under mpirun.
#pragma once
#include <functional>

#include "ditrain/dist/communicator.hpp"

namespace ditrain::config {

/// Starts MPI if an MPI launcher started the program, runs `body` on every rank and returns the exit code. If a rank
/// fails, the whole job ends with that rank's exit code; rank 0 prints the message if it fails too, otherwise the rank
/// that failed does.
int run_mpi_program(const char* name, int argc, char** argv, const std::function<int(dist::Communicator&)>& body);

}  // namespace ditrain::config
