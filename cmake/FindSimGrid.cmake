# SimGrid has no package file of its own in Debian, but one for pkg-config: the target PkgConfig::simgrid. The next major
# version may lack calls that are used here.
pkg_check_modules(simgrid QUIET IMPORTED_TARGET "simgrid>=${SimGrid_FIND_VERSION}" "simgrid<4")
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(SimGrid REQUIRED_VARS simgrid_LIBRARIES VERSION_VAR simgrid_VERSION)
