#include "ditrain/config/text_layout.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace ditrain::config {

size_t terminal_columns() {
  constexpr long kLeast = 40, kUsual = 80, kMost = 120;  // longer lines are hard to read
  winsize size{};
  long columns = 0;
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) columns = size.ws_col;
  if (const char* wanted = std::getenv("COLUMNS"); columns == 0 && wanted != nullptr) columns = std::atol(wanted);
  return size_t(columns <= 0 ? kUsual : std::clamp(columns, kLeast, kMost));
}

std::string labelled(std::string_view label, std::string_view text, size_t indent, size_t width) {
  std::string done(label), line;
  if (done.size() + 1 > indent && !done.empty()) done += "\n" + std::string(indent, ' ');
  done.resize(std::max(done.size(), indent), ' ');
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) {
    if (!line.empty() && indent + line.size() + 1 + word.size() > width) {
      done += line + "\n" + std::string(indent, ' ');
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return done + line + "\n";
}

std::string wrapped(std::string_view text, size_t width) {
  std::istringstream lines{std::string(text)};
  std::string done;
  for (std::string line; std::getline(lines, line);) {
    const size_t indent = line.find_first_not_of(' ');
    const size_t gap = indent == line.npos ? line.npos : line.find("  ", indent);
    const size_t text_begin = gap == line.npos ? line.npos : line.find_first_not_of(' ', gap);
    if (line.size() <= width || indent == line.npos)
      done += line + "\n";
    else if (text_begin != line.npos)  // "  label  text"
      done += labelled(line.substr(0, gap), line.substr(text_begin), text_begin, width);
    else
      done += labelled("", line, indent, width);
  }
  return done;
}

}  // namespace ditrain::config
