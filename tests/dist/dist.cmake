# The MPI communicator on real ranks of this machine. Root may not use mpirun unless these two variables say so.
add_executable(test_mpi_comm ${CMAKE_CURRENT_LIST_DIR}/mpi_comm_main.cpp)
target_link_libraries(test_mpi_comm PRIVATE ditrain_dist)
set(mpi_test_environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)

foreach(ranks 1 2 3 4)
  add_test(NAME "dist: mpi communicator on ${ranks} ranks"
           COMMAND ${MPIEXEC_EXECUTABLE} -np ${ranks} --oversubscribe $<TARGET_FILE:test_mpi_comm> ${ranks})
  list(APPEND mpi_tests "dist: mpi communicator on ${ranks} ranks")
endforeach()

add_test(NAME "dist: a plain run needs no MPI" COMMAND test_mpi_comm 1)

# mpirun must end all ranks and pass on the exit code.
add_test(NAME "dist: abort ends ranks that wait"
         COMMAND sh -c "$<SHELL_PATH:${MPIEXEC_EXECUTABLE}> -np 3 --oversubscribe $<TARGET_FILE:test_mpi_comm> abort 75; test $? -eq 75")
list(APPEND mpi_tests "dist: abort ends ranks that wait")

add_test(NAME "dist: a launcher of another MPI is refused"
         COMMAND sh -c "PMI_SIZE=2 $<TARGET_FILE:test_mpi_comm> 2>&1 | grep 'do not belong together'")
list(APPEND mpi_tests "dist: a launcher of another MPI is refused")

set_tests_properties(${mpi_tests} PROPERTIES ENVIRONMENT "${mpi_test_environment}" TIMEOUT 60 PROCESSORS 2)
