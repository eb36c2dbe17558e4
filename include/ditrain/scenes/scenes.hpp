// Finds the scenes below a folder: which files and bands each consists of, the grid on which its tiles are cut, its
// class.
//
// A raster of several bands is a scene. Rasters of one band are one scene together if their names differ only in the
// band (T33_20200601_B02_10m.tif, T33_20200601_B8A_20m.tif) and a size such as 10m; the band's name is then that of the
// file, B4 of _band4. Where several words of a name are bands (Red_Sea_B02.tif, site_B1_red.tif), the one counts by
// which a scene has most bands, else a number before a colour, and the last word before others. They may lie in folders
// beside each other that are named after sizes (R10m, R20m). A band that exists at several resolutions comes from its
// finest file or, if a resolution is asked for, from the coarsest file that is not coarser than that. Files that a VRT
// beside them stacks are parts of the VRT. A sub-folder of the top folder is a class, unless labels are not wanted, it
// is a product of Sentinel-2 (X.SAFE, S2?_MSIL...) or Landsat (LC08_...), or every sub-folder holds the single-band
// files of one scene whose name begins with the folder's. Scenes beside two class folders or more are not used; one
// folder beside scenes is no class.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "ditrain/dataset/raster_metadata.hpp"
#include "ditrain/dataset/tile_shards.hpp"

namespace ditrain::scenes {

struct SceneRequest {
  std::string from;                     ///< a folder, or one raster
  std::vector<std::string> bands = {};  ///< wanted bands, in this order; empty: all of the first scene
  std::vector<std::string> names = {};  ///< band names for files without band names
  double resolution = 0;                ///< side of a pixel, in units of the CRS; 0: the finest band's
  bool labels = true;                   ///< sub-folders are classes
  std::optional<double> nodata = {};    ///< missing pixels of bands whose files state neither a number nor a mask
  double scale = 1, offset = 0;         ///< for bands whose files state none: quantity = number * scale + offset
};

/// Where the numbers of a band are.
struct SceneBand {
  dataset::TileBand facts;
  std::string file;
  int index = 0;                  ///< in the file, from 0
  int64_t width = 0, height = 0;  ///< of the file
  int64_t block_width = 0, block_height = 0;
  bool has_mask = false;                  ///< the file's mask or alpha is part of the scene
  std::vector<std::string> sources = {};  ///< other files that its numbers come from: those of a VRT, a mask
};

struct Scene {
  std::string name;  ///< the file, or what the names of its files have in common
  std::vector<SceneBand> bands;
  images::PixelType type = images::PixelType::kU8;
  int64_t width = 0, height = 0;             ///< of the grid
  double whole_width = 0, whole_height = 0;  ///< pixels of the grid that its rasters have, with what is cut off
  std::string crs = {};
  std::optional<images::GeoTransform> transform = {};  ///< of the grid
  int64_t label = -1;
  std::vector<double> metadata = no_metadata();  ///< date and clouds, as its first raster tells them
  std::vector<std::string> files() const;
};

struct SceneList {
  std::vector<Scene> scenes;  ///< scenes with equal CRS and band facts are neighbours
  std::vector<std::string> classes;
  int64_t reordered = 0;  ///< scenes whose files have the bands in another order
  int64_t other_files = 0;
  std::vector<std::string> left_out = {};  ///< rasters that have none of the wanted bands, such as previews
  /// Files that are not used, because their band exists at another resolution.
  std::vector<std::string> other_resolutions = {};
};

/// The bands that the names of single-band rasters give.
struct FileNameBands {
  std::map<std::string, std::string> of_file;  ///< by path: "B02" of T33_B02_10m.tif; rasters without one are not there
  /// Those that the --bands of ditdata make has to name, as for products with previews and masks beside them: all bands
  /// of the scene that has most, less those that another scene with some of them lacks; as configs write them, numbers
  /// in order (B1, ..., B8, B8A, B9). {}: there is no such scene.
  std::vector<std::string> wanted;
};

/// Opens every raster; those that cannot be opened are left out.
FileNameBands bands_of_file_names(const std::vector<std::string>& rasters);

/// Opens every raster once.
/// Errors:   InputError naming scene and file: no rasters, a file that is damaged, a band that a scene lacks, has
///           twice or has besides those of the first, bands of one scene in other places, another type, palettes, a
///           resolution without a CRS
SceneList find_scenes(const SceneRequest& request);

}  // namespace ditrain::scenes
