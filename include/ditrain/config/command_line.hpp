// Command lines of all programs: long flags from one table per program, checked, with `--help` and `--version`; and
// `run_program`, the outermost frame, which turns errors into messages and exit codes.
//
//   CommandLine line("ditrain", "train a Diffusion Transformer", {{"config", "FILE", "what to train"}, ...});
//   if (!line.parse(argc, argv)) return kExitDone;
//   const std::string path = line.get("config");
#pragma once
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "ditrain/base/words.hpp"

namespace ditrain::config {

struct Flag {
  std::string name;      ///< without dashes
  std::string argument;  ///< "": a switch; "FILE": needs a value; "[FILE]": the value may be left out
  std::string help;
  std::string default_value = {};
  bool repeated = false;  ///< may be given more than once
};

/// "a|b|c", the words of a type, for Flag::argument.
template <class E>
std::string choices(const char* between = "|") {
  return fmt::format("{}", fmt::join(all_words<E>(), between));
}

/// How a flag is given, as "--set KEY=VALUE...".
std::string usage_of(const Flag& flag);

/// A first word that a program takes.
struct Command {
  std::string name;
  std::string summary = {}, positional = {}, details = {};  ///< as of a program
  std::vector<Flag> flags = {};  ///< of a command with a command line of its own; empty: it has those of the program
};

/// The description of a program: the one source of --help, its man page and its completion (manual.hpp).
struct Usage {
  std::string program, summary;
  std::vector<Flag> flags;
  std::string positional = {};  ///< what may follow the flags ("FIXTURE..."); empty: nothing may
  std::string details = {};     ///< closes --help
  std::vector<Command> commands = {};
  bool explains_keys = false;  ///< --help lists the config keys of common runs; --help SECTION|KEY|all the others
};

class CommandLine {
 public:
  explicit CommandLine(Usage usage);
  /// `positional` names what may follow the flags ("FIXTURE..."); empty: nothing may. `details` closes `--help`.
  CommandLine(std::string program, std::string summary, std::vector<Flag> flags, std::string positional = "",
              std::string details = "");
  /// That of a command with flags of its own: "PROGRAM COMMAND".
  CommandLine(const std::string& program, const Command& command);

  /// Reads the command line. Returns false if --help or --version was given and printed to stdout; the program is done
  /// then. `--help man` prints the man page, `--help bash` the completion script of every program.
  /// Errors:   InputError "[command line] ...": unknown flag or topic of help (the nearest is named), missing value,
  ///           flag given twice
  bool parse(int argc, const char* const* argv);
  /// The same, printing to `out`.
  bool parse(int argc, const char* const* argv, std::ostream& out);

  /// Whether the user gave the flag.
  bool has(const std::string& name) const;
  /// Errors: InputError that names the first of these flags which the user did not give
  void need(std::initializer_list<const char*> names) const;
  /// Returns its value, or else its default; "" for `--flag` whose value was left out.
  std::string get(const std::string& name) const;
  /// Returns the name of a file or folder. Errors: InputError that names the flag, if the name is empty
  std::string get_path(const std::string& name) const;
  /// One of the words that stand for values of E. Errors: InputError with the nearest of them
  template <class E>
  E get_word(const std::string& name) const {
    return parse_word<E>("command line", "--" + name, get(name));
  }
  /// Errors:   InputError that names the flag, if its value is not a number in [low, high]
  int64_t get_int(const std::string& name, int64_t low, int64_t high) const;
  double get_double(const std::string& name, double low, double high) const;
  /// --threads, if given and above 0, else a thread for each core that this process may use. Errors: as get_int
  int get_threads(int64_t low) const;
  /// All values of a repeated flag, in order.
  std::vector<std::string> get_all(const std::string& name) const;
  const std::vector<std::string>& positional() const { return positional_; }

  std::string help_text(size_t width) const;  ///< width: in columns
  /// The effective command line: one line per flag with its values or its default, then what follows the flags. The
  /// flags named in `but` are left out.
  std::string effective_text(const std::vector<std::string>& but = {}) const;

 private:
  const Flag* find(const std::string& name) const;
  const Flag& flag(const std::string& name) const;        // asked for by the program: must exist
  const Flag& given_flag(const std::string& name) const;  // typed by the user: may not exist
  std::vector<std::string> with_joined_values(int argc, const char* const* argv) const;
  void run_parser(const std::vector<std::string>& arguments);
  void check_counts() const;
  std::string flag_for_path(const std::string& path) const;
  std::string text_on(const std::string& topic) const;

  Usage usage_;
  std::map<std::string, std::vector<std::string>> values_;
  std::vector<std::string> positional_;
};

/// Opens /dev/null for closed standard streams: the next file to be opened would take their number, and log lines would
/// go into it. Call it before any file is opened.
void open_standard_streams();

/// For programs whose result is what they print. Errors: RunError if some of it was lost (a full disk)
void check_stdout();

/// Opens the standard streams, runs `body` and returns its exit code. An Error is printed to stderr as "NAME: error:
/// [where] what; ..." and sets its own exit code; a std::filesystem error gives 2 if the path or its rights are at
/// fault, else 1; out of memory and any other exception 1.
int run_program(const char* name, const std::function<int()>& body);

}  // namespace ditrain::config
