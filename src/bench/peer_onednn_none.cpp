// oneDNN in a build without it.
#include "ditrain/base/error.hpp"
#include "peer_library.hpp"

namespace ditrain::bench {

std::unique_ptr<Peer> load_onednn(int, const std::vector<int>&) {
  refuse("ditbench", "this build has no oneDNN", "", "oneDNN 2.x with OpenMP when ditrain is built",
         "apt-get install libdnnl-dev (the Debian package), then configure and build again (cmake "
         "-DDITRAIN_ONEDNN=ON)");
}

}  // namespace ditrain::bench
