// The log of a program: lines to stdout (warnings and errors to stderr) and, once opened, to a file such as
// OUT/log.txt. Only rank 0 prints by default; `set_rank` prefixes what other ranks print. Lines of detail go into the
// file, and to stdout on request. Control bytes, as names from outside may have, become '?'. Thread-safe.
#pragma once
#include <fmt/format.h>

#include <string>

namespace ditrain::log {

void set_rank(int rank, int world_size);  ///< ranks other than 0 stay silent except for warnings and errors
std::string of_rank();  ///< prefix for errors of ranks other than 0, "[rank 5 on node7] "; "" on rank 0
void open_file(const std::string& path);  ///< append every line to this file too; throws InputError if it cannot
void close_file();
void show_times(bool shown);    ///< whether printed lines begin with the time of day; at first they do not
void show_details(bool shown);  ///< whether lines of detail are printed; at first they are not

void info_line(const std::string& line);
void info_lines(const std::string& text);  ///< info_line() of each of its lines
void detail_line(const std::string& line);
void detail_lines(const std::string& text);  ///< detail_line() of each of its lines
void warn_line(const std::string& line);
void error_into_file(const std::string& line);  ///< into the file alone: the program prints the error that ends it
/// A line that replaces itself on a terminal ("\r...", cut to its width); elsewhere it is a plain info line.
void progress_line(const std::string& line);

template <class... A>
void info(fmt::format_string<A...> f, A&&... a) {
  info_line(fmt::format(f, std::forward<A>(a)...));
}
template <class... A>
void detail(fmt::format_string<A...> f, A&&... a) {
  detail_line(fmt::format(f, std::forward<A>(a)...));
}
template <class... A>
void warn(fmt::format_string<A...> f, A&&... a) {
  warn_line(fmt::format(f, std::forward<A>(a)...));
}

}  // namespace ditrain::log
