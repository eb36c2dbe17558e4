// ditfid: the distance between real and generated images, and the protocol it was computed by.

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/config/command_line.hpp"
#include "ditrain/config/program.hpp"
#include "ditrain/eval/fid.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/plan/memory_check.hpp"
#include "ditrain/weights/npz_file.hpp"

namespace {

using namespace ditrain;

config::CommandLine make_command_line() {
  return config::CommandLine(
      "ditfid", "compare generated images with real ones: FID and its family",
      {{"real", "PATH", "the real images, or their statistics"},
       {"generated", "PATH", "the generated images, or their statistics"},
       {"features", "auto|inception|pixels",
        "inception: the network of published FIDs, which needs --weights; pixels: the images themselves, averaged down "
        "to at most 4096 values, for trends; auto: inception if --weights is given, else pixels",
        "auto"},
       {"weights", "FILE", "weights of the Inception network (pt_inception-2015-12-05-6726825d.pth)"},
       {"preset", config::choices<eval::FidPreset>(), "resize and range of inception features as in that tool",
        "pytorch-fid"},
       {"precision", config::choices<DType>(),
        "of the network: bf16 is faster, and the protocol says how far its features are off", "f32"},
       {"metrics", config::choices<eval::FidMetric>(","),
        "what to compute; pr: improved precision and recall; bands: pixels of tiles, band by "
        "band",
        "fid"},
       {"allow-small", "", "compute an FID of fewer images than dimensions, which shows no more than a trend"},
       {"save-statistics", "FILE.npz",
        "write mean and covariance of the real side there, with sfid also of spatial features, and how they were made; "
        "to be given as --real again"},
       {"threads", "N", "threads that compute (default: one for each core this process may use)"},
       {"json", "FILE", "write the values and the protocol there as JSON"}},
      "",
      "PATH is a folder of JPEG, PNG and BMP files (or of one sub-folder of them per class), an npz or npy of images\n"
      "(arr_0, [N, H, W, C]), an npz of statistics (mu, sigma), or safetensors shards with images or latents.\n"
      "Exit codes: 0 done, 1 failed while running, 2 bad usage or bad input.\n");
}

std::vector<eval::FidMetric> metrics_of(const std::string& words) {
  std::vector<eval::FidMetric> metrics;
  for (const std::string& word : split(words, ','))
    metrics.push_back(parse_word<eval::FidMetric>("command line", "--metrics", word));
  return metrics;
}

/// Whether a side is statistics that do not say that they are of pixels: other tools write those of the network.
bool is_of_network(const std::string& path) {
  if (eval::num_images_of(path) != 0) return false;
  const auto facts = eval::read_statistics_facts(weights::NpzFile(path));
  eval::FeatureKind kind{};
  return !facts || !find_word(facts->features, kind) || kind != eval::FeatureKind::kPixels;
}

/// Whether --features auto means the network: it does for what only the network has.
bool asks_for_network(const config::CommandLine& line, const eval::FidRequest& request) {
  if (line.has("weights") || line.has("preset") || line.has("precision")) return true;
  for (const eval::FidMetric metric : request.metrics)
    if (metric == eval::FidMetric::kSfid || metric == eval::FidMetric::kInceptionScore) return true;
  return is_of_network(request.real) || is_of_network(request.generated);
}

eval::FeatureKind features_of(const config::CommandLine& line, const eval::FidRequest& request) {
  using Kind = eval::FeatureKind;
  const std::string text = line.get("features");
  Kind kind{};
  if (find_word(text, kind)) return kind;
  std::vector<std::string> words = all_words<Kind>();
  words.emplace_back("auto");
  if (text != "auto") refuse_word("command line", "--features", text, words);
  if (request.metrics == std::vector{eval::FidMetric::kBands}) return Kind::kPixels;  // needs no features
  if (asks_for_network(line, request)) return Kind::kInception;
  log::info(
      "features: pixels, because no --weights are given; they show a trend, published FIDs need --weights FILE of the "
      "Inception network");
  return Kind::kPixels;
}

eval::FidRequest request_of(const config::CommandLine& line) {
  eval::FidRequest request;
  line.need({"real", "generated"});
  request.real = line.get_path("real"), request.generated = line.get_path("generated");
  request.features.preset = line.get_word<eval::FidPreset>("preset");
  request.features.precision = line.get_word<DType>("precision");
  if (line.has("weights")) request.features.weights = line.get_path("weights");
  request.metrics = metrics_of(line.get("metrics"));
  request.features.kind = features_of(line, request);
  request.allow_small = line.has("allow-small");
  if (request.features.kind == eval::FeatureKind::kPixels &&
      (line.has("weights") || line.has("preset") || line.has("precision"))) {
    throw InputError(
        {.where = "command line",
         .what = "--weights, --preset and --precision are of inception features",
         .got = line.get("features") == "pixels" ? "--features pixels" : "--metrics bands, which needs no features"});
  }
  if (line.has("save-statistics")) {
    request.keep_statistics = true;
    files::check_output_file(line.get_path("save-statistics"), ".npz");
  }
  if (line.has("json")) files::check_output_file(line.get_path("json"));
  return request;
}

void print(const eval::FidReport& report) {
  const bool pixels = report.features == eval::FeatureKind::kPixels;
  const auto value = [](const char* name, const std::optional<double>& v, const std::optional<double>& deviation = {}) {
    if (v && deviation) log::info("{:<10} {:.6g} +- {:.2g}", name, *v, *deviation);
    if (v && !deviation) log::info("{:<10} {:.6g}", name, *v);
  };
  for (const std::string& warning : report.warnings) log::warn("{}", warning);
  if (report.composite) log::info("{}:", report.composite->describe());
  value(pixels ? "fid/pixels" : "fid", report.fid);
  value("sfid", report.sfid);
  value("is", report.inception_score, report.inception_score_deviation);
  value(pixels ? "kid/pixels" : "kid", report.kid, report.kid_deviation);
  value("precision", report.precision);
  value("recall", report.recall);
  if (report.bands) log::info_lines(eval::table_of(*report.bands));
  log::info("protocol: {}", report.protocol);
  for (const eval::FidReport& other : report.others) print(other);
}

// Ranks share the images that the network sees; rank 0 does the rest.
int run(int argc, char** argv, dist::Communicator& comm) {
  config::CommandLine line = make_command_line();
  if (!line.parse(argc, argv)) return kExitDone;
  const eval::FidRequest request = request_of(line);
  parallel::Team team({.num_workers = line.get_threads(1)});
  const eval::EvaluationBytes need = eval::evaluation_bytes(request, comm.world_size(), comm.local_size());
  plan::check_memory(need.bytes, comm.local_size(), need.what, "fewer images, or a node with more memory");
  const eval::FidReport report = eval::evaluate_fid(team, comm, request);
  if (comm.rank() != 0) return kExitDone;
  print(report);
  if (line.has("json")) files::write_file_atomically(line.get_path("json"), eval::to_json(report));
  if (report.kept) report.kept->write(line.get_path("save-statistics"));
  return kExitDone;
}

}  // namespace

int main(int argc, char** argv) {
  return config::run_mpi_program("ditfid", argc, argv, [&](dist::Communicator& comm) { return run(argc, argv, comm); });
}
