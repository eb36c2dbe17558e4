#include "ditrain/bench/paper.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <exception>

#include "child.hpp"
#include "cluster_simulation.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/bench/arrays.hpp"
#include "ditrain/bench/gemm.hpp"
#include "ditrain/bench/ladder.hpp"
#include "ditrain/bench/memory.hpp"
#include "ditrain/bench/scale.hpp"
#include "ditrain/bench/step.hpp"
#include "ditrain/bench/strategies.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/kernels/described.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/kernels/ref.hpp"
#include "ditrain/plan/cluster_description.hpp"
#include "ditrain/platform/cpu.hpp"
#include "stop.hpp"

namespace ditrain::bench {
namespace {

constexpr size_t kMost = size_t{64} << 20;  // of files that a child writes
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// The row of that name, of those that were added last; null if there is none.
const Row* find_row(Harness& harness, const std::string& name) {
  const std::vector<Row>& rows = harness.report().rows;
  const auto it = std::find_if(rows.rbegin(), rows.rend(), [&](const Row& r) { return r.name == name; });
  return it == rows.rend() ? nullptr : &*it;
}
double seconds_of_row(const Row* row) { return row == nullptr ? kNone : row->time.median_s; }
double detail(const Row* row, const std::string& name) {
  if (row != nullptr)
    for (const Field& f : row->details)
      if (const auto* number = std::get_if<double>(&f.value); f.name == name && number != nullptr) return *number;
  return kNone;
}

/// A number of the paper for each of its models, S to XL; NaN: out of memory there.
using OfModels = double[4];
double of_model(const OfModels& numbers, const PaperBench& bench) {
  return numbers[&model_shape(bench.model) - kModelShapes];
}

// ---- Table 2

std::vector<Comparison> strategies(Harness& harness, const PaperBench& bench) {
  // Seconds per step and GB of a node at 112 images.
  constexpr OfModels cftp_s = {2.48, 3.97, 9.92, 13.18}, dp_s = {2.11, 6.55, 23.31, kNone},
                     dp_tp_s = {3.91, 8.7, kNone, kNone}, cftp_gb = {167, 198, 304, 358},
                     dp_gb = {182, 247, 474, kNone}, dp_tp_gb = {224, 309, kNone, kNone};
  bench_strategies(harness, {.model = bench.model, .batch = std::max<int64_t>(bench.batch, 8), .sets = bench.sets});
  const std::string name = "strategies " + model_name(bench.model);
  const Row *cftp = find_row(harness, name + " cftp"), *dp = find_row(harness, name + " dp"),
            *dp_tp = find_row(harness, name + " dp_tp");
  const auto speed = [&](const Row* other) { return seconds_of_row(other) / seconds_of_row(cftp); };
  const auto memory = [&](const Row* other) { return detail(other, "peak_bytes") / detail(cftp, "peak_bytes"); };
  return {{"images/s of cftp over dp", of_model(dp_s, bench) / of_model(cftp_s, bench), speed(dp)},
          {"images/s of cftp over dp_tp", of_model(dp_tp_s, bench) / of_model(cftp_s, bench), speed(dp_tp)},
          {"memory of dp over cftp", of_model(dp_gb, bench) / of_model(cftp_gb, bench), memory(dp)},
          {"memory of dp_tp over cftp", of_model(dp_tp_gb, bench) / of_model(cftp_gb, bench), memory(dp_tp)}};
}

// ---- Table 3

/// Seconds of all products of a step of the model, ours first, then those of each library, if it has all of them.
struct ProductSeconds {
  double ours = 0;
  std::vector<std::pair<std::string, double>> libraries;
};
ProductSeconds product_seconds(Harness& harness, const PaperBench& bench) {
  harness.apply({});
  const Peers peers = load_peers(harness);
  ProductSeconds sum;
  for (const auto& peer : peers) sum.libraries.emplace_back(peer->name(), 0);
  const ModelShape& model = model_shape(bench.model);
  for (const ProductShape& shape : product_shapes(model, bench.batch * kTokens)) {
    const Row row = measure_product(harness, shape, DType::kF32, peers);
    harness.add(row);
    const double seconds = double(shape.copies) * row.time.median_s;
    sum.ours += seconds;
    for (auto& [name, total] : sum.libraries) {
      const auto ratio =
          std::find_if(row.peers.begin(), row.peers.end(), [&](const auto& p) { return p.first == name; });
      total += ratio == row.peers.end() ? kNone : seconds * ratio->second;
    }
  }
  return sum;
}

// A step with a library's products is ours with the time of products replaced: nothing else differs.
std::vector<Comparison> libraries(Harness& harness, const PaperBench& bench) {
  constexpr OfModels openblas = {47.90, 181.66, 636.08, 1156.37}, onednn = {8.96, 19.82, 64.86, 147.18},
                     tuned = {2.48, 3.97, 9.92, 13.18};
  const Row step = measure_step(harness, {.model = bench.model, .sets = bench.sets}, bench.batch);
  harness.add(step);
  const ProductSeconds products = product_seconds(harness, bench);
  const double step_s = step.time.median_s, products_s = detail(&step, "products_s");
  std::vector<Comparison> rows;
  for (const auto& [name, seconds] : products.libraries) {
    const double with_library = step_s - products_s + products_s * seconds / products.ours;
    const double paper = name.starts_with("OpenBLAS") ? of_model(openblas, bench) / of_model(tuned, bench)
                         : name.starts_with("oneDNN") ? of_model(onednn, bench) / of_model(tuned, bench)
                                                      : kNone;
    rows.push_back({"step over one with the products of " + name, paper, with_library / step_s});
  }
  return rows;
}

// ---- Table 4

std::vector<Comparison> linear_modules(Harness& harness, const PaperBench& bench) {
  struct Module {
    const char* layer;
    double over_vendor_blas;
  };
  constexpr Module modules[] = {{"qkv", 30.10}, {"proj", 13.89}, {"up", 16.49}, {"down", 35.49}, {"condition", 1.73}};
  harness.apply({});
  const Peers peers = load_peers(harness);
  std::vector<Comparison> rows;
  for (const ProductShape& shape : product_shapes(kModelShapes[3], bench.batch * kTokens)) {
    if (shape.pass != Pass::kForward) continue;
    const Row row = measure_product(harness, shape, DType::kF32, peers);
    harness.add(row);
    double fastest = kNone;  // of the libraries
    for (const auto& [name, ratio] : row.peers) fastest = std::fmin(fastest, ratio);
    const auto* const module =
        std::find_if(std::begin(modules), std::end(modules), [&](const Module& m) { return shape.layer == m.layer; });
    rows.push_back({shape.layer + ", over the fastest library", module->over_vendor_blas, fastest});
  }
  return rows;
}

// ---- Operators (section 4.3.2)

/// Our operator beside plain loops, both on the whole team; `mix` and `arrays` are what it moves.
double over_plain_loops(Harness& harness, const std::string& name, int64_t n, const kernels::StreamMix& mix,
                        const std::vector<float*>& arrays,
                        const std::function<void(int64_t first, int64_t count)>& ours,
                        const std::function<void(int64_t first, int64_t count)>& plain) {
  const auto on_team = [&harness, n](const std::function<void(int64_t, int64_t)>& f) {
    return [&harness, n, f] {
      harness.ctx().for_range(n, 1024,
                              [&](int64_t begin, int64_t end, const parallel::Worker&) { f(begin, end - begin); });
    };
  };
  const Row row =
      harness.measure({.name = name,
                       .call = on_team(ours),
                       .bytes = double(mix.reads + mix.writes + 2 * mix.updates) * double(n) * sizeof(float),
                       .limit = [&] { harness.stream(mix, arrays, n); },
                       .rivals = {{"plain loops", on_team(plain)}}});
  harness.add(row);
  return row.peers.front().second;
}

std::vector<Comparison> operators(Harness& harness, const PaperBench&) {
  const int64_t n = std::max<int64_t>(int64_t(harness.cold_bytes() / sizeof(float)), 1024);
  ops::Context& ctx = harness.ctx();
  std::vector<std::unique_ptr<Pin<float>>> held;
  const auto array = [&] {
    held.push_back(std::make_unique<Pin<float>>(random_tensor(ctx, {n}, 0, 1)));
    return held.back()->get();
  };
  float *x = array(), *y = array(), *dy = array(), *v = array(), *ema = array();
  const kernels::AdamWStep step = kernels::some_adamw_step();
  std::vector<Comparison> rows;
  rows.push_back({"tanh-GELU forward over plain loops", 13.3,
                  over_plain_loops(
                      harness, "tanh-GELU forward", n, {.reads = 1, .writes = 1}, {x, y},
                      [&](int64_t i, int64_t m) { kernels::gelu_forward(x + i, y + i, m); },
                      [&](int64_t i, int64_t m) { kernels::ref::gelu_forward(x + i, y + i, m); })});
  rows.push_back({"tanh-GELU backward over plain loops", 12.9,
                  over_plain_loops(
                      harness, "tanh-GELU backward", n, {.reads = 2, .writes = 1}, {x, dy, y},
                      [&](int64_t i, int64_t m) { kernels::gelu_backward(x + i, dy + i, y + i, m); },
                      [&](int64_t i, int64_t m) { kernels::ref::gelu_backward(x + i, dy + i, y + i, m); })});
  rows.push_back(
      {"AdamW over plain loops", 12.5,
       over_plain_loops(
           harness, "AdamW+EMA", n, {.reads = 1, .updates = 4}, {dy, x, y, v, ema},
           [&](int64_t i, int64_t m) { kernels::adamw_ema(step, dy + i, x + i, y + i, v + i, ema + i, nullptr, m); },
           [&](int64_t i, int64_t m) {
             kernels::ref::adamw_ema(step, dy + i, x + i, y + i, v + i, ema + i, nullptr, m);
           })});
  return rows;
}

// ---- Figure 9

/// Seconds of steps of two ranks over a simulated link, with sums at the end and beside backward: real ranks under
/// mpirun, which take turns.
double gain_of_overlap(Harness& harness, const PaperBench& bench) {
  const std::string mpirun = find_in_path("mpirun");
  if (mpirun.empty() || harness.num_threads() < 2) {
    harness.note("overlap: left out; it takes mpirun and two cores");
    return kNone;
  }
  const TemporaryFolder folder;
  const std::string json = folder / "rows.json", output = folder / "output";
  std::vector<std::string> command = {mpirun,
                                      "-np",
                                      "2",
                                      "--oversubscribe",
                                      "--bind-to",
                                      "none",
                                      program_beside("ditbench", "paper"),
                                      "comm",
                                      "--model",
                                      bench.model,
                                      "--batch",
                                      std::to_string(std::max<int64_t>(bench.batch / 2, 1)),
                                      "--threads",
                                      std::to_string(harness.num_threads() / 2),
                                      "--repeats",
                                      std::to_string(harness.effort().repeats),
                                      "--set",
                                      "dist.simulate_link={gbit_s: 10}",
                                      "--json",
                                      json};
  for (const std::string& set : bench.sets) command.insert(command.end(), {"--set", set});
  const AffinityScope all_cores(harness.placement().topology.allowed_pus);  // of which ranks take each their own
  Child child(command, {.output = output, .environment = environment_of_mpirun()});
  while (child.running()) {
    check_stop();
    usleep(100000);
  }
  if (child.exit_code() != 0) child.fail("the ranks of ditbench comm");
  double engine_s = kNone, at_the_end_s = kNone;
  for (const nlohmann::json& row : files::parse_json(files::read_text_file(json, kMost)).at("rows")) {
    const auto name = row.at("name").get<std::string>();
    if (name.ends_with(" engine")) engine_s = row.at("median_s").get<double>();
    if (name.ends_with(" at the end")) at_the_end_s = row.at("median_s").get<double>();
  }
  return at_the_end_s / engine_s;
}

std::vector<Comparison> stepwise(Harness& harness, const PaperBench& bench) {
  bench_ladder(harness, {.models = {bench.model}, .batch = bench.batch, .sets = bench.sets});
  const auto rung_s = [&](const char* rung) { return seconds_of_row(find_row(harness, bench.model + " " + rung)); };
  const double reference = rung_s("reference loops"), own = rung_s("own products"), fused = rung_s("+ fused operators"),
               tuned = rung_s("+ tuning");
  const double overlap = gain_of_overlap(harness, bench);
  bench_memory(harness, {.model = bench.model, .batch = bench.batch, .fast_shares = {0.4}, .sets = bench.sets});
  const Row* planned = find_row(harness, model_name(bench.model) + " planned 40 %");
  return {{"products, over reference loops (paper: over vendor BLAS)", 5.5, reference / own},
          {"sums beside backward, 2 ranks on a link of 10 Gbit/s", 6.3 / 5.5, overlap},
          {"fused operators", 6.6 / 6.3, own / fused},
          {"AutoMem, 40 % of the tensors in fast memory", 6.7 / 6.6, 1 / detail(planned, "step_ratio")},
          {"tuning of blocks", 8.2 / 6.7, fused / tuned}};
}

// ---- Share of the peak (derived from Table 2 and the peak of its node)

std::vector<Comparison> share_of_peak(Harness& harness, const PaperBench& bench) {
  constexpr double node_flop_s = 241e12, images = 112;
  constexpr OfModels seconds = {2.48, 3.97, 9.92, 13.18};
  nn::ModelConfig model;
  model.name = model_name(bench.model);
  nn::apply_name(model);
  const double paper = 6 * nn::forward_macs(model) * images / of_model(seconds, bench) / node_flop_s;
  const Row row = measure_step(harness, {.model = bench.model, .sets = bench.sets}, bench.batch);
  harness.add(row);
  return {{"a step's share of the f32 peak", 100 * paper, 100 * row.share}};
}

// ---- Figures 10 and 11

/// Rows of simulated steps; none without SimGrid. A rank of the paper is a die (dp), which CFTP fills from within.
std::vector<Row> simulated(Harness& harness, ScaleBench scale) {
  const size_t before = harness.report().rows.size();
  if (has_simgrid())
    bench_scale(harness, scale);
  else
    harness.note("scaling: left out; this build has no SimGrid (package libsimgrid-dev, DITRAIN_SIMGRID)");
  const std::vector<Row>& rows = harness.report().rows;
  return {rows.begin() + std::ptrdiff_t(before), rows.end()};
}

std::vector<Comparison> weak_scaling(Harness& harness, const PaperBench& bench) {
  constexpr double shares[] = {0.025, 0.2, 0.5};
  std::vector<Comparison> result;
  for (const Row& row : simulated(harness, {.platform = bench.platform,
                                           .nodes = {1, 256},
                                           .models = {"XL"},
                                           .strategies = {config::Strategy::kDp},
                                           .shares = {std::begin(shares), std::end(shares)},
                                           .sets = bench.sets}))
    if (const double efficiency = detail(&row, "efficiency"), share = detail(&row, "share_of_peak");
        row.name.ends_with(" 256"))
      result.push_back({fmt::format("weak scaling to 256 nodes where dies reach {:.3g} % of their peak", 100 * share),
                        share == shares[0] ? 90.6 : kNone, 100 * efficiency});
  return result;
}

std::vector<Comparison> strong_scaling(Harness& harness, const PaperBench& bench) {
  std::vector<Comparison> result;
  struct Series {
    int64_t batch, from, to;  // nodes, over whose dies the batch divides; the first ones have about 112 images each
  };
  for (const Series& s : {Series{448, 4, 56}, Series{3072, 24, 256}, Series{16384, 128, 256}}) {
    const std::vector<Row> rows = simulated(harness, {.platform = bench.platform,
                                                      .nodes = {s.from, s.to},
                                                      .models = {"XL"},
                                                      .strategies = {config::Strategy::kDp},
                                                      .global_batch = s.batch,
                                                      .sets = bench.sets});
    if (rows.size() == 2)
      result.push_back({fmt::format("{} images from {} to {} nodes", s.batch, s.from, s.to), kNone,
                        100 * detail(&rows[1], "efficiency")});
  }
  return result;
}

void check_only(const std::vector<std::string>& only) {
  std::string names;
  for (const Experiment& e : paper_experiments()) names += (names.empty() ? "" : ", ") + std::string(e.name);
  for (const std::string& name : only)
    if (std::none_of(paper_experiments().begin(), paper_experiments().end(),
                     [&](const Experiment& e) { return name == e.name; }))
      refuse("ditbench", "paper: no such experiment", name, names);
}

std::vector<const Experiment*> wanted_experiments(const std::vector<std::string>& only) {
  std::vector<const Experiment*> wanted;
  for (const Experiment& e : paper_experiments())
    if (only.empty() || std::find(only.begin(), only.end(), e.name) != only.end()) wanted.push_back(&e);
  return wanted;
}

std::string number(double x) {
  if (!std::isfinite(x)) return "-";
  return fmt::format("{:.{}f}", x, x >= 100 ? 0 : x >= 10 ? 1 : 2);
}

}  // namespace

const std::vector<Experiment>& paper_experiments() {
  static const std::vector<Experiment> experiments = {
      {"table-1", "Table 1: Fréchet distance after 1,000 steps of fine-tuning", "",
       "Not measured by this command: it takes the paper's tiles, weights of XL/2 and 1,000 steps. With them: ditrain "
       "--config configs/gaofen2.yaml --set data.path=DIR --set train.init_from=WEIGHTS, then ditfid.",
       nullptr},
      {"table-2", "Table 2: strategies on the same cores", "x",
       "The paper's node has four dies of four NUMA domains: there replicas and messages cross dies. Here one process "
       "per cluster of the same cores stands for it. What the models keep per image differs from PyTorch, so that the "
       "shares of weights and activations in memory differ too.",
       strategies},
      {"table-3", "Table 3: a step with the products of libraries", "x",
       "The paper's OpenBLAS and oneDNN do not use its matrix unit, hence their factors. On x86 all libraries use the "
       "same vector or matrix units as we do, and what is left is packing, blocks and fused operators.",
       libraries},
      {"table-4", "Table 4: forward pass of the linear modules of XL/2", "x",
       "The paper compares with a vendor BLAS whose tall products are slow. Here the fastest of OpenBLAS, BLIS and "
       "oneDNN on this machine is the rival.",
       linear_modules},
      {"operators", "Section 4.3.2: operators", "x",
       "The paper's rivals are PyTorch's operators on its machine; here plain loops in C++ with f64 arithmetic, on the "
       "same cores.",
       operators},
      {"figure-9", "Figure 9: what each optimisation gives", "x",
       "The paper's AutoMem moves tensors into memory that is faster. On a machine with one kind of memory it can only "
       "cost: 1.00 would mean that a fast tier of 40 % is as good as one of 100 %.",
       stepwise},
      {"figure-10", "Figure 10: weak scaling of XL/2, 112 images per node", "%",
       "Simulated: the schedule of our steps, message by message, on a description of the paper's machine "
       "(--platform). At the paper's share of the peak messages hide behind compute; faster dies hide less. The paper "
       "does not say where its 9.4 % go; slower nodes and jitter are not simulated here (ditbench scale --jitter, "
       "--slow).",
       weak_scaling, true},
      {"figure-11", "Figure 11: strong scaling of XL/2", "%",
       "Simulated as Figure 10; the paper's numbers stand in a picture only. The paper names smaller batches, for "
       "which "
       "products are slower, as what limits it; here dies reach the same share of their peak with any batch.",
       strong_scaling, true},
      {"peak", "Derived: share of the peak", "%",
       "The paper's number is its images/s (Table 2) times 6 x forward multiply-adds, over the f32 peak of its node "
       "(241 TFLOP/s by public descriptions). Ours is over the peak that was measured beside it.",
       share_of_peak},
      {"figure-7", "Figure 7: loss of the first 1,000 steps of XL/2 on ImageNet", "",
       "Not measured by this command: it takes ImageNet. scripts/bench_pytorch.py compares steps with PyTorch.",
       nullptr},
  };
  return experiments;
}

std::string paper_section(const Experiment& experiment, const std::vector<Comparison>& rows, const std::string& picture,
                          const std::string& left_out) {
  std::string text = fmt::format("## {}\n\n", experiment.title);
  if (!left_out.empty()) text += fmt::format("left out: {}\n\n", left_out);
  if (!rows.empty()) {
    text += fmt::format("| {} | paper | here |\n|---|---|---|\n", experiment.unit);
    for (const Comparison& row : rows)
      text += fmt::format("| {} | {} | {} |\n", row.what, number(row.paper), number(row.here));
    text += "\n";
  }
  text += std::string(experiment.differs) + "\n";
  if (!picture.empty()) text += fmt::format("\n![{}]({})\n", experiment.title, picture);
  return text;
}

std::string paper_bars_svg(const std::string& title, const std::vector<Comparison>& rows) {
  constexpr double width = 760, left = 360, right = 60, bar = 11, gap = 12, top = 44;
  const auto drawn = [](double x) { return std::isfinite(x) && x > 0; };
  double low = 1, high = 1;  // 1 is where nothing is gained
  for (const Comparison& row : rows)
    for (const double x : {row.paper, row.here})
      if (drawn(x)) low = std::min(low, x), high = std::max(high, x);
  const double scale = (width - left - right) / std::log(std::max(high / low, 1.1));
  const auto at = [&](double x) { return left + scale * std::log(x / low); };
  const double height = top + double(rows.size()) * (2 * bar + gap) + 6;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" viewBox=\"0 0 {0:g} {1:g}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"8\" y=\"16\" font-weight=\"bold\">{2}</text>\n"
      "<text x=\"8\" y=\"34\"><tspan fill=\"#888\">paper</tspan> <tspan fill=\"#4269d0\">here</tspan></text>\n"
      "<line x1=\"{3:.1f}\" y1=\"{4:g}\" x2=\"{3:.1f}\" y2=\"{1:g}\" stroke=\"#bbb\"/>\n",
      width, height, title, at(1), top - 4);
  double y = top;
  for (const Comparison& row : rows) {
    svg +=
        fmt::format("<text x=\"{:g}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", left - 8, y + bar + 4, row.what);
    for (const auto& [value, colour] : {std::pair(row.paper, "#bbb"), std::pair(row.here, "#4269d0")}) {
      if (drawn(value))
        svg += fmt::format(
            "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:g}\" fill=\"{}\"/>"
            "<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
            std::min(at(1), at(value)), y, std::abs(at(value) - at(1)), bar, colour, std::max(at(1), at(value)) + 4,
            y + bar - 1, number(value));
      y += bar;
    }
    y += gap;
  }
  return svg + "</svg>\n";
}

void bench_paper(Harness& harness, const PaperBench& bench) {
  check_only(bench.only);
  const ModelShape& model = model_shape(bench.model);
  if (!bench.out.empty()) files::make_output_folder(bench.out);
  std::string page =
      fmt::format("# The paper's experiments on this machine\n\n{}, {} thread(s), DiT-{}/2, {} images per step, f32\n",
                  platform::cpu_model_name(), harness.num_threads(), model.name, bench.batch);
  const std::vector<const Experiment*> wanted = wanted_experiments(bench.only);
  step_config({.model = bench.model, .sets = bench.sets}, bench.batch);  // bad keys and files: before all measurements
  if (bench.platform != PaperBench{}.platform &&
      std::any_of(wanted.begin(), wanted.end(), [](const Experiment* e) { return e->simulates; }))
    plan::load_cluster(bench.platform);
  int64_t measured = 0;
  std::exception_ptr last_problem;
  for (const Experiment* wanted_one : wanted) {
    const Experiment& experiment = *wanted_one;
    std::vector<Comparison> rows;
    std::string left_out;
    try {
      check_stop();
      if (experiment.measure != nullptr) rows = experiment.measure(harness, bench), ++measured;
    } catch (const InputError& error) {
      left_out = error.what(), last_problem = std::current_exception();
    } catch (const RunError& error) {
      left_out = error.what(), last_problem = std::current_exception();
    }
    const std::string picture = rows.empty() ? "" : std::string(experiment.name) + ".svg";
    page += "\n" + paper_section(experiment, rows, picture, left_out);
    harness.note("\n" + paper_section(experiment, rows, "", left_out));
    if (bench.out.empty()) continue;
    if (!rows.empty()) files::write_file_atomically(bench.out + "/" + picture, paper_bars_svg(experiment.title, rows));
    files::write_file_atomically(bench.out + "/paper.md", page);  // after each: what is there is not lost
  }
  if (measured == 0 && last_problem != nullptr) std::rethrow_exception(last_problem);
}

}  // namespace ditrain::bench
