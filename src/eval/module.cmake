# The presets follow other programs' arithmetic to the bit: multiply-adds are fused where the source says so.
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/eval/fid_preset.cpp PROPERTIES
                            COMPILE_OPTIONS -ffp-contract=off SKIP_PRECOMPILE_HEADERS ON)
