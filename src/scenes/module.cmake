# The pipeline that makes tiles.
target_link_libraries(ditrain_scenes PRIVATE TBB::tbb)
