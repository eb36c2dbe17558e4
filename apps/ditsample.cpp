// ditsample: images from a checkpoint, drawn by any number of ranks; the same images for any number.
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <tuple>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/checkpoint/export.hpp"
#include "ditrain/config/agreement.hpp"
#include "ditrain/config/command_line.hpp"
#include "ditrain/config/program.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/dataset/raster_metadata.hpp"
#include "ditrain/eval/autoencoder_file.hpp"
#include "ditrain/eval/band_picture.hpp"
#include "ditrain/eval/label_check.hpp"
#include "ditrain/eval/latent_codec.hpp"
#include "ditrain/eval/sample_facts.hpp"
#include "ditrain/eval/sample_writer.hpp"
#include "ditrain/eval/sampling.hpp"
#include "ditrain/eval/scene_sampling.hpp"
#include "ditrain/files/file_lock.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/images/raster.hpp"
#include "ditrain/nn/model.hpp"
#include "ditrain/plan/inputs.hpp"
#include "ditrain/plan/memory_check.hpp"
#include "ditrain/plan/placement.hpp"
#include "ditrain/platform/limits.hpp"

namespace {

using namespace ditrain;
namespace fs = std::filesystem;

constexpr int64_t kMaxImages = 100'000'000;

[[noreturn]] void refuse(const std::string& what, const std::string& got, const std::string& expected,
                         const std::string& hint = "") {
  throw InputError({.where = "command line", .what = what, .got = got, .expected = expected, .hint = hint});
}

config::CommandLine make_command_line() {
  return config::CommandLine(
      "ditsample", "sample images from a trained Diffusion Transformer",
      {{"checkpoint", "DIR|FILE", "run folder, checkpoint folder (the latest is taken), or a .safetensors file"},
       {"weights", config::choices<checkpoint::Weights>(), "EMA weights, or the weights themselves", "ema"},
       {"labels", "LIST",
        "0,1,2 (repeated in turn), names of the classes, uniform (drawn), balanced (every class in turn) "
        "or none (as guidance asks the model) [default: balanced, with --condition none]"},
       {"num", "N", "images in all", "64"},
       {"steps", "S",
        "steps of the sampler: 50, or 10,10,20 (one number per section), or ddim25 (process ddpm) [default: the "
        "checkpoint's sample.steps]"},
       {"sampler", "NAME", diffusion::sampler_words() + " [default: sample.sampler]"},
       {"eta", "E", "ddim only: 0 adds no noise, 1 as much as ddpm", "0"},
       {"cfg-scale", "G",
        "classifier-free guidance; 1 is off, more follows the label more closely [default: sample.cfg_scale]"},
       {"cfg-channels", config::choices<config::GuidedChannels>(),
        "channels that are guided: the first three, as in the reference, or all [default: sample.cfg_channels]"},
       {"cfg-interval", "FROM,TO",
        "where guidance acts on the way from noise (0) to data (1) [default: sample.cfg_interval]"},
       {"guide", "DIR|FILE|routed|none",
        "checkpoint of a weaker model, such as an earlier one of the run, that --cfg-scale guides away from "
        "(autoguidance); routed: away from the model itself with the routes of its training (train.routing); none: "
        "away "
        "from samples without labels [default: sample.guide]"},
       {"clip", "[on|off|auto]", "limit the predicted clean data to [-1, 1] in every step; auto: unless it is latents",
        "auto"},
       {"seed", "K", "of all random numbers, from 0 to 2^63 - 1", "0"},
       {"out", "DIR",
        "folder of the images: 000000.png, ...; the command of a program that was ended goes on with its PNGs of grey "
        "or RGB images"},
       {"vae", "FILE|DIR|none",
        "autoencoder that decodes the samples of a model of latents, as for ditdata; none: they stay latents [default: "
        "sample.vae]"},
       {"format", "png|geotiff",
        "8-bit pictures, or GeoTIFFs of all bands: digital numbers of models of tiles or, decoded, of their latents; "
        "else values as f32",
        "png"},
       {"condition", "FILE",
        "a raster with the bands that the model is given (data.condition): the whole scene is sampled in overlapping "
        "tiles, --num times (default 1), into georeferenced rasters; without it such a model draws nothing"},
       {"metadata", "LIST|FILE.csv",
        "numbers for a model of model.metadata: month=7,year=2020, or a table with a line of names and a line for each "
        "sample, in turn; what is left out is not known"},
       {"like", "FILE",
        "a raster that lends GeoTIFFs its CRS, origin and pixel size, and to bands of the same name the scale and "
        "offset "
        "that the model does not know, and to the samples its metadata"},
       {"grid", "FILE.png", fmt::format("also one picture of the first {} images or fewer", eval::kMaxGridImages)},
       {"npz", "FILE.npz",
        "also all images as arr_0 [N, H, W, C] u8 (models of 1 or 3 channels); how they were drawn stands in "
        "FILE.npz.json"},
       {"nearest", "N", "print how often the nearest of the first N images of the training data has the same class",
        "0"},
       {"precision", config::choices<DType>(),
        "of products and activations; bf16 is faster where the processor multiplies it (AMX, AVX512-BF16)", "f32"},
       {"batch", "B", "images that a rank samples at once", std::to_string(eval::kDefaultBatch)},
       {"threads", "T", "of a rank; 0: all of its cores", "0"}},
      "",
      "What is not given comes from the section sample of the checkpoint's config; the log tells which settings do.\n"
      "Images do not depend on the number of ranks or threads, nor on --batch.");
}

enum class Format { kPng, kGeotiff };
constexpr Word<Format> kFormats[] = {{"png", Format::kPng}, {"geotiff", Format::kGeotiff}};
constexpr std::span<const Word<Format>> words_of(Format) { return kFormats; }

enum class Clip { kOn, kOff, kAuto };
constexpr Word<Clip> kClips[] = {{"on", Clip::kOn}, {"off", Clip::kOff}, {"auto", Clip::kAuto}};
constexpr std::span<const Word<Clip>> words_of(Clip) { return kClips; }

/// What the command line asks for, and `sampler` and `vae` of the checkpoint where it does not.
struct Job {
  std::string checkpoint, label_spec, label_names, out, grid, npz, vae, like, condition, metadata, guide;
  checkpoint::Weights weights = checkpoint::Weights::kEma;
  Clip clip = Clip::kAuto;
  int64_t num = 0, batch = 0, nearest = 0, threads = 0;
  int64_t drawn = 0;  ///< samples of an earlier start, from number 0 on
  uint64_t seed = 0;
  DType precision = DType::kF32;
  bool tiff = false;  ///< GeoTIFFs instead of PNGs
  diffusion::SamplerConfig sampler;
};

const diffusion::Sampler* read_sampler(const config::CommandLine& line) {
  using Row = const diffusion::Sampler*;
  const std::string text = line.get("sampler");
  Row sampler = nullptr;
  if (text == "auto" || find_word(text, sampler)) return sampler;
  std::vector<std::string> words = all_words<Row>();
  words.emplace_back("auto");
  refuse_word("command line", "--sampler", text, words);
}

Job read_job(const config::CommandLine& line) {
  line.need({"checkpoint", "out"});
  Job job;
  job.tiff = line.get_word<Format>("format") == Format::kGeotiff;
  job.checkpoint = line.get_path("checkpoint"), job.weights = line.get_word<checkpoint::Weights>("weights"),
  job.out = line.get_path("out"), job.grid = line.get_path("grid"), job.npz = line.get_path("npz"),
  job.metadata = line.get("metadata");
  job.like = line.get_path("like"), job.condition = line.get_path("condition");
  if (line.has("weights") && fs::is_regular_file(job.checkpoint))
    refuse("--weights chooses a file of a checkpoint, and --checkpoint names one", job.checkpoint, "no --weights",
           "--checkpoint with the folder of the checkpoint");
  job.label_spec = line.has("labels") ? line.get("labels") : job.condition.empty() ? "balanced" : "none";
  if (!job.condition.empty()) {
    if (!job.like.empty()) refuse("--like and --condition both say where samples lie", "", "one of them");
    images::need_gdal("--condition");
    if (!line.has("format")) job.tiff = true;
  }
  for (const auto& [flag, file, ending] : {std::tuple{"--grid", job.grid, ".png"}, {"--npz", job.npz, ".npz"}})
    if (!file.empty() && fs::path(file).extension() != ending)
      refuse(fmt::format("{} writes another format than this name says", flag), file,
             std::string("a name that ends in ") + ending);
  const auto folder_of = [](const fs::path& file) { return fs::weakly_canonical(fs::absolute(file)).parent_path(); };
  if (!job.grid.empty() && folder_of(job.grid) == folder_of(fs::path(job.out) / eval::kSampleFactsFile))
    refuse("--grid would lie among the samples of --out, and be taken for one of them", job.grid, "another folder");
  if (job.tiff) images::need_gdal("--format geotiff");
  job.num = job.condition.empty() || line.has("num") ? line.get_int("num", 1, kMaxImages) : 1;
  job.batch = line.get_int("batch", 1, 1 << 16), job.precision = line.get_word<DType>("precision");
  job.nearest = line.get_int("nearest", 0, kMaxImages), job.threads = line.get_int("threads", 0, 1 << 16);
  job.seed = uint64_t(line.get_int("seed", 0, INT64_MAX));
  job.clip = line.has("clip") && line.get("clip").empty() ? Clip::kOn : line.get_word<Clip>("clip");
  return job;
}

void choose_sampling(Job& job, const config::CommandLine& line, const config::Config& config) {
  const nn::ModelConfig& m = config.model;
  diffusion::SamplerConfig& s = job.sampler;
  s = config::sampler_of(config);
  if (line.has("sampler")) s.sampler = read_sampler(line);
  if (line.has("steps")) s.spacing = line.get("steps");
  s.eta = line.get_double("eta", 0, 1);
  if (line.has("cfg-scale")) s.cfg_scale = line.get_double("cfg-scale", 0, 1e6);
  if (line.has("cfg-channels"))
    s.cfg_channels = config::number_of(line.get_word<config::GuidedChannels>("cfg-channels"));
  if (line.has("cfg-interval")) {
    const std::string text = line.get("cfg-interval");
    int end = 0;
    if (std::sscanf(text.c_str(), "%lf,%lf%n", &s.cfg_interval.from, &s.cfg_interval.to, &end) != 2 ||
        size_t(end) != text.size())
      refuse("--cfg-interval is no interval", text, "FROM,TO, such as 0.1,1");
  }
  if (job.clip != Clip::kAuto) s.clip_denoised = job.clip == Clip::kOn;
  job.guide = config.sample.guide;
  if (line.has("guide")) job.guide = line.get_path("guide") == "none" ? "" : line.get_path("guide");
  if (line.has("guide") && !job.guide.empty() && s.cfg_scale == 1)
    refuse("--guide guides by --cfg-scale, which is off", "cfg-scale 1", "a number above 1", "--cfg-scale 2");
  if (s.cfg_scale == 1) job.guide.clear();
  if (job.guide == config::kRoutedGuide && config.train.routing.empty())
    refuse("--guide routed needs a model that was trained with routes", "train.routing: off", "train.routing",
           "--guide none, or ./routed for a folder of that name");
  if (s.cfg_scale != 1 && job.guide.empty() && !eval::takes_guidance(m))
    refuse("--cfg-scale needs a model that knows labels and their absence",
           fmt::format("--cfg-scale {}, model.num_classes {} and model.class_dropout {}", s.cfg_scale, m.num_classes,
                       m.class_dropout),
           "no --cfg-scale, or 1");
  if (!job.like.empty() && !job.tiff && m.metadata.empty())
    refuse("--like is for GeoTIFFs", "--format png", "--format geotiff");
  if (m.condition_channels > 0 && job.condition.empty())
    refuse(
        "this model draws what belongs to a scene that it is given",
        fmt::format("no --condition, model.condition_channels {}", m.condition_channels),
        fmt::format("--condition FILE, a raster with {}", fmt::join(dataset::condition_of(config.data).bands, ", ")));
  if (m.condition_channels == 0 && !job.condition.empty())
    refuse("--condition is for models that learned with data.condition", job.condition, "a model that is given bands",
           "no --condition");
  if (job.label_spec == "none" && m.num_classes > 0 && m.class_dropout == 0)
    refuse("the model never learned to draw without a label",
           line.has("labels") ? "--labels none" : "--condition without --labels",
           fmt::format("a class, model.class_dropout {}", m.class_dropout), "--labels 0, the class of the scene");
  if (job.nearest > 0 && !job.condition.empty()) refuse("--nearest compares tiles", "--condition", "no --nearest");
  if (job.nearest > 0 && job.label_spec == "none") refuse("--nearest compares labels", "--labels none", "labels");
  if (!config::learns_pixels(config)) job.vae = config.sample.vae;
  if (line.has("vae")) job.vae = line.get_path("vae") == "none" ? "" : line.get_path("vae");
  std::error_code unreadable;
  if (!line.has("vae") && !job.vae.empty() && !fs::exists(job.vae, unreadable))
    refuse("the autoencoder that the checkpoint's config names is not there", "sample.vae: " + job.vae,
           "a file or folder", "--vae FILE, or --vae none for latents");
  if (!line.has("guide") && !job.guide.empty() && job.guide != config::kRoutedGuide &&
      !fs::exists(job.guide, unreadable))
    refuse("the guide that the checkpoint's config names is not there", "sample.guide: " + job.guide,
           "a file or folder", "--guide DIR, or --guide none to guide by labels");
}

/// The names of the classes, as the run knew them, or for a checkpoint that does not say as the data has them now.
/// Errors:   InputError if it cannot be read
std::vector<std::string> names_of_classes(const checkpoint::WeightsSource& source) {
  if (!source.class_names.empty()) return source.class_names;
  dataset::Config data = source.config.data;
  if (!data.kind->pixels || (data.path.empty() && !data.kind->path.empty())) return {};
  if (data.kind->of_bands) return dataset::TileShards(data.path).classes();
  data.hold_out = 0;
  return dataset::open_dataset(data, {}, /*num_classes=*/0, /*seed=*/0)->class_names();
}

/// All names, or the first of many.
std::string list_names(std::vector<std::string> names) {
  constexpr size_t kMost = 20;
  const size_t all = names.size();
  names.resize(std::min(all, kMost));
  return fmt::format("{}{}", fmt::join(names, ", "), all > kMost ? fmt::format(", ... ({} in all)", all) : "");
}

/// Turns names in --labels into numbers.
void number_labels(Job& job, const checkpoint::WeightsSource& source) {
  const config::Config& config = source.config;
  std::vector<std::string> words = cells(job.label_spec, ',');
  const std::vector<std::string> wholes = {"uniform", "balanced", "none"};
  const auto is_whole = [&](const std::string& word) {
    return std::find(wholes.begin(), wholes.end(), word) != wholes.end();
  };
  const auto is_number = [](const std::string& word) { return word.find_first_not_of("0123456789") == word.npos; };
  if (std::all_of(words.begin(), words.end(), is_number) || (words.size() == 1 && is_whole(words[0]))) {
    job.label_spec = fmt::format("{}", fmt::join(words, ","));  // without blanks
    return;
  }
  std::vector<std::string> names;
  std::string why = config.data.path.empty() ? "the file does not say where its data lies"
                                             : "data.path: " + config.data.path + " names none";
  try {
    names = names_of_classes(source);
  } catch (const InputError& e) {
    why = e.what();
  }
  const auto num_classes = size_t(config.model.num_classes);
  if (names.size() > num_classes)
    why = fmt::format("{} has {} classes by now", config.data.path, names.size()), names.clear();
  std::vector<std::string> known = wholes;
  known.insert(known.end(), names.begin(), names.end());
  for (std::string& word : words) {
    if (is_number(word)) continue;
    const auto found = std::find(names.begin(), names.end(), word);
    if (found == names.end() && is_whole(word))
      refuse("--labels: a word for all samples stands alone", job.label_spec, word);
    if (found == names.end())
      refuse(names.empty() ? "unknown labels; names of classes are not known here, as " + why : "unknown labels", word,
             names.empty() ? fmt::format("numbers below {}, in the order of the names of the folders, or uniform, "
                                         "balanced or none",
                                         num_classes)
                           : "some of " + list_names(names),
             nearest_word(word, known));
    word = std::to_string(found - names.begin());
  }
  job.label_names = job.label_spec, job.label_spec = fmt::format("{}", fmt::join(words, ","));
  log::info("labels {} are {}", job.label_spec, job.label_names);
}

/// Rows of --metadata, each with a value per number of kMetadata.
std::vector<std::vector<double>> parse_metadata(const std::string& text, const nn::ModelConfig& m) {
  const auto set = [&](std::vector<double>& row, const std::string& name, const std::string& value) {
    const size_t number = metadata_index(name, "--metadata");
    if (std::find(m.metadata.begin(), m.metadata.end(), name) == m.metadata.end())
      refuse("--metadata names a number that the model was not trained with", name,
             fmt::format("some of {}", fmt::join(m.metadata, ", ")));
    if (value.empty()) return;
    char* end = nullptr;
    row[number] = std::strtod(value.c_str(), &end);
    if (*end != '\0') refuse("--metadata: no number", fmt::format("{} of {}", value, name), "such as 7");
    check_metadata(number, row[number], "--metadata");
  };
  std::vector<std::vector<double>> rows;
  if (fs::path(text).extension() != ".csv") {
    rows.push_back(no_metadata());
    for (const std::string& item : cells(text, ',')) {
      const size_t equals = item.find('=');
      if (equals == item.npos) refuse("--metadata: no value", item, "NAME=VALUE,... or a FILE.csv");
      set(rows.back(), item.substr(0, equals), item.substr(equals + 1));
    }
    return rows;
  }
  std::string table = files::read_text_file(text, size_t{1} << 28);
  if (table.starts_with("\xef\xbb\xbf")) table.erase(0, 3);  // a mark that programs for tables write
  std::vector<std::string> lines = cells(table, '\n');
  std::erase(lines, "");
  if (lines.size() < 2) refuse("--metadata: no table", text, "a line of names, and a line of numbers for each sample");
  const std::vector<std::string> names = cells(lines.front(), ',');
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> values = cells(lines[i], ',');
    if (values.size() != names.size())
      refuse(fmt::format("{}, line {}: another number of values than names", text, i + 1),
             std::to_string(values.size()), std::to_string(names.size()));
    rows.push_back(no_metadata());
    for (size_t k = 0; k < names.size(); ++k) set(rows.back(), names[k], values[k]);
  }
  return rows;
}

/// The numbers of samples, in turn: those of --metadata, and others of the raster of --like or --condition.
std::vector<std::vector<double>> metadata_of(const Job& job, const nn::ModelConfig& m) {
  if (m.metadata.empty()) {
    if (!job.metadata.empty())
      refuse("--metadata is for models of model.metadata", job.metadata, "no --metadata", "model.metadata in training");
    return {{}};
  }
  std::vector<std::vector<double>> rows{no_metadata()};
  if (!job.metadata.empty()) rows = parse_metadata(job.metadata, m);
  if (rows.size() > 1 && int64_t(rows.size()) != job.num)
    refuse("--metadata has another number of lines than samples are drawn", std::to_string(rows.size()),
           fmt::format("{} lines, or one for all", job.num), fmt::format("--num {}", rows.size()));
  if (const std::string& place = job.like.empty() ? job.condition : job.like; !place.empty()) {
    const images::RasterInfo info = images::Raster(place).info();
    std::vector<double> lent = dataset::metadata_of_raster(info);
    if (info.transform) dataset::set_place(info.crs, *info.transform, info.width, info.height, lent);
    for (std::vector<double>& row : rows)
      for (size_t i = 0; i < row.size(); ++i)
        if (std::isnan(row[i])) row[i] = lent[i];
  }
  for (const std::vector<double>& row : rows)
    for (const std::string& name : m.metadata)
      if (m.metadata_drop == 0 && std::isnan(row[metadata_index(name, "--metadata")]))
        refuse("the model never trained without a number that is left out", name,
               fmt::format("--metadata {}=VALUE (model.metadata_drop is 0)", name));
  return rows;
}

/// The numbers that samples are drawn for, as --metadata takes them; unknown ones are left out.
std::string metadata_text(const std::vector<double>& row, const nn::ModelConfig& m) {
  std::string text;
  for (const std::string& name : m.metadata)
    if (const double number = row[metadata_index(name, "--metadata")]; !std::isnan(number))
      text += fmt::format("{}{}={:.9g}", text.empty() ? "" : ",", name, number);
  return text;
}

/// Which settings come from where.
void log_origins(const config::CommandLine& line, const Job& job, const config::Config& config) {
  std::string given, own;
  for (const auto& [flag, key] : {std::pair{"sampler", "sampler"},
                                  {"steps", "steps"},
                                  {"cfg-scale", "cfg_scale"},
                                  {"cfg-channels", "cfg_channels"},
                                  {"cfg-interval", "cfg_interval"},
                                  {"guide", "guide"},
                                  {"vae", "vae"}}) {
    if (line.has(flag))
      given += fmt::format("{}--{}", given.empty() ? "" : ", ", flag);
    else if ((std::string_view(key) != "vae" || !job.vae.empty()) &&
             (std::string_view(key) != "guide" || !job.guide.empty()))
      own += fmt::format("{}{}", own.empty() ? "" : ", ", key);
  }
  if (!given.empty()) log::info("settings of the command line: {}", given);
  if (!own.empty()) log::info("settings of the checkpoint's config, section sample: {}", own);
  if (!eval::takes_guidance(config.model) && config.sample.cfg_scale != 1 && !line.has("cfg-scale"))
    log::info("guidance is off: the model {}, so that sample.cfg_scale {} means nothing",
              config.model.num_classes == 0 ? "has no classes" : "never trained without labels (model.class_dropout 0)",
              config.sample.cfg_scale);
  const int64_t guided = job.sampler.cfg_channels, channels = config.model.in_channels;
  if (job.sampler.cfg_scale != 1 && guided > 0 && guided < channels)
    log::info("guidance acts on the first {} of {} channels, as in the reference; --cfg-channels all guides all",
              guided, channels);
}

/// Decodes samples of latents. Without a VAE it hands them on as they are.
class Decoder {
 public:
  Decoder(const Job& job, const config::Config& config, const parallel::Team& team, const dist::Communicator& comm)
      : output_{model_output(config.model)} {
    if (!job.like.empty()) {
      output_.like = images::Raster(job.like).info();
      if (job.tiff && (!output_.like->transform || output_.like->crs.empty()))
        log::warn("{} has no {}, so that samples lie nowhere either: gdalwarp makes a raster that has both", job.like,
                  output_.like->transform ? "coordinate system" : "georeference of its pixels");
    }
    if (!job.condition.empty()) {
      output_.like = eval::find_condition(job.condition, config.data);
      output_.height = output_.like->height, output_.width = output_.like->width;
      check_scene(job, config, comm);
    }
    output_.is_latent = job.vae.empty() && !config::learns_pixels(config);
    if (!output_.is_latent && dataset::has_scaling(config.data)) output_.scaling = dataset::scaling_of(config.data);
    if (job.vae.empty()) {
      if (job.condition.empty()) check_round(job, config, comm, 0);
      return;
    }
    // Samples are what training saw: scaled latents.
    const eval::LatentCodecPlan plan(job.vae, plan::model_shape(config.model), job.precision);
    const dataset::SampleShape& images = plan.images();
    output_.channels = images.channels, output_.height = images.height, output_.width = images.width;
    log::info("{}", plan.describe());
    if (output_.scaling && output_.scaling->channels() != images.channels)
      throw InputError(
          {.where = job.vae,
           .what = "this VAE makes other channels than the tiles that the model learned had bands",
           .got = std::to_string(images.channels),
           .expected = fmt::format("{} ({})", output_.scaling->channels(), fmt::join(output_.scaling->names, ", "))});
    plan::expect_learned_scale(plan, config);
    check_round(job, config, comm, plan.bytes(/*encodes=*/false, team.num_workers()));
    codec_.emplace(plan, nn::AutoencoderUse::kDecode);
  }

  const eval::SampleForm& output() const { return output_; }

  std::vector<float> operator()(ops::Context& ctx, std::vector<float> samples) {
    return codec_ ? codec_->decode(ctx, std::move(samples)) : samples;
  }

 private:
  /// A guide is taken to be as large as the model, but for the model itself with its routes.
  static size_t num_models(const Job& job) { return job.guide.empty() || job.guide == config::kRoutedGuide ? 1 : 2; }
  /// Weights, and what drawing `batch` images at once takes.
  static size_t drawing_bytes(const Job& job, const config::Config& config, int64_t batch) {
    nn::Model model(config.model);
    return num_models(job) * model.parameters().bytes(autograd::ParameterStore::For::kInference, job.precision) +
           eval::generate_bytes(model, config.diffusion, job.sampler, batch, !job.guide.empty(), job.precision);
  }

  /// The images of a round are in memory as they are drawn, decoded and written; rank 0 collects those of all ranks.
  void check_round(const Job& job, const config::Config& config, const dist::Communicator& comm,
                   size_t decoder_bytes) const {
    const int64_t ranks = comm.world_size(), n = std::min(job.batch, (job.num + ranks - 1) / ranks);
    const auto on_node = size_t(comm.local_size());
    const size_t image = size_t(output_.channels * output_.pixels()) * sizeof(float),
                 copies = (job.vae.empty() ? 1 : 2) + (size_t(ranks) + on_node - 1) / on_node;
    plan::check_memory(
        drawing_bytes(job, config, n) + decoder_bytes +
            size_t(n) * (size_t(plan::model_shape(config.model).elements()) * sizeof(float) + copies * image),
        int(on_node),
        fmt::format("the model{}{} and {} image(s) at once", num_models(job) == 2 ? ", its guide" : "",
                    decoder_bytes > 0 ? ", the decoder" : "", n),
        fmt::format("{}fewer ranks per node{}", n > 1 ? "a smaller --batch, " : "",
                    decoder_bytes > 0 ? ", or no --vae" : ""));
  }

  /// The whole scene is in memory.
  void check_scene(const Job& job, const config::Config& config, const dist::Communicator& comm) const {
    const size_t models = num_models(job), fixed = drawing_bytes(job, config, job.batch),
                 pixel = eval::bytes_per_scene_pixel(config.model, job.sampler);
    const auto ranks = size_t(comm.local_size());
    const size_t limit = platform::memory_limit(int(ranks)).bytes / ranks;
    const size_t left = limit - std::min(limit, fixed + plan::kProgramBytes);
    const auto side = int64_t(std::sqrt(double(left) / double(pixel)));
    plan::check_memory(fixed + size_t(output_.pixels()) * pixel, int(ranks),
                       fmt::format("the model{} and a scene of {} x {}", models == 2 ? ", its guide" : "",
                                   output_.height, output_.width),
                       side < std::max(config.model.input_height, config.model.input_width)
                           ? "fewer ranks per node, or a smaller --batch"
                           : fmt::format("a scene of at most {0} x {0}, such as gdal_translate -srcwin 0 0 {0} {0} {1} "
                                         "PART.tif",
                                         side, job.condition));
  }

  static eval::SampleForm model_output(const nn::ModelConfig& m) {
    return {.channels = m.in_channels, .height = m.input_height, .width = m.input_width};
  }

  eval::SampleForm output_;
  std::optional<eval::LatentCodec> codec_;
};

/// The lock of --out, whose file does not stay among the samples.
class OutputLock {
 public:
  explicit OutputLock(const std::string& folder) : folder_(folder), lock_(files::lock_output_folder(folder)) {}
  ~OutputLock() {
    std::error_code ignored;
    fs::remove(folder_ + "/.lock", ignored);
  }
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  const std::string folder_;
  const std::unique_ptr<files::FileLock> lock_;
};

/// Whether PNGs hold all that is kept of samples, so that the command can go on with them.
bool can_go_on(const Job& job, const eval::SampleForm& output) {
  return output.is_picture() && !output.scaling && !job.tiff;
}

/// Whether a file has the name of one of the PNGs that are asked for.
bool is_own_sample(const Job& job, const fs::path& file) {
  int64_t number = 0;
  return parse_whole(file.stem().string(), number) && number < job.num &&
         file.filename() == eval::sample_name(number, /*geotiff=*/false);
}

/// On rank 0: the number of samples to go on with, from number 0 on. Nothing else that exists is overwritten; found out
/// before anything is computed. `unfinished`: what the samples of such a command would be; empty: it begins anew.
int64_t check_samples(const Job& job, const std::string& unfinished) {
  const std::string before = job.out + "/" + eval::kUnfinishedFile;
  const bool finished = fs::exists(eval::sample_facts_path(job.out));
  bool holds_samples = false;
  for (const fs::directory_entry& entry : fs::directory_iterator(job.out)) {
    const fs::path& path = entry.path();
    if (path.extension() == ".safetensors" && path.filename() != eval::kRawSamplesFile)
      refuse("--out holds tiles, latents or weights: a file of samples there would be taken for one of them",
             path.string(), "an empty or new folder");
    if (path.extension() != ".png" && path.extension() != ".tif" && path.filename() != eval::kRawSamplesFile &&
        path.filename() != eval::kSampleFactsFile)
      continue;
    if (finished || unfinished.empty() || !fs::exists(before) || !is_own_sample(job, path))
      refuse(finished ? "--out holds samples already"
                      : "--out holds samples already, of a program that was ended before it was done",
             path.string(), "an empty or new folder",
             finished || !unfinished.empty() ? "" : "only PNGs of grey and RGB images can be gone on with");
    holds_samples = true;
  }
  if (!holds_samples) return 0;
  if (const std::string other = eval::difference_to_unfinished(before, unfinished); !other.empty())
    refuse("--out holds samples of a program that was ended before it was done, and that drew others: " + other,
           job.out, "the same settings, to go on with them, or an empty or new folder");
  int64_t drawn = 0;
  while (drawn < job.num && fs::exists(job.out + "/" + eval::sample_name(drawn, /*geotiff=*/false))) ++drawn;
  log::info("goes on with {} images of {} that {} holds", drawn, job.num, job.out);
  return drawn;
}

/// On rank 0. Finds samples to go on with.
std::unique_ptr<OutputLock> check_outputs(Job& job, const eval::SampleForm& output, const std::string& unfinished) {
  if (!job.npz.empty() && !output.is_picture())
    refuse("--npz holds grey or RGB images",
           fmt::format("a model of {} {}", output.channels, output.is_latent ? "channels of latents" : "channels"),
           "1 or 3 channels of pixels",
           fmt::format("--vae, or without it: ditsample writes OUT/{} for such models", eval::kRawSamplesFile));
  auto lock = std::make_unique<OutputLock>(job.out);
  job.drawn = check_samples(job, unfinished);
  for (const std::string& file : {job.grid, job.npz, job.npz.empty() ? "" : eval::sample_facts_path(job.npz)}) {
    if (file.empty()) continue;
    if (fs::exists(file)) refuse("the file exists already", file, "a new file");
    const fs::path parent = fs::path(file).parent_path();
    if (!parent.empty()) files::make_output_folder(parent.string());
  }
  return lock;
}

void log_job(const Job& job, const checkpoint::WeightsSource& source, const diffusion::Process& process,
             const eval::SampleForm& output, dist::Communicator& comm) {
  const nn::ModelConfig& m = source.config.model;
  log::info("model {} of {}{}: {} x {} x {}, {} classes", m.name, source.file,
            source.step < 0 ? "" : fmt::format(" (step {})", source.step), m.in_channels, m.input_height, m.input_width,
            m.num_classes);
  const diffusion::GuidedInterval& interval = job.sampler.cfg_interval;
  log::info("{} images on {} rank(s) in {}: {} {} steps, guidance {} on {} channels{}, seed {}", job.num,
            comm.world_size(), dtype_name(job.precision), diffusion::sampler_of(job.sampler, process).name,
            job.sampler.spacing.text(), job.sampler.cfg_scale,
            job.sampler.cfg_channels < 0 ? "all" : std::to_string(job.sampler.cfg_channels),
            interval.contains(0) && interval.contains(1) ? "" : " within " + interval.text(), job.seed);
  const diffusion::Sampler& sampler = diffusion::sampler_of(job.sampler, process);
  if (process.kind().name == "ddpm" && sampler.name != "dpm++" &&
      diffusion::space_timesteps(source.config.diffusion.num_steps, job.sampler.spacing) == std::vector<int64_t>{0})
    log::warn(
        "the only step of {} is that of the least noise, which gives back the noise that it starts from; "
        "--sampler dpm++ --steps 1 predicts from noise",
        sampler.name);
  if (!m.metadata.empty()) log::info("metadata: {}", job.metadata.empty() ? "none is known" : job.metadata);
  if (!job.guide.empty())
    log::info("guidance leads away from the samples of {}",
              job.guide == config::kRoutedGuide ? "the model with its routes" : job.guide);
  if (output.scaling)
    log::info("digital numbers ({}) of all bands are in {}/{}; values from -1 to 1 are {}", word_of(output.type()),
              job.out, eval::kRawSamplesFile, output.scaling->describe());
  else if (!output.is_picture())
    log::info("the data {} {} channels{}: PNGs show the first {}; all values are in {}/{}",
              output.is_latent ? "are latents of" : "has", output.channels,
              output.is_latent ? ", which --vae would decode" : " and there is no --vae",
              output.channels < 3 ? "channel" : "three channels", job.out, eval::kRawSamplesFile);
}

/// One line that says how far rank 0 is: often on a terminal, now and then in a file.
class ProgressLine {
 public:
  explicit ProgressLine(int64_t num) : num_(num) {}
  void operator()(double share) {
    const double now = now_s() - start_s_;
    if (share < 1 && now - last_s_ < interval_s_) return;
    last_s_ = now;
    log::progress_line(fmt::format("{:3.0f} % of {} images, {:.1f} s, {:.1f} s to go", 100 * share, num_, now,
                                   now * (1 - share) / share));
  }

 private:
  int64_t num_;
  double interval_s_ = isatty(STDOUT_FILENO) != 0 ? 0.5 : 10, last_s_ = 0;
  double start_s_ = now_s();
};

/// Rounds of at most world_size x batch images, dealt out so that all ranks have about the same.
struct Round {
  int64_t first = 0, n = 0;
};
Round round_of_rank(const Job& job, int64_t round, int64_t num_rounds, dist::Communicator& comm) {
  const parallel::Range all = parallel::partition(job.num - job.drawn, int(round), int(num_rounds));
  const parallel::Range mine = parallel::partition(all.size(), comm.rank(), comm.world_size());
  return {job.drawn + all.begin + mine.begin, mine.size()};
}

/// Draws and writes all images that are not there; on every rank the number of its images whose nearest neighbour has
/// their class.
double draw_all(ops::Context& ctx, nn::Model& model, nn::Model* guide, Decoder& decode, const Job& job,
                const config::Config& config, const std::vector<Condition>& conditions, const dataset::Dataset* data,
                const std::string& unfinished, dist::Communicator& comm) {
  const eval::SampleForm& output = decode.output();
  const eval::BandPictures picture(output.scaling ? config.data : dataset::Config(), output.channels);
  if (!picture.description().empty()) log::info("pictures: {}", picture.description());
  std::vector<int64_t> labels;
  for (const Condition& condition : conditions) labels.push_back(job.label_spec == "none" ? -1 : condition.label);
  eval::SampleWriter writer({job.out, job.grid, job.npz, job.num, job.tiff, job.drawn}, output, picture, labels, comm);
  const int64_t left = job.num - job.drawn;
  ProgressLine progress(left);
  std::optional<eval::ConditionScene> scene;
  if (!job.condition.empty()) scene = eval::read_condition(job.condition, config.data);
  if (scene && scene->without_data > 0 && comm.rank() == 0 && !dataset::condition_of(config.data).valid)
    log::warn(
        "{:.3g} % of the scene has no data in the given bands: what is drawn there is invented, and what is beside "
        "it less certain (a model with `valid` in data.condition learns to cope)",
        100 * scene->without_data);
  const int64_t a_round = (scene ? 1 : job.batch) * comm.world_size(), num_rounds = (left + a_round - 1) / a_round;
  double hits = 0;
  for (int64_t r = 0; r < num_rounds; ++r) {
    const Round round = round_of_rank(job, r, num_rounds, comm);
    const std::vector<Condition> mine(conditions.begin() + round.first, conditions.begin() + round.first + round.n);
    const auto told = [&](double share) { progress((double(r) + share) / double(num_rounds)); };
    std::vector<float> values;
    if (!scene) {
      const eval::GenerateRequest request{.sampler = job.sampler,
                                          .seed = job.seed,
                                          .conditions = mine,
                                          .first_index = round.first,
                                          .batch = job.batch,
                                          .precision = job.precision,
                                          .guide = guide,
                                          .guide_routes = config::guide_routes(job.guide, config)};
      values = eval::generate(ctx, model, config.diffusion, request, told);
    } else if (round.n > 0) {
      const eval::SceneRequest request{
          .sampler = job.sampler,
          .seed = job.seed,
          .index = round.first,
          .height = output.height,
          .width = output.width,
          .condition = {.label = mine.front().label, .numbers = mine.front().numbers, .image = scene->image},
          .batch = job.batch,
          .precision = job.precision,
          .guide = guide,
          .guide_routes = config::guide_routes(job.guide, config)};
      values = eval::generate_scene(ctx, model, config.diffusion, request, told);
    }
    eval::expect_finite(values, round.n, round.first, eval::kDiverged);
    if (data != nullptr && round.n > 0)
      hits += double(round.n) * eval::nearest_neighbour_accuracy(ctx, values, mine, *data, job.nearest);
    values = decode(ctx, std::move(values));
    eval::expect_finite(values, round.n, round.first, eval::kBadVae);
    if (r == 0) {
      if (!unfinished.empty()) files::write_file_atomically(job.out + "/" + eval::kUnfinishedFile, unfinished);
      comm.barrier();  // no image without it
    }
    writer.add(ctx, values, round.first, round.n);
  }
  writer.finish();
  return hits;
}

eval::SampleFacts facts_of(const Job& job, const checkpoint::WeightsSource& source, bool latents) {
  return {.program = "ditsample",
          .images = job.num,
          .sampler = job.sampler,
          .labels = job.label_spec,
          .label_names = job.label_names,
          .seed = job.seed,
          .checkpoint = source.file,
          .step = source.step,
          .weights = source.weights.empty() ? "unknown" : source.weights,
          .latents = latents,
          .vae = job.vae,
          .metadata = job.metadata,
          .condition = job.condition,
          .precision = job.precision,
          .guide = job.guide};
}

/// What the samples will be, to know a command that goes on with them; empty for files that cannot be gone on with.
std::string unfinished_facts(const Job& job, const checkpoint::WeightsSource& source, const diffusion::Process& process,
                             const eval::SampleForm& output) {
  if (!can_go_on(job, output)) return "";
  std::vector<std::string> weights = {source.file};  // and other files whose content decides
  if (!job.guide.empty() && job.guide != config::kRoutedGuide)
    weights.push_back(checkpoint::find_weights(job.guide, checkpoint::Weights::kEma).file);
  if (!job.vae.empty()) weights.push_back(eval::AutoencoderFile(job.vae).weights_path());
  if (std::error_code no_file; fs::is_regular_file(job.metadata, no_file)) weights.push_back(job.metadata);
  return eval::unfinished_facts(facts_of(job, source, output.is_latent), process, weights);
}

/// Written last: the folder is complete then.
void write_facts(const Job& job, const eval::SampleFacts& facts, const diffusion::Process& process) {
  if (!job.npz.empty()) eval::write_sample_facts(job.npz, facts, process);
  eval::write_sample_facts(job.out, facts, process);
}

std::unique_ptr<dataset::Dataset> open_training_data(const Job& job, const config::Config& c) {
  if (job.nearest == 0) return nullptr;
  if (!c.data.vae.empty()) refuse("--nearest compares with data as the model learns it", "data.vae", "no data.vae");
  if (c.model.num_classes == 0) refuse("--nearest compares classes", "a model without classes", "a model with classes");
  return plan::open_data(c);
}

/// Images are dealt out over ranks that all have the same plan; their threads may differ.
void check_command_lines(const config::CommandLine& line, dist::Communicator& comm) {
  std::vector<config::RankInvariant> invariants = config::program_invariants("ditsample");
  invariants.push_back({"command line", line.effective_text({"threads"}), "the same flags for all ranks"});
  config::check_agreement(comm, invariants);
}

/// A run that still trains may write a newer checkpoint while ranks look for the latest.
void check_sources(const checkpoint::WeightsSource& source, dist::Communicator& comm) {
  config::check_agreement(
      comm, {{"checkpoint", fmt::format("{} (step {})", source.file, source.step),
              "--checkpoint with the folder of one checkpoint, on a file system that all nodes share"},
             {"config of the checkpoint", config::to_yaml(source.config), "a file system that all nodes share"}});
}

int run(int argc, char** argv, dist::Communicator& comm) {
  config::CommandLine line = make_command_line();
  if (!line.parse(argc, argv)) return kExitDone;
  Job job = read_job(line);
  check_command_lines(line, comm);
  const checkpoint::WeightsSource source = checkpoint::find_weights(job.checkpoint, job.weights);
  check_sources(source, comm);
  const config::Config& config = source.config;
  config::check_bands(config);
  choose_sampling(job, line, config);
  number_labels(job, source);
  const auto process = diffusion::make_process(config.diffusion, config.model.learn_sigma);
  job.sampler.validate(*process);
  auto conditions = conditions_of(eval::make_labels(job.label_spec, job.num, config.model.num_classes, job.seed));
  const auto metadata = metadata_of(job, config.model);
  if (metadata.size() == 1 && !config.model.metadata.empty()) job.metadata = metadata_text(metadata[0], config.model);
  for (size_t i = 0; i < conditions.size(); ++i) conditions[i].numbers = metadata[i % metadata.size()];
  config::Config machine;  // the run's own settings are for the machine that trained
  machine.parallel.threads = job.threads, machine.parallel.comm_cores = 0;
  const plan::Placement placement = plan::plan_placement(machine, comm);
  parallel::Team team(placement.team());
  Decoder decoder(job, config, team, comm);
  const std::string unfinished = comm.rank() == 0 ? unfinished_facts(job, source, *process, decoder.output()) : "";
  const auto lock = comm.rank() == 0 ? check_outputs(job, decoder.output(), unfinished) : nullptr;
  comm.broadcast(&job.drawn, sizeof job.drawn, 0);
  const auto data = open_training_data(job, config);
  log_job(job, source, *process, decoder.output(), comm);
  log_origins(line, job, config);

  const auto model = checkpoint::load_model(source, job.precision);
  const auto guide =
      job.guide.empty() ? nullptr : checkpoint::load_guide(job.guide, config, source.class_names, job.precision);
  for (const std::string& note : placement.notes) log::info("{}", note);
  if (!placement.second_run.empty()) log::info("{}", placement.second_run);
  ops::Context ctx(team);
  double hits = draw_all(ctx, *model, guide.get(), decoder, job, config, conditions, data.get(), unfinished, comm);
  comm.allreduce_sum(&hits, 1);  // all ranks have written their images
  if (comm.rank() == 0) write_facts(job, facts_of(job, source, decoder.output().is_latent), *process);
  log::info("{} images in {}", job.num, job.out);
  if (const int64_t drawn_now = job.num - job.drawn; data != nullptr && drawn_now > 0)
    log::info(
        "nearest neighbour among {} training images has the label of the sample: {:.1f} % of {} (chance {:.1f} %)",
        std::min(job.nearest, data->size()), 100 * hits / double(drawn_now), drawn_now,
        100.0 / double(config.model.num_classes));
  return kExitDone;
}

}  // namespace

int main(int argc, char** argv) {
  return config::run_mpi_program("ditsample", argc, argv,
                                 [&](ditrain::dist::Communicator& comm) { return run(argc, argv, comm); });
}
