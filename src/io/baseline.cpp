#include "io/baseline.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/measured_file.h"
#include "io/own_file.h"
#include "io/place.h"

namespace dsplan {
namespace {

constexpr std::array<SourceKind, kSourceFiles> kFiles = {
    SourceKind::Model,    SourceKind::DeepSpeed, SourceKind::Training,   SourceKind::Checkpoint,
    SourceKind::Hardware, SourceKind::Cluster,   SourceKind::Calibration};

class Reader {
 public:
  explicit Reader(const Document& document) : document_(document) {}

  Baseline read() {
    ObjectReader reader(document_, document_.root, faults_);
    Baseline into;
    into.path = document_.path;
    into.source = read_head(reader, "baseline");
    faults_.throw_if_any();  // What another version holds is not for us to judge.
    for (const char* key :
         {"folder", "command", "written", "fingerprint", "model_sha256", "ranks", "resolved", "inputs"}) {
      detail::need(reader, {key});
      if (document_.root.find(key) != nullptr && !reader.has(key)) {
        reader.fault(key, fmt::format("\"{}\" must not be null", key));
      }
    }
    into.folder = reader.string("folder").value_or("");
    into.command = words(reader, "command");
    if (const Value* command = document_.root.find("command"))
      into.command_place = place_at(document_, command->offset);
    if (const Value* written = reader.object("written")) into.written = read_versions(*written);
    into.fingerprint = reader.string("fingerprint").value_or("");
    into.model_sha256 = reader.string("model_sha256").value_or("");
    if (const Value* ranks = reader.array("ranks")) into.ranks = read_ranks(reader, *ranks);
    if (const Value* list = reader.array("resolved")) into.resolved = read_resolved(*list);
    if (const Value* inputs = reader.object("inputs")) {
      into.inputs = read_inputs(*inputs);
      into.inputs_place = place_at(document_, inputs->offset);
    }
    reader.refuse_unread("a baseline");
    faults_.throw_if_any();
    return into;
  }

 private:
  std::vector<std::string> words(ObjectReader& reader, std::string_view key) {
    std::vector<std::string> list;
    const Value* found = reader.array(key);
    if (found == nullptr) return list;
    for (const Value& word : found->items) {
      if (word.is(Value::Kind::String)) {
        list.push_back(word.string);
      } else {
        reader.fault(word, fmt::format("a word must be a string, not {}", describe(word.kind)));
      }
    }
    return list;
  }

  std::string text(ObjectReader& reader, std::string_view key) {
    const std::optional<std::string> said = reader.string(key);
    if (!said && reader.value().find(key) != nullptr && !reader.has(key)) {
      reader.fault(key, fmt::format("\"{}\" must not be null", key));
    }
    return said.value_or("");
  }

  BaselineVersions read_versions(const Value& value) {
    ObjectReader reader(document_, value, faults_);
    detail::need(reader, {"dsplan", "torch", "transformers", "deepspeed"});
    BaselineVersions into{text(reader, "dsplan"), text(reader, "torch"), text(reader, "transformers"),
                          text(reader, "deepspeed")};
    reader.refuse_unread("\"written\"");
    return into;
  }

  std::vector<BaselineRank> read_ranks(ObjectReader& whole, const Value& list) {
    std::vector<BaselineRank> ranks;
    if (list.items.empty()) whole.fault("ranks", "\"ranks\" is empty: there is nothing to hold a prediction against");
    for (const Value& item : list.items) {
      if (!detail::is_object(document_, item, "a rank", faults_)) continue;
      ObjectReader reader(document_, item, faults_);
      detail::need(reader, {"rank", "rows"});
      BaselineRank rank;
      rank.rank = reader.integer("rank", 0, INT64_MAX).value_or(0);
      const bool twice =
          std::any_of(ranks.begin(), ranks.end(), [&](const BaselineRank& one) { return one.rank == rank.rank; });
      if (twice) reader.fault("rank", fmt::format("rank {} stands twice", rank.rank));
      if (const Value* rows = reader.object("rows")) rank.rows = read_rows(*rows);
      reader.refuse_unread("a rank of a baseline");
      ranks.push_back(std::move(rank));
    }
    return ranks;
  }

  // Paths are the keys, so that none stands twice.
  std::vector<FigureRow> read_rows(const Value& value) {
    ObjectReader reader(document_, value, faults_);
    std::vector<FigureRow> rows;
    for (const Member& member : value.members) {
      FigureRow row{member.key, {}};
      const std::optional<RowKind> kind = kind_of_row(member.key);
      if (!kind) {
        faults_.add(document_.at(member.key_offset, fmt::format("no row \"{}\"", member.key)));
      } else if (*kind == RowKind::Verdict) {
        const auto word = reader.choice(member.key, {"fits", "fits_with_retries", "does_not_fit", "unknown"});
        row.value.text = word.value_or("");
      } else {
        row.value.number = reader.integer(member.key, 0, INT64_MAX);
      }
      rows.push_back(std::move(row));
    }
    return rows;
  }

  std::vector<ResolvedInput> read_resolved(const Value& list) {
    std::vector<ResolvedInput> inputs;
    for (const Value& item : list.items) {
      if (!detail::is_object(document_, item, "a resolved input", faults_)) continue;
      ObjectReader reader(document_, item, faults_);
      detail::need(reader, {"name", "value", "origin"});
      ResolvedInput input;
      input.name = text(reader, "name");
      input.value = text(reader, "value");
      const std::string origin = reader.choice("origin", {"given", "derived", "assumed"}).value_or("given");
      for (const Origin one : {Origin::Given, Origin::Derived, Origin::Assumed}) {
        if (origin == name(one)) input.origin = one;
      }
      reader.refuse_unread("a resolved input");
      inputs.push_back(std::move(input));
    }
    return inputs;
  }

  Sources read_inputs(const Value& value) {
    ObjectReader reader(document_, value, faults_);
    detail::need(reader,
                 {"command", "model", "deepspeed", "training", "checkpoint", "hardware", "cluster", "calibration"});
    Sources into;
    into.command = words(reader, "command");
    for (const SourceKind kind : kFiles) {
      if (const Value* file = reader.object(name(kind))) into[kind] = read_file(*file, kind);
    }
    if (!reader.has("model")) reader.fault("model", "\"model\" must be a file or a bundled name");
    reader.refuse_unread("\"inputs\"");
    return into;
  }

  SourceFile read_file(const Value& value, SourceKind kind) {
    ObjectReader reader(document_, value, faults_);
    SourceFile file;
    if (const auto bundled = reader.string("bundled")) {
      file.bundled = true;
      file.name = file.model = *bundled;
    } else {
      detail::need(reader, {"path", "content"});
      file.name = text(reader, "path");
      if (kind == SourceKind::Model) {
        detail::need(reader, {"name"});
        file.model = text(reader, "name");
      }
      const Value* content = reader.object("content");
      if (content != nullptr) file.content = {document_.path, document_.text, *content};
      if (content == nullptr && !reader.has("content")) reader.fault("content", "\"content\" must be the whole file");
    }
    reader.refuse_unread(fmt::format("the {} file of a baseline", name(kind)));
    return file;
  }

  const Document& document_;
  Diagnostics faults_;
};

// ---- writing

std::string in_quotes(std::string_view text) {
  Value value;
  value.kind = Value::Kind::String;
  value.string = text;
  return canonical_json(value);
}

// A whole number that was written with a point stays one, as it was read.
std::string scalar_text(const Value& value) {
  std::string text = canonical_json(value);
  const bool whole = value.is(Value::Kind::Real) && text.find_first_of(".eE") == std::string::npos;
  return whole && !value.huge ? text + ".0" : text;
}

// One line per member; lists without objects and lists in them stand on one line.
void write_value(const Value& value, std::size_t indent, std::string& text) {
  const bool object = value.is(Value::Kind::Object);
  const bool flat = std::none_of(value.items.begin(), value.items.end(), [](const Value& item) {
    return item.is(Value::Kind::Object) || item.is(Value::Kind::Array);
  });
  const std::size_t count = object ? value.members.size() : value.items.size();
  if ((!object && (!value.is(Value::Kind::Array) || flat)) || count == 0) {
    text += value.items.empty() ? scalar_text(value) : canonical_json(value);
    return;
  }
  text += object ? "{\n" : "[\n";
  for (std::size_t i = 0; i < count; ++i) {
    text.append(indent + 1, ' ');
    if (object) text += in_quotes(value.members[i].key) + ": ";
    write_value(object ? value.members[i].value : value.items[i], indent + 1, text);
    text += i + 1 < count ? ",\n" : "\n";
  }
  text.append(indent, ' ');
  text += object ? '}' : ']';
}

// An option and its value on one line.
std::string command_text(const std::vector<std::string>& words, std::size_t indent) {
  if (words.empty()) return "[]";
  std::string text = "[";
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += ",";
    const bool value =
        i > 0 && words[i - 1].starts_with("--") && words[i - 1].size() > 2 && !words[i].starts_with("--");
    text += value ? " " : "\n" + std::string(indent + 1, ' ');
    text += in_quotes(words[i]);
  }
  return text + "\n" + std::string(indent, ' ') + "]";
}

std::string figure_text(const FigureRow& row) {
  if (row.value.number) return std::to_string(*row.value.number);
  return row.value.text.empty() ? "null" : in_quotes(row.value.text);
}

std::string rank_text(const BaselineRank& rank) {
  std::string text = fmt::format("  {{\"rank\": {}, \"rows\": {{\n", rank.rank);
  for (std::size_t i = 0; i < rank.rows.size(); ++i) {
    text += fmt::format("   {}: {}{}\n", in_quotes(rank.rows[i].path), figure_text(rank.rows[i]),
                        i + 1 < rank.rows.size() ? "," : "");
  }
  return text + "  }}";
}

std::string file_text(const SourceFile& file, SourceKind kind) {
  if (file.bundled) return fmt::format("{{\"bundled\": {}}}", in_quotes(file.name));
  std::string text = fmt::format("{{\n   \"path\": {},\n", in_quotes(file.name));
  if (kind == SourceKind::Model) text += fmt::format("   \"name\": {},\n", in_quotes(file.model));
  text += "   \"content\": ";
  write_value(file.content.root, 3, text);
  return text + "\n  }";
}

// `items` between brackets, each on lines of its own.
std::string list_text(const std::vector<std::string>& items) {
  std::string text = "[\n";
  for (std::size_t i = 0; i < items.size(); ++i) text += items[i] + (i + 1 < items.size() ? ",\n" : "\n");
  return text + " ]";
}

}  // namespace

bool is_baseline(const Document& document) {
  if (!document.root.is(Value::Kind::Object) || document.root.find("dsplan") == nullptr) return false;
  const Value* kind = document.root.find("kind");
  return kind != nullptr && kind->is(Value::Kind::String) && kind->string == "baseline";
}

Baseline read_baseline(const Document& document) {
  expect_object(document, "a baseline");
  return Reader(document).read();
}

std::string baseline_json(const Baseline& b) {
  const auto member = [](std::string_view key, const std::string& value) {
    return fmt::format(" \"{}\": {},\n", key, value);
  };
  std::string text = fmt::format("{{\n \"dsplan\": {},\n \"kind\": \"baseline\",\n", kFileVersion);
  text += member("source", in_quotes(b.source));
  text += member("folder", in_quotes(b.folder));
  text += member("command", command_text(b.command, 1));
  text += member("written", fmt::format(R"({{"dsplan": {}, "torch": {}, "transformers": {}, "deepspeed": {}}})",
                                        in_quotes(b.written.dsplan), in_quotes(b.written.torch),
                                        in_quotes(b.written.transformers), in_quotes(b.written.deepspeed)));
  text += member("fingerprint", in_quotes(b.fingerprint));
  text += member("model_sha256", in_quotes(b.model_sha256));
  std::vector<std::string> items;
  for (const BaselineRank& rank : b.ranks) items.push_back(rank_text(rank));
  text += member("ranks", list_text(items));
  items.clear();
  for (const ResolvedInput& input : b.resolved) {
    items.push_back(fmt::format(R"(  {{"name": {}, "value": {}, "origin": "{}"}})", in_quotes(input.name),
                                in_quotes(input.value), name(input.origin)));
  }
  text += member("resolved", list_text(items));
  text += fmt::format(" \"inputs\": {{\n  \"command\": {}", command_text(b.inputs.command, 2));
  for (const SourceKind kind : kFiles) {
    const auto& file = b.inputs[kind];
    text += fmt::format(",\n  \"{}\": {}", name(kind), file ? file_text(*file, kind) : "null");
  }
  return text + "\n }\n}\n";
}

}  // namespace dsplan
