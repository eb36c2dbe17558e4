# End-to-end tests: the programs as a person starts them, alone and under mpirun. One after the other (RUN_SERIAL),
# because they take all cores and some of them send signals at certain moments.
file(GLOB e2e_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
add_executable(test_e2e ${e2e_sources})
# They are loaded into programs that are not ours, too.
foreach(preloaded refusing_system trapped_calls recording_disk)
  add_library(${preloaded} MODULE ${CMAKE_CURRENT_SOURCE_DIR}/support/${preloaded}.cpp)
  target_link_libraries(${preloaded} PRIVATE ${CMAKE_DL_LIBS})
  target_compile_options(${preloaded} PRIVATE -fno-sanitize=all)
  target_link_options(${preloaded} PRIVATE -fno-sanitize=all)
endforeach()
target_link_libraries(test_e2e PRIVATE ditrain_weights ditrain_images ditrain_nn test_main nlohmann_json::nlohmann_json)
target_include_directories(test_e2e PRIVATE ${CMAKE_CURRENT_LIST_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
target_precompile_headers(test_e2e REUSE_FROM test_main)
target_compile_definitions(test_e2e PRIVATE
  DITRAIN_PROGRAM_DIR="$<TARGET_FILE_DIR:ditrain>"
  DITRAIN_CONFIG_DIR="${PROJECT_SOURCE_DIR}/configs"
  DITRAIN_MPI_OF_FEWER_THREADS="$<TARGET_FILE:mpi_of_fewer_threads>"
  DITRAIN_RECORDING_DISK="$<TARGET_FILE:recording_disk>"
  DITRAIN_REFUSING_SYSTEM="$<TARGET_FILE:refusing_system>"
  DITRAIN_TRAPPED_CALLS="$<TARGET_FILE:trapped_calls>"
  DITRAIN_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
  DITRAIN_MPIRUN="${MPIEXEC_EXECUTABLE}")
foreach(program ditrain ditsample ditexport ditdata ditfid ditimport ditverify ditbench mpi_of_fewer_threads refusing_system
        trapped_calls recording_disk)
  if(TARGET ${program})
    add_dependencies(test_e2e ${program})
  endif()
endforeach()
catch_discover_tests(test_e2e TEST_SPEC "~[long]" TEST_PREFIX "e2e:" EXTRA_ARGS -w NoTests 
                     PROPERTIES TIMEOUT 300 RUN_SERIAL TRUE SKIP_RETURN_CODE 77)
add_test(NAME "e2e: a short storm" COMMAND ${PROJECT_SOURCE_DIR}/scripts/test_storm.sh 3)
set_tests_properties("e2e: a short storm" PROPERTIES TIMEOUT 300 RUN_SERIAL TRUE ENVIRONMENT
                     "BIN=$<TARGET_FILE_DIR:ditrain>")
add_test(NAME "e2e: what elastic.sh decides" COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/e2e/elastic_test.sh)
set_tests_properties("e2e: a short storm" "e2e: what elastic.sh decides" PROPERTIES TIMEOUT 300 LABELS long)
add_test(NAME "e2e: a run that outlives a node" COMMAND ${PROJECT_SOURCE_DIR}/scripts/test_elastic.sh 1 dead)
add_test(NAME "e2e: runs that outlive nodes" COMMAND ${PROJECT_SOURCE_DIR}/scripts/test_elastic.sh 20)
set_tests_properties("e2e: a run that outlives a node" "e2e: runs that outlive nodes" PROPERTIES TIMEOUT 300
                     RUN_SERIAL TRUE SKIP_RETURN_CODE 77
                     ENVIRONMENT "BIN=$<TARGET_FILE_DIR:ditrain>;LIB=$<TARGET_FILE_DIR:trapped_calls>")
set_tests_properties("e2e: a run that outlives a node" "e2e: runs that outlive nodes" PROPERTIES TIMEOUT 3600 LABELS long)
# Minutes each: left out by the test presets; scripts/test_long.sh runs them.
catch_discover_tests(test_e2e TEST_SPEC "[long]" TEST_PREFIX "e2e:"
                     EXTRA_ARGS -w NoTests PROPERTIES TIMEOUT 3600 RUN_SERIAL TRUE SKIP_RETURN_CODE 77 LABELS long)
add_test(NAME "e2e: cmake --install" COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/e2e/install_test.sh ${PROJECT_BINARY_DIR})
set_tests_properties("e2e: cmake --install" PROPERTIES TIMEOUT 300 RUN_SERIAL TRUE)
add_test(NAME "e2e: results read by Python" COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/e2e/python_test.sh
         $<TARGET_FILE_DIR:ditrain>)
set_tests_properties("e2e: results read by Python" PROPERTIES TIMEOUT 600 RUN_SERIAL TRUE SKIP_RETURN_CODE 77
                     LABELS python)
add_test(NAME "e2e: the report in a browser" COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/e2e/browser_test.sh
         $<TARGET_FILE_DIR:ditrain>)
set_tests_properties("e2e: the report in a browser" PROPERTIES TIMEOUT 300 RUN_SERIAL TRUE SKIP_RETURN_CODE 77
                     LABELS browser)
