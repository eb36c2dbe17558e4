# Cross build for 64-bit Arm with Debian's clang-19 and the arm64 libraries that scripts/install_aarch64.sh unpacked;
# programs run under qemu's user mode. GCC 12 knows no SME.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER clang++-19)
set(CMAKE_CXX_COMPILER_TARGET aarch64-linux-gnu)
get_filename_component(CMAKE_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-sysroot ABSOLUTE)
set(CMAKE_EXE_LINKER_FLAGS_INIT "-fuse-ld=lld-19")
foreach(kind LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CMAKE_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig)
# This machine's mpicxx would tell of its own libraries.
set(MPI_SKIP_COMPILER_WRAPPER ON)
set(MPI_CXX_SKIP_MPICXX ON)
set(MPI_CXX_LIB_NAMES mpi)
set(MPI_mpi_LIBRARY ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/libmpi.so.40)
set(MPI_CXX_HEADER_DIR ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/openmpi/include)
# -cpu max: whatever this qemu knows; scripts/test_aarch64.sh runs the programs with other lengths of the vectors.
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-aarch64;-L;${CMAKE_SYSROOT};-cpu;max,sme=on")
