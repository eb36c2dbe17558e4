# Runs at build time, so that a program knows the commit it was built from, not the one that was configured.
# cmake -DSOURCE_DIR=... -DOUTPUT=.../commit.hpp -P commit.cmake
# A work tree around an unpacked archive has another commit.
execute_process(COMMAND git -C ${SOURCE_DIR} rev-parse --show-prefix RESULT_VARIABLE no_checkout OUTPUT_VARIABLE inside
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(no_checkout OR inside)
  set(DITRAIN_COMMIT "")
  configure_file(${SOURCE_DIR}/cmake/commit.hpp.in ${OUTPUT} @ONLY)
  return()
endif()
execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty OUTPUT_VARIABLE DITRAIN_COMMIT
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
configure_file(${SOURCE_DIR}/cmake/commit.hpp.in ${OUTPUT} @ONLY)
