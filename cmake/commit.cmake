# Runs at build time, so that a program knows the commit it was built from, not the one that was configured.
# cmake -DSOURCE_DIR=... -DOUTPUT=.../commit.hpp -P commit.cmake
execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty OUTPUT_VARIABLE DITRAIN_COMMIT
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
configure_file(${SOURCE_DIR}/cmake/commit.hpp.in ${OUTPUT} @ONLY)
