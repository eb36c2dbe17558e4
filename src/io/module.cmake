# The decoder's sums overflow on damaged files; wrapping is harmless there, undefined behaviour is not.
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/io/image_read.cpp PROPERTIES COMPILE_OPTIONS -fwrapv)
# Resampling follows Pillow's arithmetic to the bit: no multiply-add is fused.
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/io/image_resize.cpp PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
