// Rasters through the C interface of GDAL. The build without it has raster_none.cpp in place of this file.
#include "ditrain/images/raster.hpp"

#include <cpl_conv.h>
#include <cpl_error.h>
#include <cpl_minixml.h>
#include <cpl_string.h>
#include <cpl_vsi_virtual.h>
#include <fmt/format.h>
#include <gdal.h>
#include <ogr_srs_api.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <list>
#include <map>
#include <mutex>

#include "ditrain/base/error.hpp"
#include "ditrain/files/files.hpp"
#include "jp2_check.hpp"

namespace ditrain::images {
namespace {

// No scene is larger. Sides are those of 300 km at 0.3 m; a block is decoded as a whole.
constexpr int64_t kMaxSide = int64_t{1} << 20, kMaxPixels = int64_t{1} << 36, kMaxBlockBytes = int64_t{256} << 20;
constexpr int64_t kMaxNumbers = int64_t{1} << 40;  // of all bands: a VRT states any size in a few bytes
constexpr int64_t kMaxBands = 4096, kMaxReadBytes = int64_t{4} << 30;
constexpr GIntBig kCacheBytes = GIntBig{128} << 20;  // of decoded blocks, all threads together

constexpr const char* kMoveAway = "moving the file away, or fetching it again";

constexpr const char* kDrivers[] = {"GTiff", "JP2OpenJPEG", "JP2KAK", "JP2ECW", "VRT", nullptr};

constexpr int kMaxVrtDepth = 8;                     // VRTs within VRTs
constexpr size_t kMaxVrtSources = size_t{1} << 16;  // files of one raster, all depths together
constexpr int64_t kMaxVrtReads = int64_t{1} << 20;  // times that its bands, and those of VRTs in it, name a file
constexpr vsi_l_offset kMaxVrtBytes = vsi_l_offset{256} << 20;
constexpr size_t kMaxPrefixedName = 512;  // of a source in an archive

// Kinds of paths of GDAL that stay on this machine.
constexpr const char* kLocalPaths[] = {"/vsimem/", "/vsizip/", "/vsigzip/", "/vsitar/", "/vsisubfile/", "/vsisparse/"};

void* open_nothing(void*, const char*, const char*) { return nullptr; }
size_t read_nothing(void*, void*, size_t, size_t) { return 0; }

// Every other kind of path opens nothing, also where a VRT or an archive names it.
void close_other_paths() {
  // Never destroyed: GDAL does not free the handlers that it no longer lists, and 3.6 keeps the address of a name only.
  static auto& replaced = *new std::vector<VSIFilesystemHandler*>;
  static auto& names = *new std::list<std::string>;
  VSIFilesystemPluginCallbacksStruct* nothing = VSIAllocFilesystemPluginCallbacksStruct();
  nothing->open = open_nothing, nothing->read = read_nothing;
  char** prefixes = VSIGetFileSystemsPrefixes();
  for (char** item = prefixes; item != nullptr && *item != nullptr; ++item) {
    const std::string& prefix = names.emplace_back(*item);
    if (!prefix.starts_with("/vsi") ||
        std::any_of(std::begin(kLocalPaths), std::end(kLocalPaths), [&](const char* l) { return prefix == l; }))
      continue;
    replaced.push_back(VSIFileManager::GetHandler(prefix.c_str()));
    VSIInstallPluginHandler(prefix.c_str(), nothing);
  }
  CSLDestroy(prefixes);
  VSIFreeFilesystemPluginCallbacksStruct(nothing);
}

// The sources of a VRT may use any driver that is registered.
void remove_other_drivers() {
  for (int i = GDALGetDriverCount() - 1; i >= 0; --i) {
    const GDALDriverH driver = GDALGetDriver(i);
    const std::string name = GDALGetDriverShortName(driver);
    if (std::any_of(std::begin(kDrivers), std::end(kDrivers), [&](const char* d) { return d != nullptr && name == d; }))
      continue;
    GDALDeregisterDriver(driver);
    GDALDestroyDriver(driver);
  }
}

void register_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    GDALAllRegister();  // reads the user's settings; ours come after them
    remove_other_drivers();
    close_other_paths();
    CPLSetConfigOption("GDAL_VRT_ENABLE_PYTHON", "NO");  // a VRT may hold functions
    CPLSetConfigOption("GTIFF_IGNORE_READ_ERRORS", "NO");
    CPLSetConfigOption("CPL_VSIL_CURL_ALLOWED_FILENAME", "none");
    CPLSetConfigOption("CPL_VSIL_CURL_ALLOWED_EXTENSIONS", "none");
    GDALSetCacheMax64(kCacheBytes);
    CPLSetErrorHandler(CPLQuietErrorHandler);  // the last message is part of our errors
  });
}

std::string last_message() {
  const std::string text = CPLGetLastErrorMsg();
  return text.empty() ? "GDAL does not say why" : text;
}

struct GdalType {
  PixelType type;
  GDALDataType gdal;
};
constexpr GdalType kTypes[] = {{PixelType::kU8, GDT_Byte},    {PixelType::kU16, GDT_UInt16},
                               {PixelType::kI16, GDT_Int16},  {PixelType::kF32, GDT_Float32},
                               {PixelType::kU32, GDT_UInt32}, {PixelType::kI32, GDT_Int32},
                               {PixelType::kF64, GDT_Float64}};

// Until version 3.7 GDAL keeps eight signed bits as a byte with a remark.
GDALDataType gdal_type(PixelType type) {
  for (const GdalType& row : kTypes)
    if (row.type == type) return row.gdal;
#if GDAL_VERSION_NUM >= 3070000
  return GDT_Int8;
#else
  return GDT_Byte;
#endif
}

bool is_signed_byte(GDALRasterBandH band) {
#if GDAL_VERSION_NUM >= 3070000
  return GDALGetRasterDataType(band) == GDT_Int8;
#else
  const char* remark = GDALGetMetadataItem(band, "PIXELTYPE", "IMAGE_STRUCTURE");
  return GDALGetRasterDataType(band) == GDT_Byte && remark != nullptr && std::string_view(remark) == "SIGNEDBYTE";
#endif
}

// The type that holds the numbers of all bands.
PixelType type_of(GDALDatasetH dataset, const std::string& path) {
  GDALDataType all = GDALGetRasterDataType(GDALGetRasterBand(dataset, 1));
  bool signed_bytes = false;
  for (int b = 1; b <= GDALGetRasterCount(dataset); ++b) {
    const GDALRasterBandH band = GDALGetRasterBand(dataset, b);
    all = GDALDataTypeUnion(all, GDALGetRasterDataType(band));
    signed_bytes = signed_bytes || is_signed_byte(band);
  }
  if (signed_bytes) {
    for (int b = 1; b <= GDALGetRasterCount(dataset); ++b)
      if (!is_signed_byte(GDALGetRasterBand(dataset, b)))
        refuse(path, "bands of int8 beside bands of another type", "", "one type");
    return PixelType::kI8;
  }
  for (const GdalType& row : kTypes)
    if (row.gdal == all) return row.type;
  const char* name = GDALGetDataTypeName(all);
  refuse(path, "numbers of this type have no place here", name == nullptr ? "unknown" : name,
         "u8, u16, i16, f32 (or, only to be inspected, i8, u32, i32, f64)", "gdal_translate -ot Float32");
}

// Programs that write four bands of bytes give the last one the role of alpha unless they are told; one that gives it a
// name of its own means data.
bool is_name_of_alpha(const std::string& name) { return name.empty() || EQUAL(name.c_str(), "alpha"); }

RasterBand describe_band(GDALRasterBandH band, const std::string& path) {
  RasterBand b;
  b.name = GDALGetDescription(band);
  int has = 0;
  const double nodata = GDALGetRasterNoDataValue(band, &has);
  // Of f32 a VRT may state more digits than pixels have.
  if (has != 0) b.nodata = GDALGetRasterDataType(band) == GDT_Float32 ? double(float(nodata)) : nodata;
  b.scale = GDALGetRasterScale(band, &has);
  if (has == 0) b.scale = 1;
  b.offset = GDALGetRasterOffset(band, &has);
  if (has == 0) b.offset = 0;
  if (!std::isfinite(b.scale) || !std::isfinite(b.offset))
    refuse(path, fmt::format("the scale or offset of band {} is not a number", GDALGetBandNumber(band)),
           fmt::format("{} and {}", b.scale, b.offset), "", "gdal_edit.py -scale 1 -offset 0");
  b.is_alpha = GDALGetRasterColorInterpretation(band) == GCI_AlphaBand && is_name_of_alpha(b.name);
  return b;
}

void describe_place(GDALDatasetH dataset, RasterInfo& info) {
  GeoTransform transform;
  if (GDALGetGeoTransform(dataset, transform.data()) == CE_None) info.transform = transform;
  info.has_control_points = !info.transform && GDALGetGCPCount(dataset) > 0;
  OGRSpatialReferenceH srs = GDALGetSpatialRef(dataset);
  if (srs == nullptr || !info.transform) return;  // numbers of pixels are no coordinates
  char* text = nullptr;
  if (OSRExportToWkt(srs, &text) == OGRERR_NONE && text != nullptr) info.crs = text;
  CPLFree(text);
  const char *authority = OSRGetAuthorityName(srs, nullptr), *code = OSRGetAuthorityCode(srs, nullptr);
  if (authority != nullptr && code != nullptr && std::string_view(authority) == "EPSG") info.epsg = std::atoll(code);
}

void refuse_network(const std::string& path, const std::string& file) {
  for (const char* network : {"/vsicurl", "/vsis3", "/vsigs", "/vsiaz", "/vsiadls", "/vsioss", "/vsiswift", "/vsihdfs",
                              "/vsiwebhdfs", "http:", "https:", "ftp:"})
    if (file.find(network) != std::string::npos) refuse(path, "this raster reads from a network", file, "local files");
}

std::vector<std::string> files_of(GDALDatasetH dataset) {
  std::vector<std::string> files;
  char** list = GDALGetFileList(dataset);
  for (char** item = list; item != nullptr && *item != nullptr; ++item) files.emplace_back(*item);
  CSLDestroy(list);
  return files;
}

// GMF_ALPHA: of a band of the raster; GMF_PER_DATASET alone: of its own; 0: none.
int mask_of(GDALDatasetH dataset) {
  const int flags = GDALGetMaskFlags(GDALGetRasterBand(dataset, 1));
  return (flags & GMF_ALL_VALID) != 0 ? 0 : flags & (GMF_PER_DATASET | GMF_ALPHA);
}

// `path` names the raster, or a source of it.
void check_sizes(GDALDatasetH dataset, const std::string& path) {
  const int64_t width = GDALGetRasterXSize(dataset), height = GDALGetRasterYSize(dataset);
  if (width < 1 || height < 1 || width > kMaxSide || height > kMaxSide || width * height > kMaxPixels)
    refuse(path, "no scene has this size", fmt::format("{} x {} pixels", width, height),
           fmt::format("sides up to {} and up to 2^36 pixels", kMaxSide));
  const int64_t bands = GDALGetRasterCount(dataset);
  if (width * height * bands > kMaxNumbers)
    refuse(path, "no scene has so many numbers", fmt::format("{} bands of {} x {} pixels", bands, width, height),
           "up to 2^40 numbers");
  if (bands < 1 || bands > kMaxBands)
    refuse(path, "no raster of bands", fmt::format("{} bands", bands), fmt::format("1 to {}", kMaxBands),
           bands == 0 ? "one of the sub-datasets that gdalinfo lists" : "");
  const char* interleave = GDALGetMetadataItem(dataset, "INTERLEAVE", "IMAGE_STRUCTURE");
  const bool by_pixel = interleave != nullptr && std::string_view(interleave) == "PIXEL";
  const char* compression = GDALGetMetadataItem(dataset, "COMPRESSION", "IMAGE_STRUCTURE");
  const auto check_block = [&](GDALRasterBandH band, int64_t numbers) {
    int x = 0, y = 0;
    GDALGetBlockSize(band, &x, &y);
    const int64_t pixel = std::max(1, GDALGetDataTypeSizeBytes(GDALGetRasterDataType(band))) * numbers;
    if (x < 1 || y < 1 || int64_t(x) * y > kMaxBlockBytes / pixel)
      refuse(path, "a block of this raster is too large to be decoded as a whole",
             fmt::format("{} x {} pixels of {} bytes{}", x, y, pixel,
                         compression == nullptr ? "" : std::string(", ") + compression),
             fmt::format("at most {} bytes", kMaxBlockBytes), "gdal_translate -co TILED=YES");
  };
  for (int b = 1; b <= bands; ++b) check_block(GDALGetRasterBand(dataset, b), by_pixel ? bands : 1);
  if (mask_of(dataset) != 0) check_block(GDALGetMaskBand(GDALGetRasterBand(dataset, 1)), 1);
}

bool is_prefixed(const std::string& name) {
  return STARTS_WITH_CI(name.c_str(), "/vsi") || STARTS_WITH_CI(name.c_str(), "GTIFF_DIR:") ||
         STARTS_WITH_CI(name.c_str(), "GTIFF_RAW:");
}

// Whether a name leads to a pipe or a device, which would be waited for without end, be it as an archive.
bool is_special(const std::string& name) {
  const auto special = [](const std::string& path) {
    std::error_code error;
    return std::filesystem::is_other(std::filesystem::status(path, error));
  };
  if (!is_prefixed(name)) return special(name);
  for (size_t begin = 1; begin < name.size(); ++begin) {
    if (std::string_view("/,:").find(name[begin - 1]) == std::string_view::npos) continue;
    for (size_t end = begin + 1; end <= name.size(); ++end)
      if ((end == name.size() || name[end] == '/') && special(name.substr(begin, end - begin))) return true;
  }
  return false;
}

// `path` names the raster.
void check_source(const std::string& path, const std::string& source) {
  refuse_network(path, source);
  std::error_code error;
  const bool prefixed = is_prefixed(source);
  if (EQUALN(source.c_str(), "vrt://", 6) || source.find("<VRTDataset") != source.npos ||
      (prefixed && source.size() > kMaxPrefixedName))
    refuse(path, "a source of this VRT is not the name of a file", source.substr(0, 100));
  if (is_special(source) || std::filesystem::is_directory(source, error))
    refuse(path, "a source of this VRT is not a regular file", source);
}

// All sources that the XML of a VRT names: of bands, masks, overviews and warped rasters. GDAL does not mind the case.
void list_sources(const CPLXMLNode* node, const std::string& path, const std::filesystem::path& folder,
                  std::vector<std::string>& sources) {
  for (; node != nullptr; node = node->psNext) {
    const char* tag = node->eType == CXT_Element ? node->pszValue : "";
    if (EQUAL(CPLGetXMLValue(node, "subClass", ""), "VRTRawRasterBand"))
      refuse(path, "this VRT takes the bytes of any file for pixels (VRTRawRasterBand)", "", "bands of raster files",
             "gdal_translate, where the VRT is trusted");
    if (EQUAL(tag, "SourceFilename") || EQUAL(tag, "SourceDataset")) {
      const std::string name = CPLGetXMLValue(node, nullptr, "");
      const bool relative = std::atoi(CPLGetXMLValue(node, "relativeToVRT", "0")) != 0;
      sources.push_back(relative ? (folder / name).string() : name);
    }
    list_sources(node->psChild, path, folder, sources);
  }
}

// Behind all links.
std::string own_name(const std::string& source) {
  std::error_code error;
  const std::string name = std::filesystem::weakly_canonical(source, error).string();
  return error || source.starts_with("/vsi") ? source : name;
}

// Nothing for a file that is no VRT. Errors: InputError for sources that must not even be opened
std::vector<std::string> sources_of(const std::string& path) {
  std::vector<std::string> sources;
  std::array<char, 1025> begin{};  // GDAL looks at as many bytes
  VSILFILE* file = VSIFOpenL(path.c_str(), "rb");
  if (file == nullptr) return sources;
  VSIFReadL(begin.data(), 1, begin.size() - 1, file);
  VSIFCloseL(file);
  if (std::strstr(begin.data(), "<VRTDataset") == nullptr) return sources;
  GByte* text = nullptr;
  if (VSIIngestFile(nullptr, path.c_str(), &text, nullptr, GIntBig(kMaxVrtBytes)) == 0)
    refuse(path, "this VRT cannot be read", last_message(), fmt::format("at most {} bytes", kMaxVrtBytes));
  const std::unique_ptr<GByte, void (*)(void*)> text_owner(text, VSIFree);
  const std::unique_ptr<CPLXMLNode, void (*)(CPLXMLNode*)> root(CPLParseXMLString(reinterpret_cast<char*>(text)),
                                                                CPLDestroyXMLNode);
  // GDAL follows a link to a VRT before it looks beside it.
  list_sources(root.get(), path, std::filesystem::path(own_name(path)).parent_path(), sources);
  for (const std::string& source : sources) check_source(path, source);
  return sources;
}

struct Closer {
  void operator()(void* dataset) const { GDALClose(dataset); }
};

// What a file is when a VRT names it: how often files are named in it, and VRTs within each other.
struct SourceTree {
  int64_t reads = 0;
  int depth = 0;
};
using SourceTrees = std::map<std::string, SourceTree>;  // by the file's own name: each is opened once

// A VRT has small blocks itself; its sources are what is decoded.
SourceTree check_sources(const std::string& path, int depth, SourceTrees& trees) {
  SourceTree tree;
  for (const std::string& source : sources_of(path)) {
    const auto too_many = [&] {
      refuse(path, "this VRT has too many sources", source,
             fmt::format("at most {} files, named {} times, and {} VRTs within each other", kMaxVrtSources,
                         kMaxVrtReads, kMaxVrtDepth));
    };
    if (depth == kMaxVrtDepth) too_many();
    // Until it is known, a tree is too deep: a VRT in itself.
    const auto [found, is_new] = trees.try_emplace(own_name(source), SourceTree{0, kMaxVrtDepth});
    if (is_new) {
      if (trees.size() > kMaxVrtSources) too_many();
      std::error_code error;
      if (std::filesystem::is_regular_file(source, error)) check_jp2(source);
      found->second = check_sources(source, depth + 1, trees);
      const std::unique_ptr<void, Closer> opened(
          GDALOpenEx(source.c_str(), GDAL_OF_RASTER | GDAL_OF_READONLY, kDrivers, nullptr, nullptr));
      if (opened != nullptr) check_sizes(opened.get(), source);  // else an error when it is read
    }
    tree.reads += 1 + found->second.reads, tree.depth = std::max(tree.depth, 1 + found->second.depth);
    if (tree.reads > kMaxVrtReads || depth + tree.depth > kMaxVrtDepth) too_many();
  }
  return tree;
}

GDALDatasetH open_dataset(const std::string& path) {
  register_once();
  std::error_code error;
  if (!path.starts_with("/vsi") && !std::filesystem::is_regular_file(path, error))
    refuse(path, "there is no such file", std::filesystem::is_directory(path, error) ? "a folder" : "no file");
  check_jp2(path);
  SourceTrees trees;
  check_sources(path, 0, trees);
  CPLErrorReset();
  const GDALDatasetH dataset = GDALOpenEx(path.c_str(), GDAL_OF_RASTER | GDAL_OF_READONLY, kDrivers, nullptr, nullptr);
  if (dataset == nullptr)
    refuse(path, "cannot be read as a raster", last_message(), "a GeoTIFF, a JPEG 2000 file or a VRT", kMoveAway);
  return dataset;
}

void check_window(const RasterInfo& info, const Window& w) {
  DITRAIN_CHECK(w.x >= 0 && w.y >= 0 && w.width >= 1 && w.height >= 1 && w.x <= info.width - w.width &&
                    w.y <= info.height - w.height,
                "a window inside the raster");
}

}  // namespace

bool has_gdal() { return true; }
void need_gdal(const std::string&) {}

struct Raster::Open {
  GDALDatasetH dataset;
  RasterInfo info;
  explicit Open(const std::string& path) : dataset(open_dataset(path)) {}
  ~Open() { GDALClose(dataset); }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;
};

Raster::Raster(const std::string& path) : open_(std::make_unique<Open>(path)) {
  const GDALDatasetH dataset = open_->dataset;
  RasterInfo& info = open_->info;
  info.path = path;
  info.format = GDALGetDriverShortName(GDALGetDatasetDriver(dataset));
  info.width = GDALGetRasterXSize(dataset), info.height = GDALGetRasterYSize(dataset);
  check_sizes(dataset, path);
  info.type = type_of(dataset, path);
  int width = 0, height = 0;
  GDALGetBlockSize(GDALGetRasterBand(dataset, 1), &width, &height);
  info.block_width = width, info.block_height = height;
  info.files = files_of(dataset);
  for (const std::string& file : info.files) refuse_network(path, file);
  for (int b = 1; b <= GDALGetRasterCount(dataset); ++b)
    info.bands.push_back(describe_band(GDALGetRasterBand(dataset, b), path));
  info.is_palette = GDALGetRasterColorInterpretation(GDALGetRasterBand(dataset, 1)) == GCI_PaletteIndex;
  const bool alpha_is_data =
      std::none_of(info.bands.begin(), info.bands.end(), [](const RasterBand& b) { return b.is_alpha; });
  const int mask = mask_of(dataset);
  info.mask_is_alpha = (mask & GMF_ALPHA) != 0 && !alpha_is_data;
  info.has_mask = info.mask_is_alpha || mask == GMF_PER_DATASET;
  describe_place(dataset, info);
  for (const char* domain : {"", "IMAGERY"})
    for (char** item = GDALGetMetadata(dataset, domain); item != nullptr && *item != nullptr; ++item) {
      std::string name = *item;
      const size_t equals = name.find('=');
      if (equals == name.npos) continue;
      const std::string value = name.substr(equals + 1);
      name.resize(equals);
      for (char& c : name) c = char(std::toupper(static_cast<unsigned char>(c)));
      info.tags.emplace(name, value);
    }
}

std::optional<std::array<double, 2>> longitude_latitude(const std::string& crs, double x, double y) {
  if (crs.empty()) return {};
  const auto open = [](const char* text) {
    const OGRSpatialReferenceH srs = OSRNewSpatialReference(text);
    OSRSetAxisMappingStrategy(srs, OAMS_TRADITIONAL_GIS_ORDER);
    return std::unique_ptr<void, void (*)(OGRSpatialReferenceH)>(srs, OSRDestroySpatialReference);
  };
  const auto from = open(crs.c_str()), to = open(SRS_WKT_WGS84_LAT_LONG);
  const OGRCoordinateTransformationH transformation = OCTNewCoordinateTransformation(from.get(), to.get());
  if (transformation == nullptr) return {};
  const bool done = OCTTransform(transformation, 1, &x, &y, nullptr) != 0;
  OCTDestroyCoordinateTransformation(transformation);
  if (x > 180 && x <= 360) x -= 360;  // grids of models run from 0 to 360
  if (!done || !(std::abs(x) <= 180 && std::abs(y) <= 90)) return {};
  return std::array<double, 2>{x, y};
}

Raster::~Raster() = default;
Raster::Raster(Raster&&) noexcept = default;
Raster& Raster::operator=(Raster&&) noexcept = default;
const RasterInfo& Raster::info() const { return open_->info; }

std::vector<std::byte> Raster::read(const RasterRead& request) {
  const Window& w = request.window;
  const RasterInfo& info = open_->info;
  check_window(info, w);
  std::vector<int> bands;
  for (const int b : request.bands) {
    DITRAIN_CHECK(b >= 0 && b < int(info.bands.size()), "a band of the raster");
    bands.push_back(b + 1);
  }
  const int64_t bytes = pixel_bytes(info.type) * w.width * w.height * int64_t(bands.size());
  if (bytes > kMaxReadBytes) refuse(info.path, "too much at a time", fmt::format("{} bytes", bytes));
  std::vector<std::byte> pixels(static_cast<size_t>(bytes));
  CPLErrorReset();
  const CPLErr result =
      GDALDatasetRasterIO(open_->dataset, GF_Read, int(w.x), int(w.y), int(w.width), int(w.height), pixels.data(),
                          int(w.width), int(w.height), gdal_type(info.type), int(bands.size()), bands.data(), 0, 0, 0);
  if (result != CE_None || CPLGetLastErrorType() >= CE_Failure)
    refuse(info.path, fmt::format("the file is damaged or truncated: rows {} to {}", w.y, w.y + w.height - 1),
           last_message(), "", kMoveAway);
  return pixels;
}

std::vector<uint8_t> Raster::read_mask(const Window& w) {
  const RasterInfo& info = open_->info;
  check_window(info, w);
  std::vector<uint8_t> mask(static_cast<size_t>(w.width * w.height), 1);
  if (!info.has_mask) return mask;
  CPLErrorReset();
  const GDALRasterBandH band = GDALGetMaskBand(GDALGetRasterBand(open_->dataset, 1));
  if (GDALRasterIO(band, GF_Read, int(w.x), int(w.y), int(w.width), int(w.height), mask.data(), int(w.width),
                   int(w.height), GDT_Byte, 0, 0) != CE_None ||
      CPLGetLastErrorType() >= CE_Failure)
    refuse(info.path, "the mask is damaged or truncated", last_message());
  for (uint8_t& m : mask) m = m != 0;
  return mask;
}

namespace {

struct NewDataset {
  GDALDatasetH dataset;
  ~NewDataset() {
    if (dataset != nullptr) GDALClose(dataset);
  }
};

GDALDatasetH create_geotiff(const std::string& path, const RasterToWrite& raster) {
  const GDALDriverH driver = GDALGetDriverByName("GTiff");
  DITRAIN_CHECK(driver != nullptr, "GDAL writes GeoTIFF");
  const bool colours = raster.bands.size() == 3 && raster.type == PixelType::kU8;
  char** options = CSLSetNameValue(nullptr, "PHOTOMETRIC", colours ? "RGB" : "MINISBLACK");
  options = CSLSetNameValue(options, "ALPHA", "NO");  // four bands of bytes do not mean colours with alpha
  options = CSLSetNameValue(options, "INTERLEAVE", "PIXEL");
  CPLErrorReset();
  const GDALDatasetH dataset = GDALCreate(driver, path.c_str(), int(raster.width), int(raster.height),
                                          int(raster.bands.size()), gdal_type(raster.type), options);
  CSLDestroy(options);
  return dataset;
}

bool describe(GDALDatasetH dataset, const RasterToWrite& raster) {
  bool good = true;
  for (size_t b = 0; b < raster.bands.size(); ++b) {
    const RasterBand& from = raster.bands[b];
    const GDALRasterBandH band = GDALGetRasterBand(dataset, int(b + 1));
    if (!from.name.empty()) GDALSetDescription(band, from.name.c_str());
    if (from.nodata) good = good && GDALSetRasterNoDataValue(band, *from.nodata) == CE_None;
    if (from.scale != 1) good = good && GDALSetRasterScale(band, from.scale) == CE_None;
    if (from.offset != 0) good = good && GDALSetRasterOffset(band, from.offset) == CE_None;
  }
  if (raster.transform) {
    GeoTransform transform = *raster.transform;
    good = good && GDALSetGeoTransform(dataset, transform.data()) == CE_None;
  }
  return good && (raster.crs.empty() || GDALSetProjection(dataset, raster.crs.c_str()) == CE_None);
}

}  // namespace

void write_geotiff(const std::string& path, const RasterToWrite& raster) {
  DITRAIN_CHECK(raster.width >= 1 && raster.height >= 1 && !raster.bands.empty() && raster.pixels != nullptr &&
                    raster.type != PixelType::kI8,
                "a raster that can be written");
  register_once();
  files::PendingFile pending(path);
  const auto failed = [&](const std::string& reason) {
    throw RunError({.where = path, .what = "cannot write the file", .got = reason});
  };
  NewDataset file{create_geotiff(pending.temporary(), raster)};
  if (file.dataset == nullptr) failed(last_message());
  CPLErrorReset();
  const bool written =
      describe(file.dataset, raster) &&
      GDALDatasetRasterIO(file.dataset, GF_Write, 0, 0, int(raster.width), int(raster.height),
                          const_cast<void*>(raster.pixels), int(raster.width), int(raster.height),
                          gdal_type(raster.type), int(raster.bands.size()), nullptr, 0, 0, 0) == CE_None;
  if (!written) failed(last_message());
  CPLErrorReset();
  GDALClose(file.dataset);  // writes what is left
  file.dataset = nullptr;
  if (CPLGetLastErrorType() >= CE_Failure) failed(last_message());
  const int fd = files::open_to_read(pending.temporary());
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (error != 0) failed(std::strerror(error));
  pending.commit();
}

}  // namespace ditrain::images
