#include "ditrain/dist/clock_offset.hpp"

#include <algorithm>
#include <limits>

namespace ditrain::dist {
namespace {

constexpr int kPings = 32;  // the first ones wake the other side up
constexpr int kPing = 0, kAnswer = 1;

void await_ping(Communicator& communicator, const std::unique_ptr<Request>& request) {
  communicator.await(*request, "a comparison of clocks");
}

ClockOffset ping(Communicator& communicator, int rank, const std::function<double()>& clock) {
  ClockOffset best{.error_s = std::numeric_limits<double>::infinity()};
  for (int i = 0; i < kPings; ++i) {
    double answer = 0;
    const std::unique_ptr<Request> receive = communicator.start_receive(&answer, sizeof(answer), rank, kAnswer);
    const double sent = clock();
    await_ping(communicator, communicator.start_send(&sent, sizeof(sent), rank, kPing));
    await_ping(communicator, receive);
    const double received = clock(), error = (received - sent) / 2;
    if (error < best.error_s) best = {answer - (sent + received) / 2, error};
  }
  return best;
}

void answer_pings(Communicator& communicator, const std::function<double()>& clock) {
  for (int i = 0; i < kPings; ++i) {
    double sent = 0;
    await_ping(communicator, communicator.start_receive(&sent, sizeof(sent), 0, kPing));
    const double answer = clock();
    await_ping(communicator, communicator.start_send(&answer, sizeof(answer), 0, kAnswer));
  }
}

}  // namespace

ClockOffset measure_clock_offset(Communicator& communicator, const std::function<double()>& clock) {
  const std::vector<int> nodes = communicator.nodes();
  std::vector<ClockOffset> of_nodes(size_t(communicator.num_nodes()));
  for (int node = 1; node < communicator.num_nodes(); ++node) {
    const int leader = int(std::find(nodes.begin(), nodes.end(), node) - nodes.begin());
    if (communicator.rank() == 0) of_nodes[size_t(node)] = ping(communicator, leader, clock);
    if (communicator.rank() == leader) answer_pings(communicator, clock);
  }
  communicator.broadcast(of_nodes.data(), of_nodes.size() * sizeof(ClockOffset), 0);
  return of_nodes[size_t(nodes[size_t(communicator.rank())])];
}

}  // namespace ditrain::dist
