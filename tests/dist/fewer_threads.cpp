// Preloaded into a program, an MPI library that grants no threads at all; with DITRAIN_TEST_MPI_THREADS=funneled it
// lets the thread that started it call it.
#include <mpi.h>

#include <cstdlib>
#include <string_view>

extern "C" int MPI_Init_thread(int* argc, char*** argv, int, int* provided) {
  const char* granted = std::getenv("DITRAIN_TEST_MPI_THREADS");
  const bool funneled = granted != nullptr && std::string_view(granted) == "funneled";
  const int level = funneled ? MPI_THREAD_FUNNELED : MPI_THREAD_SINGLE;
  const int code = PMPI_Init_thread(argc, argv, level, provided);
  *provided = level;
  return code;
}
