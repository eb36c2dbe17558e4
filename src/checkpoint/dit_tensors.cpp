#include "dit_tensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "ditrain/base/error.hpp"
#include "ditrain/base/metadata.hpp"
#include "ditrain/nn/block.hpp"
#include "ditrain/nn/patch_embed.hpp"

namespace ditrain::checkpoint {
namespace {

// The names that tell a DiT from other networks and from which its sizes follow.
struct Spelling {
  bool diffusers;
  const char *anchor, *patches, *fc1, *labels, *last, *block;
};
constexpr Spelling kSpellings[] = {
    {false, "blocks.0.adaLN_modulation.1.weight", "x_embedder.proj.weight", "blocks.0.mlp.fc1.weight",
     "y_embedder.embedding_table.weight", "final_layer.linear.weight", "blocks."},
    {true, "transformer_blocks.0.norm1.emb.timestep_embedder.linear_1.weight", "pos_embed.proj.weight",
     "transformer_blocks.0.ff.net.0.proj.weight",
     "transformer_blocks.0.norm1.emb.class_embedder.embedding_table.weight", "proj_out_2.weight",
     "transformer_blocks."},
};
const Spelling& spelling_of(const DitTensors& t) { return kSpellings[t.diffusers ? 1 : 0]; }

constexpr const char* kTableOfDiffusers = "pos_embed.pos_embed";  // some versions save it
constexpr int64_t kMostBlocks = 4096;

std::vector<std::string> names_of(const weights::WeightFile& file) {
  std::vector<std::string> names;
  for (const weights::WeightTensor& t : file.tensors()) names.push_back(t.name);
  return names;
}

[[noreturn]] void fail(const weights::WeightFile& file, const std::string& what, const std::string& got = "",
                       const std::string& expected = "", const std::string& hint = "") {
  throw InputError({.where = file.path(), .what = what, .got = got, .expected = expected, .hint = hint});
}

// "ema/", "state_dict/ema_model.module." are of a moving average.
bool is_average(const std::string& prefix) {
  for (size_t begin = 0; begin < prefix.size();) {
    const size_t end = std::min(prefix.find_first_of("./", begin), prefix.size());
    if (prefix.substr(begin, end - begin).starts_with("ema")) return true;
    begin = end + 1;
  }
  return false;
}

std::string shown(const std::string& prefix) { return prefix.empty() ? "names without a prefix" : prefix + "*"; }

std::string choose(const weights::WeightFile& file, const std::vector<std::string>& prefixes, Weights weights,
                   std::string& note) {
  if (prefixes.size() == 1) {
    if (is_average(prefixes[0]) && weights == Weights::kModel)
      note = fmt::format("the file holds a moving average alone ({}), which is taken", shown(prefixes[0]));
    else if (!is_average(prefixes[0]) && !prefixes[0].empty() && weights == Weights::kEma)
      note = fmt::format("the file holds no moving average; the weights ({}) are taken", shown(prefixes[0]));
    return prefixes[0];
  }
  std::vector<std::string> wanted;
  for (const std::string& prefix : prefixes)
    if (is_average(prefix) == (weights == Weights::kEma)) wanted.push_back(prefix);
  if (wanted.size() != 1)
    fail(file, "several models in the file, of which --weights does not choose one",
         fmt::format("{}", fmt::join(prefixes, ", ")), "one model, or one and its moving average (ema)");
  note = fmt::format("of the models in the file ({}) {} is taken", fmt::join(prefixes, ", "), shown(wanted[0]));
  return wanted[0];
}

}  // namespace

std::string looks_like(const weights::WeightFile& file) {
  const std::string network = weights::network_of(names_of(file));
  return network.empty() || network.starts_with("a DiT") ? "" : "; this looks like " + network;
}

const weights::WeightTensor& DitTensors::at(const std::string& name) const {
  const weights::WeightTensor* tensor = find(name);
  if (tensor == nullptr)
    fail(*file, fmt::format("tensor {}{} is missing{}", prefix, name, looks_like(*file)), "", "",
         "the file as it was published, or written by ditexport");
  return *tensor;
}

const std::vector<int64_t>& DitTensors::shape(const std::string& name, size_t dimensions) const {
  const weights::WeightTensor& tensor = at(name);
  if (tensor.shape.size() != dimensions)
    fail(*file, "shape of " + tensor.name, to_string(tensor.shape), fmt::format("{} dimensions", dimensions));
  return tensor.shape;
}

DitTensors find_dit(const weights::WeightFile& file, Weights weights) {
  for (const Spelling& spelling : kSpellings) {
    std::vector<std::string> prefixes;
    for (const weights::WeightTensor& t : file.tensors()) {
      if (!t.name.ends_with(spelling.anchor)) continue;
      const std::string prefix = t.name.substr(0, t.name.size() - std::string(spelling.anchor).size());
      if (prefix.empty() || prefix.back() == '.' || prefix.back() == '/') prefixes.push_back(prefix);
    }
    if (prefixes.empty()) continue;
    DitTensors found{.file = &file, .diffusers = spelling.diffusers};
    found.prefix = choose(file, prefixes, weights, found.note);
    for (const std::string& prefix : prefixes)
      if (prefix != found.prefix) found.other_prefixes.push_back(prefix);
    return found;
  }
  const std::string network = weights::network_of(names_of(file));
  fail(file, "not the weights of a DiT" + (network.empty() ? "" : "; this looks like " + network),
       file.tensors().empty() ? "no tensors" : "tensors such as " + file.tensors().front().name,
       std::string(kSpellings[0].anchor) + " and others", "ditimport --list names all of them");
}

namespace {

/// Sizes of a model, one after the other.
class Sizes {
 public:
  Sizes(const DitTensors& t, const DitHints& hints, std::vector<std::string>& notes)
      : t_(t), names_(spelling_of(t)), hints_(hints), notes_(notes) {}

  nn::ModelConfig find() {
    widths();
    heads();
    classes();
    grid();
    name();
    return c_;
  }

 private:
  void widths() {
    const bool narrow = !t_.diffusers && t_.find(nn::kNarrowPatchesWeight) != nullptr;
    const char* const first = narrow ? nn::kNarrowPatchesWeight : names_.patches;
    const auto& patches = t_.shape(first, 4);
    c_.hidden_size = narrow ? t_.shape(nn::kWidenWeight, 4)[0] : patches[0];
    c_.patch_bottleneck = narrow ? patches[0] : 0;
    c_.in_channels = patches[1], c_.patch_size = patches[2];
    const int64_t last_rows = t_.shape(names_.last, 2)[0], all = patches[1] * patches[2] * patches[2];
    if (const int64_t given = hints_.condition_channels.value_or(0);
        given > 0 && given < patches[1] && last_rows != all && last_rows != 2 * all)
      c_.in_channels -= given, c_.condition_channels = given;
    if (patches[0] < 1 || patches[1] < 1 || patches[2] < 1 || patches[2] != patches[3])
      fail(*t_.file, fmt::format("shape of {}{}", t_.prefix, first), to_string(patches),
           "[width, channels, patch, patch]");
    c_.patch_overlap = overlap(patches[2]), c_.patch_size -= 2 * c_.patch_overlap;
    for (c_.depth = 0; c_.depth <= kMostBlocks && has_block(c_.depth);) ++c_.depth;
    head_width_ = nn::recognise_variant(
        [this](const std::string& name) {
          const weights::WeightTensor* tensor = t_.find(name);
          return tensor != nullptr ? &tensor->shape : nullptr;
        },
        c_);
    // What has a table, or comes from diffusers, which computes it, has no rotary embedding.
    if (!t_.diffusers && t_.find("pos_embed") == nullptr) {
      c_.position = hints_.position.value_or(c_.position);
      if (!hints_.position)
        notes_.push_back(fmt::format(
            "no pos_embed in the file: model.position: {} is taken (rope, if it has rotary embedding)", c_.position));
    }
    for (const MetadataNumber& number : kMetadata)
      if (t_.find(fmt::format("m_embedder.{}.mlp.0.weight", number.name)) != nullptr)
        c_.metadata.emplace_back(number.name);
    if (c_.mlp == nn::Mlp::kGelu) c_.set_mlp_size(t_.shape(names_.fc1, 2)[0]);
    const int64_t last = t_.shape(names_.last, 2)[0], one = patches[2] * patches[2] * c_.in_channels;
    if (last != one && last != 2 * one)
      fail(*t_.file, fmt::format("rows of {}{}", t_.prefix, names_.last), std::to_string(last),
           fmt::format("{} (channels of the input), or twice as many (with a variance)", one),
           "--set model.condition_channels=N for a model that is given channels which it does not predict");
    c_.learn_sigma = last != one;
  }
  // No tensor tells how much of a side is overlap: the hint is taken unless none fits better.
  int64_t overlap(int64_t side) const {
    const int64_t asked = hints_.patch_overlap.value_or(0), patch = side - 2 * asked;
    return patch > asked && (fits(patch) || !fits(side)) ? asked : 0;
  }
  int64_t table_tokens() const {
    const weights::WeightTensor* table = t_.diffusers ? nullptr : t_.find("pos_embed");
    return table != nullptr && table->shape.size() == 3 ? table->shape[1] : 0;
  }
  // Whether patches of this size divide the hinted input, into as many tokens as the table has.
  bool fits(int64_t p) const {
    if (!hints_.input_height || !hints_.input_width) return false;
    const int64_t H = *hints_.input_height, W = *hints_.input_width, tokens = table_tokens();
    return H % p == 0 && W % p == 0 && (tokens == 0 || H / p * (W / p) == tokens);
  }
  bool has_block(int64_t i) const {
    const std::string anchor = names_.anchor, zero = names_.block + std::string("0");
    return t_.find(names_.block + std::to_string(i) + anchor.substr(zero.size())) != nullptr;
  }

  void heads() {
    const int64_t published = published_heads();
    if (head_width_ > 0) {
      c_.num_heads = std::max<int64_t>(1, c_.hidden_size / head_width_);
    } else if (hints_.num_heads && c_.hidden_size % *hints_.num_heads == 0) {
      c_.num_heads = *hints_.num_heads;
      if (published != 0 && published != c_.num_heads)
        notes_.push_back(fmt::format("{} heads are taken, as the config says; published models of width {} have {}",
                                     c_.num_heads, c_.hidden_size, published));
    } else if (published != 0 || hints_.num_heads) {
      c_.num_heads = std::max<int64_t>(1, published);  // 1: the width is another one than asked for, which will be said
    } else {
      fail(*t_.file, "the number of attention heads is not in the file, and no published DiT has this width",
           std::to_string(c_.hidden_size), "a width of DiT-S, B, L or XL", "--set model.num_heads=N");
    }
  }
  // The number of heads of the published models of this width; 0 if no model has it.
  int64_t published_heads() const {
    for (const std::string& name : nn::model_names(c_.kind)) {
      nn::ModelConfig known{.kind = c_.kind, .name = name};
      nn::apply_name(known);
      if (name != "custom" && known.hidden_size == c_.hidden_size) return known.num_heads;
    }
    return 0;
  }

  // One row of the label table is for dropped labels, unless it is known to be missing.
  void classes() {
    if (t_.find(names_.labels) == nullptr) {
      c_.num_classes = 0;
      return;
    }
    const int64_t rows = t_.shape(names_.labels, 2)[0];
    const std::optional<weights::PytorchScalar> told = t_.file->scalar("args/num_classes");
    const int64_t* number = told ? std::get_if<int64_t>(&*told) : nullptr;
    const bool none = rows < 2 || (number != nullptr && *number == rows) ||
                      (hints_.num_classes == rows && hints_.class_dropout == 0.0);
    c_.num_classes = none ? rows : rows - 1;
    if (none)
      c_.class_dropout = 0;
    else if (hints_.class_dropout.value_or(0) > 0)
      c_.class_dropout = *hints_.class_dropout;
    const bool told_so = number != nullptr && *number == c_.num_classes;
    if (!told_so && !none && hints_.num_classes != c_.num_classes)
      notes_.push_back(
          fmt::format("{} rows of labels: {} classes and the dropped label (model.num_classes={} and "
                      "model.class_dropout=0 if there is none)",
                      rows, c_.num_classes, rows));
  }

  void grid() {
    const int64_t p = c_.patch_size, tokens = table_tokens();
    const auto side = int64_t(std::llround(std::sqrt(double(tokens))));
    if (fits(p))
      c_.input_height = *hints_.input_height, c_.input_width = *hints_.input_width;
    else if (tokens > 0 && side * side == tokens)
      c_.input_height = c_.input_width = side * p;
    else
      fail(*t_.file,
           tokens == 0 ? "the size of the model's input is not in the file"
                       : fmt::format("pos_embed has {} tokens, which is no square", tokens),
           "", "height and width in pixels or latents", "--set model.input_size=[H,W]");
  }

  void name() {
    c_.name = "custom";
    for (const std::string& name : nn::model_names(c_.kind)) {
      nn::ModelConfig known{.kind = c_.kind, .name = name};
      nn::apply_name(known);
      const auto sizes = [](const nn::ModelConfig& c) {
        return std::tuple(c.hidden_size, c.depth, c.num_heads, c.patch_size);
      };
      if (name != "custom" && c_.mlp_ratio == 4 && sizes(known) == sizes(c_)) c_.name = name;
    }
  }

  const DitTensors& t_;
  const Spelling& names_;
  const DitHints& hints_;
  std::vector<std::string>& notes_;
  nn::ModelConfig c_;
  int64_t head_width_ = 0;  // if the variant's tensors tell it
};

}  // namespace

nn::ModelConfig model_of(const DitTensors& tensors, const DitHints& hints, std::vector<std::string>& notes) {
  return Sizes(tensors, hints, notes).find();
}

std::string name_in_file(const DitTensors& tensors, const autograd::Parameter& p, size_t part, int64_t block) {
  if (!tensors.diffusers) return p.name;
  const std::string& name = p.diffusers[part];
  const size_t star = name.find('*');
  return star == name.npos ? name : name.substr(0, star) + std::to_string(block) + name.substr(star + 1);
}

void check_tensors(const DitTensors& t, nn::Model& layout) {
  std::set<std::string> known{t.prefix + kTableOfDiffusers};
  for (const autograd::Parameter* p : layout.parameters().state_dict()) {
    const size_t parts = t.diffusers ? p->diffusers.size() : 1;  // 0: computed there
    if (!t.diffusers && !p->trainable && t.find(p->name) == nullptr) continue;
    for (size_t part = 0; part < parts; ++part)
      for (int64_t block = 0; block < layout.config().depth; ++block) {
        const std::string name = name_in_file(t, *p, part, block);
        if (!known.insert(t.prefix + name).second) break;  // the same for all blocks
        const weights::WeightTensor& tensor = t.at(name);
        Shape expected = p->full_shape;
        expected[0] /= int64_t(parts);
        if (tensor.shape != expected)
          fail(*t.file, "shape of " + tensor.name, to_string(tensor.shape), to_string(expected));
        if (tensor.dtype != "float32" && tensor.dtype != "float64" && tensor.dtype != "float16" &&
            tensor.dtype != "bfloat16")
          fail(*t.file, "type of " + tensor.name, tensor.dtype, "float32, float64, float16 or bfloat16");
      }
  }
  const bool grouped = t.prefix.find('/') != std::string::npos;
  for (const weights::WeightTensor& tensor : t.file->tensors()) {
    if (!tensor.name.starts_with(t.prefix) || known.contains(tensor.name)) continue;
    if (!grouped && tensor.name.find('/') != std::string::npos) continue;  // beside the model
    if (std::any_of(t.other_prefixes.begin(), t.other_prefixes.end(), [&](const std::string& other) {
          return other.size() > t.prefix.size() && tensor.name.starts_with(other);
        }))
      continue;
    const bool dit = layout.config().kind == nn::ModelConfig().kind;
    fail(*t.file,
         fmt::format("tensor {} is not one of {}{}", tensor.name, dit ? "a DiT" : "this model", looks_like(*t.file)),
         "", fmt::format("the {} tensors of {}", known.size() - 1, layout.config().name));
  }
}

}  // namespace ditrain::checkpoint
