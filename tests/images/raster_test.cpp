#include "ditrain/images/raster.hpp"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>

#include "ditrain/base/error.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/weights/npz_file.hpp"
#include "raster_fixture.hpp"
#include "support/files.hpp"
#include "support/skip.hpp"

using namespace ditrain;
using Catch::Contains;
using images::PixelType;
using images::Raster;

namespace {

constexpr images::GeoTransform kPlace = {500000, 10, 0, 5400000, 0, -10};

template <class F>
void refused(F call, const std::string& text) {
  try {
    call();
  } catch (const InputError& e) {
    CHECK_THAT(e.what(), Contains(text));
    return;
  }
  FAIL("nothing was refused: " << text);
}

std::vector<double> numbers_of(Raster& raster, const images::RasterRead& request) {
  const std::vector<std::byte> bytes = raster.read(request);
  std::vector<double> numbers(bytes.size() / size_t(images::pixel_bytes(raster.info().type)));
  images::to_f64(raster.info().type, bytes.data(), int64_t(numbers.size()), numbers.data());
  return numbers;
}

std::vector<double> all_numbers(Raster& raster) {
  images::RasterRead request{{}, {0, 0, raster.info().width, raster.info().height}};
  for (size_t b = 0; b < raster.info().bands.size(); ++b) request.bands.push_back(int(b));
  return numbers_of(raster, request);
}

// The directory of a deflated TIFF of one tile, whose few bytes say that they hold side x side pixels.
std::string tiff_of_one_tile(uint32_t side) {
  std::string file("II\x2a\0\x08\0\0\0\x0a\0", 10);
  const auto put = [&](uint32_t v, int bytes) {
    for (int i = 0; i < bytes; ++i) file.push_back(char(v >> (8 * i) & 0xff));
  };
  const std::pair<uint32_t, uint32_t> tags[] = {{256, side}, {257, side}, {258, 8},    {259, 8}, {262, 1},
                                                {277, 1},    {322, side}, {323, side}, {324, 8}, {325, 100}};
  for (const auto& [tag, value] : tags) put(tag, 2), put(4, 2), put(1, 4), put(value, 4);
  put(0, 4);
  return file;
}

// A raster whose own mask is one tile of that side.
std::string tiff_of_one_mask_tile(uint32_t side) {
  std::string file("II\x2a\0\x08\0\0\0", 8);
  const auto put = [&](uint32_t v, int bytes) {
    for (int i = 0; i < bytes; ++i) file.push_back(char(v >> (8 * i) & 0xff));
  };
  using Tags = std::vector<std::array<uint32_t, 3>>;  // with number and value
  const auto directory = [&](const Tags& tags, bool last) {
    put(uint32_t(tags.size()), 2);
    for (const auto& [tag, count, value] : tags) put(tag, 2), put(4, 2), put(count, 4), put(value, 4);
    put(last ? 0 : uint32_t(file.size()) + 4, 4);
  };
  const uint32_t tile = 4096, tiles = (side / tile) * (side / tile), zeros = 1024;  // tiles that are not there
  directory({{256, 1, side},
             {257, 1, side},
             {258, 1, 8},
             {259, 1, 8},
             {262, 1, 1},
             {277, 1, 1},
             {322, 1, tile},
             {323, 1, tile},
             {324, tiles, zeros},
             {325, tiles, zeros}},
            false);
  directory({{254, 1, 4},
             {256, 1, side},
             {257, 1, side},
             {258, 1, 1},
             {259, 1, 8},
             {262, 1, 4},
             {277, 1, 1},
             {322, 1, side},
             {323, 1, side},
             {324, 1, 0},
             {325, 1, 0}},
            true);
  file.resize(zeros + 4 * tiles);
  return file;
}

// The text of a VRT whose source is named as it is.
std::string absolute(std::string vrt) {
  for (size_t at; (at = vrt.find("relativeToVRT=\"1\"")) != std::string::npos;) vrt[at + 15] = '0';
  return vrt;
}

// A port of this machine on which nobody may call.
struct Listener {
  int socket = ::socket(AF_INET, SOCK_STREAM, 0), port = 0;
  Listener() {
    sockaddr_in address{};
    address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    REQUIRE(::bind(socket, reinterpret_cast<sockaddr*>(&address), bytes) == 0);
    REQUIRE(::listen(socket, 8) == 0);
    REQUIRE(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
    port = ntohs(address.sin_port);
  }
  ~Listener() { ::close(socket); }
  // Whether someone called; hangs up.
  bool called() const {
    pollfd poll{socket, POLLIN, 0};
    if (::poll(&poll, 1, 0) <= 0) return false;
    ::close(::accept(socket, nullptr, nullptr));
    return true;
  }
};

template <class T>
void check_round_trip(PixelType type, int num_bands) {
  const TemporaryFolder scratch;
  const int64_t height = 5, width = 7;
  std::vector<T> numbers;
  for (int64_t i = 0; i < num_bands * height * width; ++i) numbers.push_back(T(i % 2 == 0 ? i * 3 : T(0) - T(i)));
  std::vector<std::string> names;
  for (int b = 0; b < num_bands; ++b) names.push_back("B" + std::to_string(b + 1));
  images::write_test_raster(scratch / "a.tif", type, names, height, width, numbers, kPlace, 3.0);
  Raster raster(scratch / "a.tif");
  const images::RasterInfo& info = raster.info();
  CHECK(info.format == "GTiff");
  CHECK((info.width == width && info.height == height && info.type == type));
  REQUIRE(info.bands.size() == size_t(num_bands));
  for (int b = 0; b < num_bands; ++b) {
    CHECK(info.bands[size_t(b)].name == names[size_t(b)]);
    CHECK(info.bands[size_t(b)].nodata == 3.0);
    CHECK_FALSE(info.bands[size_t(b)].is_alpha);
  }
  CHECK(info.epsg == 32633);
  CHECK(info.transform == kPlace);
  const std::vector<double> got = all_numbers(raster);
  REQUIRE(got.size() == numbers.size());
  for (size_t i = 0; i < got.size(); ++i) REQUIRE(got[i] == double(numbers[i]));
  for (const auto& entry : std::filesystem::directory_iterator(scratch.path()))
    CHECK(entry.path().filename() == "a.tif");  // no temporary stays
}

}  // namespace

TEST_CASE("types of pixels have names elsewhere and ranges") {
  CHECK(images::pixel_bytes(PixelType::kU16) == 2);
  CHECK(images::safetensors_name(PixelType::kF32) == "F32");
  CHECK(images::numpy_name(PixelType::kI16) == "int16");
  CHECK(images::number_range(PixelType::kI16) == std::pair(-32768.0, 32767.0));
  CHECK_FALSE(images::is_integer(PixelType::kF64));
}

TEST_CASE("rasters: what is written is read, in every type and number of bands") {
  if (!images::has_gdal()) return refused([] { images::need_gdal("x.tif"); }, "libgdal-dev");
  for (const int bands : {1, 3, 4, 13}) {
    check_round_trip<uint8_t>(PixelType::kU8, bands);
    check_round_trip<uint16_t>(PixelType::kU16, bands);
    check_round_trip<int16_t>(PixelType::kI16, bands);
    check_round_trip<float>(PixelType::kF32, bands);
  }
  check_round_trip<int32_t>(PixelType::kI32, 2);
  check_round_trip<double>(PixelType::kF64, 2);
}

TEST_CASE("rasters: windows and single bands") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const TemporaryFolder scratch;
  images::write_u16(scratch / "a.tif", {"x", "y", "z"}, 20, 30);
  Raster raster(scratch / "a.tif");
  CHECK_FALSE(raster.info().transform);
  CHECK(raster.info().crs.empty());
  const auto got = numbers_of(raster, {{2, 0}, {4, 6, 5, 3}});
  for (int64_t y = 0; y < 3; ++y)
    for (int64_t x = 0; x < 5; ++x) {
      CHECK(got[size_t(y * 5 + x)] == images::test_number(2, y + 6, x + 4));
      CHECK(got[size_t(15 + y * 5 + x)] == images::test_number(0, y + 6, x + 4));
    }
  CHECK_THROWS_AS(raster.read({{0}, {28, 0, 3, 1}}), LogicFault);
}

TEST_CASE("rasters: a VRT brings names, scales, nodata, control points and masks") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const TemporaryFolder scratch;
  images::write_u16(scratch / "a.tif", {"x", "y"}, 6, 8);
  put_file(scratch / "a.vrt",
           images::vrt_of("a.tif", 2, 6, 8,
                          "<Description>B08 \xce\xbb</Description><NoDataValue>7</NoDataValue><Scale>0.0001</Scale>"
                          "<Offset>-0.1</Offset>",
                          "<GeoTransform>500000, 9, 3, 5400000, 3, -9</GeoTransform>"));
  Raster raster(scratch / "a.vrt");
  const images::RasterBand& band = raster.info().bands[1];
  CHECK(band.name == "B08 \xce\xbb");
  CHECK(band.nodata == 7.0);
  CHECK((band.scale == 0.0001 && band.offset == -0.1));
  CHECK(raster.info().transform == images::GeoTransform{500000, 9, 3, 5400000, 3, -9});
  CHECK(raster.info().files.size() == 2);
  CHECK(all_numbers(raster)[48] == images::test_number(1, 0, 0));

  put_file(scratch / "tied.vrt",
           images::vrt_of("a.tif", 2, 6, 8, "",
                          "<GCPList Projection=\"EPSG:4326\"><GCP Id=\"1\" Pixel=\"0\" Line=\"0\" X=\"7\" Y=\"50\"/>"
                          "</GCPList>"));
  const images::RasterInfo tied = Raster(scratch / "tied.vrt").info();
  CHECK((tied.has_control_points && !tied.transform));
  CHECK(tied.crs.empty());  // numbers of pixels are no degrees
  CHECK_FALSE(raster.info().has_control_points);

  std::vector<uint8_t> mask(48, 255);
  mask[5] = 0;
  images::write_test_raster(scratch / "mask.tif", PixelType::kU8, {""}, 6, 8, mask);
  put_file(
      scratch / "masked.vrt",
      images::vrt_of("a.tif", 2, 6, 8, "",
                     "<MaskBand><VRTRasterBand dataType=\"Byte\"><SimpleSource><SourceFilename relativeToVRT=\"1\">"
                     "mask.tif</SourceFilename><SourceBand>1</SourceBand></SimpleSource></VRTRasterBand></MaskBand>"));
  Raster masked(scratch / "masked.vrt");
  REQUIRE(masked.info().has_mask);
  const auto valid = masked.read_mask({0, 0, 8, 6});
  for (size_t i = 0; i < valid.size(); ++i) CHECK(valid[i] == (i != 5));
}

TEST_CASE("rasters: what cannot be read is refused by name") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const TemporaryFolder scratch;
  refused([&] { Raster(scratch / "none.tif"); }, "no such file");
  put_file(scratch / "text.tif", "not a raster at all");
  refused([&] { Raster(scratch / "text.tif"); }, "cannot be read as a raster");
  refused([&] { Raster(scratch / "text.tif"); }, "try moving the file away");
  put_file(scratch / "wide.vrt", images::vrt_of("none.tif", 1, 2'000'000, 2'000'000));
  refused([&] { Raster(scratch / "wide.vrt"); }, "no scene has this size");
  put_file(scratch / "complex.vrt", images::vrt_of("none.tif", 1, 4, 4, "", "", "CFloat32"));
  refused([&] { Raster(scratch / "complex.vrt"); }, "CFloat32");
  put_file(scratch / "bomb.tif", tiff_of_one_tile(32768));
  refused([&] { Raster(scratch / "bomb.tif"); }, "too large to be decoded");
  std::string network = images::vrt_of("/vsicurl/http://localhost:9/a.tif", 1, 4, 4);
  network.replace(network.find("relativeToVRT=\"1\""), 17, "relativeToVRT=\"0\"");
  put_file(scratch / "network.vrt", network);
  refused([&] { Raster(scratch / "network.vrt"); }, "network");
}

TEST_CASE("rasters: nothing is read from a network, however deep a VRT hides it") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const TemporaryFolder scratch;
  const Listener listener;
  ::setenv("GDAL_HTTP_TIMEOUT", "1", 1);  // should it be called, no answer comes
  const std::string url = fmt::format("http://127.0.0.1:{}/a", listener.port);
  for (const std::string& source :
       {"/vsicurl/" + url + ".tif", "/vsicurl_streaming/" + url + ".tif", "/vsizip//vsicurl/" + url + ".zip/a.tif",
        "/vsigzip//vsicurl/" + url + ".tif.gz", "/vsisubfile/0_9,/vsicurl/" + url + ".tif", url + ".tif", "WMS:" + url,
        std::string("/vsiadls/a/b.tif")}) {
    CAPTURE(source);
    const std::string inner = absolute(images::vrt_of(source, 1, 4, 4));
    put_file(scratch / "inner.vrt", inner);
    put_file(scratch / "outer.vrt", images::vrt_of("inner.vrt", 1, 4, 4));
    for (const char* name : {"inner.vrt", "outer.vrt"}) {
      CHECK_THROWS_AS(
          [&] {
            Raster raster(scratch / name);
            all_numbers(raster);
          }(),
          InputError);
      CHECK_FALSE(listener.called());
    }
    CHECK_THROWS_AS(Raster(source), InputError);
    CHECK_FALSE(listener.called());
  }
}

TEST_CASE("rasters: the sources of a VRT have the limits of rasters") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const TemporaryFolder scratch;
  put_file(scratch / "bomb.tif", tiff_of_one_tile(32768));
  put_file(scratch / "a.vrt", images::vrt_of("bomb.tif", 1, 10, 10, "", "", "Byte"));
  refused([&] { Raster(scratch / "a.vrt"); }, "too large to be decoded");
  put_file(scratch / "b.vrt", images::vrt_of("a.vrt", 1, 10, 10, "", "", "Byte"));
  refused([&] { Raster(scratch / "b.vrt"); }, "too large to be decoded");
  images::write_u16(scratch / "small.tif", {"x"}, 10, 10);
  put_file(
      scratch / "mask.vrt",
      images::vrt_of("small.tif", 1, 10, 10, "",
                     "<MaskBand><VRTRasterBand dataType=\"Byte\"><SimpleSource><SourceFilename relativeToVRT=\"1\">"
                     "bomb.tif</SourceFilename><SourceBand>1</SourceBand></SimpleSource></VRTRasterBand></MaskBand>"));
  refused([&] { Raster(scratch / "mask.vrt"); }, "too large to be decoded");
  put_file(scratch / "0.vrt", images::vrt_of("small.tif", 1, 10, 10));
  for (int i = 1; i < 12; ++i)
    put_file(scratch / fmt::format("{}.vrt", i), images::vrt_of(fmt::format("{}.vrt", i - 1), 1, 10, 10));
  CHECK(Raster(scratch / "3.vrt").info().width == 10);
  refused([&] { Raster(scratch / "11.vrt"); }, "too many sources");
}

TEST_CASE("rasters: a mask has the limits of bands, and all bands together have one") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const TemporaryFolder scratch;
  put_file(scratch / "mask.tif", tiff_of_one_mask_tile(32768));
  refused([&] { Raster(scratch / "mask.tif"); }, "too large to be decoded");
  std::string vrt = "<VRTDataset rasterXSize=\"1048576\" rasterYSize=\"65536\">";
  for (int b = 1; b <= 17; ++b) vrt += fmt::format("<VRTRasterBand dataType=\"Byte\" band=\"{}\"/>", b);
  put_file(scratch / "many.vrt", vrt + "</VRTDataset>");
  refused([&] { Raster(scratch / "many.vrt"); }, "no scene has so many numbers");
}

TEST_CASE("rasters: a VRT of pipes, devices or raw bytes is refused before it is opened") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const TemporaryFolder scratch;
  REQUIRE(::mkfifo((scratch / "pipe").c_str(), 0600) == 0);
  std::filesystem::create_symlink(scratch / "pipe", scratch / "link.tif");
  for (const std::string& source :
       {scratch / "pipe", std::string("/dev/zero"), scratch / "link.tif", scratch.path(),
        "/vsigzip/" + scratch / "pipe", "/vsisubfile/0_9," + scratch / "pipe", "GTIFF_DIR:1:" + scratch / "pipe"}) {
    CAPTURE(source);
    std::string vrt = absolute(images::vrt_of(source, 1, 4, 4));
    put_file(scratch / "inner.vrt", vrt);
    put_file(scratch / "outer.vrt", images::vrt_of("inner.vrt", 1, 4, 4));
    for (const char* name : {"inner.vrt", "outer.vrt"})
      refused([&] { Raster(scratch / name); }, "inner.vrt] a source of this VRT is not a regular file");
  }
  put_file(scratch / "name.vrt", absolute(images::vrt_of("vrt://" + scratch / "pipe", 1, 4, 4)));
  refused([&] { Raster(scratch / "name.vrt"); }, "not the name of a file");
  std::string lower = images::vrt_of("pipe", 1, 4, 4);
  for (size_t at; (at = lower.find("SourceFilename")) != std::string::npos;) lower.replace(at, 6, "source");
  put_file(scratch / "lower.vrt", lower);
  refused([&] { Raster(scratch / "lower.vrt"); }, "not a regular file");
  put_file(scratch / "raw.vrt",
           "<VRTDataset rasterXSize=\"4\" rasterYSize=\"4\"><VRTRasterBand dataType=\"Byte\" band=\"1\" "
           "subClass=\"VRTRawRasterBand\"><SourceFilename relativeToVRT=\"0\">/etc/services</SourceFilename>"
           "<ImageOffset>0</ImageOffset><PixelOffset>1</PixelOffset><LineOffset>4</LineOffset></VRTRasterBand>"
           "</VRTDataset>");
  refused([&] { Raster(scratch / "raw.vrt"); }, "VRTRawRasterBand");
}

TEST_CASE("rasters: a link to a VRT hides nothing of its sources") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const TemporaryFolder scratch;
  std::filesystem::create_directories(scratch / "away");
  put_file(scratch / "away/bomb.tif", tiff_of_one_tile(32768));
  put_file(scratch / "away/a.vrt", images::vrt_of("bomb.tif", 1, 10, 10, "", "", "Byte"));
  std::filesystem::create_symlink("away/a.vrt", scratch / "link.vrt");
  refused([&] { Raster(scratch / "link.vrt"); }, "too large to be decoded");
}

TEST_CASE("rasters: a file that a VRT names often is opened once") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const TemporaryFolder scratch;
  images::write_u16(scratch / "a.tif", {"x"}, 4, 4);
  const auto repeated = [](const std::string& source, int times) {
    std::string vrt = images::vrt_of(source, 1, 4, 4);
    const size_t begin = vrt.find("<SimpleSource>"), end = vrt.find("</VRTRasterBand>");
    const std::string one = vrt.substr(begin, end - begin);
    std::string more;
    for (int i = 1; i < times; ++i) more += one;
    return vrt.insert(end, more);
  };
  put_file(scratch / "four.vrt", repeated("a.tif", 70'000));  // as four bands of 17,500 files
  CHECK(Raster(scratch / "four.vrt").info().width == 4);
  put_file(scratch / "inner.vrt", repeated("a.tif", 1100));
  put_file(scratch / "outer.vrt", repeated("inner.vrt", 1000));
  refused([&] { Raster(scratch / "outer.vrt"); }, "too many sources");
  put_file(scratch / "itself.vrt", images::vrt_of("itself.vrt", 1, 4, 4));
  refused([&] { Raster(scratch / "itself.vrt"); }, "too many sources");
}

TEST_CASE("rasters: a scale that is no number is refused, a named fourth band is data") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const TemporaryFolder scratch;
  images::write_u16(scratch / "a.tif", {"x"}, 4, 4);
  for (const char* fact : {"<Scale>nan</Scale>", "<Offset>inf</Offset>"}) {
    put_file(scratch / "a.vrt", images::vrt_of("a.tif", 1, 4, 4, fact));
    refused([&] { Raster(scratch / "a.vrt"); }, "the scale or offset of band 1 is not a number");
  }
  images::write_u16(scratch / "b.tif", {"", "", "", ""}, 4, 4);
  const auto with_alpha = [&](const std::string& name) {
    std::string vrt = images::vrt_of("b.tif", 4, 4, 4);
    vrt.insert(vrt.rfind("<SimpleSource>"), name + "<ColorInterp>Alpha</ColorInterp>");
    put_file(scratch / "b.vrt", vrt);
    return Raster(scratch / "b.vrt").info();
  };
  const images::RasterInfo alpha = with_alpha(""), data = with_alpha("<Description>NIR</Description>");
  CHECK((alpha.bands[3].is_alpha && alpha.has_mask && alpha.mask_is_alpha));
  CHECK_FALSE((data.bands[3].is_alpha || data.has_mask || data.mask_is_alpha));
}

TEST_CASE("rasters: a JPEG 2000 file of one tile that is far too large is refused") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const TemporaryFolder scratch;
  std::string file = get_file(std::string(DITRAIN_GOLDEN_DIR) + "/../fuzz/corpus/raster/lossless.jp2");
  const size_t siz = file.find("\xff\x51"), header = file.find("ihdr");
  REQUIRE((siz != file.npos && header != file.npos));
  const auto put = [&](const std::string& side) {
    for (const size_t at : {siz + 6, siz + 10, siz + 22, siz + 26, header + 4, header + 8}) file.replace(at, 4, side);
    put_file(scratch / "large.jp2", file);
  };
  put(std::string("\0\x04\0\0", 4));  // 262144
  refused([&] { Raster(scratch / "large.jp2"); }, "a tile of this raster is too large to be decoded as a whole");
  const size_t coding = file.find("\xff\x52", siz);
  REQUIRE(coding != file.npos);
  file[coding + 10] = file[coding + 11] = '\0';  // code blocks of 4 x 4
  put(std::string("\0\0\x40\0", 4));             // 16384
  refused([&] { Raster(scratch / "large.jp2"); }, "too many code blocks; got 16777216");
}

TEST_CASE("rasters: a truncated file is an error, never zeros") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const TemporaryFolder scratch;
  images::write_u16(scratch / "a.tif", {"x"}, 64, 64);
  const std::string whole = get_file(scratch / "a.tif");
  int refusals = 0;
  for (size_t bytes = 0; bytes + 1 < whole.size(); bytes += 397) {
    put_file(scratch / "cut.tif", whole.substr(0, bytes));
    CAPTURE(bytes);
    try {
      Raster raster(scratch / "cut.tif");
      const auto numbers = all_numbers(raster);
      CHECK(numbers.back() == images::test_number(0, 63, 63));  // the pixels were whole: the end is of the directory
    } catch (const InputError&) {
      ++refusals;
    }
  }
  CHECK(refusals > 10);
}

TEST_CASE("rasters: a JPEG 2000 file that breaks off anywhere is an error or has the same numbers") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const TemporaryFolder scratch;
  const std::string whole = get_file(std::string(DITRAIN_GOLDEN_DIR) + "/../fuzz/corpus/raster/lossless.jp2");
  put_file(scratch / "a.jp2", whole);
  Raster raster(scratch / "a.jp2");
  const auto want = all_numbers(raster);
  CHECK((raster.info().width == 9 && want.size() == 63));
  CHECK(want[10] == 3 + 7);
  int refusals = 0;
  for (size_t bytes = 0; bytes < whole.size(); bytes += 7) {
    put_file(scratch / "cut.jp2", whole.substr(0, bytes));
    CAPTURE(bytes);
    try {
      Raster cut(scratch / "cut.jp2");
      CHECK(all_numbers(cut) == want);
    } catch (const InputError&) {
      ++refusals;
    }
  }
  CHECK(refusals > 80);
}

// Files of other programs, which are not part of the project: DITRAIN_RASTERS names a folder with gtiff_variants and
// rasters, and what readers have to find in expected.json.
TEST_CASE("rasters: numbers, masks, names and places of a folder of files", "[.][rasters]") {
  const char* folder = std::getenv("DITRAIN_RASTERS");
  REQUIRE(folder != nullptr);
  const std::string variants = std::string(folder) + "/gtiff_variants/", rasters = std::string(folder) + "/rasters/";
  const std::string raw = get_file(variants + "expected_u16le_13x32x32.bin");
  std::vector<double> want(raw.size() / 2);
  images::to_f64(PixelType::kU16, reinterpret_cast<const std::byte*>(raw.data()), int64_t(want.size()), want.data());
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(variants)) {
    if (entry.path().extension() != ".tif") continue;
    CAPTURE(entry.path().string());
    Raster raster(entry.path().string());
    CHECK(all_numbers(raster) == want);
    ++files;
  }
  CHECK(files == 16);
  const auto expected = files::parse_json(get_file(rasters + "expected.json")).at("files");
  for (const auto& [name, facts] : expected.items()) {
    CAPTURE(name);
    Raster raster(rasters + name);
    const images::RasterInfo& info = raster.info();
    CHECK(images::numpy_name(info.type) == facts.at("dtype"));
    CHECK(std::vector<int64_t>{int64_t(info.bands.size()), info.height, info.width} ==
          facts.at("shape").get<std::vector<int64_t>>());
    const auto numbers = all_numbers(raster);
    const auto array = weights::NpzFile(rasters + facts.at("expected").get<std::string>()).to_f64("");
    REQUIRE(numbers.size() == array.size());
    const double allowed = name.find("bilinear") == std::string::npos ? 0 : 1;
    for (size_t i = 0; i < array.size(); ++i)
      if (std::isnan(array[i]) ? !std::isnan(numbers[i]) : !(std::fabs(numbers[i] - array[i]) <= allowed))
        FAIL_CHECK("element " << i << ": " << numbers[i] << " and not " << array[i]);
    if (facts.contains("nodata") && facts["nodata"].is_number())
      CHECK(info.bands[0].nodata == facts["nodata"].get<double>());
    if (facts.contains("nodata") && facts["nodata"].is_string()) CHECK(std::isnan(info.bands[0].nodata.value_or(0)));
    if (facts.contains("nodata") && facts["nodata"].is_null()) CHECK_FALSE(info.bands[0].nodata);
    for (size_t b = 0; b < info.bands.size(); ++b) {
      if (facts.contains("descriptions")) CHECK(info.bands[b].name == facts["descriptions"][b]);
      if (facts.contains("scales")) CHECK(info.bands[b].scale == facts["scales"][b]);
      if (facts.contains("offsets")) CHECK(info.bands[b].offset == facts["offsets"][b]);
      CHECK(info.bands[b].is_alpha == (facts.value("alpha_band", 0) == int(b + 1)));
    }
    if (facts.contains("epsg")) CHECK(info.epsg == facts["epsg"]);
    if (facts.contains("transform")) {
      const auto t = facts["transform"].get<std::vector<double>>();
      CHECK(*info.transform == images::GeoTransform{t[2], t[0], t[1], t[5], t[3], t[4]});
    }
    if (facts.contains("mask")) {
      const auto mask = weights::NpzFile(rasters + facts["mask"].get<std::string>()).to_f64("");
      const auto valid = raster.read_mask({0, 0, info.width, info.height});
      REQUIRE(valid.size() == mask.size());
      for (size_t i = 0; i < valid.size(); ++i) REQUIRE(valid[i] == (mask[i] != 0));
    }
  }
}
