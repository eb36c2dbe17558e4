// What a run leaves while it goes on; event files are read back by a reader of their own.
#include "ditrain/report/live_report.hpp"

#include <bit>
#include <catch2/catch.hpp>

#include "ditrain/images/image.hpp"
#include "run_folder.hpp"

using namespace ditrain;
using namespace ditrain::report;

namespace {

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | uint8_t(bytes[i]);
  return value;
}

/// The fields of a message of protobuf, in order: varints and fixed numbers as bits, others as bytes.
struct Field {
  int number;
  uint64_t bits = 0;
  std::string bytes = {};
};
std::vector<Field> fields_of(std::string_view message) {
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = uint8_t(message.at(at++));
      value |= uint64_t(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
  };
  std::vector<Field> fields;
  while (at < message.size()) {
    const uint64_t key = varint();
    Field field{int(key >> 3)};
    const size_t fixed = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : 0;
    if ((key & 7) == 0) field.bits = varint();
    if (fixed > 0) field.bits = little_endian(message.substr(at, fixed)), at += fixed;
    if ((key & 7) == 2) {
      const size_t length = varint();
      REQUIRE(at + length <= message.size());
      field.bytes = message.substr(at, length), at += length;
    }
    fields.push_back(field);
  }
  return fields;
}

const Field& field(const std::vector<Field>& fields, int number) {
  for (const Field& f : fields)
    if (f.number == number) return f;
  FAIL("no field " << number);
  return fields.front();
}

/// The messages of a file of records, whose checksums have to be right.
std::vector<std::string> records_of(const std::string& path) {
  const std::string file = read(path);
  std::vector<std::string> records;
  for (size_t at = 0; at < file.size();) {
    const std::string_view head = std::string_view(file).substr(at, 8);
    const uint64_t length = little_endian(head);
    REQUIRE(at + 16 + length <= file.size());
    CHECK(little_endian(file.substr(at + 8, 4)) == masked_crc32c(head));
    records.push_back(file.substr(at + 12, length));
    CHECK(little_endian(file.substr(at + 12 + length, 4)) == masked_crc32c(records.back()));
    at += 16 + length;
  }
  return records;
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  return files;
}

}  // namespace

TEST_CASE("CRC-32C is that of RFC 3720") {
  CHECK(crc32c("123456789") == 0xE3069283u);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAu);
  CHECK(crc32c("") == 0);
  CHECK(masked_crc32c("123456789") == 0xC78AB0E5u);  // computed in Python from the formula of the record's format
}

TEST_CASE("a run that ends leaves status, page, events and numbers for Prometheus") {
  const TemporaryFolder scratch;
  const std::string run = scratch / "a";
  write(run + "/metrics.jsonl", metrics_line(1, 2));
  {
    LiveReport live(
        {.folder = run, .first_step = 1, .steps = 3, .tensorboard = true, .prometheus = scratch / "a.prom"});
    CHECK(read_status(run, 0)->state == RunState::kRunning);
    write(run + "/metrics.jsonl", metrics_line(2, 0.1) + metrics_line(3, 0.5));
    std::filesystem::create_directories(run + "/samples");
    images::write_png(run + "/samples/step_00000003.png", {2, 1, 3, {1, 2, 3, 4, 5, 6}});
    live.step(3, 0);
    live.end(RunState::kFinished, "all steps are done");
  }
  const auto status = read_status(run, 0);
  REQUIRE(status);
  CHECK(status->state == RunState::kFinished);
  CHECK(status->step == 3);
  CHECK(status->reason == "all steps are done");
  CHECK(data_of(read(run + "/report.html")).at("runs").at(0).at("status").at("state") == "finished");
  CHECK(read(scratch / "a.prom").find("ditrain_loss{run=\"" + run + "\"} 0.5\n") != std::string::npos);

  const std::vector<std::string> files = files_in(run + "/tensorboard");
  REQUIRE(files.size() == 1);
  CHECK(files[0].find("tfevents") != std::string::npos);
  std::map<int64_t, std::map<std::string, float>> scalars;
  std::string image;
  const std::vector<std::string> records = records_of(files[0]);
  CHECK(field(fields_of(records.at(0)), 3).bytes == "brain.Event:2");
  for (size_t i = 1; i < records.size(); ++i) {
    const std::vector<Field> event = fields_of(records[i]);
    CHECK(std::bit_cast<double>(field(event, 1).bits) > 1e9);
    for (const Field& value : fields_of(field(event, 5).bytes)) {
      const std::vector<Field> parts = fields_of(value.bytes);
      const std::string tag = field(parts, 1).bytes;
      if (tag == "samples")
        image = field(fields_of(field(parts, 4).bytes), 4).bytes;
      else
        scalars[int64_t(field(event, 2).bits)][tag] = std::bit_cast<float>(uint32_t(field(parts, 2).bits));
    }
  }
  CHECK(scalars.size() == 2);  // step 1 was before
  CHECK(scalars[2]["train/loss"] == 0.1f);
  CHECK(scalars[3]["train/loss"] == 0.5f);
  CHECK(scalars[3]["seconds/forward"] == 0.25f);
  CHECK(image == read(run + "/samples/step_00000003.png"));
}

TEST_CASE("a run that goes on writes events into a file of its own") {
  const TemporaryFolder scratch;
  for (int64_t step = 1; step <= 2; ++step) {
    LiveReport live({.folder = scratch.path(), .first_step = step - 1, .steps = 2, .tensorboard = true});
    write(scratch / "metrics.jsonl", metrics_line(step, 1));
    live.end(RunState::kStopped, "");
  }
  const std::vector<std::string> files = files_in(scratch / "tensorboard");
  REQUIRE(files.size() == 2);
  for (const std::string& file : files) CHECK(records_of(file).size() == 2);
}

TEST_CASE("a report that cannot be written ends no run") {
  const TemporaryFolder scratch;
  LiveReport live({.folder = scratch / "gone", .steps = 2, .tensorboard = true, .prometheus = scratch / "gone/a.prom"});
  std::filesystem::remove_all(scratch / "gone");
  live.step(1, 1);
  live.end(RunState::kFinished, "");
  CHECK_FALSE(std::filesystem::exists(scratch / "gone/status.json"));
}

TEST_CASE("what costs much is done seldom") {
  Pace pace(/*first_s=*/5, /*least_s=*/60, /*share=*/0.001);
  CHECK_FALSE(pace.is_due(4));
  CHECK(pace.is_due(5));
  pace.took(5, 0.01);
  CHECK_FALSE(pace.is_due(64));
  CHECK(pace.is_due(65));
  pace.took(65, 0.2);
  CHECK_FALSE(pace.is_due(264));
  CHECK(pace.is_due(265));
}
