# oneDNN by its headers and library. Its own package file demands OpenCL where the library has an OpenCL runtime (as
# Debian's has), even of a find_package(QUIET); the CPU part that is used here does not need it.
find_path(oneDNN_INCLUDE_DIR oneapi/dnnl/dnnl_version.h)
find_library(oneDNN_LIBRARY dnnl)
if(oneDNN_INCLUDE_DIR)
  file(STRINGS ${oneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h oneDNN_lines REGEX "define DNNL_VERSION_(MAJOR|MINOR|PATCH)")
  string(REGEX REPLACE "[^0-9;]" "" oneDNN_VERSION "${oneDNN_lines}")
  list(JOIN oneDNN_VERSION "." oneDNN_VERSION)
  file(STRINGS ${oneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_config.h oneDNN_OPENMP
       REGEX "define DNNL_CPU_THREADING_RUNTIME DNNL_RUNTIME_OMP")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(oneDNN REQUIRED_VARS oneDNN_LIBRARY oneDNN_INCLUDE_DIR VERSION_VAR oneDNN_VERSION
                                  HANDLE_VERSION_RANGE)
if(oneDNN_FOUND AND NOT TARGET oneDNN::oneDNN)
  add_library(oneDNN::oneDNN UNKNOWN IMPORTED)
  set_target_properties(oneDNN::oneDNN PROPERTIES IMPORTED_LOCATION ${oneDNN_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${oneDNN_INCLUDE_DIR})
endif()
