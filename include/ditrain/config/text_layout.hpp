// Text for terminals: its width, and paragraphs that fit it.
#pragma once
#include <string>
#include <string_view>

namespace ditrain::config {

/// Columns for what is printed to stdout: those of the terminal (at most 120), else $COLUMNS, else 80.
size_t terminal_columns();

/// `label`, then `text` in a column that begins at `indent`, broken at blanks so that lines have at most `width`
/// columns (longer words stay whole). A label that reaches into the column has a line of its own. Ends with a newline.
std::string labelled(std::string_view label, std::string_view text, size_t indent, size_t width);

/// `text` broken in the same way, each of its lines by itself. A broken line continues below its own first word, or
/// below the text if it has a label with two blanks behind it ("  label  text").
std::string wrapped(std::string_view text, size_t width);

}  // namespace ditrain::config
