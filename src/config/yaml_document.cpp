#include "yaml_document.hpp"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>

#include <sstream>

#include "option_table_values.hpp"

namespace ditrain::config {
namespace {

/// Whether a tab is among the white space that the line (counted from 0) begins with.
bool is_indented_by_tab(const std::string& text, int line) {
  std::istringstream lines(text);
  std::string content;
  for (int i = 0; i <= line; ++i)
    if (!std::getline(lines, content)) return false;
  return line >= 0 && content.substr(0, content.find_first_not_of(" \t")).find('\t') != content.npos;
}

/// Reads over a document without building anything.
struct IgnoredEvents final : YAML::EventHandler {
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

/// Whether anything follows the first document. YAML::LoadAll would tell, but never ends on text such as ", a".
bool has_second_document(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  IgnoredEvents ignored;
  return parser.HandleNextDocument(ignored) && parser.HandleNextDocument(ignored);
}

}  // namespace

YamlDocument::YamlDocument(const std::string& text, std::string file_name, const std::string& expected)
    : file_name_(std::move(file_name)) {
  check_bytes(text);
  root_ = parse(text);
  if (!root_.IsMap()) fail(at(root_.Mark()) + "not a map of " + expected.substr(0, expected.find(' ')), "", expected);
}

std::string YamlDocument::at(const YAML::Mark& mark) const {
  return mark.is_null() ? file_name_ + ": " : fmt::format("{}:{}: ", file_name_, mark.line + 1);
}

void YamlDocument::check_bytes(const std::string& text) const {
  if (text.size() > kMaxYamlBytes) fail(file_name_ + ": too large for a config", "", "at most 1 MiB");
  if (text.find('\0') != std::string::npos) fail(file_name_ + ": not a text file", "a zero byte", "YAML");
}

YAML::Node YamlDocument::parse(const std::string& text) const {
  try {
    const YAML::Node document = YAML::Load(text);
    const bool several = has_second_document(text);
    if (several || document.IsNull())
      fail(file_name_ + ": holds " + (several ? "several documents" : "no settings"), "", "one YAML document");
    return document;
  } catch (const YAML::Exception& error) {
    if (is_indented_by_tab(text, error.mark.line)) fail(at(error.mark) + "tabs are not allowed in YAML; use spaces");
    const bool lacks_colon = error.msg == "illegal map value";
    fail(at(error.mark) + "not valid YAML: " + error.msg, "", "",
         lacks_colon ? "`key: value`, with a space behind the colon, here and in the line above" : "");
  }
}

std::string YamlDocument::key_text(const YAML::Node& key, const std::string& inside,
                                   std::set<std::string>& seen) const {
  if (!key.IsScalar()) fail(at(key.Mark()) + "a key of " + inside + " is not a word");
  if (!seen.insert(key.Scalar()).second)
    fail(at(key.Mark()) + key.Scalar() + " is there twice in " + inside, "", "each key once");
  return key.Scalar();
}

}  // namespace ditrain::config
