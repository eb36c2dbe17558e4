#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "ditrain/base/error.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/dist/placement.hpp"
#include "support/skip.hpp"

using namespace ditrain;
using namespace ditrain::dist;

namespace {

constexpr const char* kLauncherVariables[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"};

}  // namespace

TEST_CASE("the null communicator is one rank whose results are its own values") {
  const auto comm = make_null_communicator();
  CHECK(comm->rank() == 0);
  CHECK(comm->world_size() == 1);
  CHECK(comm->local_rank() == 0);
  CHECK(comm->local_size() == 1);
  CHECK(comm->num_nodes() == 1);

  float gradients[3] = {1, 2, 3};
  const auto request = comm->start_allreduce_sum(gradients, 3);
  CHECK(request->test());
  request->wait();
  CHECK(gradients[2] == 3);

  double values[2] = {-1, 5};
  comm->allreduce_sum(values, 2);
  comm->allreduce_max(values, 2);
  comm->broadcast(values, sizeof(values), 0);
  comm->barrier();
  CHECK(comm->gather(values, 2) == std::vector<double>{-1, 5});
  CHECK(comm->gather(nullptr, 0).empty());
  CHECK(comm->allreduce_or(6) == 6);
  CHECK(comm->gather_strings("alone") == std::vector<std::string>{"alone"});
  CHECK(gather_floats(*comm, {1, 2}) == std::vector<float>{1, 2});
  CHECK(comm->split(3, 0)->world_size() == 1);
  CHECK(comm->rank_in_run(0) == 0);
}

TEST_CASE("one rank shares its mask with itself") {
  const auto comm = make_null_communicator();
  CHECK(share_mask(*comm, {0, 1}).ranks == 1);
  CHECK(share_mask(*comm, {}).number == 0);
}

TEST_CASE("the null communicator refuses ranks and counts that cannot be") {
  const auto comm = make_null_communicator();
  CHECK_THROWS_AS(comm->broadcast(nullptr, 0, 1), LogicFault);
  CHECK_THROWS_AS(comm->gather_strings("", -1), LogicFault);
  CHECK_THROWS_AS(comm->split(-1, 0), LogicFault);
  CHECK_THROWS_AS(comm->start_allreduce_sum(nullptr, -1), LogicFault);
}

TEST_CASE("the null communicator aborts with the exit code asked for") {
  const pid_t child = fork();
  if (child == 0) make_null_communicator()->abort(75);
  int status = 0;
  waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 75);
}

TEST_CASE("a plain run gets the null communicator, also inside a Slurm allocation") {
  for (const char* name : kLauncherVariables)
    if (std::getenv(name)) SKIP("the tests themselves run under an MPI launcher");
  setenv("SLURM_NTASKS", "4", 1);
  CHECK(mpi_launcher().empty());
  const auto comm = make_communicator(nullptr, nullptr);
  CHECK(comm->world_size() == 1);
  CHECK(comm->description() == make_null_communicator()->description());
  setenv("SLURM_STEP_NUM_TASKS", "1", 1);  // a shell that srun started
  CHECK(make_communicator(nullptr, nullptr)->world_size() == 1);
  setenv("SLURM_STEP_NUM_TASKS", "4", 1);
  CHECK_THROWS_WITH(make_communicator(nullptr, nullptr), Catch::Contains("each would train alone") &&
                                                             Catch::Contains("SLURM_STEP_NUM_TASKS=4") &&
                                                             Catch::Contains("srun --mpi=pmix"));
  unsetenv("SLURM_STEP_NUM_TASKS");
  unsetenv("SLURM_NTASKS");
  for (const char* name : kLauncherVariables) {
    setenv(name, "0", 1);
    CHECK(!mpi_launcher().empty());
    unsetenv(name);
  }
}
