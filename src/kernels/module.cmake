# The arithmetic of this module is compiled once per instruction set, each with its own flags and namespace. C++20
# without GNU extensions turns the contraction of a * b + c off, so it is asked for here.
set(isa_flags -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math)
if(DITRAIN_SANITIZE)
  # Checks in unrolled kernels take an hour to optimise; without the second flag nothing is contracted.
  list(APPEND isa_flags -O1 -fexpensive-optimizations)
endif()
target_sources(ditrain_kernels PRIVATE ${CMAKE_CURRENT_LIST_DIR}/isa/baseline.cpp)
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/isa/baseline.cpp PROPERTIES COMPILE_OPTIONS "${isa_flags}")

# ditrain_isa_object(NAME SOURCE FLAGS...): one more object of a source that serves several instruction sets.
function(ditrain_isa_object name source)
  add_library(ditrain_kernels_${name} OBJECT ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/isa/${source})
  target_include_directories(ditrain_kernels_${name} PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_compile_options(ditrain_kernels_${name} PRIVATE ${isa_flags} ${ARGN} -DDITRAIN_ISA=${name})
  target_sources(ditrain_kernels PRIVATE $<TARGET_OBJECTS:ditrain_kernels_${name}>)
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  target_sources(ditrain_kernels PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/isa/avx2.cpp ${CMAKE_CURRENT_LIST_DIR}/isa/avx512.cpp
    ${CMAKE_CURRENT_LIST_DIR}/isa/avx512_bf16.cpp ${CMAKE_CURRENT_LIST_DIR}/isa/amx_bf16.cpp)
  target_compile_definitions(ditrain_kernels PRIVATE DITRAIN_KERNELS_X86=1)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/isa/avx2.cpp PROPERTIES COMPILE_OPTIONS
    "${isa_flags};-mavx2;-mfma")
  set(avx512_flags ${isa_flags} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mprefer-vector-width=512)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/isa/avx512.cpp PROPERTIES COMPILE_OPTIONS "${avx512_flags}")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/isa/avx512_bf16.cpp PROPERTIES COMPILE_OPTIONS
    "${avx512_flags};-mavx512bf16")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/isa/amx_bf16.cpp PROPERTIES COMPILE_OPTIONS
    "${avx512_flags};-mavx512bf16;-mamx-tile;-mamx-bf16")
  # For the kernels' tests alone.
  add_library(ditrain_kernel_models OBJECT EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/isa/amx_model.cpp)
  target_include_directories(ditrain_kernel_models PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_compile_options(ditrain_kernel_models PRIVATE ${avx512_flags} -mavx512bf16)
  target_compile_definitions(ditrain_kernel_models INTERFACE DITRAIN_KERNEL_MODELS=1)
endif()
# Arm: GCC 12 knows no SME, and SVE is tested with clang alone; another compiler builds the baseline (NEON).
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$" AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang"
   AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 19)
  target_compile_definitions(ditrain_kernels PRIVATE DITRAIN_KERNELS_SVE2=1)
  foreach(bits 128 256 512)
    math(EXPR lanes "${bits} / 32")
    set(vector_flags -march=armv9-a+bf16 -msve-vector-bits=${bits} -DDITRAIN_LANES=${lanes})
    ditrain_isa_object(sve2_${bits} sve2.cpp ${vector_flags})
    # The matrix unit's vectors are as long as the others or longer.
    foreach(sme_bits 128 256 512)
      math(EXPR sme_lanes "${sme_bits} / 32")
      if(sme_bits GREATER_EQUAL bits)
        ditrain_isa_object(sme_${sme_bits}_sve2_${bits} sme.cpp ${vector_flags} -DDITRAIN_SME_LANES=${sme_lanes})
      endif()
    endforeach()
  endforeach()
  ditrain_isa_object(sme sme_multiply.cpp -march=armv9-a+sme)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS -march=armv9-a+sme)
  check_cxx_source_compiles("
    #include <arm_sme.h>
    __arm_locally_streaming __arm_new(\"za\") void use_za() { svzero_za(); }
    int main() { use_za(); }" DITRAIN_HAS_SME_ABI)  # links only if the compiler's library has the routines of that ABI
  unset(CMAKE_REQUIRED_FLAGS)
  if(NOT DITRAIN_HAS_SME_ABI)
    target_sources(ditrain_kernels PRIVATE ${CMAKE_CURRENT_LIST_DIR}/isa/sme_abi.cpp)
  endif()
endif()
