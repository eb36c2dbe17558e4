#include "mpi_support.hpp"

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"

namespace ditrain::dist {
namespace {

const char* thread_level_name(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "single";
    case MPI_THREAD_FUNNELED:
      return "funneled";
    case MPI_THREAD_SERIALIZED:
      return "serialized";
    default:
      return "multiple";
  }
}

std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string version(text, size_t(length));
  return version.substr(0, version.find_first_of(",\n"));  // Open MPI goes on with package, commit and date
}

}  // namespace

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw RunError({.where = "mpi", .what = std::string(call) + " failed: " + std::string(text, size_t(length))});
}

MpiSession::MpiSession(int* argc, char*** argv, bool funneled) : exceptions_(std::uncaught_exceptions()) {
  // In the thread that stays: a library that grants less than MPI_THREAD_MULTIPLE wants all calls from the one that
  // started it.
  thread_.call([&] {
    int started = 0;
    MPI_Initialized(&started);
    DITRAIN_CHECK(!started, "MPI is already started: a process has one MPI communicator");
    const int wanted = funneled ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE;
    check_mpi(MPI_Init_thread(argc, argv, wanted, &thread_level_), "MPI_Init_thread");
    if (thread_level_ < MPI_THREAD_FUNNELED)
      throw RunError({.where = "mpi",
                      .what = "the MPI library does not know threads",
                      .got = "thread level single of " + library_version(),
                      .expected = "MPI_THREAD_MULTIPLE or MPI_THREAD_FUNNELED"});
    thread_level_ = std::min(thread_level_, wanted);
  });
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > exceptions_) return;
  thread_.call([] { MPI_Finalize(); });
}

std::string MpiSession::description() const {
  return library_version() + ", thread level " + thread_level_name(thread_level_);
}

OwnComm::OwnComm(MpiSession& session, MPI_Comm of) : session_(session), exceptions_(std::uncaught_exceptions()) {
  session.run([&] {
    check_mpi(MPI_Comm_dup(of, &comm_), "MPI_Comm_dup");
    return_errors();
  });
}

OwnComm::OwnComm(MpiSession& session, MPI_Comm of, int color, int key)
    : session_(session), exceptions_(std::uncaught_exceptions()) {
  session.run([&] {
    check_mpi(MPI_Comm_split(of, color, key, &comm_), "MPI_Comm_split");
    return_errors();
  });
}

void OwnComm::return_errors() {
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

OwnComm::~OwnComm() {
  if (std::uncaught_exceptions() > exceptions_) return;
  session_.run([&] { MPI_Comm_free(&comm_); });
}

MpiRequest::~MpiRequest() {
  if (done_) return;
  if (std::uncaught_exceptions() > exceptions_) {
    session_.thread().halt();  // its buffer goes next
    return;
  }
  session_.run([&] { MPI_Waitall(int(pieces_.size()), pieces_.data(), MPI_STATUSES_IGNORE); });
}

bool MpiRequest::test() {
  if (done_) return true;
  int flag = 1;
  session_.run(
      [&] { check_mpi(MPI_Testall(int(pieces_.size()), pieces_.data(), &flag, MPI_STATUSES_IGNORE), "MPI_Testall"); });
  return done_ = flag != 0;
}

bool MpiRequest::wait_for(double seconds) {
  const double end = now_s() + seconds;
  for (Backoff backoff; !test(); backoff.pause())
    if (now_s() > end) return false;
  return true;
}

}  // namespace ditrain::dist
