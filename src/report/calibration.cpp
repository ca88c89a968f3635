#include "report/calibration.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <vector>

#include "core/format.h"
#include "io/fields.h"
#include "io/json_text.h"
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

// `name` is one of `rows`: those before it are named.
void read_row(ObjectReader& reader, const std::vector<std::string>& rows, std::string& name, Calibration& into) {
  detail::need(reader, {"name", "value", "unit", "how", "samples"});
  name = reader.string("name").value_or("");
  if (!is_known(name)) {
    reader.fault("name", formatted("no constant \"{}\"", name),
                 did_you_mean(nearest(name, {kNames.begin(), kNames.end()})));
  }
  if (std::find(rows.data(), static_cast<const std::string*>(&name), name) != &name) {
    reader.fault("name", formatted("\"{}\" stands twice", name));
  }
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
}

// What says how the measuring went is for people.
void describe_measuring(ObjectReader& reader) {
  for (const char* key : {"name", "device"}) (void)reader.string(key);
  (void)reader.boolean("complete");
  (void)reader.array("failed");
}

Calibration read(const Document& document, const Value& value) {
  Diagnostics faults;
  if (!detail::is_object(document, value, "a calibration", faults)) faults.throw_if_any();
  Calibration calibration;
  calibration.path = document.path;
  read_fields(document, value, "a calibration", faults, [&](Fields& fields) {
    ObjectReader& reader = *fields.reader();
    std::string source;
    ReceiptEnvironment environment;
    detail::describe_measured_head(fields, "dsplan.calibration/1", source, environment);
    calibration.gpu = environment.gpu.value_or("");
    if (calibration.gpu.empty()) reader.fault("environment", "a calibration says of which GPU it is: \"gpu\"");
    describe_measuring(reader);
    std::vector<std::string> rows;  // Their names.
    fields.list("rows", rows, {"a row of a calibration"},
                [&](std::string& name) { read_row(*fields.reader(), rows, name, calibration); });
  });
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

namespace {

// The largest value of rows that begin so; 0: there is none.
double largest(const MeasuredMachine& machine, std::string_view prefix) {
  double most = 0;
  for (const MeasuredRow& row : machine.rows) {
    if (row.name.starts_with(prefix)) most = std::max(most, static_cast<double>(row.value()));
  }
  return most;
}

// Of the rows that begin so the one of the largest size, which the name ends with: no cache holds that. 0: there is
// none.
double of_largest_size(const MeasuredMachine& machine, std::string_view prefix) {
  std::int64_t most = -1;
  double value = 0;
  for (const MeasuredRow& row : machine.rows) {
    if (!row.name.starts_with(prefix)) continue;
    std::int64_t size = 0;
    const char* end = row.name.data() + row.name.size();
    const auto [at, error] = std::from_chars(row.name.data() + row.name.rfind(':') + 1, end, size);
    if (error != std::errc() || at != end || size <= most) continue;
    most = size;
    value = static_cast<double>(row.value());
  }
  return value;
}

Json rows_of(const MeasuredMachine& machine) {
  Json rows = Json::array();
  for (const MeasuredRow& row : machine.rows) {
    rows.push_back({{"name", row.name},
                    {"value", row.value()},
                    {"unit", name(row.unit)},
                    {"how", row.how},
                    {"samples", row.samples}});
  }
  return rows;
}

Json environment_of(const MeasuredMachine& machine, const CalibratedFile& file) {
  ReceiptEnvironment environment;
  environment.gpu = machine.backend == "host" ? formatted("host ({})", file.processor) : machine.device;
  environment.capacity = machine.memory;
  if (machine.driver != 0) environment.driver = formatted("{}", machine.driver);
  if (machine.runtime != 0) environment.cuda = formatted("{}", machine.runtime);
  environment.recorded = file.recorded;
  const auto describe = [&](Fields& fields) { detail::describe_environment(fields, environment); };
  return parse_json({}, written(describe)).root;
}

Json calibration_of(const MeasuredMachine& machine, const CalibratedFile& file) {
  Json failed = Json::array();
  for (const NotMeasured& each : machine.failed) failed.push_back({{"name", each.name}, {"message", each.why}});
  return {{"schema", "dsplan.calibration/1"},
          {"source", file.source},
          {"name", file.name},
          {"device", machine.backend},
          {"complete", machine.failed.empty() && !machine.interrupted},
          {"environment", environment_of(machine, file)},
          {"rows", rows_of(machine)},
          {"failed", std::move(failed)}};
}

// Peaks: the data sheet's where it is known, else the fastest product.
Json peaks(const MeasuredMachine& machine, const CalibratedFile& file) {
  std::map<std::string, double> tflops;
  if (file.like) tflops = file.like->tflops;
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    const double most = largest(machine, formatted("gemm:{}:", dtype));
    if (most > 0 && !tflops.contains(dtype)) tflops[dtype] = most / 1e12;
  }
  Json object = Json::object();
  for (const char* dtype : {"fp32", "tf32", "bf16", "fp16", "fp8"}) {
    if (const auto found = tflops.find(dtype); found != tflops.end()) object.set(dtype, found->second);
  }
  return object;
}

}  // namespace

std::string calibrated_hardware_json(const MeasuredMachine& machine, const CalibratedFile& file) {
  const bool host = machine.backend == "host";
  Json json = {{"dsplan", kFileVersion}, {"kind", "hardware"}, {"name", file.name}, {"source", file.source}};
  json.set("architecture", host ? "host" : file.like ? file.like->architecture : "unknown");
  json.set(host ? "driver_memory_bytes" : "torch_total_bytes", machine.memory);
  if (const MeasuredRow* context = machine.find("context")) json.set("context_bytes", context->value());
  if (Json tflops = peaks(machine, file); !tflops.empty()) json.set("tflops", std::move(tflops));
  const auto rate = [&](const char* key, double measured, double told) {
    const double bytes_per_s = measured > 0 ? measured / 1e9 : told;
    if (bytes_per_s > 0) json.set(key, bytes_per_s);
  };
  const auto told = [&](double Hardware::*member) { return file.like ? (*file.like).*member : 0; };
  rate("memory_gb_per_s", 2 * of_largest_size(machine, "copy_d2d:"), told(&Hardware::memory_gb_per_s));
  // Between threads; virtual ranks of one GPU say nothing of links between GPUs.
  rate("link_gb_per_s", of_largest_size(machine, "collective_threads:all_gather:"), told(&Hardware::link_gb_per_s));
  if (file.like && file.like->link_devices > 0) json.set("link_devices", file.like->link_devices);
  const double up = of_largest_size(machine, "copy_h2d_pinned:");
  const double down = of_largest_size(machine, "copy_d2h_pinned:");
  rate("host_link_gb_per_s", std::min(up, down), told(&Hardware::host_link_gb_per_s));
  if (host) json.set("multiprocessors", 1);  // A rank is one thread.
  if (file.like && file.like->multiprocessors > 0) json.set("multiprocessors", file.like->multiprocessors);
  json.set("calibration", calibration_of(machine, file));
  return json_text(json, 2) + "\n";
}

}  // namespace dsplan
