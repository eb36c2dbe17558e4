# The arithmetic of this module is compiled once per instruction set, each with its own flags and namespace. C++20
# without GNU extensions turns the contraction of a * b + c off, so it is asked for here.
set(isa_flags -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math)
target_sources(ditrain_kernels PRIVATE ${CMAKE_CURRENT_LIST_DIR}/isa/baseline.cpp)
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/isa/baseline.cpp PROPERTIES COMPILE_OPTIONS "${isa_flags}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  target_sources(ditrain_kernels PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/isa/avx2.cpp ${CMAKE_CURRENT_LIST_DIR}/isa/avx512.cpp
    ${CMAKE_CURRENT_LIST_DIR}/isa/avx512_bf16.cpp)
  target_compile_definitions(ditrain_kernels PRIVATE DITRAIN_KERNELS_X86=1)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/isa/avx2.cpp PROPERTIES COMPILE_OPTIONS
    "${isa_flags};-mavx2;-mfma")
  set(avx512_flags ${isa_flags} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mprefer-vector-width=512)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/isa/avx512.cpp PROPERTIES COMPILE_OPTIONS "${avx512_flags}")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/isa/avx512_bf16.cpp PROPERTIES COMPILE_OPTIONS
    "${avx512_flags};-mavx512bf16")
endif()
