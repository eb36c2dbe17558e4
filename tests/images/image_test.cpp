#include "ditrain/images/image.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>

#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/files/crc32.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/files/sha256.hpp"
#include "jpeg_fixture.hpp"
#include "pillow_fixture.hpp"
#include "support/files.hpp"

using namespace ditrain;
using namespace ditrain::images;
using Catch::Contains;

namespace {

std::string from_hex(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2)
    bytes.push_back(static_cast<char>(std::strtol(digits.substr(i, 2).c_str(), nullptr, 16)));
  return bytes;
}

ImageU8 noise(int64_t width, int64_t height, int64_t channels, uint32_t seed) {
  ImageU8 image{width, height, channels, {}};
  for (int64_t i = 0; i < width * height * channels; ++i) {
    seed = seed * 1664525u + 1013904223u;
    image.pixels.push_back(static_cast<uint8_t>(seed >> 24));
  }
  return image;
}

ImageU8 read_bytes(const std::string& bytes) {
  TemporaryFolder folder;
  put_file(folder / "image", bytes);
  return read_image(folder / "image");
}

int max_difference(const ImageU8& image, const std::vector<int>& rgb) {
  int worst = 0;
  for (size_t i = 0; i < image.pixels.size(); ++i) worst = std::max(worst, std::abs(image.pixels[i] - rgb[i % 3]));
  return worst;
}

// A PNG chunk with a right checksum.
std::string chunk(const std::string& type, const std::string& data) {
  const auto big_endian = [](uint32_t v) { return std::string{char(v >> 24), char(v >> 16), char(v >> 8), char(v)}; };
  const std::string body = type + data;
  return big_endian(static_cast<uint32_t>(data.size())) + body + big_endian(files::crc32(0, body.data(), body.size()));
}

// A zlib stream of one zero and `runs` x 258 more: 13 bits of fixed Huffman codes for each run.
std::string many_zeros(int runs) {
  std::string bytes = "\x78\x01";
  int used = 8;
  const auto add = [&](const char* bits) {
    for (; *bits != 0; ++bits, ++used) {
      if (used == 8) bytes += '\0', used = 0;
      if (*bits == '1') bytes.back() = char(bytes.back() | 1 << used);
    }
  };
  add("110"), add("00110000");                          // the last block, with fixed codes; a zero
  for (int i = 0; i < runs; ++i) add("1100010100000");  // 258 bytes as the one before
  add("0000000");
  return bytes;
}

}  // namespace

TEST_CASE("resizing and the centre crop equal Pillow bit for bit") {
  for (const pillow_fixture::Case& c : pillow_fixture::kCases) {
    CAPTURE(c.width, c.height, c.channels, c.kind, c.out_width, c.out_height);
    const ImageU8 in = noise(c.width, c.height, c.channels, c.seed);
    const ImageU8 out = c.kind == 'a' ? center_crop_adm(in, c.out_height, c.out_width)
                                      : resize(in, c.out_width, c.out_height,
                                               c.kind == 'x' ? ResizeFilter::kBox : ResizeFilter::kBicubic);
    CHECK(out.width == c.out_width);
    CHECK(out.height == c.out_height);
    CHECK(out.channels == c.channels);
    REQUIRE(out.pixels.size() == static_cast<size_t>(c.out_width * c.out_height * c.channels));
    CHECK(files::crc32(0, out.pixels.data(), out.pixels.size()) == c.crc);
  }
  const std::string expected = from_hex(pillow_fixture::kFirstCropPixels);
  const ImageU8 crop = center_crop_adm(noise(37, 23, 3, 31), 8, 8);
  CHECK(crop.pixels == std::vector<uint8_t>(expected.begin(), expected.end()));
}

TEST_CASE("an extreme aspect ratio is an error, not a huge allocation") {
  CHECK_THROWS_AS(center_crop_adm(noise(100'000, 1, 3, 1), 256, 256), InputError);
  CHECK_THROWS_WITH(center_crop_adm(noise(1, 100'000, 1, 1), 256, 256), Contains("too large (extreme aspect ratio?)"));
}

TEST_CASE("JPEG, PNG and BMP are read as RGB") {
  using namespace pillow_fixture;
  // A flat block has only its mean to round: each of YCbCr and RGB within 1 or 2 levels.
  for (const char* jpeg : {kJpegFlat, kJpegProgressive}) {
    const ImageU8 image = read_bytes(from_hex(jpeg));
    CHECK((image.width == 12 && image.height == 10 && image.channels == 3));
    CHECK(max_difference(image, {200, 100, 50}) <= 2);
  }
  const ImageU8 grey = read_bytes(from_hex(kJpegGrey));
  CHECK((grey.width == 12 && grey.height == 10 && grey.channels == 3));
  CHECK(max_difference(grey, {90, 90, 90}) <= 1);
  CHECK(read_bytes(from_hex(kPngRgba)).pixels ==
        std::vector<uint8_t>{0, 7, 250, 40, 7, 250, 80, 7, 250, 120, 7, 250, 160, 7, 250, 200, 7, 250});
  CHECK(read_bytes(from_hex(kPngGrey16)).pixels == std::vector<uint8_t>{0x00, 0x00, 0x00, 0x22, 0x22, 0x22, 0x43, 0x43,
                                                                        0x43, 0x64, 0x64, 0x64, 0x85, 0x85, 0x85, 0xa6,
                                                                        0xa6, 0xa6});
  CHECK(read_bytes(from_hex(kPngPalette)).pixels ==
        std::vector<uint8_t>{1, 2, 3, 40, 50, 60, 1, 2, 3, 40, 50, 60, 1, 2, 3, 40, 50, 60});
  const ImageU8 bmp = read_bytes(from_hex(kBmp));
  CHECK((bmp.width == 3 && bmp.height == 2));
  for (size_t i = 0; i < 18; ++i) CHECK(bmp.pixels[i] == i);
}

TEST_CASE("JPEGs have the pixels that Pillow gives them, whatever their sampling, scans and colours") {
  for (const jpeg_fixture::Case& c : jpeg_fixture::kCases) {
    CAPTURE(c.kind);
    const ImageU8 image = read_bytes(from_hex(c.hex));
    CHECK((image.width == 21 && image.height == 19 && image.channels == 3));
    CHECK(files::crc32(0, image.pixels.data(), image.pixels.size()) == c.crc);
  }
}

// Hidden, because the photographs are not part of the project: DITRAIN_JPEG_HASHES=DIR/jpeg_hashes.json test_images
// [jpeg_hashes]. The file names photographs beside it and the SHA-256 of their pixels in Pillow.
TEST_CASE("photographs have the pixels that Pillow gives them", "[.][jpeg_hashes]") {
  const char* list = std::getenv("DITRAIN_JPEG_HASHES");
  REQUIRE(list != nullptr);
  const nlohmann::json files = files::parse_json(get_file(list)).at("files");
  for (const auto& [name, want] : files.items()) {
    CAPTURE(name);
    const ImageU8 image = read_image((std::filesystem::path(list).parent_path() / name).string());
    CHECK(image.width == want.at("width"));
    CHECK(image.height == want.at("height"));
    CHECK(files::sha256_of({reinterpret_cast<const char*>(image.pixels.data()), image.pixels.size()}) ==
          want.at("sha256"));
  }
  WARN(files.size() << " photographs");
}

TEST_CASE("the content of a file tells its format, not its name") {
  TemporaryFolder folder;
  put_file(folder / "image.png", from_hex(pillow_fixture::kJpegGrey));
  put_file(folder / "image.jpg", from_hex(pillow_fixture::kPngRgba));
  CHECK(read_image(folder / "image.png").width == 12);
  CHECK(read_image(folder / "image.jpg").pixels == read_bytes(from_hex(pillow_fixture::kPngRgba)).pixels);
}

TEST_CASE("a BMP stored from the top is read upright") {
  std::string bytes = from_hex(pillow_fixture::kBmp);
  bytes.replace(22, 4, "\xfe\xff\xff\xff");  // height -2
  const ImageU8 image = read_bytes(bytes);
  CHECK((image.width == 3 && image.height == 2));
  CHECK(image.pixels == std::vector<uint8_t>{9, 10, 11, 12, 13, 14, 15, 16, 17, 0, 1, 2, 3, 4, 5, 6, 7, 8});
}

TEST_CASE("a JPEG with impossible Huffman tables, or none, is refused or decoded without harm") {
  const std::string whole = from_hex(pillow_fixture::kJpegFlat);
  const size_t table = whole.find("\xff\xc4");
  REQUIRE(table != whole.npos);
  std::string overfull = whole;
  overfull.replace(table + 5, 16, 16, '\xff');  // 16 x 255 codes; the decoder has room for 256
  CHECK_THROWS_WITH(read_bytes(overfull), Contains("corrupt or truncated; got a bad Huffman table"));
  CHECK_THROWS_WITH(read_bytes("\xff" + overfull), Contains("not an image that can be read"));
  const std::string counts = std::string(14, '\0') + std::string(2, char(150)), symbols(300, '\1');
  std::string overlong = whole;
  overlong.insert(2, std::string("\xff\xc4\x01\x3f\0", 5) + counts + symbols);  // 2 + 17 + 300 bytes, 300 codes
  CHECK_THROWS_WITH(read_bytes(overlong), Contains("a bad Huffman table"));
  std::string none = whole;
  for (size_t at = table; at != none.npos; at = none.find("\xff\xc4", at)) none[at + 1] = '\xfe';  // comments now
  try {
    CHECK(read_bytes(none).pixels.size() == 12 * 10 * 3);
  } catch (const InputError& e) {
    CHECK_THAT(e.what(), Contains("corrupt or truncated"));
  }
  std::string scans = whole.substr(0, whole.size() - 2);
  const std::string scan = whole.substr(whole.find("\xff\xda"), whole.size() - 2 - whole.find("\xff\xda"));
  for (int i = 0; i < 256; ++i) scans += scan;
  CHECK_THROWS_WITH(read_bytes(scans + "\xff\xd9"), Contains("too many scans"));
  // A progressive image of 60 million pixels in 17 scans of a few bytes.
  std::string passes = from_hex(pillow_fixture::kJpegProgressive);
  const size_t frame = passes.find("\xff\xc2"), last_scan = passes.rfind("\xff\xda");
  REQUIRE((frame != passes.npos && last_scan != passes.npos));
  passes.replace(frame + 5, 4, std::string("\x1e\x00\x1f\x40", 4));
  const std::string one = passes.substr(last_scan, passes.size() - 2 - last_scan);
  passes.resize(passes.size() - 2);
  for (int i = 0; i < 17; ++i) passes += one;
  CHECK_THROWS_WITH(read_bytes(passes + "\xff\xd9"), Contains("the JPEG has too many scans for its size"));
}

TEST_CASE("markers without a length hide no scans of a JPEG") {
  const std::string whole = from_hex(pillow_fixture::kJpegFlat);
  const size_t at = whole.find("\xff\xda");
  std::string scans = whole.substr(0, whole.size() - 2);
  const std::string scan = whole.substr(at, whole.size() - 2 - at);
  // TEM, and what would be its length if it had one: as long as all that follows.
  std::string hidden;
  for (int i = 0; i < 257; ++i) hidden += scan;
  const size_t length = std::min<size_t>(0xffff, hidden.size() + 2);
  scans += std::string("\xff\x01", 2) + char(length >> 8) + char(length & 0xff) + hidden;
  CHECK_THROWS_WITH(read_bytes(scans + "\xff\xd9"), Contains("too many scans"));
}

TEST_CASE("a JPEG without its last marker is read if all of its data is there") {
  for (const char* file : {pillow_fixture::kJpegFlat, pillow_fixture::kJpegGrey}) {
    const std::string whole = from_hex(file);
    const std::vector<uint8_t> pixels = read_bytes(whole).pixels;
    CHECK(read_bytes(whole.substr(0, whole.size() - 1)).pixels == pixels);
    CHECK(read_bytes(whole.substr(0, whole.size() - 2)).pixels == pixels);
    CHECK_THROWS_WITH(read_bytes(whole.substr(0, whole.size() - 3)), Contains("a JPEG without its end"));
  }
  const std::string passes = from_hex(pillow_fixture::kJpegProgressive);
  CHECK_THROWS_WITH(read_bytes(passes.substr(0, passes.size() - 2)), Contains("a JPEG without its end"));
}

TEST_CASE("images cut anywhere are refused") {
  using namespace pillow_fixture;
  TemporaryFolder folder;
  const std::string path = folder / "cut";
  for (const char* file : {kJpegFlat, kJpegProgressive, kJpegGrey, kPngRgba, kPngGrey16, kPngPalette, kBmp}) {
    const std::string whole = from_hex(file);
    // A JPEG of one scan that lacks only its last marker has all pixels.
    const bool one_scan = file == kJpegFlat || file == kJpegGrey;
    for (size_t bytes = 0; bytes < whole.size() - (one_scan ? 2 : 0); ++bytes) {
      CAPTURE(whole.size(), bytes);
      put_file(path, whole.substr(0, bytes));
      CHECK_THROWS_AS(read_image(path), InputError);
    }
  }
}

TEST_CASE("a damaged PNG is noticed by its checksums") {
  const std::string whole = from_hex(pillow_fixture::kPngRgba);
  for (size_t at = 8; at < whole.size(); ++at) {
    CAPTURE(at);
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    CHECK_THROWS_AS(read_bytes(damaged), InputError);
  }
}

TEST_CASE("a PNG that inflates to far more than its pixels is refused") {
  const auto png = [](int runs) {
    return "\x89PNG\r\n\x1a\n" + chunk("IHDR", std::string("\0\0\0\x20\0\0\0\x20\x8\2\0\0\0", 13)) +
           chunk("IDAT", many_zeros(runs)) + chunk("IEND", "");
  };
  CHECK(read_bytes(png(13)).pixels == std::vector<uint8_t>(size_t{32} * 32 * 3));  // 3,104 bytes are needed
  CHECK_THROWS_WITH(read_bytes(png(32'000)), Contains("inflate to more than an image of its size can have"));  // 8 MB
}

TEST_CASE("any damaged byte of a JPEG or BMP gives an image or an InputError, nothing else") {
  TemporaryFolder folder;
  const std::string path = folder / "damaged";
  int refused = 0;
  for (const char* file : {pillow_fixture::kJpegFlat, pillow_fixture::kJpegProgressive, pillow_fixture::kBmp}) {
    const std::string whole = from_hex(file);
    for (size_t at = 0; at < whole.size(); ++at) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0xff);
      put_file(path, damaged);
      try {
        const ImageU8 image = read_image(path);
        REQUIRE(static_cast<int64_t>(image.pixels.size()) == image.width * image.height * 3);
      } catch (const InputError&) {
        ++refused;
      }
    }
  }
  CHECK(refused > 100);
}

TEST_CASE("what is no image, or too large, is refused before decoding") {
  TemporaryFolder folder;
  CHECK_THROWS_WITH(read_image(folder / "absent"), Contains("cannot open the file"));
  put_file(folder / "text", "hello, this is not an image");
  CHECK_THROWS_WITH(read_image(folder / "text"), Contains(folder / "text") &&
                                                     Contains("not an image that can be read") &&
                                                     Contains("expected JPEG, PNG or BMP"));
  const std::string signature = "\x89PNG\r\n\x1a\n";
  const auto png = [&](const std::string& header) {
    put_file(folder / "png", signature + chunk("IHDR", header) + chunk("IDAT", "x") + chunk("IEND", ""));
  };
  png(std::string("\0\0\x40\0\0\0\x10\1\x8\2\0\0\0", 13));  // 16384 x 4097, RGB: just over the limit
  CHECK_THROWS_WITH(read_image(folder / "png"), Contains("the image is empty or too large; got 16384 x 4097"));
  png(std::string("\xff\xff\xff\xff\xff\xff\xff\xff\x8\2\0\0\0", 13));
  CHECK_THROWS_WITH(read_image(folder / "png"), Contains("too large; got 4294967295 x 4294967295"));
  png(std::string("\0\0\0\0\0\0\0\1\x8\2\0\0\0", 13));
  CHECK_THROWS_WITH(read_image(folder / "png"), Contains("the image is empty or too large; got 0 x 1"));
  std::string jpeg = from_hex(pillow_fixture::kJpegFlat);
  const size_t frame = jpeg.find("\xff\xc0");
  jpeg.replace(frame + 5, 4, "\xff\x10\xff\x10");
  put_file(folder / "jpeg", jpeg);
  CHECK_THROWS_WITH(read_image(folder / "jpeg"), Contains("the image is empty or too large; got 65296 x 65296"));
  std::filesystem::resize_file(folder / "png", kMaxImageFileBytes + 1);
  CHECK_THROWS_WITH(read_image(folder / "png"), Contains("the file is too large"));
}

TEST_CASE("a written PNG reads back as it was") {
  TemporaryFolder folder;
  const ImageU8 rgb = noise(37, 23, 3, 5);
  write_png(folder / "rgb.png", rgb);
  CHECK(read_image(folder / "rgb.png").pixels == rgb.pixels);
  const ImageU8 grey = noise(5, 9, 1, 6);
  write_png(folder / "grey.png", grey);
  const ImageU8 read = read_image(folder / "grey.png");
  CHECK((read.width == 5 && read.height == 9));
  for (size_t i = 0; i < read.pixels.size(); ++i) CHECK(read.pixels[i] == grey.pixels[i / 3]);
  CHECK_THROWS_AS(write_png(folder / "absent/x.png", grey), RunError);
  CHECK_THROWS_AS(write_png(folder / "x.png", ImageU8{2, 2, 4, std::vector<uint8_t>(16)}), LogicFault);
  CHECK_THROWS_AS(write_png(folder / "x.png", ImageU8{2, 2, 3, std::vector<uint8_t>(11)}), LogicFault);
}

TEST_CASE("a grid places images row by row with padding around") {
  std::vector<ImageU8> images;
  for (uint8_t v = 1; v <= 3; ++v) images.push_back({2, 1, 1, {v, static_cast<uint8_t>(v + 10)}});
  const ImageU8 grid = make_grid(images, 2, 1);
  CHECK((grid.width == 7 && grid.height == 5 && grid.channels == 1));
  CHECK(grid.pixels == std::vector<uint8_t>{0, 0, 0,  0, 0, 0,  0,  //
                                            0, 1, 11, 0, 2, 12, 0,  //
                                            0, 0, 0,  0, 0, 0,  0,  //
                                            0, 3, 13, 0, 0, 0,  0,  //
                                            0, 0, 0,  0, 0, 0,  0});
  CHECK(make_grid(images, 8, 0).width == 6);
  images.push_back({1, 1, 1, {0}});
  CHECK_THROWS_AS(make_grid(images, 2, 1), LogicFault);
  CHECK_THROWS_AS(make_grid({}, 2, 1), LogicFault);
}

TEST_CASE("a grid has as many rows and columns as a picture may, and a picture beyond is no fault of the program") {
  const std::vector<ImageU8> images(5, ImageU8{4000, 4000, 1, std::vector<uint8_t>(4000 * 4000)});
  const ImageU8 grid = make_grid(images, 3, 2);
  CHECK((grid.width == 3 * 4002 + 2 && grid.height == 4004));
  const TemporaryFolder scratch;
  const int64_t side = 8200;
  const ImageU8 large{side, side, 1, std::vector<uint8_t>(size_t(side * side))};
  CHECK_THROWS_WITH(write_png(scratch / "a.png", large), Contains("at most 67108864 pixels"));
  CHECK(make_grid({large, large}, 2, 2).pixels.size() == size_t((side + 4) * (side + 4)));
}

TEST_CASE("samples become pixels as in the reference") {
  CHECK(to_u8(-1.0f) == 0);
  CHECK(to_u8(0.0f) == 128);
  CHECK(to_u8(1.0f) == 255);
  CHECK(to_u8(0.9f) == 242);  // 242.75 truncated
  CHECK(to_u8(-5.0f) == 0);
  CHECK(to_u8(5.0f) == 255);
  CHECK(to_u8(NAN) == 0);
  CHECK(to_u8(INFINITY) == 255);
  CHECK(to_u8(-INFINITY) == 0);
  const std::vector<float> x = {-1.0f, 1.0f, 0.0f, 0.5f, 1.0f, -1.0f, 9.0f, 9.0f};  // [4, 1, 2]
  CHECK(to_image(x.data(), 4, 1, 2).pixels == std::vector<uint8_t>{0, 128, 255, 255, 191, 0});
  const ImageU8 grey = to_image(x.data(), 2, 1, 2);
  CHECK(grey.channels == 1);
  CHECK(grey.pixels == std::vector<uint8_t>{0, 255});
}
