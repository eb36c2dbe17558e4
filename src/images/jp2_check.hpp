// What OpenJPEG does not survive (it ends the program with an assertion): boxes and tile parts of a JPEG 2000 file that
// reach beyond its end.
#pragma once
#include <string>

namespace ditrain::images {

/// Other files pass. Errors: InputError, where = path: a box, marker or tile part that the file does not hold as a
/// whole Source: ISO/IEC 15444-1, annex A (markers) and I (boxes)
void check_jp2(const std::string& path);

}  // namespace ditrain::images
