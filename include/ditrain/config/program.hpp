// The outermost frame of programs that may run under mpirun.
#pragma once
#include <functional>

#include "ditrain/dist/communicator.hpp"

namespace ditrain::config {

/// Starts MPI if launched by it, runs `body` on every rank and returns the exit code. When a rank fails the whole job
/// ends with its exit code; the message is printed by rank 0 if it fails too, else by the rank that did.
int run_mpi_program(const char* name, int argc, char** argv, const std::function<int(dist::Communicator&)>& body);

}  // namespace ditrain::config
