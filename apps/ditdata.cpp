// ditdata: makes training data. `encode`: the latents of images, by the autoencoder that a model is to be trained on.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/base/words.hpp"
#include "ditrain/config/agreement.hpp"
#include "ditrain/config/command_line.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/config/program.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/eval/autoencoder_file.hpp"
#include "ditrain/eval/latent_shards.hpp"
#include "ditrain/io/checksum.hpp"
#include "ditrain/io/safetensors.hpp"
#include "ditrain/plan/placement.hpp"

namespace {

using namespace ditrain;

config::CommandLine make_command_line() {
  return config::CommandLine(
      "ditdata", "make training data",
      {{"from", "PATH", "a folder of images, or one with a sub-folder of images per class"},
       {"vae", "FILE|DIR",
        "autoencoder: safetensors under the names of diffusers or latent-diffusion, or a folder of diffusers"},
       {"out", "DIR", "folder of the shards"},
       {"size", "N", "side of the images, cropped and scaled as for training", "256"},
       {"posterior", "sample|mean|moments",
        "what is stored: one draw from the posterior, its mean, or mean and log-variance, from which training draws "
        "anew each time",
        "sample"},
       {"flip", "", "also the latents of the mirrored images"},
       {"shard", "N", "images in a shard", "1024"},
       {"seed", "K", "of what is drawn, from 0 to 2^63 - 1", "0"},
       {"precision", "P", "of the autoencoder: f32 or bf16", "f32"},
       {"scale-factor", "X", "what latents are to be multiplied by, where the VAE's config.json does not tell"},
       {"groups", "G", "of group normalisation, where the VAE's config.json does not tell (default: 32)"},
       {"on-bad-file", "error|skip", "stop at an unreadable image, or take the next one in its place", "error"},
       {"threads", "T", "of a rank; 0: all of its cores", "0"}},
      "encode",
      "encode writes the latents of images as safetensors shards (data.kind: latents) and stats.json beside them, "
      "alone\nor under mpirun. Killed and started again it goes on with the shards that are missing. Latents do not "
      "depend on the\nnumber of ranks or threads.");
}

template <class E>
E word(const config::CommandLine& line, const std::string& flag) {
  return parse_word<E>("command line", "--" + flag, line.get(flag));
}

std::string hash_of(const std::string& path) {
  const io::SafetensorsFile file(path);
  return io::to_hex(io::checksum_of({reinterpret_cast<const char*>(file.data()), file.bytes()}));
}

eval::AutoencoderOptions options_of(const config::CommandLine& line) {
  eval::AutoencoderOptions options;
  if (line.has("groups")) options.groups = line.get_int("groups", 1, 4096);
  if (line.has("scale-factor")) options.scale_factor = line.get_double("scale-factor", 1e-6, 1e6);
  return options;
}

std::unique_ptr<dataset::Dataset> open_images(const config::CommandLine& line, int64_t channels) {
  dataset::Config config;
  config.kind = dataset::find_kind("folder");
  config.path = line.get_path("from");
  config.on_bad_file = word<dataset::OnBadFile>(line, "on-bad-file");
  const int64_t side = line.get_int("size", 8, 1 << 14);
  return dataset::open_dataset(config, {channels, side, side}, 0, 0);
}

/// How far rank 0 is: often on a terminal, now and then in a file.
class Progress {
 public:
  explicit Progress(bool speaks) : speaks_(speaks) {}
  void operator()(const eval::EncodingProgress& p) {
    const double now = now_s() - start_s_;
    if (!speaks_ || (p.encoded < p.to_do && now - last_s_ < interval_s_)) return;
    last_s_ = now;
    const double rate = double(p.encoded) / now;
    log::progress_line(fmt::format("{} of {} images of this rank, {:.2f} images/s, {:.0f} s to go", p.encoded, p.to_do,
                                   rate, double(p.to_do - p.encoded) / rate));
  }

 private:
  bool speaks_;
  double interval_s_ = isatty(STDOUT_FILENO) != 0 ? 0.5 : 10, last_s_ = 0;
  double start_s_ = now_s();
};

void check_agreement(const config::CommandLine& line, const std::string& vae, const dataset::Dataset& data,
                     dist::Communicator& comm) {
  std::vector<config::Fact> facts = config::program_facts("ditdata");
  facts.push_back({"command line", line.effective_text({"threads"}), "the same flags for all ranks"});
  facts.push_back({"hash of the VAE", vae, "a file system that all nodes share"});
  facts.push_back({"images", data.describe(), "a file system that all nodes share"});
  config::check_agreement(comm, facts);
}

int encode(const config::CommandLine& line, dist::Communicator& comm) {
  for (const char* flag : {"from", "vae", "out"})
    if (!line.has(flag))
      throw InputError(
          {.where = "command line", .what = std::string("--") + flag + " is needed", .hint = "ditdata --help"});
  const eval::AutoencoderFile file(line.get_path("vae"), options_of(line));
  eval::LatentShards shards{.out = line.get_path("out"),
                            .samples = line.get_int("shard", 1, 1 << 20),
                            .flip = line.has("flip"),
                            .posterior = word<eval::PosteriorUse>(line, "posterior"),
                            .seed = uint64_t(line.get_int("seed", 0, INT64_MAX)),
                            .scale_factor = file.scale_factor(),
                            .vae = hash_of(file.weights_path())};
  const auto data = open_images(line, file.config().image_channels);
  check_agreement(line, shards.vae, *data, comm);
  log::info("{}", data->describe());
  if (const std::string ignored = data->describe_ignored(); !ignored.empty()) log::info("{}", ignored);

  config::Config machine;
  machine.parallel.threads = line.get_int("threads", 0, 1 << 16), machine.parallel.comm_cores = 0;
  const plan::Placement placement = plan::plan_placement(machine, comm);
  for (const std::string& note : placement.notes) log::info("{}", note);
  parallel::Team team(placement.team());
  ops::Context ctx(team);
  nn::Autoencoder vae = file.load(word<DType>(line, "precision"));
  const dataset::SampleShape& image = data->shape();
  log::info("autoencoder {}: weights {:.0f} MB, activations of an image {:.0f} MB, latents {} x {} x {}",
            file.weights_path(), double(vae.weight_bytes()) * 1e-6,
            double(vae.encode_bytes(image.height, image.width)) * 1e-6, file.config().latent_channels,
            image.height / file.config().shrink(), image.width / file.config().shrink());
  eval::write_latent_shards(ctx, vae, *data, shards, comm, Progress(comm.rank() == 0));
  if (data->bad_files() > 0) log::warn("{} unreadable images were replaced by the next ones", data->bad_files());
  log::info("latents of {} images in {}; to train on them: data.kind=latents data.path={} data.latent_scale={}",
            data->size(), shards.out, shards.out, shards.scale_factor);
  return kExitDone;
}

int body(int argc, char** argv, dist::Communicator& comm) {
  config::CommandLine line = make_command_line();
  if (!line.parse(argc, argv)) return kExitDone;
  if (line.positional() != std::vector<std::string>{"encode"})
    throw InputError({.where = "command line",
                      .what = "what to do",
                      .got = line.positional().empty() ? "nothing" : line.positional().front(),
                      .expected = "encode",
                      .hint = "ditdata --help"});
  return encode(line, comm);
}

}  // namespace

int main(int argc, char** argv) {
  return config::run_mpi_program("ditdata", argc, argv,
                                 [&](dist::Communicator& comm) { return body(argc, argv, comm); });
}
