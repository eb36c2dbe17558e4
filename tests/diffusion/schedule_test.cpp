// Schedules and spacings. ditverify compares their tables with the reference (diffusion).
#include "ditrain/diffusion/schedule.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "ditrain/base/error.hpp"
#include "ditrain/diffusion/registry.hpp"
#include "rows.hpp"

using namespace ditrain;
using namespace ditrain::diffusion;
using test::make_schedule;

TEST_CASE("a schedule's steps are its own, those of a respaced one are where the spacing says") {
  const Schedule base = make_schedule("linear", 1000);
  std::vector<int64_t> identity(1000);
  std::iota(identity.begin(), identity.end(), 0);
  CHECK(base.timestep_map == identity);
  for (const std::string spec : {"250", "50", "ddim25", "10,10,20", "10", "ddim10"}) {
    INFO(spec);
    const Schedule s = respace(base, spec);
    CHECK(s.timestep_map == space_timesteps(1000, spec));
    for (int64_t i = 0; i < s.num_steps(); ++i) {
      CHECK(s.alphas_cumprod[i] == Approx(base.alphas_cumprod[s.timestep_map[i]]).epsilon(1e-12));
    }
  }
}

TEST_CASE("spacings at the borders") {
  CHECK(space_timesteps(1000, "1") == std::vector<int64_t>{0});
  CHECK(space_timesteps(5, "5") == std::vector<int64_t>{0, 1, 2, 3, 4});
  CHECK(space_timesteps(6, "3") == std::vector<int64_t>{0, 2, 5});       // 2.5 goes to the even 2
  CHECK(space_timesteps(7, "2,2") == std::vector<int64_t>{0, 3, 4, 6});  // the first section is the longer one
  CHECK(space_timesteps(1000, "ddim7").back() == 858);                   // stride 143 is the smallest for 7
  CHECK(space_timesteps(10, "ddim10") == space_timesteps(10, "10"));
}

TEST_CASE("listed steps are taken as they are, or refused") {
  CHECK(space_timesteps(1000, Spacing::at({0, 7, 999})) == std::vector<int64_t>{0, 7, 999});
  for (const std::vector<double>& list :
       {std::vector<double>{7, 7}, {8, 7}, {-1, 7}, {7, 1000}, {0.5, 7}, {std::nan(""), 7}}) {
    CHECK_THROWS_WITH(space_timesteps(1000, Spacing::at(list)), Catch::Contains("not a list of steps that rise"));
  }
}

TEST_CASE("respacing twice maps to the original timesteps") {
  const Schedule once = respace(make_schedule("linear", 1000), "100");
  const Schedule twice = respace(once, "10");
  for (int64_t i = 0; i < 10; ++i) {
    CHECK(twice.timestep_map[i] == once.timestep_map[space_timesteps(100, "10")[i]]);
  }
}

TEST_CASE("a schedule of one step is finite") {
  const Schedule s = respace(make_schedule("squaredcos_cap_v2", 50), "1");
  CHECK(s.num_steps() == 1);
  CHECK(s.posterior_variance[0] == 0);
  CHECK(s.posterior_log_variance_clipped[0] == std::log(s.betas[0]));
}

TEST_CASE("bad spacings are named") {
  for (const char* spec : {"",
                           ",",
                           "10,",
                           ",10",
                           "ten",
                           "10 ",
                           " 10",
                           "10x",
                           "1e3",
                           "0",
                           "-5",
                           "10,0",
                           "ddim",
                           "ddim0",
                           "ddim-1",
                           "ddim 5",
                           "ddim5,5",
                           "1001",
                           "501,10",
                           "ddim999",
                           "ddim1001",
                           "ddim1",
                           "99999999999999999999"}) {
    INFO('"' << spec << '"');
    CHECK_THROWS_AS(space_timesteps(1000, spec), InputError);
    CHECK_THROWS_WITH(space_timesteps(1000, spec),
                      Catch::StartsWith("[diffusion] spacing") && Catch::Contains("\"" + std::string(spec) + "\""));
  }
  CHECK_THROWS_AS(space_timesteps(2, "1,1,1"), InputError);
}

TEST_CASE("bad schedules are refused") {
  for (const int64_t n : {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{100'001}, std::numeric_limits<int64_t>::max()}) {
    CHECK_THROWS_AS(make_schedule("linear", n), InputError);
    CHECK_THROWS_AS(make_schedule("squaredcos_cap_v2", n), InputError);
  }
  CHECK_THROWS_WITH(make_schedule("linear", 20), Catch::Contains("betas between 0 and 1"));
  CHECK(make_schedule("linear", 21).num_steps() == 21);
  CHECK(make_schedule("squaredcos_cap_v2", 2).num_steps() == 2);
}
