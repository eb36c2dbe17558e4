// Whole scenes in overlapping tiles.
#include "ditrain/eval/scene_sampling.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "support/workers.hpp"
#include "tiny_model.hpp"

using namespace ditrain;

namespace {

// Predicts one channel of a scene of two given ones, in tiles of 16 x 16.
nn::ModelConfig sizes() {
  nn::ModelConfig c = test::tiny_config();
  c.input_height = c.input_width = 16;
  c.in_channels = 1, c.condition_channels = 2, c.learn_sigma = false;
  return c;
}

diffusion::Config flow() {
  diffusion::Config config;
  config.process = diffusion::named<diffusion::ProcessKind>("flow");
  return config;
}

eval::SceneRequest request_of(int64_t height, int64_t width) {
  eval::SceneRequest request{.sampler = {.spacing = "2"}, .seed = 4, .height = height, .width = width};
  request.condition.label = 3;
  for (int64_t i = 0; i < 2 * height * width; ++i) request.condition.image.push_back(std::sin(0.1f * float(i)));
  return request;
}

std::vector<float> draw(nn::Model& model, const eval::SceneRequest& request, int workers = 1) {
  test::Workers crew(workers);
  return eval::generate_scene(crew.ctx, model, flow(), request);
}

}  // namespace

TEST_CASE("a scene of the model's size is one step of the model, on the scene's noise and image") {
  const auto model = test::random_model(sizes());
  eval::SceneRequest request = request_of(16, 16);
  request.sampler.spacing = "1";
  const std::vector<float> got = draw(*model, request);
  nn::Model still(sizes());  // fresh: its velocity is 0, and what comes out is the noise
  still.parameters().allocate(autograd::ParameterStore::For::kInference);
  nn::initialise(still, 1);
  const std::vector<float> noise = draw(still, request);

  test::Workers crew;
  nn::ModelPass pass(*model, 1, autograd::Mode::kInference);
  pass.allocate();
  std::copy(noise.begin(), noise.end(), Pin<float>(pass.image()).get());
  pass.t() = {0}, pass.conditions() = {request.condition};
  pass.forward(crew.ctx);
  const std::vector<float> velocity = to_vector(pass.out());
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(noise[i] + velocity[i]).margin(1e-5));
}

TEST_CASE("a pixel has the same noise in scenes of any size, and no two pixels share it") {
  nn::Model still(sizes());
  still.parameters().allocate(autograd::ParameterStore::For::kInference);
  nn::initialise(still, 1);
  const std::vector<float> small = draw(still, request_of(16, 24)), large = draw(still, request_of(40, 33));
  for (int64_t y = 0; y < 16; ++y)
    for (int64_t x = 0; x < 24; ++x) CHECK(large[size_t(y * 33 + x)] == Approx(small[size_t(y * 24 + x)]).margin(1e-5));
  double sum = 0, neighbours = 0;
  for (size_t i = 0; i + 33 < large.size(); ++i)
    sum += double(large[i]) * large[i], neighbours += double(large[i]) * large[i + 33];
  CHECK(sum / double(large.size() - 33) == Approx(1).margin(0.15));
  CHECK(std::abs(neighbours / double(large.size() - 33)) < 0.15);
  eval::SceneRequest second = request_of(16, 24);
  second.index = 1;
  CHECK(draw(still, second) != small);
}

TEST_CASE("scenes do not depend on tiles at once nor workers, and follow image, label and guidance") {
  const auto model = test::random_model(sizes());
  const eval::SceneRequest request = request_of(24, 37);  // no multiple of half a tile
  const std::vector<float> scene = draw(*model, request);
  REQUIRE(scene.size() == 24 * 37);
  const auto differs = [&](const auto& change, int workers = 1) {
    eval::SceneRequest other = request;
    change(other);
    return draw(*model, other, workers) != scene;
  };
  CHECK_FALSE(differs([](auto& r) { r.batch = 3; }));
  CHECK_FALSE(differs([](auto&) {}, 3));
  CHECK(differs([](auto& r) { r.condition.image[40] += 1; }));
  CHECK(differs([](auto& r) { r.condition.label = 4; }));
  CHECK(differs([](auto& r) { r.sampler.cfg_scale = 3; }));

  // Guided away from another model, from itself, which is no guidance, and from itself with fewer tokens.
  const auto guide = test::random_model(sizes(), 9);
  eval::SceneRequest guided = request;
  guided.guide = guide.get();
  CHECK(draw(*model, guided) == scene);  // scale 1
  guided.sampler.cfg_scale = 2;
  const std::vector<float> away = draw(*model, guided);
  CHECK(away != scene);
  guided.guide = model.get();
  const std::vector<float> from_itself = draw(*model, guided);
  for (size_t i = 0; i < scene.size(); ++i) CHECK(from_itself[i] == Approx(scene[i]).margin(1e-4));
  guided.guide = nullptr, guided.guide_routes = {{0.5, 0, 0}};
  const std::vector<float> routed = draw(*model, guided);
  CHECK((routed != scene && routed != away));
  guided.batch = 3;
  CHECK(draw(*model, guided, 3) == routed);

  // In bf16 much the same, and again for any number of tiles and workers.
  const auto rounded = test::random_model(sizes(), 1, DType::kBF16);
  eval::SceneRequest in_bf16 = request;
  in_bf16.precision = DType::kBF16;
  const std::vector<float> near = draw(*rounded, in_bf16);
  CHECK(near != scene);
  for (size_t i = 0; i < scene.size(); ++i) CHECK(near[i] == Approx(scene[i]).margin(0.05));
  in_bf16.batch = 3;
  CHECK(draw(*rounded, in_bf16, 3) == near);
  CHECK_THROWS_WITH(draw(*model, request_of(15, 40)), Catch::Contains("smaller than the model's input"));
}
