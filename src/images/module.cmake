# The decoder's sums overflow on damaged files; wrapping is harmless there, undefined behaviour is not.
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/images/image_read.cpp PROPERTIES
                            COMPILE_OPTIONS -fwrapv SKIP_PRECOMPILE_HEADERS ON)
# Resampling follows Pillow's arithmetic to the bit: no multiply-add is fused.
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/images/image_resize.cpp PROPERTIES
                            COMPILE_OPTIONS -ffp-contract=off SKIP_PRECOMPILE_HEADERS ON)
# One of the two, as this build has GDAL or not.
if(ditrain_gdal)
  target_link_libraries(ditrain_images PRIVATE ${ditrain_gdal})
  set(left_out raster_none.cpp)
else()
  set(left_out raster.cpp)
endif()
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/images/${left_out} PROPERTIES HEADER_FILE_ONLY ON)
