// Preloaded into a program, an MPI library that grants no threads at all.
#include <mpi.h>

extern "C" int MPI_Init_thread(int* argc, char*** argv, int, int* provided) {
  const int code = PMPI_Init_thread(argc, argv, MPI_THREAD_SINGLE, provided);
  *provided = MPI_THREAD_SINGLE;
  return code;
}
