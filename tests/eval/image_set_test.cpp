#include "ditrain/eval/image_set.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <mutex>

#include "dataset/tile_fixture.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/eval/features.hpp"
#include "ditrain/files/sha256.hpp"
#include "ditrain/weights/npz.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "support/files.hpp"
#include "support/npz.hpp"

using namespace ditrain;
using namespace ditrain::eval;
using Catch::Contains;
using test::write_npz;

namespace {

images::ImageU8 coloured(int64_t width, int64_t height, uint8_t value) {
  return {width, height, 3, std::vector<uint8_t>(size_t(width * height * 3), value)};
}

// The first value of every image, by number.
std::vector<double> first_values(ImageSet& set, int workers = 2) {
  parallel::Team team({.num_workers = workers});
  std::mutex mutex;
  std::map<int64_t, double> values;
  set.visit(team, [&](int64_t i, const EvalImage& image) {
    const std::lock_guard lock(mutex);
    values[i] = image.is_u8 ? image.u8.at(0) : image.f32.at(0);
  });
  std::vector<double> all;
  for (const auto& [i, value] : values) all.push_back(value);
  return all;
}

}  // namespace

TEST_CASE("folders are read in the order of their names, class by class") {
  TemporaryFolder folder;
  for (const char* name : {"b", "a", "c"}) std::filesystem::create_directory(folder / name);
  images::write_png(folder / "b/1.png", coloured(4, 4, 20));
  images::write_png(folder / "a/2.png", coloured(4, 4, 11));
  images::write_png(folder / "a/10.png", coloured(4, 4, 10));
  images::write_png(folder / "c/x.JPG", coloured(4, 4, 30));  // a PNG, whatever its name says
  put_file(folder / "c/notes.txt", "not an image"), put_file(folder / "a/x.webp", "not read");
  std::filesystem::create_directory(folder / "a/more");
  const auto set = open_image_set(folder.path());
  CHECK(set->size() == 4);
  CHECK(first_values(*set) == std::vector<double>{10, 11, 20, 30});
  CHECK(set->left_out() ==
        "1 folder(s) inside the class folders are not read, such as 'a/more'; ignored 2 files (.txt 1, .webp 1)");
  CHECK(set->describe() == "4 images in the folder " + folder.path() + " (" + set->left_out() + ")");
  std::string list;
  for (const char* name : {"a/10.png", "a/2.png", "b/1.png", "c/x.JPG"})
    list += files::sha256_of_file(folder / name) + "  " + name + "\n";
  CHECK(set->sha256() == files::sha256_of(list));
  CHECK(set->facts().empty());
  put_file(folder / "samples.json", "{\"steps\":\n 250}");
  CHECK(open_image_set(folder.path())->facts() == "{\"steps\":250}");
  put_file(folder / "samples.json", "{");
  CHECK_THROWS_WITH(open_image_set(folder.path()), Contains("samples.json") && Contains("not JSON"));
}

TEST_CASE("facts of an array lie beside it under its name, or else in its folder") {
  TemporaryFolder folder;
  write_npz(folder / "a.npz", {1, 2, 2, 3}, std::vector<uint8_t>(12, 7));
  CHECK(open_image_set(folder / "a.npz")->facts().empty());
  put_file(folder / "samples.json", "{\"steps\": 1}");
  CHECK(open_image_set(folder / "a.npz")->facts() == "{\"steps\":1}");
  put_file(folder / "a.npz.json", "{\"steps\": 2}");
  CHECK(open_image_set(folder / "a.npz")->facts() == "{\"steps\":2}");
}

TEST_CASE("folders that cannot be meant are refused") {
  TemporaryFolder folder;
  CHECK_THROWS_WITH(open_image_set(folder / "absent"), Contains("there is no such folder or file"));
  CHECK_THROWS_WITH(open_image_set(folder.path()), Contains("there are no images"));
  std::filesystem::create_directory(folder / "empty");
  std::filesystem::create_directory(folder / "full");
  images::write_png(folder / "full/1.png", coloured(4, 4, 1));
  CHECK_THROWS_WITH(open_image_set(folder.path()), Contains("the class 'empty' has no images"));
  std::filesystem::remove(folder / "empty");
  CHECK(open_image_set(folder.path())->size() == 1);
  images::write_png(folder / "2.png", coloured(4, 4, 1));
  CHECK_THROWS_WITH(open_image_set(folder.path()), Contains("both in the folder and in its sub-folders; got 1 and 1"));
  std::filesystem::remove_all(folder / "full");
  put_file(folder / "2.png", "damaged");
  const auto set = open_image_set(folder.path());
  CHECK_THROWS_WITH(first_values(*set), Contains("2.png] not an image that can be read"));
  put_file(folder / "status.json", "{}");
  CHECK_THROWS_WITH(open_image_set(folder.path()),
                    Contains("a run or a checkpoint, no images") && Contains("try ditsample --checkpoint"));
}

TEST_CASE("arrays of images are read from npz and npy, with and without channels, of any numbers") {
  TemporaryFolder folder;
  std::vector<uint8_t> data;
  for (int i = 0; i < 600 * 2 * 2 * 5; ++i) data.push_back(uint8_t(i / 20));
  write_npz(folder / "a.npz", {600, 2, 2, 5}, data);
  const auto set = open_image_set(folder / "a.npz");
  std::vector<double> want;
  for (int i = 0; i < 600; ++i) want.push_back(i % 256);
  CHECK(first_values(*set) == want);
  CHECK(set->sha256() == files::sha256_of_file(folder / "a.npz"));
  write_npz(folder / "grey.npz", {3, 20, 2}, std::vector<uint8_t>(120, 7));
  CHECK(first_values(*open_image_set(folder / "grey.npz")) == std::vector<double>{7, 7, 7});
  const std::vector<double> numbers = {0.5, 1, 2, 3};
  weights::write_npz_f64(folder / "f.npz", {{"arr_0", {2, 1, 2, 1}, numbers.data()}});
  CHECK(first_values(*open_image_set(folder / "f.npz")) == std::vector<double>{0.5, 2});
  const std::string npz = get_file(folder / "grey.npz");
  put_file(folder / "bare.npy", npz.substr(39, npz.find("PK\1\2") - 39));
  CHECK(first_values(*open_image_set(folder / "bare.npy")).size() == 3);

  write_npz(folder / "name.npz", {3, 20, 2}, std::vector<uint8_t>(120, 7), "images");
  CHECK_THROWS_WITH(open_image_set(folder / "name.npz"), Contains("there is no array 'arr_0'; got 'images'"));
  write_npz(folder / "flat.npz", {120}, std::vector<uint8_t>(120, 7));
  CHECK_THROWS_WITH(open_image_set(folder / "flat.npz"), Contains("does not hold images; got shape [120]"));
  write_npz(folder / "none.npz", {0, 2, 2, 3}, {});
  CHECK_THROWS_WITH(open_image_set(folder / "none.npz"), Contains("there are no images"));
  put_file(folder / "text", "neither of them");
  CHECK_THROWS_WITH(open_image_set(folder / "text"), Contains("not a file of numpy"));
}

TEST_CASE("shards of images and latents are one set") {
  TemporaryFolder folder;
  std::vector<float> values;
  for (int i = 0; i < 5 * 13 * 2 * 2; ++i) values.push_back(float(i / 52));
  weights::write_safetensors(folder / "0.safetensors", {{"images", "F32", {3, 13, 2, 2}, values.data()}});
  weights::write_safetensors(folder / "1.safetensors", {{"latents", "F32", {2, 13, 2, 2}, values.data() + 156}});
  CHECK(first_values(*open_image_set(folder.path())) == std::vector<double>{0, 1, 2, 3, 4});
  CHECK(first_values(*open_image_set(folder / "1.safetensors")) == std::vector<double>{3, 4});
  weights::write_safetensors(folder / "moments", {{"mean", "F32", {2, 13, 2, 2}, values.data() + 104},
                                                  {"logvar", "F32", {2, 13, 2, 2}, values.data()}});
  CHECK(first_values(*open_image_set(folder / "moments")) == std::vector<double>{2, 3});
  weights::write_safetensors(folder / "2.safetensors", {{"weights", "F32", {2, 2}, values.data()}});
  CHECK_THROWS_WITH(open_image_set(folder.path()), Contains("there is no tensor 'latents'"));
}

TEST_CASE("latents are multiplied by the factor that their shards state, or by the one that is given") {
  TemporaryFolder folder;
  std::vector<float> values(2 * 4 * 2 * 2, 3.0f);
  const auto write = [&](const char* file, const char* name, const std::string& factor) {
    weights::write_safetensors(folder / file, {{name, "F32", {2, 4, 2, 2}, values.data()}}, {{"scale_factor", factor}});
  };
  write("0.safetensors", "latents", "0.5"), write("1.safetensors", "mean", "0.5");
  CHECK(first_values(*open_image_set(folder.path())) == std::vector<double>{1.5, 1.5, 1.5, 1.5});
  CHECK(first_values(*open_image_set(folder.path(), 2)) == std::vector<double>{6, 6, 6, 6});
  CHECK(first_values(*open_image_set(folder / "0.safetensors")) == std::vector<double>{1.5, 1.5});
  write("1.safetensors", "mean", "0.25");
  CHECK_THROWS_WITH(open_image_set(folder.path()), Contains("1.safetensors") && Contains("another scale_factor than") &&
                                                       Contains("got 0.25, expected 0.5"));
  CHECK(first_values(*open_image_set(folder.path(), 1)) == std::vector<double>{3, 3, 3, 3});
  write("2.safetensors", "samples", "0.5");  // ditsample's are scaled
  CHECK(first_values(*open_image_set(folder / "2.safetensors")) == std::vector<double>{3, 3});
}

TEST_CASE("tiles keep their numbers, and a missing one gets the mean of the valid ones of its band") {
  TemporaryFolder folder;
  dataset::TestTiles tiles{.n = 2, .side = 2, .bands = {"B4", "B8"}, .metadata = {{"nodata", "[9, null]"}}};
  tiles.write<uint16_t>(folder / "a.safetensors", {9, 1, 2, 3, 5, 6, 7, 9, 4, 4, 4, 4, 8, 8, 8, 8}, "U16",
                        {1, 1, 1, 0, 1, 1, 1, 1});
  const auto set = open_image_set(folder.path());
  REQUIRE(set->size() == 2);
  CHECK(set->image(0).f32 == std::vector<float>{1.5f, 1, 2, 1.5f, 5, 6, 7, 6});
  CHECK(set->image(1).f32 == std::vector<float>{4, 4, 4, 4, 8, 8, 8, 8});
  CHECK((set->image(0).channels_first && set->image(0).channels == 2));

  tiles.n = 1;
  tiles.write<float>(folder / "nan.safetensors", {NAN, 1, 1, 1, NAN, NAN, NAN, NAN}, "F32");
  const auto empty = open_image_set(folder / "nan.safetensors");
  CHECK_THROWS_WITH(empty->image(0), Contains("tile 0") && Contains("no pixel of band B8 is valid"));

  tiles.write<uint8_t>(folder / "u8.safetensors", {9, 1, 2, 4, 0, 255, 7, 8}, "U8");
  CHECK(open_image_set(folder / "u8.safetensors")->image(0).u8 == std::vector<uint8_t>{2, 1, 2, 4, 0, 255, 7, 8});
}

TEST_CASE("samples of ditsample: values from -1 to 1 become eight bits, many bands come before their pictures") {
  TemporaryFolder folder;
  std::vector<float> values(2 * 3 * 4, -1.0f);
  values[12] = 1;
  weights::write_safetensors(folder / "samples.safetensors", {{"samples", "F32", {2, 3, 2, 2}, values.data()}});
  CHECK(first_values(*open_image_set(folder.path())) == std::vector<double>{0, 255});
  images::write_png(folder / "000000.png", coloured(2, 2, 7));
  CHECK(first_values(*open_image_set(folder.path())) == std::vector<double>{7});
  // Latents of three channels are no pictures, whatever the files beside them show.
  values[12] = 2.5f;
  weights::write_safetensors(folder / "samples.safetensors", {{"samples", "F32", {2, 3, 2, 2}, values.data()}});
  put_file(folder / "samples.json", R"({"latents": true})");
  const auto latents = open_image_set(folder.path());
  CHECK(latents->is_latent());
  CHECK(first_values(*latents) == std::vector<double>{-1, 2.5});
  std::filesystem::remove(folder / "samples.json");
  weights::write_safetensors(folder / "samples.safetensors", {{"samples", "F32", {1, 6, 2, 2}, values.data()}});
  CHECK(first_values(*open_image_set(folder.path())) == std::vector<double>{-1});
}

TEST_CASE("features of pixels are means of blocks, the same for both orders of channels") {
  CHECK(pixel_block(32, 32, 3) == 1);
  CHECK(pixel_block(64, 64, 1) == 1);
  CHECK(pixel_block(64, 64, 3) == 2);
  CHECK(pixel_block(256, 256, 3) == 8);
  CHECK(pixel_block(1, 1, 4096) == 1);
  CHECK(pixel_block(100'000, 1, 3) == 74);
  CHECK_THROWS_WITH(pixel_block(1, 1, 4097), Contains("too many channels"));

  TemporaryFolder folder;
  parallel::Team team({.num_workers = 2}), one({.num_workers = 1});
  // 65 x 64 x 2: blocks of 2, the last row of blocks is half as high.
  std::vector<uint8_t> last_channel(2 * 65 * 64 * 2);
  std::vector<uint8_t> first_channel(last_channel.size());
  for (size_t i = 0; i < last_channel.size(); ++i) {
    const size_t image = i / (65 * 64 * 2), y = i / 128 % 65, x = i / 2 % 64, c = i % 2;
    last_channel[i] = uint8_t(image * 100 + c * 50 + (y == 64 ? 5 : 0) + x % 2);
    first_channel[image * 65 * 64 * 2 + c * 65 * 64 + y * 64 + x] = last_channel[i];
  }
  write_npz(folder / "a.npz", {2, 65, 64, 2}, last_channel);
  weights::write_safetensors(folder / "a.safetensors", {{"images", "U8", {2, 2, 65, 64}, first_channel.data()}});
  const FeatureSettings pixels{.kind = FeatureKind::kPixels};
  const auto npz = open_image_set(folder / "a.npz"), shards = open_image_set(folder / "a.safetensors");
  const Features a = features_of(team, *npz, pixels), b = features_of(one, *shards, pixels);
  CHECK(a.n == 2);
  CHECK(a.d == 33 * 32 * 2);
  CHECK(a.values == b.values);
  CHECK(a.values[0] == Approx(0.5 / 255));
  CHECK(a.values[32 * 32] == Approx(5.5 / 255));
  CHECK(a.values[33 * 32] == Approx(50.5 / 255));
  CHECK(a.values[size_t(a.d)] == Approx(100.5 / 255));
  CHECK(a.description == "2112 values of 65x64x2 pixels, averaged by blocks of 2x2, divided by 255");

  std::filesystem::create_directory(folder / "mixed");
  images::write_png(folder / "mixed/a.png", coloured(4, 4, 1));
  images::write_png(folder / "mixed/b.png", coloured(5, 4, 1));
  const auto mixed = open_image_set(folder / "mixed");
  CHECK_THROWS_WITH(features_of(one, *mixed, pixels), Contains("b.png] features of pixels need images of one size") &&
                                                          Contains("got 4x5x3 of u8") &&
                                                          Contains("or in training no eval.reference"));
  CHECK_THROWS_WITH(features_of(one, *npz, {}), Contains("need its weights"));
}
