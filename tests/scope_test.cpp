// Keeps docs/scope.md true: what it lists as refused or limited is generated from the sources and compared. Set
// DSPLAN_UPDATE_DOCS=1 to rewrite the generated parts; the reviewer reads the difference.
#include <doctest/doctest.h>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/dialects/dialects.h"
#include "core/format.h"
#include "core/settings.h"
#include "io/text.h"
#include "model/families/family.h"
#include "paths.h"

using namespace dsplan;

namespace {

namespace fs = std::filesystem;

const fs::path kRoot = test_paths::source_dir();
const fs::path kPage = kRoot / "docs" / "scope.md";

// A string literal that begins at text[at] == '"', unescaped, adjacent literals joined; `at` is left behind it.
std::string literal(std::string_view text, std::size_t& at) {
  std::string value;
  while (at < text.size() && text[at] == '"') {
    for (++at; at < text.size() && text[at] != '"'; ++at) {
      if (text[at] == '\\') ++at;
      value += text[at];
    }
    ++at;
    const std::size_t next = text.find_first_not_of(" \n", at);
    if (next == std::string_view::npos || text[next] != '"') break;
    at = next;
  }
  return value;
}

// The string literals inside the parentheses or braces that open at text[open].
std::vector<std::string> literals_within(std::string_view text, std::size_t open) {
  std::vector<std::string> found;
  int depth = 0;
  for (std::size_t at = open; at < text.size();) {
    const char c = text[at];
    if (c == '"') {
      found.push_back(literal(text, at));
      continue;
    }
    if (c == '(' || c == '{') ++depth;
    if ((c == ')' || c == '}') && --depth == 0) break;
    ++at;
  }
  return found;
}

// A format string as a reader sees it, on one line of a table.
std::string shown(std::string text) {
  for (std::size_t at = text.find("{}"); at != std::string::npos; at = text.find("{}")) text.replace(at, 2, "...");
  std::replace(text.begin(), text.end(), '|', '/');
  return text;
}

// What the functions that refuse are called with: (name of the call, which literal of its arguments names the thing).
struct Call {
  std::string_view name;
  std::size_t index;
};
constexpr Call kCalls[] = {
    {"not_modelled(", 0}, {"refuse_if_set(", 0}, {"refuse_degree(", 0}, {"refuse_value(", 1}, {"refuse(", 0}};

// Whether the call at text[at] is one of ours: a whole word, and for the common name `refuse` neither a member of
// something else nor about a place or a count (those are faults of the input).
bool is_refusal(std::string_view text, std::size_t at, std::string_view name) {
  const char before = at == 0 ? ' ' : text[at - 1];
  if (before == '_' || (before >= 'a' && before <= 'z') || (before >= 'A' && before <= 'Z')) return false;
  if (name != "refuse(") return true;
  if (before == '.') return false;
  std::size_t argument = at + name.size();
  if (text.substr(argument).starts_with("request.")) return true;
  const bool named = text[argument] == '"';
  if (named) static_cast<void>(literal(text, argument));
  return named && text[argument] == ')';
}

void collect_calls(std::string_view text, std::set<std::string>& found) {
  for (const Call& call : kCalls) {
    for (std::size_t at = text.find(call.name); at != std::string_view::npos; at = text.find(call.name, at + 1)) {
      if (!is_refusal(text, at, call.name)) continue;
      const std::vector<std::string> literals = literals_within(text, at + call.name.size() - 1);
      if (literals.size() <= call.index) continue;
      const std::string what = shown(literals[call.index]);
      if (what.find_first_not_of(". =") != std::string::npos) found.insert(what);  // Not a bare "... = ...".
    }
  }
}

// `return "...";` and `return dsplan::formatted("...", ...)` of the functions whose name ends in `name`.
void collect_reasons(std::string_view name, std::string_view text, std::set<std::string>& found) {
  constexpr std::string_view kReturn = "return ";
  for (std::size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    const std::size_t open = text.find_first_of("{;", at);
    if (open == std::string_view::npos || text[open] == ';') continue;
    const std::string_view body = text.substr(open, text.find("\n}\n", open) - open);
    for (std::size_t from = body.find(kReturn); from != std::string_view::npos; from = body.find(kReturn, from + 1)) {
      const std::string_view statement = body.substr(from, body.find(';', from) - from);
      std::size_t quote = statement.find('"');
      if (quote != std::string_view::npos) found.insert(shown(literal(statement, quote)));
    }
  }
}

void collect_unsupported(std::string_view text, std::set<std::string>& found) {
  collect_reasons("unsupported(", text, found);
}

// Any other message that says so in words.
void collect_messages(std::string_view text, std::set<std::string>& found) {
  for (std::size_t at = text.find('"'); at != std::string_view::npos && at < text.size(); at = text.find('"', at)) {
    const std::size_t line = text.rfind('\n', at) + 1;
    const std::string_view before = text.substr(line, at - line);
    if (before.find("//") != std::string_view::npos || before.starts_with("#include")) {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    const std::string message = literal(text, at);
    // Passed over: help texts, and the frames into which the names that collect_calls finds are put.
    constexpr std::string_view kSays = "not modelled yet";
    const bool frame = message == kSays || message.starts_with("{} is") || message.starts_with("\"{}\": {}") ||
                       message.starts_with("only the states") ||
                       message.find('(' + std::string(kSays)) < message.size();
    if (!frame && message.find(kSays) != std::string::npos) found.insert(shown(message));
  }
}

// Commands that have a name and nothing behind it: `Command{"plan", nullptr, "..."}`.
void collect_commands(std::string_view text, std::set<std::string>& found) {
  constexpr std::string_view kRow = "Command{\"";
  for (std::size_t at = text.find(kRow); at != std::string_view::npos; at = text.find(kRow, at + 1)) {
    std::size_t quote = at + kRow.size() - 1;
    const std::string command = literal(text, quote);
    if (text.substr(quote).starts_with(", nullptr")) found.insert(dsplan::formatted("`dsplan {}`", command));
  }
}

// Entries of a prediction's `not_modelled`: what is null or left out, and why.
void collect_absences(std::string_view text, std::set<std::string>& found) {
  constexpr std::string_view kPush = "not_modelled.push_back(";
  for (std::size_t at = text.find(kPush); at != std::string_view::npos; at = text.find(kPush, at + 1)) {
    const std::size_t open = text.find_first_not_of(" \n", at + kPush.size());
    const std::size_t first = text.find_first_not_of(" \n", open + 1);
    if (first == std::string_view::npos || text[open] != '{' || text[first] != '"') continue;
    const std::vector<std::string> literals = literals_within(text, open);
    found.insert(dsplan::formatted("`{}`: {}", literals[0],
                                   literals.size() > 1 ? shown(literals[1]) : "the reason why there is no schedule"));
  }
}

using Collect = void (*)(std::string_view, std::set<std::string>&);

// | what | file | rows over every source of the rooms.
std::string table_of(std::string_view head, std::initializer_list<Collect> collectors) {
  std::map<std::string, std::set<std::string>> rows;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "src")) {
    if (entry.path().extension() != ".cpp") continue;
    const std::string text = dsplan::read_file(entry.path());
    std::set<std::string> found;
    for (const Collect collect : collectors) collect(text, found);
    for (const std::string& what : found) rows[what].insert(fs::relative(entry.path(), kRoot / "src").generic_string());
  }
  std::string table = dsplan::formatted("| {} | by |\n|---|---|\n", head);
  for (const auto& [what, files] : rows)
    table += dsplan::formatted("| {} | `{}` |\n", what, dsplan::joined(files, "`, `"));
  return table;
}

std::string families_table() {
  std::string table = "| model_type | parameters and states | activations, peak, traffic |\n|---|---|---|\n";
  for (const Family& family : families()) {
    table += dsplan::formatted("| {} | exact | {} |\n", family.model_type, family.has_graph ? "modelled" : "null");
  }
  return table;
}

std::string refused_keys_table() {
  std::string table = "| key | what | when |\n|---|---|---|\n";
  for (const SettingRow& row : settings()) {
    const DeepSpeedKey& key = row.json;
    if (key.path.empty() || key.treatment != DeepSpeedKey::Treatment::NotModelled) continue;
    table += dsplan::formatted("| `{}` | {} | {} |\n", key.path, key.note,
                               key.when == When::Always ? std::string_view("always") : describe(key.when));
  }
  return table;
}

// One row for each reason.
std::string inert_keys_table() {
  std::map<std::string_view, std::vector<std::string_view>> by_reason;
  for (const SettingRow& row : settings()) {
    const DeepSpeedKey& key = row.json;
    if (!key.path.empty() && key.treatment == DeepSpeedKey::Treatment::Inert) by_reason[key.note].push_back(key.path);
  }
  std::string table = "| why it changes nothing | keys |\n|---|---|\n";
  for (const auto& [reason, keys] : by_reason)
    table += dsplan::formatted("| {} | `{}` |\n", reason, dsplan::joined(keys, "`, `"));
  return table;
}

// Each dialect: what is honoured, what is refused, and what moves no byte.
std::string dialects_tables() {
  using Treatment = DialectKey::Treatment;
  std::string text;
  for (const DialectTable& table : dialects()) {
    text += dsplan::formatted("### {} ({})\n\n| key | decides |\n|---|---|\n", table.name, table.sources);
    for (const DialectKey& key : table.keys) {
      if (key.treatment == Treatment::Honoured) text += dsplan::formatted("| `{}` | {} |\n", key.path, key.note);
    }
    std::map<std::string_view, std::vector<std::string_view>> refused;
    std::map<std::string_view, std::vector<std::string_view>> inert;
    for (const DialectKey& key : table.keys) {
      if (key.treatment == Treatment::Refused) refused[key.note].push_back(key.path);
      if (key.treatment == Treatment::Inert) inert[key.note].push_back(key.path);
    }
    const auto grouped = [&text](std::string_view head, const auto& groups) {
      text += dsplan::formatted("\n| {} | keys |\n|---|---|\n", head);
      for (const auto& [why, keys] : groups)
        text += dsplan::formatted("| {} | `{}` |\n", why, dsplan::joined(keys, "`, `"));
    };
    grouped("refused: what it would need", refused);
    grouped("inert: why it moves no byte", inert);
    text += "\n";
  }
  return text;
}

// Replaces what stands between `<!-- generated: NAME -->` and `<!-- end -->`.
void put(std::string& page, const std::string& name, const std::string& content) {
  const std::string begin = dsplan::formatted("<!-- generated: {} -->\n", name);
  const std::size_t from = page.find(begin);
  REQUIRE_MESSAGE(from != std::string::npos, name);
  const std::size_t to = page.find("<!-- end -->", from);
  REQUIRE_MESSAGE(to != std::string::npos, name);
  page.replace(from + begin.size(), to - from - begin.size(), content);
}

// The first line in which two texts differ, for a message that a person can read.
std::string first_difference(const std::string& expected, const std::string& actual) {
  std::istringstream a(expected);
  std::istringstream b(actual);
  std::string left;
  std::string right;
  for (int line = 1;; ++line) {
    const bool more_left = static_cast<bool>(std::getline(a, left));
    const bool more_right = static_cast<bool>(std::getline(b, right));
    if (!more_left && !more_right) return "none";
    if (!more_left) left = "(end)";
    if (!more_right) right = "(end)";
    if (left != right)
      return dsplan::formatted("line {}:\n  the code says  {}\n  the page says  {}", line, left, right);
  }
}

TEST_CASE("docs/scope.md lists what the code refuses, and nothing else") {
  const std::string page = dsplan::read_file(kPage);
  std::string expected = page;
  put(expected, "families", families_table());
  put(expected, "refusals", table_of("refused", {collect_commands, collect_calls, collect_messages}));
  put(expected, "unsupported", table_of("no schedule", {collect_unsupported}));
  put(expected, "absences", table_of("absent: why", {collect_absences}));
  put(expected, "deepspeed-refused", refused_keys_table());
  put(expected, "deepspeed-inert", inert_keys_table());
  put(expected, "dialects", dialects_tables());
  if (std::getenv("DSPLAN_UPDATE_DOCS") != nullptr) {
    std::ofstream(kPage, std::ios::binary) << expected;
    return;
  }
  CHECK_MESSAGE(page == expected,
                first_difference(expected, page)
                    << "\nDSPLAN_UPDATE_DOCS=1 dsplan_tests --source-file=*scope_test.cpp rewrites it");
}

TEST_CASE("the collectors see each way to refuse") {
  struct Row {
    Collect collect;
    std::string_view text;
    std::set<std::string> expected;
  };
  const std::array rows = std::to_array<Row>({
      {collect_calls, R"(resolver.not_modelled(place, "hpZ");)", {"hpZ"}},
      {collect_calls,
       R"(return resolver.not_modelled((a ? b : c).place, dsplan::formatted("loss \"{}\"", *loss));)",
       {"loss \"...\""}},
      {collect_calls, R"(refuse_value(request.placement, "planned", "planned placement");)", {"planned placement"}},
      {collect_calls, R"(refuse_if_set(a, When::Always, "FSDP");)", {"FSDP"}},
      {collect_calls,
       R"(config.refuse_unread("keys"); config.refuse("model_type", "no"); refuse(place, "no"); refuse("no", 3);)",
       {}},
      {collect_calls, R"(refuse(request.lora, "LoRA"); refuse("torch.compile");)", {"LoRA", "torch.compile"}},
      {collect_unsupported,
       "std::optional<std::string> x_unsupported(int a) {\n  if (a) return \"eager\";\n}\n",
       {"eager"}},
      {collect_unsupported, "std::optional<std::string> unsupported(int a) {\n  return \"sp\";\n}\n", {"sp"}},
      {collect_unsupported, "if (x_unsupported(a)) return \"no\";\n", {}},
      {collect_messages,
       "f(\"cross attention is not \"\n  \"modelled yet\");",
       {"cross attention is not modelled yet"}},
      {collect_messages, "// \"quoted\" is not modelled yet\n", {}},
  });
  for (const Row& row : rows) {
    CAPTURE(row.text);
    std::set<std::string> found;
    row.collect(row.text, found);
    CHECK(found == row.expected);
  }
}

}  // namespace
