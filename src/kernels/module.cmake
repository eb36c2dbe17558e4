# The arithmetic of this module is compiled once per instruction set, each with its own flags and namespace. C++20
# without GNU extensions turns the contraction of a * b + c off, so it is asked for here.
set(isa_flags -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math)
if(DITRAIN_SANITIZE)
  # Checks in unrolled kernels take an hour to optimise; without the second flag nothing is contracted.
  list(APPEND isa_flags -O1 -fexpensive-optimizations)
endif()

# ditrain_instruction_set(NAME "FILES" FLAGS...): the objects of an instruction set, isa/FILE.cpp each; its row in
# instruction_sets.cpp names the families that they hold. Constants in FLAGS: see isa/common.inc.
set(bf16_families bf16_products attention elementwise)
set(all_families f32_products f32_panels ${bf16_families})  # f32_panels: of products and attention
function(ditrain_isa_object name families)
  list(TRANSFORM families REPLACE "(.+)" "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/isa/\\1.cpp")
  add_library(ditrain_kernels_${name} OBJECT EXCLUDE_FROM_ALL ${families})
  target_include_directories(ditrain_kernels_${name} PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_compile_options(ditrain_kernels_${name} PRIVATE ${isa_flags} ${ARGN} -DDITRAIN_ISA=${name})
  set_target_properties(ditrain_kernels_${name} PROPERTIES UNITY_BUILD OFF)  # families have the same names
endfunction()
function(ditrain_instruction_set name families)
  ditrain_isa_object(${name} "${families}" ${ARGN})
  target_sources(ditrain_kernels PRIVATE $<TARGET_OBJECTS:ditrain_kernels_${name}>)
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  ditrain_instruction_set(baseline "${all_families}" -DDITRAIN_LANES=4 -DDITRAIN_TILE_ROWS=12)
else()
  ditrain_instruction_set(baseline "${all_families}" -DDITRAIN_LANES=4 -DDITRAIN_TILE_ROWS=4)
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  target_compile_definitions(ditrain_kernels PRIVATE DITRAIN_KERNELS_X86=1)
  set(avx512_flags -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mprefer-vector-width=512
      -DDITRAIN_LANES=16 -DDITRAIN_TILE_ROWS=14)
  ditrain_instruction_set(avx2 "${all_families}" -mavx2 -mfma -DDITRAIN_LANES=8 -DDITRAIN_TILE_ROWS=6)
  ditrain_instruction_set(avx512 "${all_families}" ${avx512_flags})
  ditrain_instruction_set(avx512_bf16 "${bf16_families}" ${avx512_flags} -mavx512bf16)
  ditrain_instruction_set(amx_bf16 "bf16_products;tile_attention" ${avx512_flags} -mavx512bf16 -mamx-tile -mamx-bf16
                          -DDITRAIN_TILE_UNIT=amx_unit.inc)
  # The tile unit in plain C++, for the kernels' tests alone: see tests/kernels/models.cpp.
  ditrain_isa_object(amx_model "bf16_products;tile_attention" ${avx512_flags} -mavx512bf16
                     -DDITRAIN_TILE_UNIT=amx_model.inc -DDITRAIN_TILE_MODEL)
  target_compile_definitions(ditrain_kernels_amx_model INTERFACE DITRAIN_KERNEL_MODELS=1)
  add_library(ditrain_kernel_models ALIAS ditrain_kernels_amx_model)
  # The same with a call before each access to memory, for counting: see tests/kernels/unit_counts_test.cpp.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT DITRAIN_SANITIZE)
    ditrain_isa_object(amx_counted "bf16_products;tile_attention" ${avx512_flags} -mavx512bf16 -DDITRAIN_TILE_UNIT=amx_model.inc
                       -DDITRAIN_TILE_MODEL -fsanitize=kernel-address --param=asan-instrumentation-with-call-threshold=0
                       --param=asan-stack=0 --param=asan-globals=0)
    target_compile_definitions(ditrain_kernels_amx_counted INTERFACE DITRAIN_COUNTED_KERNELS=1)
    add_library(ditrain_counted_kernels ALIAS ditrain_kernels_amx_counted)
  endif()
endif()
# Arm: GCC 12 knows no SME, and SVE is tested with clang alone; another compiler builds the baseline (NEON).
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$" AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang"
   AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 19)
  target_compile_definitions(ditrain_kernels PRIVATE DITRAIN_KERNELS_SVE2=1)
  foreach(bits 128 256 512)
    math(EXPR lanes "${bits} / 32")
    set(vector_flags -march=armv9-a+bf16 -msve-vector-bits=${bits} -DDITRAIN_LANES=${lanes})
    set(tile_rows 12)
    if(bits EQUAL 256)
      set(tile_rows 8)  # see micro_kernel.inc
    endif()
    ditrain_instruction_set(sve2_${bits} "${all_families}" ${vector_flags} -DDITRAIN_TILE_ROWS=${tile_rows})
    # The matrix unit's vectors are as long as the others or longer.
    foreach(sme_bits 128 256 512)
      math(EXPR sme_lanes "${sme_bits} / 32")
      if(sme_bits GREATER_EQUAL bits)
        math(EXPR tile_rows "2 * ${sme_lanes}")
        ditrain_instruction_set(sme_${sme_bits}_sve2_${bits} "f32_products;bf16_products;attention" ${vector_flags}
                                -DDITRAIN_TILE_ROWS=${tile_rows} -DDITRAIN_SME_LANES=${sme_lanes})
      endif()
    endforeach()
  endforeach()
  ditrain_instruction_set(sme sme_multiply -march=armv9-a+sme)
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
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  message(WARNING "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} builds NEON kernels only. For those of SVE2 "
                  "and SME (Neoverse V2 and N2, Grace, Graviton 4) take clang 19: -DCMAKE_CXX_COMPILER=clang++-19")
endif()
