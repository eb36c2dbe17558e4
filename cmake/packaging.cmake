# The Debian package: `cpack --config build/release/CPackConfig.cmake`. What it depends on follows from the libraries
# that the programs load (dpkg-shlibdeps), so that it fits the release of Debian on which it was built.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME ditrain)
set(CPACK_PACKAGE_CONTACT "the ditrain developers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "train Diffusion Transformers on CPUs and CPU clusters")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS openmpi-bin)  # mpirun
include(CPack)
