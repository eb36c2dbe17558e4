# Debug builds, those of sanitizers too, overwrite what has left the fast tier.
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/automem/residency.cpp PROPERTIES
                            COMPILE_DEFINITIONS $<$<CONFIG:Debug>:DITRAIN_POISON>)
