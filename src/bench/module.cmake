# One of the two, as this build has oneDNN or not.
if(ditrain_onednn)
  target_link_libraries(ditrain_bench PRIVATE ${ditrain_onednn} ${OpenMP_CXX_LIBRARIES})
  set(left_out peer_onednn_none.cpp)
else()
  set(left_out peer_onednn.cpp)
endif()
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/bench/${left_out} PROPERTIES HEADER_FILE_ONLY ON)
