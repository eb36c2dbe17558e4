# The MPI communicator on real ranks of this machine. Root may not use mpirun unless these two variables say so.
add_executable(test_mpi_comm ${CMAKE_CURRENT_LIST_DIR}/mpi_comm_main.cpp)
target_link_libraries(test_mpi_comm PRIVATE ditrain_train)
set(mpi_test_environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)

foreach(mode all funneled nodes_of_2)
  foreach(ranks 1 2 3 4)
    add_test(NAME "dist: mpi communicator (${mode}) on ${ranks} ranks"
             COMMAND ${MPIEXEC_EXECUTABLE} -np ${ranks} --oversubscribe $<TARGET_FILE:test_mpi_comm> ${mode} ${ranks})
    list(APPEND mpi_tests "dist: mpi communicator (${mode}) on ${ranks} ranks")
  endforeach()
endforeach()

add_test(NAME "dist: a plain run needs no MPI" COMMAND test_mpi_comm all 1)

# mpirun must end all ranks and pass on the exit code.
set(mpi_run "'${MPIEXEC_EXECUTABLE}' -np 3 --oversubscribe '$<TARGET_FILE:test_mpi_comm>'")
add_test(NAME "dist: abort ends ranks that wait" COMMAND sh -c "${mpi_run} abort 75; test $? -eq 75")
add_test(NAME "dist: the watchdog names a rank that does not come" COMMAND sh -c "${mpi_run} hang; test $? -eq 75")
add_test(NAME "dist: the watchdog names a rank that stands still" COMMAND sh -c "${mpi_run} stop; test $? -eq 75")
# Rank 1 knows first. Rank 0 would ask when rank 1 has ended the run, or (slow) asks while rank 1 frees its memory.
foreach(slow 0 1)
  add_test(NAME "dist: the watchdog does not name a rank that is about to end the run (slow: ${slow})"
           COMMAND sh -c "${mpi_run} late ${slow} 2>&1 | grep 'not arrived: rank 2 ([^;]*; try'")
  list(APPEND mpi_sleepers "dist: the watchdog does not name a rank that is about to end the run (slow: ${slow})")
endforeach()

add_library(mpi_of_fewer_threads MODULE ${CMAKE_CURRENT_LIST_DIR}/fewer_threads.cpp)
target_link_libraries(mpi_of_fewer_threads PRIVATE MPI::MPI_CXX)
# It is loaded into programs that are not ours, too.
target_compile_options(mpi_of_fewer_threads PRIVATE -fno-sanitize=all)
target_link_options(mpi_of_fewer_threads PRIVATE -fno-sanitize=all)
add_test(NAME "dist: an MPI library without threads is refused"
         COMMAND sh -c "${mpi_run} all 3 2>&1 | grep 'does not know threads; got thread level single of Open MPI'")
set_tests_properties("dist: an MPI library without threads is refused" PROPERTIES
  ENVIRONMENT "${mpi_test_environment};LD_PRELOAD=$<TARGET_FILE:mpi_of_fewer_threads>;ASAN_OPTIONS=verify_asan_link_order=0"
  TIMEOUT 120 PROCESSORS 2)

add_test(NAME "dist: a launcher of another MPI is refused"
         COMMAND sh -c "PMI_SIZE=2 '$<TARGET_FILE:test_mpi_comm>' 2>&1 | grep 'do not belong together'")
# srun told a rank its number, but not in the words of this MPI.
foreach(variable PMIX_RANK=0 PMI_RANK=0 PMI_SIZE=2 OMPI_COMM_WORLD_SIZE=1)
  add_test(NAME "dist: an srun that MPI does not understand is refused (${variable})"
           COMMAND sh -c "${variable} SLURM_STEP_NUM_TASKS=2 '$<TARGET_FILE:test_mpi_comm>' 2>&1 | grep 'SLURM_STEP_NUM_TASKS=2 and 1 rank in Open MPI'")
  list(APPEND mpi_tests "dist: an srun that MPI does not understand is refused (${variable})")
endforeach()
add_test(NAME "dist: an srun that MPI does understand is not refused" COMMAND sh -c "SLURM_STEP_NUM_TASKS=3 ${mpi_run} all 3")
list(APPEND mpi_tests "dist: an srun that MPI does understand is not refused")
list(APPEND mpi_tests "dist: abort ends ranks that wait" "dist: a launcher of another MPI is refused")
list(APPEND mpi_sleepers "dist: the watchdog names a rank that does not come" "dist: the watchdog names a rank that stands still")

set_tests_properties(${mpi_tests} PROPERTIES ENVIRONMENT "${mpi_test_environment}" TIMEOUT 120 PROCESSORS 2)
# Their ranks wait for seconds: other tests may run meanwhile.
set_tests_properties(${mpi_sleepers} PROPERTIES ENVIRONMENT "${mpi_test_environment}" TIMEOUT 120)
