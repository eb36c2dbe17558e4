#include <catch2/catch.hpp>

#include "dataset_fixture.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "support/files.hpp"
#include "support/no_more_files.hpp"

using namespace ditrain;
using namespace ditrain::dataset;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {
std::unique_ptr<Dataset> open_folder(const std::string& path, int64_t num_classes, OnBadFile on_bad = OnBadFile::kError,
                                     SampleShape shape = {3, 4, 4}) {
  Config config;
  config.kind = find_kind("folder"), config.path = path, config.on_bad_file = on_bad;
  return open_dataset(config, shape, num_classes, 1);
}
std::vector<float> filled(uint8_t grey) { return std::vector<float>(48, float(grey) / 127.5f - 1.0f); }
}  // namespace

TEST_CASE("class folders become labels in the order of their names") {
  const ScratchFolder dir;
  dir.write_grey("zebra/a.png", 255);
  dir.write_grey("ant/2.PNG", 20);
  dir.write_grey("ant/10.Png", 10);
  dir.write_grey("ant/.hidden.png", 99);
  dir.write_grey(".cache/x.png", 99);
  dir.write_grey("loose.png", 99);
  dir.write("ant/notes.txt", "no image");
  fs::create_symlink(dir.at("zebra/a.png"), dir.at("zebra/b.png"));
  fs::create_symlink("nowhere.png", dir.at("zebra/c.png"));

  const auto data = open_folder(dir.path(), 2);
  REQUIRE(data->size() == 4);
  CHECK(data->num_classes() == 2);
  CHECK(data->class_names() == std::vector<std::string>{"ant", "zebra"});
  CHECK(load(*data, 0) == Sample{filled(10), 0});  // "10" before "2": byte order
  CHECK(load(*data, 1) == Sample{filled(20), 0});
  CHECK(load(*data, 2) == Sample{filled(255), 1});
  CHECK(load(*data, 3) == Sample{filled(255), 1});
  for (int64_t i = 0; i < 4; ++i) CHECK(data->label(i) == load(*data, i).label);
  CHECK_THAT(data->describe(), Contains("4 images") && Contains("2 classes"));
  CHECK_NOTHROW(open_folder(dir.path(), 0));
  CHECK_THROWS_WITH(open_folder(dir.path(), 1), Contains("label out of range"));
}

TEST_CASE("files that are no images are counted by their extension, hidden ones are not") {
  const ScratchFolder dir;
  dir.write_grey("ant/1.png", 10);
  CHECK(open_folder(dir.path(), 1)->describe_ignored() == "");
  dir.write("ant/1.XML", "");
  CHECK(open_folder(dir.path(), 1)->describe_ignored() == "ignored 1 file (.xml 1)");
  for (const char* name : {"ant/a.txt", "ant/b.TXT", "c.txt", "README", "ant/.hidden.txt", "ant/2.xml", "bee/x.txt",
                           "ant/d.a b", "ant/d.averylongextension"})
    dir.write(name, "");
  CHECK(open_folder(dir.path(), 2)->describe_ignored() ==
        "ignored 9 files (.txt 4, .xml 2, without extension 1, others 2)");
  for (const char* name : {"1.aa", "1.bb", "1.cc"}) dir.write(name, "");
  CHECK(open_folder(dir.path(), 2)->describe_ignored() ==
        "ignored 12 files (.txt 4, .xml 2, .aa 1, .bb 1, .cc 1, others 3)");
}

TEST_CASE("images that a class folder has further down, and links to nothing, are warned of") {
  const ScratchFolder dir, beside;
  dir.write_grey("ant/1.png", 10);
  const auto warnings = [&] {
    const std::string log = beside.at("log.txt");
    fs::remove(log);
    log::open_file(log);
    open_folder(dir.path(), 1);
    log::close_file();
    return get_file(log);
  };
  CHECK(warnings().empty());
  dir.write_grey("ant/deep/2.png", 10);
  for (const char* name : {"ant/b.png", "ant/a.png"}) fs::create_symlink("lost/c.png", dir.at(name));
  CHECK_THAT(warnings(), Contains("1 folder(s) inside the class folders") && Contains("such as 'ant/deep'") &&
                             Contains("2 link(s) lead to nothing") && Contains("such as 'a.png'"));
}

TEST_CASE("an empty class folder keeps its label") {
  const ScratchFolder dir;
  dir.write_grey("b/x.png", 1);
  fs::create_directory(dir.at("a"));
  const auto data = open_folder(dir.path(), 2);
  CHECK(data->num_classes() == 2);
  CHECK(load(*data, 0).label == 1);
}

TEST_CASE("a flat folder has no labels") {
  const ScratchFolder dir;
  dir.write_grey("b.png", 2);
  dir.write_grey("a.png", 1);
  for (int64_t num_classes : {0, 1}) {
    const auto data = open_folder(dir.path(), num_classes);
    CHECK(data->size() == 2);
    CHECK(data->num_classes() == 0);
    CHECK(data->class_names().empty());
    CHECK(load(*data, 0) == Sample{filled(1), 0});
  }
  CHECK_THROWS_WITH(open_folder(dir.path(), 2), Contains("no labels") && Contains("model.num_classes 2"));
}

TEST_CASE("images are cropped, scaled to [-1, 1], planar, and mirrored on request") {
  const ScratchFolder dir;
  images::ImageU8 image{2, 3, 3, {}};
  for (int v = 0; v < 18; ++v) image.pixels.push_back(uint8_t(v * 15));
  images::write_png(dir.at("a.png"), image);
  const auto data = open_folder(dir.path(), 0, OnBadFile::kError, {3, 3, 2});
  const Sample plain = load(*data, 0), mirrored = load(*data, 0, true);
  for (size_t c = 0; c < 3; ++c)
    for (size_t y = 0; y < 3; ++y)
      for (size_t x = 0; x < 2; ++x) {
        const float want = float(image.pixels[(y * 2 + x) * 3 + c]) / 127.5f - 1.0f;
        CHECK(plain.chw[(c * 3 + y) * 2 + x] == want);
        CHECK(mirrored.chw[(c * 3 + y) * 2 + (1 - x)] == want);
      }
  CHECK(plain.chw[0] == -1.0f);
  CHECK(plain.chw.back() == 1.0f);

  const auto wide =
      open_folder(dir.path(), 0, OnBadFile::kError, {3, 5, 9});  // another aspect ratio: scaled and cropped
  const images::ImageU8 crop = images::center_crop_adm(image, 5, 9);
  CHECK(load(*wide, 0).chw[9 + 4] == float(crop.pixels[(9 + 4) * 3]) / 127.5f - 1.0f);
}

TEST_CASE("folders without images say what is there") {
  const ScratchFolder dir;
  CHECK_THROWS_WITH(open_folder(dir.path(), 0), Contains("no images in '" + dir.path()));
  dir.write("readme.txt", "x");
  fs::create_directory(dir.at("empty"));
  CHECK_THROWS_WITH(open_folder(dir.path(), 0), Contains("1 other files and 1 sub-folders"));
  dir.write_grey("train/cat/a.png", 1);
  CHECK_THROWS_WITH(open_folder(dir.path(), 0), Contains("data.path: " + dir.path() + "/train"));
  CHECK_THROWS_AS(open_folder(dir.at("readme.txt"), 0), InputError);
}

TEST_CASE("a folder of RGB images cannot feed another number of channels") {
  const ScratchFolder dir;
  dir.write_grey("a.png", 1);
  CHECK_THROWS_WITH(open_folder(dir.path(), 0, OnBadFile::kError, {4, 4, 4}), Contains("in_channels 4"));
}

TEST_CASE("on_bad_file: error names the file and the way out") {
  const ScratchFolder dir;
  dir.write_grey("a.png", 1);
  dir.write("b.png", "this is no PNG");
  const auto data = open_folder(dir.path(), 0);
  CHECK_NOTHROW(load(*data, 0));
  CHECK_THROWS_AS(load(*data, 1), InputError);
  CHECK_THROWS_WITH(load(*data, 1), Contains(dir.path() + "/b.png") && Contains("data.on_bad_file: skip"));
  CHECK(data->bad_files() == 0);
}

TEST_CASE("on_bad_file: skip takes the next good image and counts each bad one once") {
  const ScratchFolder dir;
  dir.write_grey("a.png", 1);
  dir.write("b.png", "this is no PNG");
  dir.write("c.jpg", "");
  dir.write_grey("d.png", 4);
  std::ifstream good(dir.at("d.png"), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(good)), {});
  dir.write("e.png", bytes.substr(0, bytes.size() / 2));  // truncated

  const auto data = open_folder(dir.path(), 0, OnBadFile::kSkip);
  CHECK(load(*data, 0) == Sample{filled(1), 0});
  CHECK(data->bad_files() == 0);
  CHECK(load(*data, 2) == Sample{filled(4), 0});
  CHECK(data->bad_files() == 1);
  CHECK(load(*data, 1) == Sample{filled(4), 0});
  CHECK(load(*data, 1) == Sample{filled(4), 0});
  CHECK(data->bad_files() == 2);
  CHECK(load(*data, 4) == Sample{filled(1), 0});  // wraps around
  CHECK(data->bad_files() == 3);
}

TEST_CASE("on_bad_file: skip gives up when nothing is readable") {
  const ScratchFolder dir;
  for (const char* name : {"a.png", "b.bmp", "c.jpeg"}) dir.write(name, "nothing");
  const auto data = open_folder(dir.path(), 0, OnBadFile::kSkip);
  CHECK_THROWS_WITH(load(*data, 1), Contains("3 unreadable samples in a row"));
  CHECK(data->bad_files() == 3);
}

TEST_CASE("an image that cannot be read now has no checksum of its content, one that is skipped has 0") {
  const ScratchFolder dir;
  dir.write_grey("a.png", 1);
  const auto strict = open_folder(dir.path(), 0), skipping = open_folder(dir.path(), 0, OnBadFile::kSkip);
  CHECK(strict->content_checksum(0) == skipping->content_checksum(0));
  {
    const NoMoreFiles limit;
    CHECK_THROWS_AS(strict->content_checksum(0), RunError);
    CHECK_THROWS_AS(skipping->content_checksum(0), RunError);
  }
  fs::remove(dir.at("a.png"));
  CHECK_THROWS_WITH(strict->content_checksum(0), Contains(dir.at("a.png")));
  CHECK(skipping->content_checksum(0) == 0);
}
