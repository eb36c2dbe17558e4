// The files of a checkpoint as pieces of the arenas: what each rank writes, and where.
#pragma once
#include <array>
#include <vector>

#include "ditrain/autograd/parameters.hpp"
#include "ditrain/checkpoint/checksums.hpp"
#include "ditrain/checkpoint/saver.hpp"
#include "ditrain/files/checkpoint_folder.hpp"

namespace ditrain::checkpoint {

/// The files with tensors. The last one is there if the store has power averages.
inline constexpr std::array<const char*, 4> kTensorFiles = {files::kCheckpointFiles[0], files::kCheckpointFiles[1],
                                                            files::kCheckpointFiles[2], files::kAveragesFile};

/// Layouts of the files, in this order: names and full shapes, whatever part ranks have. groups: OwnState::groups.
std::vector<weights::SafetensorsLayout> state_layouts(autograd::ParameterStore& parameters, int groups);

struct StatePiece {
  size_t file = 0;          ///< of kTensorFiles
  CheckedPiece place = {};  ///< its checksum is not known yet
  Tensor data = {};
  parallel::Range arena = {};  ///< which elements of the arenas an update changes; empty: none
};

/// What this rank writes, in the order of updates: from the arenas' end. No piece is above files::PieceFile::kMaxPiece.
std::vector<StatePiece> state_pieces(autograd::ParameterStore& parameters,
                                     const std::vector<weights::SafetensorsLayout>& layouts, const OwnState& mine);

}  // namespace ditrain::checkpoint
