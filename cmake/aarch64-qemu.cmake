# Cross build for 64-bit Arm with Debian's clang-19 and arm64 libraries (scripts/install_aarch64.sh); programs run under
# qemu's user mode. GCC 12 knows no SME.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER clang++-19)
set(CMAKE_CXX_COMPILER_TARGET aarch64-linux-gnu)
set(CMAKE_EXE_LINKER_FLAGS_INIT "-fuse-ld=lld-19")
# -cpu max: whatever this qemu knows; scripts/test_aarch64.sh runs the programs with other lengths of the vectors.
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-aarch64;-L;/usr/aarch64-linux-gnu;-cpu;max,sme=on")
