# Statistics of tiles, band by band.
target_link_libraries(ditrain_dataset PRIVATE TBB::tbb)
