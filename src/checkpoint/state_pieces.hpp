// The files of a checkpoint as pieces of the arenas: what each rank writes, and where.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "ditrain/autograd/parameters.hpp"
#include "ditrain/checkpoint/checksums.hpp"
#include "ditrain/checkpoint/saver.hpp"
#include "ditrain/io/checkpoint_folder.hpp"

namespace ditrain::checkpoint {

inline constexpr size_t kTensorFiles = io::kCheckpointFiles.size() - 1;  // the last one is state.json
inline constexpr const char *kExpAvg = ".exp_avg", *kExpAvgSq = ".exp_avg_sq";

/// Of model, ema and optimizer .safetensors, in this order: names and full shapes, whatever ranks have of them.
std::vector<io::SafetensorsLayout> state_layouts(autograd::ParameterStore& parameters);

struct StatePiece {
  size_t file = 0;          ///< of kCheckpointFiles
  CheckedPiece place = {};  ///< its checksum is not known yet
  const float* data = nullptr;
  parallel::Range arena = {};  ///< which elements of the arenas an update changes; empty: none
};

/// The store's memory, held in place while pieces point into it.
class StatePins {
 public:
  explicit StatePins(autograd::ParameterStore& parameters);
  /// What this rank writes, in the order of updates: from the arenas' end. No piece is above io::PieceFile::kMaxPiece.
  std::vector<StatePiece> pieces(const std::vector<io::SafetensorsLayout>& layouts, const OwnState& mine) const;

 private:
  struct Arena;
  void add(std::vector<StatePiece>& pieces, const Arena& arena, const io::SafetensorsLayout& layout,
           const autograd::Parameter& p, const dist::Shards::Part& part) const;

  autograd::ParameterStore& parameters_;
  Pin<float> values_, ema_, exp_avg_, exp_avg_sq_;
  std::vector<std::pair<const autograd::Parameter*, std::unique_ptr<Pin<float>>>> frozen_;
};

}  // namespace ditrain::checkpoint
