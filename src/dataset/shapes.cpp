// The built-in set: eight simple shapes, each in a colour of its own, drawn on the fly from (seed, index). It needs no
// files, so that training, tests and benchmarks run anywhere. Classes alternate (label = index % 8); epochs are
// shuffled by the sampler. Place, size, tilt, tone and background vary moderately: a nearest neighbour in pixel space
// still finds the class, which is how samples of a model trained on it can be judged without another network.
#include <algorithm>
#include <array>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/dataset/kinds.hpp"

namespace ditrain::dataset {
namespace {

struct Point {
  float x, y;
};
using Rgb = std::array<float, 3>;

// Signed distances (negative inside) in units of the shape's radius; y points down.
float box(Point p, float half_width, float half_height) {
  const float dx = std::fabs(p.x) - half_width, dy = std::fabs(p.y) - half_height;
  const float ox = std::max(dx, 0.0f), oy = std::max(dy, 0.0f);
  return std::sqrt(ox * ox + oy * oy) + std::min(std::max(dx, dy), 0.0f);
}
float radius(Point p) { return std::sqrt(p.x * p.x + p.y * p.y); }
float circle(Point p) { return radius(p) - 0.95f; }
float square(Point p) { return box(p, 0.85f, 0.85f); }
float triangle(Point p) {  // equilateral, tip up: three half-planes at the same distance from the centre
  constexpr float kInner = 0.58f, kSin60 = 0.8660254f;
  const float y = p.y - 0.15f;  // centred by height rather than by mass
  return std::max(y, kSin60 * std::fabs(p.x) - 0.5f * y) - kInner;
}
float ring(Point p) { return std::fabs(radius(p) - 0.74f) - 0.24f; }
float cross(Point p) { return std::min(box(p, 1.0f, 0.33f), box(p, 0.33f, 1.0f)); }
float diamond(Point p) { return (std::fabs(p.x) + std::fabs(p.y) - 1.12f) * 0.70710678f; }
float stripes(Point p) { return std::min(box(p, 0.98f, 0.18f), box({p.x, std::fabs(p.y) - 0.72f}, 0.98f, 0.18f)); }
float bars(Point p) { return box({std::fabs(p.x) - 0.54f, p.y}, 0.28f, 0.98f); }

struct ShapeClass {
  const char* name;
  float (*distance)(Point);
  Rgb colour;
};
constexpr std::array<ShapeClass, kShapesClasses> kClasses{{
    {"circle", circle, {0.93f, 0.24f, 0.23f}},
    {"square", square, {0.20f, 0.47f, 0.96f}},
    {"triangle", triangle, {0.22f, 0.80f, 0.36f}},
    {"ring", ring, {0.99f, 0.85f, 0.20f}},
    {"cross", cross, {0.97f, 0.42f, 0.74f}},
    {"diamond", diamond, {0.18f, 0.86f, 0.90f}},
    {"stripes", stripes, {0.99f, 0.55f, 0.13f}},
    {"bars", bars, {0.62f, 0.40f, 0.97f}},
}};

// What one image is made of; lengths in pixels.
struct Scene {
  const ShapeClass* shape;
  Point centre;
  float radius, cos_tilt, sin_tilt;
  Rgb colour, background;
  float slope;  // of the background's brightness, from top to bottom
};

Scene make_scene(uint64_t seed, int64_t index, const SampleShape& size) {
  const RandomKey key(seed, Stream::kShapes, uint64_t(index));
  const auto between = [&key](uint64_t i, float low, float high) { return low + (high - low) * key.uniform(i); };
  const float side = float(std::min(size.height, size.width));
  Scene s;
  s.shape = &kClasses[size_t(index) % kClasses.size()];
  s.centre = {0.5f * float(size.width) + side * between(0, -0.09f, 0.09f),
              0.5f * float(size.height) + side * between(1, -0.09f, 0.09f)};
  s.radius = side * between(2, 0.26f, 0.34f);
  const float tilt = between(3, -0.15f, 0.15f);  // radians
  s.cos_tilt = std::cos(tilt), s.sin_tilt = std::sin(tilt);
  const float tone = between(4, 0.88f, 1.0f), dim = between(5, 0.85f, 1.15f);
  constexpr Rgb kBackground{0.12f, 0.14f, 0.20f};
  for (size_t c = 0; c < 3; ++c) {
    s.colour[c] = s.shape->colour[c] * tone * between(6 + c, 0.95f, 1.0f);
    s.background[c] = kBackground[c] * dim * between(9 + c, 0.9f, 1.1f);
  }
  s.slope = between(12, 0.2f, 0.5f);
  return s;
}

// Share of a pixel that the shape covers: its edge is one pixel wide, `soft` pixels for a shadow.
float coverage(const Scene& s, float x, float y, float soft) {
  const float dx = (x - s.centre.x) / s.radius, dy = (y - s.centre.y) / s.radius;
  const Point p{s.cos_tilt * dx + s.sin_tilt * dy, s.cos_tilt * dy - s.sin_tilt * dx};
  return std::clamp(0.5f - s.shape->distance(p) * s.radius / soft, 0.0f, 1.0f);
}

// The colour of the pixel whose centre is (x, y), each part in [0, 1].
Rgb shade(const Scene& s, float x, float y, const SampleShape& size) {
  const float inside = coverage(s, x, y, 1.0f);
  const float offset = 0.16f * s.radius;
  const float shadow = 0.55f * coverage(s, x - offset, y - offset, std::max(1.0f, 0.35f * s.radius));
  const float ground = (1.0f + s.slope * (y / float(size.height) - 0.5f)) * (1.0f - shadow);
  const float light = 1.0f - 0.12f * (y - s.centre.y + s.radius) / (2.0f * s.radius);
  Rgb rgb;
  for (size_t c = 0; c < 3; ++c)
    rgb[c] = std::clamp(inside * light * s.colour[c] + (1.0f - inside) * ground * s.background[c], 0.0f, 1.0f);
  return rgb;
}

// Data of any number of bands can be drawn: further ones than red, green and blue are averages of two of them, a single
// one that of all.
float band(const Rgb& rgb, int64_t channel, int64_t channels) {
  if (channels == 1) return (rgb[0] + rgb[1] + rgb[2]) / 3.0f;
  if (channel < 3) return rgb[size_t(channel)];
  return 0.5f * (rgb[size_t(channel % 3)] + rgb[size_t((channel + 1) % 3)]);
}

class Shapes final : public Dataset {
 public:
  explicit Shapes(const OpenRequest& request) : Dataset(request.config, request.shape), seed_(request.seed) {
    size_ = request.config.num_images;
    num_classes_ = int64_t(kClasses.size());
    for (const auto& c : kClasses) class_names_.push_back(c.name);
  }

  std::string describe() const override {
    return "shapes: " + std::to_string(size_) + " drawn images, " + std::to_string(num_classes_) + " classes";
  }

 private:
  int64_t label_of(int64_t index) const override { return index % num_classes_; }

  void read(int64_t index, bool /*flip*/, float* chw, Condition* condition) const override {
    const Scene scene = make_scene(seed_, index, shape_);
    const int64_t plane = shape_.height * shape_.width;
    for (int64_t y = 0; y < shape_.height; ++y)
      for (int64_t x = 0; x < shape_.width; ++x) {
        const Rgb rgb = shade(scene, float(x) + 0.5f, float(y) + 0.5f, shape_);
        float* out = chw + y * shape_.width + x;
        for (int64_t c = 0; c < shape_.channels; ++c) out[c * plane] = 2.0f * band(rgb, c, shape_.channels) - 1.0f;
      }
    condition->label = label_of(index);
  }

  uint64_t seed_;
};

}  // namespace

std::unique_ptr<Dataset> open_shapes(const OpenRequest& request) {
  constexpr int64_t kMaxImages = int64_t{1} << 40;
  if (request.config.num_images < 1 || request.config.num_images > kMaxImages)
    throw InputError({.where = "data",
                      .what = "data.num_images is out of range",
                      .got = std::to_string(request.config.num_images),
                      .expected = "1 to 2^40"});
  return std::make_unique<Shapes>(request);
}

}  // namespace ditrain::dataset
