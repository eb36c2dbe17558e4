# The pipeline that makes tiles.
target_link_libraries(ditrain_dataset PRIVATE TBB::tbb)
