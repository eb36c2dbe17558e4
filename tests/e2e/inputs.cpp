#include "inputs.hpp"

#include <filesystem>
#include <fstream>

#include "../images/raster_fixture.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/images/image.hpp"
#include "ditrain/weights/safetensors.hpp"

namespace ditrain::e2e {

void write_image_folder(const std::string& path, int64_t num_classes, int64_t images_per_class) {
  constexpr int64_t kWidth = 40, kHeight = 32;
  for (int64_t c = 0; c < num_classes; ++c) {
    const std::string folder = path + "/class_" + std::to_string(c);
    std::filesystem::create_directories(folder);
    for (int64_t i = 0; i < images_per_class; ++i) {
      images::ImageU8 image{kWidth, kHeight, 3, {}};
      for (int64_t at = 0; at < kWidth * kHeight * 3; ++at)
        image.pixels.push_back(uint8_t((at * (7 + 3 * c) + i * i * 31 + 101 * c) % 256));
      images::write_png(folder + "/" + std::to_string(i) + ".png", image);
    }
  }
}

void write_scenes(const std::string& path, int64_t height, int64_t width) {
  if (!images::has_gdal()) return;
  const char* names[] = {"B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B8A", "B9", "B10", "B11", "B12"};
  for (const std::string name : {"field/a.tif", "lake/b.tif"}) {
    std::filesystem::create_directories(std::filesystem::path(path + "/" + name).parent_path());
    images::RasterToWrite raster{.width = width,
                                 .height = height,
                                 .type = images::PixelType::kU16,
                                 .crs = images::utm33(),
                                 .transform = images::GeoTransform{500000, 10, 0, 5400000, 0, -10}};
    std::vector<uint16_t> numbers;
    for (int64_t b = 0; b < 13; ++b) {
      raster.bands.push_back({.name = names[b]});
      for (int64_t p = 0; p < height * width; ++p)
        numbers.push_back(uint16_t((name[0] == 'f' ? 1000 : 300) + 100 * b + p * 7 % 211 + p / width));
    }
    raster.pixels = numbers.data();
    images::write_geotiff(path + "/" + name, raster);
  }
}

namespace {

// A band of a product: 1200 m wide, of which the first tenth is missing.
void write_band(const std::string& folder, const std::string& name, int metres) {
  std::filesystem::create_directories(folder);
  const int64_t side = 1200 / metres, missing = 120 / metres;
  std::vector<uint16_t> numbers;
  for (int64_t p = 0; p < side * side; ++p)
    numbers.push_back(uint16_t(p % side < missing ? 0 : 300 + 10 * metres + p * 7 % 211));
  images::write_test_raster(folder + "/" + name, images::PixelType::kU16, {""}, side, side, numbers,
                            images::GeoTransform{500000, double(metres), 0, 5400000, 0, -double(metres)});
}

}  // namespace

void write_level_2a(const std::string& path) {
  if (!images::has_gdal()) return;
  const std::string granule = path + "/S2A_MSIL2A_20220601_N0400.SAFE/GRANULE/L2A_T33UUP_A025/";
  const auto write_bands = [&](int metres, const std::vector<std::string>& names) {
    for (const std::string& name : names)
      write_band(granule + fmt::format("IMG_DATA/R{}m", metres),
                 fmt::format("T33UUP_20220601_{}_{}m.jp2", name, metres), metres);
  };
  write_bands(10, {"AOT", "B02", "B03", "B04", "B08", "TCI", "WVP"});
  write_bands(20, {"B01", "B02", "B03", "B04", "B05", "B06", "B07", "B8A", "B11", "B12", "SCL"});
  write_bands(60, {"B01", "B02", "B03", "B04", "B05", "B06", "B07", "B8A", "B09", "B11", "B12"});
  write_band(granule + "QI_DATA", "MSK_CLDPRB_20m.jp2", 20);
  write_band(granule + "QI_DATA", "T33UUP_20220601_B02.jp2", 20);
}

void write_level_1c(const std::string& path) {
  if (!images::has_gdal()) return;
  const std::string granule = path + "/S2B_MSIL1C_20220601_N0400.SAFE/GRANULE/L1C_T33UUP_A027/";
  const auto write_bands = [&](int metres, const std::vector<std::string>& names) {
    for (const std::string& name : names)
      write_band(granule + "IMG_DATA", fmt::format("T33UUP_20220601T100031_{}.jp2", name), metres);
  };
  write_bands(10, {"B02", "B03", "B04", "B08", "TCI"});
  write_bands(20, {"B05", "B06", "B07", "B8A", "B11", "B12"});
  write_bands(60, {"B01", "B09", "B10"});
  write_band(granule + "QI_DATA", "MSK_DETFOO_B02.jp2", 10);
}

void write_small_vae(const std::string& path) {
  std::filesystem::create_directory(path);
  std::filesystem::copy(std::string(DITRAIN_GOLDEN_DIR) + "/vae_names/vae_names_new.safetensors",
                        path + "/diffusion_pytorch_model.safetensors");
  std::ofstream(path + "/config.json") << R"({"norm_num_groups": 8, "scaling_factor": 0.5})";
}

void write_latents(const std::string& path, const std::vector<int64_t>& labels, const std::vector<int64_t>& huge) {
  constexpr int64_t kElements = 4 * 8 * 8;
  const auto n = int64_t(labels.size());
  std::vector<float> latents(size_t(n * kElements));
  RandomKey(17, Stream::kTest, 0, 0).fill_normal(latents.data(), n * kElements);
  for (int64_t sample : huge)
    for (int64_t i = 0; i < kElements; ++i) {
      float& value = latents[size_t(sample * kElements + i)];
      value = value < 0 ? -3e38f : 3e38f;
    }
  weights::write_safetensors(path,
                             {{"latents", "F32", {n, 4, 8, 8}, latents.data()}, {"labels", "I64", {n}, labels.data()}});
}

std::vector<std::string> latents_settings(const std::string& folder) {
  return {"data.kind=latents",  "data.path=" + folder,   "model.in_channels=4", "model.input_size=8",
          "model.patch_size=2", "model.patch_overlap=0", "model.num_classes=8"};
}

void rewrite_tensors(const std::string& path, const std::function<void(std::map<std::string, LooseTensor>&)>& change) {
  std::map<std::string, LooseTensor> tensors;
  {
    const weights::SafetensorsFile file(path);
    for (const weights::TensorView& view : file.tensors())
      tensors[view.name] = {view.dtype, view.shape, {view.data, view.data + view.bytes}};
  }
  change(tensors);
  std::vector<weights::TensorToWrite> list;
  for (const auto& [name, tensor] : tensors) list.push_back({name, tensor.dtype, tensor.shape, tensor.data.data()});
  weights::write_safetensors(path, list);
}

}  // namespace ditrain::e2e
