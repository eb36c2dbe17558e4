# Everything comes from the system (Debian packages, see scripts/install_packages.sh); nothing is downloaded here.
option(DITRAIN_BUILD_TESTS "build the tests" ON)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc)
find_package(MPI REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)

# Header-only packages as system includes, so that our warnings are about our code.
find_path(STB_INCLUDE_DIR stb_image.h PATH_SUFFIXES stb REQUIRED)
add_library(ditrain_stb INTERFACE)
target_include_directories(ditrain_stb SYSTEM INTERFACE ${STB_INCLUDE_DIR})
find_path(CXXOPTS_INCLUDE_DIR cxxopts.hpp REQUIRED)
add_library(ditrain_cxxopts INTERFACE)
target_include_directories(ditrain_cxxopts SYSTEM INTERFACE ${CXXOPTS_INCLUDE_DIR})
