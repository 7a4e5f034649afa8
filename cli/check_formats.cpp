#include "cli/check_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <system_error>

#include "models/hash.h"
#include "models/json.h"
#include "models/text.h"

namespace qplan {
namespace {

namespace fs = std::filesystem;

// OASIS' own, errata 01 of SARIF 2.1.0.
constexpr const char* kSarifSchema =
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";

struct ShownPath {
  std::string path;
  bool relative = false;  // to the working folder, and below it
};

ShownPath shown_path(const std::string& name) {
  std::error_code problem;
  const fs::path here = fs::current_path(problem);
  const fs::path whole = fs::absolute(name, problem).lexically_normal();
  if (problem) return {name, false};
  const fs::path below = whole.lexically_relative(here);
  if (below.empty() || *below.begin() == "..") return {whole.generic_string(), false};
  return {below.generic_string(), true};
}

// RFC 3986: what is no unreserved character or '/' is written as its bytes.
std::string percent_encoded(const std::string& path) {
  std::string uri;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte < 128 && (std::isalnum(byte) != 0 ||
                                      std::string("-._~/").find(c) != std::string::npos);
    uri += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return uri;
}

Json artifact_of(const std::string& file) {
  const ShownPath shown = shown_path(file);
  if (!shown.relative) return {{"uri", "file://" + percent_encoded(shown.path)}};
  return {{"uri", percent_encoded(shown.path)}, {"uriBaseId", "%SRCROOT%"}};
}

// Stable while lines move: what is found, in which file, on what text. Equal ones are counted.
class Fingerprints {
 public:
  std::string next(const ShownFinding& shown) {
    std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a's first value
    // Figures of a message change with a job; of a file as a whole they tell findings apart.
    for (const std::string& text : {shown.finding.rule, shown_path(shown.file).path, shown.line}) {
      for (const char c : text) hash = hash_mix(hash, static_cast<unsigned char>(c));
      hash = hash_mix(hash, 256);  // the end of a text
    }
    return fmt::format("{:016x}:{}", hash, ++seen_[hash]);
  }

 private:
  std::map<std::uint64_t, int> seen_;
};

std::string sentence(const std::string& text) {
  return text.empty() || text.ends_with('.') ? text : text + ".";
}

// A level of SARIF's has the name of our severity.
Json rule_of(const std::string& id, const std::vector<const ShownFinding*>& found) {
  std::string words = id;
  std::replace(words.begin(), words.end(), '_', ' ');
  Severity worst = Severity::note;
  std::vector<std::string> instead, sources;
  const auto keep = [](std::vector<std::string>& list, const std::string& text) {
    if (!text.empty() && std::find(list.begin(), list.end(), text) == list.end()) {
      list.push_back(text);
    }
  };
  for (const ShownFinding* const shown : found) {
    worst = std::min(worst, shown->finding.severity);
    keep(instead, shown->finding.instead);
    keep(sources, shown->finding.source);
  }
  std::string text = sentence(found.front()->finding.message), markdown = text;
  const auto add = [&](const std::string& heading, const std::vector<std::string>& list) {
    if (list.empty()) return;
    text += fmt::format("\n\n{}:", heading);
    markdown += fmt::format("\n\n**{}:**", heading);
    for (const std::string& line : list) {
      text += "\n" + line;
      markdown += "\n* " + line;
    }
  };
  add("Instead", instead);
  add("Source", sources);
  return {{"id", id},
          {"shortDescription", {{"text", words}}},
          {"fullDescription", {{"text", sentence(found.front()->finding.message)}}},
          {"help", {{"text", text}, {"markdown", markdown}}},
          {"defaultConfiguration", {{"level", to_word(worst)}}},
          {"properties", {{"tags", Json::array({"training", "parallelism"})}}}};
}

Json location_of(const ShownFinding& shown) {
  Json physical{{"artifactLocation", artifact_of(shown.file)}};
  const Place& place = shown.finding.place;
  const bool of_file = place.file == shown.file;
  if (of_file && place.line > 0) {
    physical["region"] = {{"startLine", place.line}};
    if (!shown.line.empty()) physical["region"]["snippet"] = {{"text", shown.line}};
  }
  Json location{{"physicalLocation", std::move(physical)}};
  if (!of_file) location["logicalLocations"] = Json::array({Json{{"name", place.file}}});
  return location;
}

Json fix_of(const Finding& finding) {
  Json changes = Json::array();
  std::map<std::string, Json> by_file;
  for (const Edit& edit : finding.fix) {
    Json& replacements = by_file.try_emplace(edit.file, Json::array()).first->second;
    replacements.push_back(
        {{"deletedRegion", {{"byteOffset", edit.begin}, {"byteLength", edit.end - edit.begin}}},
         {"insertedContent", {{"text", edit.text}}}});
  }
  for (auto& [file, replacements] : by_file) {
    changes.push_back(
        {{"artifactLocation", artifact_of(file)}, {"replacements", std::move(replacements)}});
  }
  const std::string says =
      finding.instead.empty() ? "what `qplan check --fix` writes" : finding.instead;
  return {{"description", {{"text", says}}}, {"artifactChanges", std::move(changes)}};
}

// A value of a workflow command: what would end it is escaped (GitHub's "Workflow commands").
std::string escaped(const std::string& text, bool property) {
  std::string result;
  for (const char c : text) {
    const bool special = c == '%' || c == '\r' || c == '\n' || (property && (c == ':' || c == ','));
    result += special ? fmt::format("%{:02X}", static_cast<unsigned char>(c)) : std::string(1, c);
  }
  return result;
}

std::string_view command_of(Severity severity) {
  return severity == Severity::note ? "notice" : to_word(severity);
}

}  // namespace

std::string sarif_text(const std::vector<ShownFinding>& findings) {
  std::vector<std::string> ids;
  std::map<std::string, std::vector<const ShownFinding*>> by_rule;
  for (const ShownFinding& shown : findings) {
    auto& found = by_rule[shown.finding.rule];
    if (found.empty()) ids.push_back(shown.finding.rule);
    found.push_back(&shown);
  }
  Json rules = Json::array(), results = Json::array();
  for (const std::string& id : ids) rules.push_back(rule_of(id, by_rule[id]));
  Fingerprints fingerprints;
  for (const ShownFinding& shown : findings) {
    const Finding& f = shown.finding;
    std::string message = sentence(f.message);
    if (!f.instead.empty()) message += " Instead: " + sentence(f.instead);
    Json result{{"ruleId", f.rule},
                {"ruleIndex", std::find(ids.begin(), ids.end(), f.rule) - ids.begin()},
                {"level", to_word(f.severity)},
                {"message", {{"text", message}}},
                {"locations", Json::array({location_of(shown)})},
                {"partialFingerprints", {{"qplanFinding/v1", fingerprints.next(shown)}}}};
    if (shown.fixable && !f.fix.empty()) result["fixes"] = Json::array({fix_of(f)});
    if (!f.source.empty()) result["properties"] = {{"source", f.source}};
    results.push_back(std::move(result));
  }
  const Json driver{
      {"name", "qplan"}, {"semanticVersion", QPLAN_VERSION}, {"rules", std::move(rules)}};
  const Json one{{"tool", {{"driver", driver}}}, {"results", std::move(results)}};
  const Json log{{"$schema", kSarifSchema}, {"version", "2.1.0"}, {"runs", Json::array({one})}};
  return log.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

std::string github_text(const std::vector<ShownFinding>& findings) {
  std::string text;
  for (const ShownFinding& shown : findings) {
    const Finding& f = shown.finding;
    std::string where = "file=" + escaped(shown_path(shown.file).path, true);
    if (f.place.file == shown.file && f.place.line > 0) {
      where += fmt::format(",line={}", f.place.line);
    }
    std::string says = f.message;
    if (!f.instead.empty()) says += "\ninstead: " + f.instead;
    if (!f.source.empty()) says += "\nsource: " + f.source;
    text += fmt::format("::{} {},title={}::{}\n", command_of(f.severity), where,
                        escaped(f.rule, true), escaped(says, false));
  }
  return text;
}

}  // namespace qplan
