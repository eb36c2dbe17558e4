#include "ditrain/eval/sampling.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <set>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/kernels/random.hpp"
#include "support/workers.hpp"
#include "tiny_model.hpp"

using namespace ditrain;
using Catch::Matchers::Contains;

namespace {

eval::GenerateRequest short_request() {
  return {.sampler = {.spacing = "4", .cfg_scale = 2}, .seed = 5, .conditions = conditions_of({0, 1, 2, 3, 7, 3, 3})};
}

std::vector<float> draw(nn::Model& model, const eval::GenerateRequest& request, int workers = 1,
                        const diffusion::Config& config = {}) {
  test::Workers crew(workers);
  return eval::generate(crew.ctx, model, config, request);
}

bool all_finite(const std::vector<float>& values) {
  for (const float v : values)
    if (!std::isfinite(v)) return false;
  return !values.empty();
}

std::vector<float> image(const std::vector<float>& images, size_t i, size_t elements) {
  return {images.begin() + int64_t(i * elements), images.begin() + int64_t((i + 1) * elements)};
}

}  // namespace

TEST_CASE("values that are not finite are counted, with the first image that has one") {
  std::vector<float> images(12, 0.5f);
  CHECK_NOTHROW(eval::expect_finite(images, 3, 10, eval::kDiverged));
  CHECK_NOTHROW(eval::expect_finite({}, 0, 10, eval::kDiverged));
  images[4] = NAN, images[5] = -INFINITY, images[11] = INFINITY;
  try {
    eval::expect_finite(images, 3, 10, eval::kDiverged);
    FAIL("nothing was refused");
  } catch (const RunError& e) {
    CHECK(std::string(e.what()).starts_with(
        "[sampling] 3 of 12 values in 2 of 3 images are not finite, the first in image 11; the weights have probably"));
  }
}

TEST_CASE("an image does not depend on batch, workers or its place in a call") {
  const auto model = test::random_model(test::tiny_config());
  eval::GenerateRequest request = short_request();
  const std::vector<float> expected = draw(*model, request);
  REQUIRE(expected.size() == 7 * 3 * 32 * 32);
  REQUIRE(all_finite(expected));
  for (const int64_t batch : {1, 2, 3, 7}) {
    request.batch = batch;
    INFO("batch " << batch);
    CHECK(draw(*model, request) == expected);
  }
  for (const int workers : {2, 3}) CHECK(draw(*model, request, workers) == expected);

  eval::GenerateRequest rest = short_request();
  rest.conditions.erase(rest.conditions.begin(), rest.conditions.begin() + 3);
  rest.first_index = 3;
  CHECK(draw(*model, rest) == std::vector<float>(expected.begin() + 3 * 3 * 32 * 32, expected.end()));
}

TEST_CASE("samples in bf16: near those in f32, and the same for any batch and workers") {
  nn::ModelConfig config = test::tiny_config();
  config.depth = 3;
  const auto exact = test::random_model(config), rounded = test::random_model(config, 1, DType::kBF16);
  eval::GenerateRequest request = short_request();
  const std::vector<float> expected = draw(*exact, request);
  CHECK(draw(*rounded, request) == expected);
  const auto difference = [](const std::vector<float>& a, const std::vector<float>& b) {
    double error = 0, size = 0;
    for (size_t i = 0; i < b.size(); ++i)
      error += std::pow(double(a[i]) - double(b[i]), 2), size += std::pow(double(b[i]), 2);
    return std::sqrt(error / size);
  };
  const auto check = [&] {
    request.precision = DType::kF32;
    const std::vector<float> in_f32 = draw(*exact, request);
    request.precision = DType::kBF16;
    const std::vector<float> images = draw(*rounded, request);
    const double relative = difference(images, in_f32);
    CAPTURE(relative);
    CHECK(relative > 1e-5);
    CHECK(relative < 0.02);
    request.batch = 3;
    CHECK(draw(*rounded, request, 2) == images);
    return images;
  };
  const std::vector<float> by_label = check();
  request.guide_routes = {{0.5, 1, 1}};
  CHECK(difference(check(), by_label) > 0.01);  // away from itself with fewer tokens
  request.guide_routes = {};
  // A guide in bf16: away from the model itself nothing changes.
  request.sampler.cfg_scale = 1;
  const std::vector<float> plain = draw(*rounded, request);
  request.guide = rounded.get(), request.sampler.cfg_scale = 2.5;
  const std::vector<float> same = draw(*rounded, request);
  double most = 0;
  for (size_t i = 0; i < same.size(); ++i) most = std::max(most, std::abs(double(same[i]) - plain[i]));
  CHECK(most < 1e-4);
}

TEST_CASE("images differ by number, label, seed and guidance") {
  const auto model = test::random_model(test::tiny_config());
  const eval::GenerateRequest request = short_request();
  const std::vector<float> images = draw(*model, request);
  constexpr size_t kImage = 3 * 32 * 32;
  CHECK(image(images, 5, kImage) != image(images, 6, kImage));  // both of class 3
  const auto differs = [&](auto change) {
    eval::GenerateRequest other = short_request();
    change(other);
    return image(draw(*model, other), 0, kImage) != image(images, 0, kImage);
  };
  CHECK(differs([](auto& r) { r.conditions[0].label = 4; }));
  CHECK(differs([](auto& r) { r.seed = 6; }));
  CHECK(differs([](auto& r) { r.sampler.cfg_scale = 1; }));
  CHECK(differs([](auto& r) { r.sampler.sampler = diffusion::named<diffusion::Sampler>("ddim"); }));
  CHECK_FALSE(differs([](auto& r) { r.conditions[1].label = 4; }));
}

TEST_CASE("a guide that never trained without a label is refused where samples have none") {
  const nn::ModelConfig config = test::tiny_config();
  const auto model = test::random_model(config);
  const auto error = [&](double class_dropout, int64_t label) {
    nn::ModelConfig weaker = config;
    weaker.class_dropout = class_dropout;
    const auto guide = test::random_model(weaker);
    eval::GenerateRequest request = short_request();
    request.guide = guide.get(), request.sampler.cfg_scale = 2;
    for (Condition& condition : request.conditions) condition.label = label;
    try {
      draw(*model, request);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(error(0.1, config.num_classes).empty());
  CHECK(error(0, 1).empty());
  CHECK_THAT(error(0, config.num_classes),
             Contains("[guide] the guide never trained without a label; got model.class_dropout: 0"));
}

TEST_CASE("a guide: guidance away from the model itself changes nothing, and none is needed for labels") {
  nn::ModelConfig unconditional = test::tiny_config();
  unconditional.num_classes = 0;
  for (const nn::ModelConfig& config : {test::tiny_config(), unconditional}) {
    const auto model = test::random_model(config);
    nn::ModelConfig smaller = config;
    smaller.depth = 1;
    const auto guide = test::random_model(smaller);
    eval::GenerateRequest plain = short_request();
    plain.sampler.cfg_scale = 1, plain.batch = 4;
    const std::vector<float> expected = draw(*model, plain);
    eval::GenerateRequest guided = plain;
    guided.guide = model.get(), guided.sampler.cfg_scale = 2.5;
    const std::vector<float> same = draw(*model, guided);
    double most = 0;
    for (size_t i = 0; i < same.size(); ++i) most = std::max(most, std::abs(double(same[i]) - expected[i]));
    CHECK(most < 1e-4);
    guided.guide = guide.get();
    const std::vector<float> other = draw(*model, guided);
    CHECK(all_finite(other));
    CHECK(other != expected);
    guided.sampler.cfg_scale = 1;  // off
    CHECK(draw(*model, guided) == expected);
  }
}

TEST_CASE("a guide with routes: the model itself with fewer tokens, the same for any batch and share of the images") {
  nn::ModelConfig config = test::tiny_config();
  config.depth = 3;
  const auto model = test::random_model(config);
  eval::GenerateRequest plain = short_request();
  plain.sampler.cfg_scale = 1;
  const std::vector<float> expected = draw(*model, plain);
  eval::GenerateRequest routed = plain;
  routed.guide_routes = {{0.5, 1, 1}};
  CHECK(draw(*model, routed) == expected);  // no guidance
  routed.sampler.cfg_scale = 1.5;
  const std::vector<float> guided = draw(*model, routed);
  CHECK(guided != expected);
  CHECK(all_finite(guided));
  for (const int64_t batch : {1, 3}) {
    routed.batch = batch;
    CHECK(draw(*model, routed) == guided);
  }
  CHECK(draw(*model, routed, 3) == guided);
  eval::GenerateRequest rest = routed;
  rest.conditions.erase(rest.conditions.begin(), rest.conditions.begin() + 3);
  rest.first_index = 3;
  CHECK(draw(*model, rest) == std::vector<float>(guided.begin() + 3 * 3 * 32 * 32, guided.end()));
  // Guidance of the model by its routed self is a line from one to the other: twice as far is twice as far.
  eval::GenerateRequest one = routed;
  one.sampler.spacing = "1", one.sampler.clip_denoised = false;
  const auto at = [&](double scale) {
    one.sampler.cfg_scale = scale;
    return draw(*model, one);
  };
  const std::vector<float> away = at(201), further = at(401), none = at(1);
  double most = 0, moved = 0;
  for (size_t i = 0; i < none.size(); ++i) {
    most = std::max(most, std::abs(double(further[i]) - 2 * double(away[i]) + none[i]));
    moved = std::max(moved, std::abs(double(away[i]) - none[i]));
  }
  CHECK(moved > 1e-2);
  CHECK(most < 1e-2 * moved);
}

// Times and labels embedded in every evaluation, as in training.
std::vector<float> draw_step_by_step(nn::Model& model, const eval::GenerateRequest& request,
                                     const diffusion::Config& config) {
  test::Workers crew;
  const nn::ModelConfig& m = model.config();
  const auto n = int64_t(request.conditions.size());
  const diffusion::Shape shape{m.in_channels, m.pixels()};
  nn::ModelPass pass(model, 2 * n, autograd::Mode::kInference);
  pass.allocate();
  const auto noise = [&](int64_t loop_step, int64_t sample, float* out) {
    const RandomKey key(request.seed, Stream::kSampleNoise, uint64_t(sample), uint64_t(loop_step + 1));
    kernels::fill_normal(key, 0, out, shape.elements());
  };
  std::vector<float> z(size_t(n * shape.elements()));
  for (int64_t i = 0; i < n; ++i) noise(-1, i, z.data() + i * shape.elements());
  diffusion::sample_loop(
      *diffusion::make_process(config, m.learn_sigma), request.sampler, shape,
      [&](const float* x, const double* t, const Condition* c, int64_t, float* out) {
        std::copy_n(x, pass.image().size(), Pin<float>(pass.image()).get());
        pass.t().assign(t, t + 2 * n), pass.conditions().assign(c, c + 2 * n);
        pass.forward(crew.ctx);
        std::copy_n(Pin<float>(pass.out()).get(), pass.out().size(), out);
      },
      {.n = n, .z = z.data(), .conditions = request.conditions.data(), .null_class = m.num_classes}, noise);
  return z;
}

TEST_CASE("modulations computed ahead of the steps, in chunks of any size, change no bit") {
  nn::ModelConfig tiny = test::tiny_config();
  tiny.learn_sigma = false;
  const auto model = test::random_model(tiny);
  for (const char* name : {"ddpm", "heun"}) {
    eval::GenerateRequest request = short_request();
    request.sampler.sampler = diffusion::named<diffusion::Sampler>(name);
    request.sampler.spacing = "5";
    const diffusion::Config process{.process = request.sampler.sampler->process};
    const std::vector<float> expected = draw_step_by_step(*model, request, process);
    for (const size_t bytes : {size_t{0}, size_t{50'000}, eval::kModulationBytes})  // one, some and all steps at once
      for (const int64_t batch : {3, 7}) {
        INFO(name << ", " << bytes << " bytes, batch " << batch);
        request.modulation_bytes = bytes, request.batch = batch;
        const std::vector<float> images = draw(*model, request, 2, process);
        REQUIRE(images.size() == expected.size());
        CHECK(std::memcmp(images.data(), expected.data(), images.size() * sizeof(float)) == 0);
      }
  }
}

TEST_CASE("memory of sampling is known ahead, and grows with steps until the table is full") {
  nn::ModelConfig tiny = test::tiny_config();
  tiny.learn_sigma = false;
  const auto model = test::random_model(tiny);
  const diffusion::Config flow{.process = diffusion::named<diffusion::ProcessKind>("flow")};
  const auto bytes = [&](const char* steps, double cfg_scale, int64_t batch, bool has_guide = false) {
    return eval::generate_bytes(*model, flow, {.spacing = steps, .cfg_scale = cfg_scale}, batch, has_guide);
  };
  const size_t pair = nn::ModulationTable(*model, 1).bytes();
  CHECK(bytes("20", 2, 4) - bytes("10", 2, 4) == 10 * 5 * pair);  // four labels and none
  CHECK(bytes("20", 2, 16) - bytes("10", 2, 16) == 10 * 9 * pair);
  CHECK(bytes("20", 2, 4, true) - bytes("10", 2, 4, true) == 10 * 8 * pair);  // four labels of each model
  CHECK(bytes("20", 1, 4, true) == bytes("20", 1, 4));
  CHECK(bytes("10", 2, 4) > 2 * bytes("10", 1, 4) - 10 * 4 * pair);
  CHECK(bytes("5000", 2, 16) - bytes("1", 2, 16) <= eval::kModulationBytes);
  CHECK(bytes("5000", 2, 16) - bytes("1", 2, 16) > eval::kModulationBytes - 2 * 9 * pair);
}

TEST_CASE("samplers of either process draw the same image in any batch, each its own") {
  nn::ModelConfig tiny = test::tiny_config();
  tiny.learn_sigma = false;
  const auto model = test::random_model(tiny);
  std::set<std::vector<float>> pictures;
  for (const diffusion::Sampler& row : rows_of(static_cast<const diffusion::Sampler*>(nullptr))) {
    INFO(row.name);
    const diffusion::Config process{.process = row.process};
    eval::GenerateRequest request = short_request();
    request.sampler.sampler = &row;
    const std::vector<float> expected = draw(*model, request, 1, process);
    REQUIRE(all_finite(expected));
    CHECK(pictures.insert(expected).second);
    request.batch = 2;
    CHECK(draw(*model, request, 2, process) == expected);
  }
  CHECK(pictures.size() >= 5);
}

TEST_CASE("a sampler of another process is refused") {
  const auto model = test::random_model(test::tiny_config());
  eval::GenerateRequest request = short_request();
  request.sampler.sampler = diffusion::named<diffusion::Sampler>("heun");
  CHECK_THROWS_WITH(draw(*model, request), Contains("sampler does not fit process ddpm"));
  CHECK_THROWS_WITH(draw(*model, short_request(), 1, {.process = diffusion::named<diffusion::ProcessKind>("flow")}),
                    Contains("try model.learn_sigma: false"));
}

// With a fresh model, which predicts no noise, every value of an image is a recursion of its own.
TEST_CASE("noise k of image i is keyed by (seed, i, k)") {
  nn::ModelConfig config = test::tiny_config();
  config.learn_sigma = false;
  nn::Model model(config);
  model.parameters().allocate(autograd::ParameterStore::For::kInference);
  nn::initialise(model, 1);
  const diffusion::Config process{.variance = diffusion::Variance::kFixedSmall,
                                  .loss = diffusion::named<diffusion::Objective>("mse")};
  eval::GenerateRequest request{
      .sampler = {.spacing = "5"}, .seed = 9, .conditions = conditions_of({0, 0}), .first_index = 40};
  const std::vector<float> images = draw(model, request, 2, process);

  const diffusion::Schedule s =
      diffusion::respace(diffusion::make_schedule(*diffusion::named<diffusion::BetaSchedule>("linear"), 1000), "5");
  for (const int64_t i : {0, 1})
    for (const int64_t pixel : {0, 1234}) {
      const auto noise = [&](uint64_t k) {
        return double(RandomKey(9, Stream::kSampleNoise, uint64_t(40 + i), k).normal(uint64_t(pixel)));
      };
      double x = noise(0);
      for (int64_t t = 4; t >= 0; --t) {
        const auto at = size_t(t);
        x = s.posterior_mean_coef1[at] * s.sqrt_recip_alphas_cumprod[at] * x + s.posterior_mean_coef2[at] * x;
        if (t > 0) x += std::sqrt(s.posterior_variance[at]) * noise(uint64_t(5 - t));
      }
      CHECK(images[size_t(i * 3 * 32 * 32 + pixel)] == Approx(x).epsilon(1e-5));
    }
}

TEST_CASE("models without classes need no labels") {
  nn::ModelConfig config = test::tiny_config();
  config.num_classes = 0;
  const auto model = test::random_model(config);
  eval::GenerateRequest request{.sampler = {.spacing = "3"}, .conditions = conditions_of({0, 99})};
  CHECK(all_finite(draw(*model, request)));
  request.sampler.cfg_scale = 2;
  CHECK_THROWS_WITH(draw(*model, request), Contains("guidance without classes"));
}

TEST_CASE("generate refuses what the model cannot do") {
  const auto model = test::random_model(test::tiny_config());
  eval::GenerateRequest request = short_request();
  for (const int64_t label : {-1, 9}) {  // 8 is the row for dropped labels
    request.conditions[2].label = label;
    CHECK_THROWS_AS(draw(*model, request), InputError);
  }
  request = short_request();
  request.sampler.spacing = "1001";
  CHECK_THROWS_AS(draw(*model, request), InputError);

  nn::ModelConfig config = test::tiny_config();
  config.class_dropout = 0;
  CHECK_THROWS_WITH(draw(*test::random_model(config), short_request()), Contains("guidance without classes"));
}

TEST_CASE("progress rises to one") {
  const auto model = test::random_model(test::tiny_config());
  test::Workers crew;
  eval::GenerateRequest request = short_request();
  request.batch = 4;
  std::vector<double> shares;
  eval::generate(crew.ctx, *model, {}, request, [&](double share) { shares.push_back(share); });
  REQUIRE(shares.size() == 8);  // two batches of four steps
  CHECK(std::is_sorted(shares.begin(), shares.end()));
  CHECK(shares.front() == Approx(1.0 / 7));
  CHECK(shares.back() == 1.0);
}

TEST_CASE("WeightsFrom draws with another arena and restores the first") {
  const auto model = test::random_model(test::tiny_config(), 1);
  autograd::ParameterStore& parameters = model->parameters();
  const eval::GenerateRequest request = short_request();
  const std::vector<float> own = draw(*model, request);
  const Tensor other(parameters.values.shape());
  test::fill_random(parameters, other, 2);
  {
    const eval::WeightsFrom weights(parameters, other);
    CHECK(draw(*model, request) == draw(*test::random_model(test::tiny_config(), 2), request));
  }
  CHECK(draw(*model, request) == own);
}

TEST_CASE("labels as a list, drawn, and in turn") {
  CHECK(eval::make_labels("3,1", 5, 8, 0) == std::vector<int64_t>{3, 1, 3, 1, 3});
  CHECK(eval::make_labels("7", 2, 8, 0) == std::vector<int64_t>{7, 7});
  CHECK(eval::make_labels("balanced", 5, 3, 0) == std::vector<int64_t>{0, 1, 2, 0, 1});
  CHECK(eval::make_labels("none", 2, 3, 0) == std::vector<int64_t>{3, 3});
  CHECK(eval::make_labels("uniform", 3, 0, 0) == std::vector<int64_t>{0, 0, 0});

  const auto drawn = eval::make_labels("uniform", 4000, 8, 1);
  std::vector<int> counts(8);
  for (const int64_t label : drawn) ++counts.at(size_t(label));
  // 500 each is expected; five standard deviations of a binomial count are 5 sqrt(4000 / 8 * 7 / 8) = 105.
  for (const int count : counts) CHECK(std::abs(count - 500) < 105);
  CHECK(drawn != eval::make_labels("uniform", 4000, 8, 2));
  const auto fewer = eval::make_labels("uniform", 10, 8, 1);
  CHECK(std::equal(fewer.begin(), fewer.end(), drawn.begin()));
}

TEST_CASE("samples without labels are those of a model that learned to do without, and of no other") {
  nn::ModelConfig config = test::tiny_config();
  eval::GenerateRequest request = short_request();
  request.conditions = conditions_of(eval::make_labels("none", 2, config.num_classes, 0));
  for (const double scale : {1.0, 2.0}) {
    request.sampler.cfg_scale = scale;
    config.class_dropout = 0.1;
    CHECK(draw(*test::random_model(config), request).size() == 2 * size_t(config.in_channels * config.pixels()));
  }
  config.class_dropout = 0;
  request.sampler.cfg_scale = 1;
  CHECK_THROWS_WITH(draw(*test::random_model(config), request), Contains("samples without labels"));
}

TEST_CASE("bad label texts are refused") {
  for (const char* spec : {"", ",", "1,", "a", "1,-2", "1, 2", "1.5", "99999999999999999999", "uniforme"})
    CHECK_THROWS_WITH(eval::make_labels(spec, 4, 8, 0), Contains("unknown labels"));
  CHECK_THROWS_WITH(eval::make_labels("unifrom", 4, 8, 0), Contains("uniform"));
  CHECK_THROWS_WITH(eval::make_labels("0,8", 4, 8, 0), Contains("label out of range; got 8, expected 0 to 7"));
  CHECK_THROWS_WITH(eval::make_labels("0", 4, 0, 0), Contains("without classes"));
}
