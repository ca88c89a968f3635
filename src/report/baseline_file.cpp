#include "report/baseline_file.h"

#include <algorithm>

#include "core/format.h"
#include "io/measured_file.h"
#include "io/own_file.h"
#include "io/place.h"
#include "report/kept_figures.h"

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
        reader.fault(key, formatted("\"{}\" must not be null", key));
      }
    }
    into.folder = reader.string("folder").value_or("");
    into.command = words(reader, "command");
    if (const Value* command = document_.root.find("command"))
      into.command_place = place_at(document_, command->offset);
    if (const Value* written = reader.object("written"))
      into.written = detail::read_versions(document_, *written, faults_);
    into.fingerprint = reader.string("fingerprint").value_or("");
    into.model_sha256 = reader.string("model_sha256").value_or("");
    if (const Value* ranks = reader.array("ranks")) into.ranks = detail::read_ranks(reader, *ranks, "a baseline");
    if (const Value* list = reader.array("resolved")) into.resolved = detail::read_resolved(document_, *list, faults_);
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
        reader.fault(word, formatted("a word must be a string, not {}", describe(word.kind)));
      }
    }
    return list;
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
      file.name = detail::kept_text(reader, "path");
      if (kind == SourceKind::Model) {
        detail::need(reader, {"name"});
        file.model = detail::kept_text(reader, "name");
      }
      const Value* content = reader.object("content");
      if (content != nullptr) file.content = {document_.path, document_.text, *content};
      if (content == nullptr && !reader.has("content")) reader.fault("content", "\"content\" must be the whole file");
    }
    reader.refuse_unread(formatted("the {} file of a baseline", name(kind)));
    return file;
  }

  const Document& document_;
  Diagnostics faults_;
};

// ---- writing

// An option and its value on one line.
std::string command_text(const std::vector<std::string>& words, std::size_t indent) {
  if (words.empty()) return "[]";
  std::string text = "[";
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += ",";
    const bool value =
        i > 0 && words[i - 1].starts_with("--") && words[i - 1].size() > 2 && !words[i].starts_with("--");
    text += value ? " " : "\n" + std::string(indent + 1, ' ');
    text += detail::quoted(words[i]);
  }
  return text + "\n" + std::string(indent, ' ') + "]";
}

std::string file_text(const SourceFile& file, SourceKind kind) {
  if (file.bundled) return formatted("{{\"bundled\": {}}}", detail::quoted(file.name));
  std::string text = formatted("{{\n   \"path\": {},\n", detail::quoted(file.name));
  if (kind == SourceKind::Model) text += formatted("   \"name\": {},\n", detail::quoted(file.model));
  text += "   \"content\": ";
  detail::write_value(file.content.root, 3, text);
  return text + "\n  }";
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
    return formatted(" \"{}\": {},\n", key, value);
  };
  std::string text = formatted("{{\n \"dsplan\": {},\n \"kind\": \"baseline\",\n", kFileVersion);
  text += member("source", detail::quoted(b.source));
  text += member("folder", detail::quoted(b.folder));
  text += member("command", command_text(b.command, 1));
  text += member("written", detail::versions_text(b.written));
  text += member("fingerprint", detail::quoted(b.fingerprint));
  text += member("model_sha256", detail::quoted(b.model_sha256));
  text += member("ranks", detail::ranks_text(b.ranks));
  text += member("resolved", detail::resolved_text(b.resolved));
  text += formatted(" \"inputs\": {{\n  \"command\": {}", command_text(b.inputs.command, 2));
  for (const SourceKind kind : kFiles) {
    const auto& file = b.inputs[kind];
    text += formatted(",\n  \"{}\": {}", name(kind), file ? file_text(*file, kind) : "null");
  }
  return text + "\n }\n}\n";
}

}  // namespace dsplan
