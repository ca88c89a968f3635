#include "report/calibration.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "core/format.h"
#include "io/measured_file.h"
#include "io/own_file.h"
#include "io/text.h"

namespace dsplan {
namespace {

constexpr std::array<std::string_view, 12> kNames = {"context",
                                                     "context_eager_modules",
                                                     "cublas_handle",
                                                     "cublaslt_handle",
                                                     "cublas_workspace",
                                                     "cudnn_handle",
                                                     "cublaslt_workspace",
                                                     "communicator_1",
                                                     "communicator_1_max_ctas_1",
                                                     "capacity",
                                                     "kernel",
                                                     "launch"};
// Followed by a size, a shape or a kernel.
constexpr std::array<std::string_view, 16> kFamilies = {
    "first_use:",          "pinned_rounding:",   "copy_h2d_pinned:",    "copy_d2h_pinned:",
    "copy_h2d_pageable:",  "copy_d2h_pageable:", "copy_d2d:",           "gemm:",
    "elementwise:",        "attention:",         "attention_backward:", "collective_threads:",
    "collective_virtual:", "host_adam:",         "file_write:",         "file_read:"};

std::optional<std::int64_t> communicator_ranks(std::string_view name) {
  constexpr std::string_view kPrefix = "communicator_";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  std::int64_t ranks = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), ranks);
  if (error != std::errc() || end != name.data() + name.size() || ranks < 1) return std::nullopt;
  return ranks;
}

// A name with a word behind a colon is the same thing at another moment: `context:after_step`.
bool is_known(std::string_view name) {
  const std::string_view thing = name.ends_with(':') ? name : name.substr(0, name.find(':'));
  return std::find(kNames.begin(), kNames.end(), thing) != kNames.end() || communicator_ranks(thing) ||
         std::any_of(kFamilies.begin(), kFamilies.end(),
                     [&](std::string_view family) { return name.starts_with(family) && name.size() > family.size(); });
}

void take(const std::string& name, Bytes value, Calibration& into) {
  if (name == "context") into.context = value;
  if (name == "cublas_workspace") into.cublas_workspace = value;
  if (name == "cublaslt_workspace") into.cublaslt_workspace = value;
  if (const auto ranks = communicator_ranks(name)) into.communicators[*ranks] = value;
}

void read_row(ObjectReader& reader, std::vector<std::string>& seen, Calibration& into) {
  detail::need(reader, {"name", "value", "unit", "how", "samples"});
  const std::string name = reader.string("name").value_or("");
  if (!is_known(name)) {
    reader.fault("name", formatted("no constant \"{}\"", name),
                 did_you_mean(nearest(name, {kNames.begin(), kNames.end()})));
  }
  if (std::find(seen.begin(), seen.end(), name) != seen.end()) {
    reader.fault("name", formatted("\"{}\" stands twice", name));
  }
  seen.push_back(name);
  const std::optional<std::string> unit =
      reader.choice("unit", {"bytes", "ns", "bytes_per_s", "flop_per_s", "elements_per_s"});
  (void)reader.string("how");
  (void)reader.array("samples");
  if (unit && *unit == "bytes") {
    if (const std::optional<Bytes> value = detail::bytes(reader, "value")) take(name, *value, into);
  } else if (const std::optional<double> value = reader.number("value")) {
    if (*value <= 0) reader.fault("value", "a rate is more than nothing");
    // Times of what is done again and again, as so many a second.
    const bool repeated = name == "kernel" || name == "launch";
    if (unit && *unit != "ns") into.rates[name] = *value;
    if (unit && *unit == "ns" && repeated) into.rates[name] = 1e9 / *value;
  }
  reader.refuse_unread("a row of a calibration");
}

Calibration read(const Document& document, const Value& value) {
  Diagnostics faults;
  if (!detail::is_object(document, value, "a calibration", faults)) faults.throw_if_any();
  ObjectReader reader(document, value, faults);
  Calibration calibration;
  calibration.path = document.path;
  const detail::MeasuredHead head = detail::read_measured_head(reader, "dsplan.calibration/1");
  calibration.gpu = head.environment.gpu.value_or("");
  if (calibration.gpu.empty()) reader.fault("environment", "a calibration says of which GPU it is: \"gpu\"");
  detail::need(reader, {"rows"});
  // What says how the measuring went is for people.
  for (const char* key : {"name", "device"}) (void)reader.string(key);
  (void)reader.boolean("complete");
  (void)reader.array("failed");
  std::vector<std::string> seen;
  if (const Value* rows = reader.array("rows")) {
    for (const Value& item : rows->items) {
      if (!detail::is_object(document, item, "a row", faults)) continue;
      ObjectReader row(document, item, faults);
      read_row(row, seen, calibration);
    }
  }
  reader.refuse_unread("a calibration");
  faults.throw_if_any();
  return calibration;
}

}  // namespace

Calibration read_calibration(const Document& document) {
  expect_object(document, "a calibration");
  // A file of `dsplan calibrate` is one of the hardware, which holds what was measured.
  const Value* inside = document.root.find("calibration");
  const bool hardware = document.root.find("kind") != nullptr && inside != nullptr;
  return read(document, hardware ? *inside : document.root);
}

std::optional<Calibration> calibration_in(const Document& hardware) {
  const Value* inside = hardware.root.is(Value::Kind::Object) ? hardware.root.find("calibration") : nullptr;
  if (inside == nullptr) return std::nullopt;
  return read(hardware, *inside);
}

std::vector<ProcessRow> calibrated_rows(const std::string& path) {
  const Document document = read_document(path);
  const Value* at = &document.root;
  for (const char* outer : {"hardware", "calibration"}) {  // Of a plan, or of a hardware file.
    const Value* inside = at->is(Value::Kind::Object) ? at->find(outer) : nullptr;
    const bool holds = inside != nullptr && inside->is(Value::Kind::Object);
    if (holds && (std::string_view(outer) == "calibration" || inside->find("calibration") != nullptr)) at = inside;
  }
  const Value* list = at->is(Value::Kind::Object) ? at->find("rows") : nullptr;
  std::vector<ProcessRow> rows;
  for (const Value& item : list == nullptr ? std::vector<Value>() : list->items) {
    const Value* name = item.is(Value::Kind::Object) ? item.find("name") : nullptr;
    const Value* unit = name == nullptr ? nullptr : item.find("unit");
    const Value* value = unit == nullptr ? nullptr : item.find("value");
    if (value == nullptr || unit->string != "bytes" || !value->is(Value::Kind::Integer)) continue;
    for (const char* held : {"context", "context:opened", "cublaslt_handle", "first_use:kernels"}) {
      if (name->string == held) rows.push_back({held, Bytes(value->integer), path});
    }
  }
  const auto is = [](const char* what) { return [what](const ProcessRow& row) { return row.what == what; }; };
  if (std::any_of(rows.begin(), rows.end(), is("context:opened"))) std::erase_if(rows, is("context"));
  return rows;
}

}  // namespace dsplan
