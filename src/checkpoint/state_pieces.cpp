#include "state_pieces.hpp"

#include <algorithm>

#include "ditrain/files/piece_file.hpp"

namespace ditrain::checkpoint {
namespace {

using autograd::Parameter;
using autograd::ParameterStore;

enum : size_t { kModel, kEma, kOptimizer, kAverages };

// Elements of a piece that begins at this offset of a file, if n are left: pieces end where a multiple of their size
// does, so that most of their bytes fill whole blocks.
int64_t elements_of_piece(uint64_t offset, int64_t n) {
  constexpr uint64_t kMax = files::PieceFile::kMaxPiece;
  const uint64_t room = kMax - offset % kMax;
  return std::min<int64_t>(n, std::max<int64_t>(1, int64_t(room / sizeof(float))));
}

}  // namespace

std::vector<weights::SafetensorsLayout> state_layouts(ParameterStore& parameters, int groups) {
  std::vector<weights::TensorToWrite> weights, states, averages;
  for (const Parameter* p : parameters.state_dict()) {
    weights.push_back({p->name, "F32", p->full_shape, nullptr});
    if (!p->trainable) continue;
    for (const autograd::OptimizerState& state : parameters.states)
      for (int group = 0; state.declared.holds(p->group) && group < (state.declared.of_group ? groups : 1); ++group)
        (state.declared.is_average() ? averages : states)
            .push_back({state.declared.tensor_of(p->name, group), "F32", p->full_shape, nullptr});
  }
  const weights::SafetensorsLayout layout = weights::lay_out_safetensors(weights);
  std::vector<weights::SafetensorsLayout> all{layout, layout, weights::lay_out_safetensors(std::move(states))};
  if (!averages.empty()) all.push_back(weights::lay_out_safetensors(std::move(averages)));
  return all;
}

namespace {

// Where the elements of a parameter are found: in a whole arena, or among those that this rank keeps of it.
struct Source {
  size_t file;
  const autograd::StateArray* array;  // null: the tensor has the name of the parameter
  const Tensor& data;
  const autograd::StateLayout* layout;  // null: a whole arena
  int group = 0;
};

void add(std::vector<StatePiece>& pieces, const Source& source, const weights::SafetensorsLayout& layout,
         const Parameter& p, const parallel::Range& part) {
  const int64_t begin = std::max(part.begin, p.slice.begin);
  const int64_t end = std::min(part.end, p.slice.begin + p.size());
  if (begin >= end) return;
  const uint64_t at = layout.places.at(source.array ? source.array->tensor_of(p.name, source.group) : p.name).offset;
  const int64_t first_data = source.layout ? source.layout->at(begin) : begin;
  const int64_t row = (p.part.end - p.part.begin) * p.part.inner;  // elements that follow each other in the file
  const uint64_t run = uint64_t(row) * sizeof(float), stride = uint64_t(p.part.length * p.part.inner) * sizeof(float);
  const int64_t first = begin - p.slice.begin, last = end - p.slice.begin;
  for (int64_t i = first; i < last;) {
    const uint64_t offset =
        at + uint64_t(i / row) * stride + uint64_t(p.part.begin * p.part.inner + i % row) * sizeof(float);
    StatePiece piece{.file = source.file, .place = {.offset = offset}};
    int64_t n = 0;
    if (i % row == 0 && last - i > row && 2 * run <= files::PieceFile::kMaxPiece) {  // several short rows
      const int64_t rows = std::min((last - i) / row, int64_t(files::PieceFile::kMaxPiece / run));
      piece.place.run = run, piece.place.rows = uint64_t(rows), piece.place.stride = rows > 1 ? stride : 0;
      n = rows * row;
    } else {
      n = elements_of_piece(offset, std::min(row - i % row, last - i));
      piece.place.run = uint64_t(n) * sizeof(float);
    }
    piece.data = source.data.slice(first_data + (i - first), {n});
    piece.arena = {begin + (i - first), begin + (i - first) + n};
    pieces.push_back(piece);
    i += n;
  }
}

}  // namespace

std::vector<StatePiece> state_pieces(ParameterStore& parameters, const std::vector<weights::SafetensorsLayout>& layouts,
                                     const OwnState& mine) {
  std::vector<Source> sources;
  if (mine.shared) {
    sources.push_back({kModel, nullptr, parameters.model_values(), nullptr});
    sources.push_back({kEma, nullptr, parameters.ema, &parameters.kept});
  }
  for (const autograd::OptimizerState& state : parameters.states)
    if (mine.shared || state.declared.of_group)
      sources.push_back({state.declared.is_average() ? kAverages : kOptimizer, &state.declared, state.data,
                         &state.layout, mine.group});
  std::vector<StatePiece> pieces, frozen;
  for (const Parameter* p : parameters.state_dict()) {
    if (!p->trainable) {
      Parameter as_trainable = *p;
      as_trainable.slice = {0, p->size()};
      for (const size_t file : {kModel, kEma})
        if (mine.frozen)
          add(frozen, {file, nullptr, p->value.reshaped({p->size()}), nullptr}, layouts[file], as_trainable,
              {0, p->size()});
      continue;
    }
    if (p->part.whole() && !mine.whole_parameters) continue;
    for (const Source& source : sources)
      if (source.array == nullptr || source.array->holds(p->group))
        for (const parallel::Range& part : mine.parts) add(pieces, source, layouts[source.file], *p, part);
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const StatePiece& a, const StatePiece& b) { return a.arena.begin > b.arena.begin; });
  for (StatePiece& piece : frozen) piece.arena = {}, pieces.push_back(piece);
  return pieces;
}

}  // namespace ditrain::checkpoint
