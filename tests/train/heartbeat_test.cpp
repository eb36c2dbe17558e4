// What a run says of itself while no line of its log comes.
#include "ditrain/train/heartbeat.hpp"

#include <catch2/catch.hpp>

using ditrain::train::Heartbeat;

TEST_CASE("a line is due after a silence, and says what has begun, where it is and since when") {
  double now = 1000;
  Heartbeat heartbeat(60, [&] { return now; });
  now = 1060;
  CHECK(heartbeat.take_line().empty());  // nothing has begun
  heartbeat.begin("step 12/1000");
  heartbeat.detail("micro-batch 3 of 16, backward of blocks.7.attn");
  now = 1085;
  CHECK(heartbeat.take_line() == "step 12/1000: micro-batch 3 of 16, backward of blocks.7.attn; 25 s so far");
  CHECK(heartbeat.take_line().empty());  // it counts as told
  now = 1144;
  CHECK(heartbeat.take_line().empty());
  now = 1145;
  CHECK(heartbeat.take_line() == "step 12/1000: micro-batch 3 of 16, backward of blocks.7.attn; 1 min 25 s so far");
  heartbeat.begin("checkpoint of step 12");
  now = 1205;
  CHECK(heartbeat.take_line() == "checkpoint of step 12; 1 min 0 s so far");
}

TEST_CASE("a line of a step ends the silence, and comes early if the next one would be late") {
  double now = 0;
  Heartbeat heartbeat(60, [&] { return now; });
  heartbeat.begin("step 1/9");
  now = 45;
  CHECK_FALSE(heartbeat.is_due(10));
  CHECK(heartbeat.is_due(15));
  heartbeat.told();
  now = 104;
  CHECK(heartbeat.take_line().empty());
  now = 105;
  CHECK_FALSE(heartbeat.take_line().empty());
}

TEST_CASE("log.every_seconds 0: no line is ever due") {
  double now = 0;
  Heartbeat off(0, [&] { return now; });
  off.start({});
  off.begin("step 1/9");
  now = 1e6;
  CHECK_FALSE(off.is_due(1e6));
  CHECK(off.take_line().empty());
}
