#include "scene_reader.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ditrain/base/error.hpp"

namespace ditrain::scenes {
namespace {

constexpr size_t kMaxOpen = 64;  // files that a reader keeps open

// Pixels [first, first + weights.size()) of the source that make one pixel of the grid.
struct Span {
  int64_t first = 0;
  std::vector<double> weights = {};
};

// Along a side: the grid's pixels [begin, begin + n) in a source of `size` pixels, which are `grid` pixels of the grid.
// A coarser source repeats the pixel below the centre; a finer one is weighted by the covered length.
std::vector<Span> spans(int64_t begin, int64_t n, double grid, int64_t size) {
  std::vector<Span> all(static_cast<size_t>(n));
  const double factor = double(size) / grid;
  for (int64_t i = 0; i < n; ++i) {
    Span& span = all[size_t(i)];
    const double low = double(begin + i) * factor, high = double(begin + i + 1) * factor;
    if (factor <= 1) {
      span = {std::clamp<int64_t>(int64_t(std::floor((low + high) / 2)), 0, size - 1), {1}};
      continue;
    }
    span.first = std::clamp<int64_t>(int64_t(std::floor(low + 1e-9)), 0, size - 1);
    for (int64_t k = span.first; k < size && double(k) < high - 1e-9; ++k)
      span.weights.push_back(std::min(high, double(k + 1)) - std::max(low, double(k)));
  }
  return all;
}

template <class T>
T rounded(double x) {
  if constexpr (std::is_integral_v<T>)
    return T(
        std::clamp(std::nearbyint(x), double(std::numeric_limits<T>::min()), double(std::numeric_limits<T>::max())));
  else
    return T(x);
}

// One band from the source's window at (x0, y0) to the grid. Missing: NaN, nodata, or 0 in `mask`.
template <class T>
void resample(const std::vector<Span>& rows, const std::vector<Span>& columns, int64_t x0, int64_t y0, int64_t width,
              const std::byte* from, const dataset::TileBand& band, std::byte* to) {
  const auto at = [&](int64_t y, int64_t x) {
    T value;
    std::memcpy(&value, from + ((y - y0) * width + x - x0) * int64_t(sizeof(T)), sizeof(T));
    return value;
  };
  for (const Span& row : rows)
    for (const Span& column : columns) {
      T value = at(row.first, column.first);
      if (row.weights.size() > 1 || column.weights.size() > 1) {
        double sum = 0, weights = 0;
        for (size_t j = 0; j < row.weights.size(); ++j)
          for (size_t i = 0; i < column.weights.size(); ++i) {
            const T x = at(row.first + int64_t(j), column.first + int64_t(i));
            if (dataset::is_missing(double(x), band)) continue;
            const double weight = row.weights[j] * column.weights[i];
            sum += weight * double(x), weights += weight;
          }
        if (weights > 0)
          value = rounded<T>(sum / weights);
        else
          value = band.nodata ? rounded<T>(*band.nodata) : at(row.first, column.first);
      }
      std::memcpy(to, &value, sizeof(T));
      to += sizeof(T);
    }
}

images::Window cover(const std::vector<Span>& rows, const std::vector<Span>& columns) {
  const auto end = [](const Span& s) { return s.first + int64_t(s.weights.size()); };
  return {columns.front().first, rows.front().first, end(columns.back()) - columns.front().first,
          end(rows.back()) - rows.front().first};
}

}  // namespace

images::Raster& SceneReader::open(const std::string& path) {
  const auto found = open_.find(path);
  if (found != open_.end()) return found->second;
  if (open_.size() >= kMaxOpen) open_.clear();
  return open_.emplace(path, images::Raster(path)).first->second;
}

ScenePixels SceneReader::read(const Scene& scene, const images::Window& w) {
  ScenePixels out;
  const int64_t bytes = images::pixel_bytes(scene.type), plane = w.width * w.height * bytes;
  out.numbers.resize(size_t(plane) * scene.bands.size());
  std::vector<std::string> masked;
  // Neighbouring bands of one file come in one read: their pixels may lie side by side.
  for (size_t first = 0, last; first < scene.bands.size(); first = last) {
    const SceneBand& band = scene.bands[first];
    last = first + 1;
    while (last < scene.bands.size() && scene.bands[last].file == band.file) ++last;
    images::Raster& raster = open(band.file);
    const auto rows = spans(w.y, w.height, scene.whole_height, band.height),
               columns = spans(w.x, w.width, scene.whole_width, band.width);
    images::RasterRead request{{}, cover(rows, columns)};
    for (size_t b = first; b < last; ++b) request.bands.push_back(scene.bands[b].index);
    const images::Window& source = request.window;
    const std::vector<std::byte> numbers = raster.read(request);
    out.source_bytes += double(numbers.size());
    const bool as_is = double(band.width) == scene.whole_width && double(band.height) == scene.whole_height;
    if (as_is) {
      std::memcpy(out.numbers.data() + int64_t(first) * plane, numbers.data(), numbers.size());
    } else {
      for (size_t b = first; b < last; ++b) {
        const std::byte* from = numbers.data() + int64_t(b - first) * source.width * source.height * bytes;
        std::byte* to = out.numbers.data() + int64_t(b) * plane;
        images::with_tile_number(scene.type, [&](auto type) {
          resample<decltype(type)>(rows, columns, source.x, source.y, source.width, from, scene.bands[b].facts, to);
        });
      }
    }
    if (!band.has_mask || std::find(masked.begin(), masked.end(), band.file) != masked.end()) continue;
    masked.push_back(band.file);
    const std::vector<uint8_t> mask = raster.read_mask(source);
    if (out.valid.empty()) out.valid.assign(size_t(w.width * w.height), 1);
    // With a finer mask every pixel of it has to be valid.
    size_t p = 0;
    for (const Span& row : rows)
      for (const Span& column : columns) {
        for (size_t j = 0; j < row.weights.size(); ++j)
          for (size_t i = 0; i < column.weights.size(); ++i)
            if (mask[size_t((row.first + int64_t(j) - source.y) * source.width + column.first + int64_t(i) -
                            source.x)] == 0)
              out.valid[p] = 0;
        ++p;
      }
  }
  return out;
}

}  // namespace ditrain::scenes
