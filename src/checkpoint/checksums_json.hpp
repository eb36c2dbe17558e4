// Checksums of pieces in JSON: [offset, run, sum], or [offset, run, sum, rows, stride].
#pragma once
#include <nlohmann/json.hpp>

#include "ditrain/checkpoint/checksums.hpp"

namespace ditrain::checkpoint {

nlohmann::json to_json(const std::vector<CheckedPiece>& pieces);
/// Errors: nlohmann::json::exception, InputError
std::vector<CheckedPiece> pieces_from_json(const nlohmann::json& pieces, const std::string& where);
/// The same for a whole file, whose pieces have to cover it. Errors: likewise
CheckedFile file_from_json(const nlohmann::json& file, const std::string& where);

}  // namespace ditrain::checkpoint
