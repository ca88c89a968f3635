#include "report/baseline_file.h"

#include "core/format.h"
#include "io/fields.h"
#include "io/own_file.h"
#include "io/place.h"
#include "report/kept_figures.h"

namespace dsplan {
namespace {

constexpr std::array<SourceKind, kSourceFiles> kFiles = {
    SourceKind::Model,    SourceKind::DeepSpeed, SourceKind::Training,   SourceKind::Checkpoint,
    SourceKind::Hardware, SourceKind::Cluster,   SourceKind::Calibration};

// Where a key's value stands, if anything is read.
void take_place(Fields& fields, std::string_view key, Place& place) {
  ObjectReader* reader = fields.reader();
  const Value* value = reader == nullptr ? nullptr : reader->value().find(key);
  if (value != nullptr) place = place_at(reader->document(), value->offset);
}

// A bundled file is dsplan's own, and has no content here.
void describe_file(Fields& fields, SourceFile& file, SourceKind kind) {
  const bool reads = fields.reader() != nullptr;
  if (reads) file.bundled = fields.reader()->has("bundled");
  if (file.bundled) {
    fields("bundled", file.name);
    if (reads) file.model = file.name;
    return;
  }
  fields("path", file.name);
  if (kind == SourceKind::Model) fields("name", file.model);
  fields.document("content", file.content, "the whole file");
}

void describe_inputs(Fields& fields, Sources& inputs) {
  fields.texts("command", inputs.command, "a word");
  for (const SourceKind kind : kFiles) {
    const std::string what = formatted("the {} file of a baseline", name(kind));
    const bool bundled = inputs[kind] && inputs[kind]->bundled;
    fields.object(name(kind), inputs[kind], {what, bundled ? FieldLine::Same : FieldLine::Own},
                  [&](SourceFile& file) { describe_file(fields, file, kind); });
  }
  ObjectReader* reader = fields.reader();
  if (reader != nullptr && !reader->has("model")) {
    reader->fault("model", "\"model\" must be a file or a bundled name");
  }
}

void describe_baseline(Fields& fields, Baseline& baseline) {
  describe_head(fields, "baseline", baseline.source);
  fields("folder", baseline.folder);
  fields.texts("command", baseline.command, "a word");
  take_place(fields, "command", baseline.command_place);
  detail::describe_versions(fields, baseline.written);
  fields("fingerprint", baseline.fingerprint);
  fields("model_sha256", baseline.model_sha256);
  detail::describe_ranks(fields, baseline.ranks, "a rank of a baseline");
  fields.list("resolved", baseline.resolved, {"a resolved input", FieldLine::Same}, [&](ResolvedInput& input) {
    fields("name", input.name);
    fields("value", input.value);
    fields.named("origin", input.origin, {Origin::Given, Origin::Derived, Origin::Assumed});
  });
  fields.object("inputs", {"\"inputs\""}, [&] { describe_inputs(fields, baseline.inputs); });
  take_place(fields, "inputs", baseline.inputs_place);
}

}  // namespace

bool is_baseline(const Document& document) { return is_kind(document, "baseline"); }

Baseline read_baseline(const Document& document) {
  expect_object(document, "a baseline");
  Baseline baseline;
  baseline.path = document.path;
  read_fields(document, "a baseline", [&](Fields& fields) { describe_baseline(fields, baseline); });
  return baseline;
}

std::string baseline_json(const Baseline& baseline) {
  return written([&](Fields& fields) { describe_baseline(fields, described(baseline)); }, {1, true});
}

}  // namespace dsplan
