// What `dsplan sweep` found, as CSV and as JSON.
#include "cli/commands.h"
#include "cli/many/sweep.h"
#include "core/format.h"
#include "io/fields.h"
#include "io/json_text.h"
#include "report/cells.h"

namespace dsplan {
namespace {

constexpr const char* kSweepSchema = "dsplan.sweep/1";

void describe_point(Fields& fields, const std::vector<SweepAxis>& axes, const SweepPoint& point) {
  Json values = Json::object();
  for (std::size_t i = 0; i < point.values.size(); ++i) values.set(axes[i].name, point.values[i]);
  const SweepFigures f = point.prediction ? figures_at(*point.prediction) : SweepFigures{};
  std::string verdict(point.prediction ? name(point.prediction->verdict) : "refused");
  // Its keys are the axes that were asked for.
  fields.other("values", values, {{"type", "object"}, {"additionalProperties", {{"type", "string"}}}});
  fields.word("verdict", verdict, {"fits", "tight", "fits_with_retries", "does_not_fit", "unknown", "refused"});
  fields.derived("process_bytes", f.process);
  fields.derived("needed_bytes", f.needed);
  fields.derived("shortfall_bytes", f.shortfall);
  fields.derived("persistent_bytes", f.persistent);
  fields.derived("host_bytes_per_node", f.host);
  fields.derived("wire_bytes_per_step", f.wire);
  fields.derived("tokens_per_second", f.tokens);
  fields.derived("step_seconds", f.seconds);
  fields.derived("reason", remark(point));
  fields.derived("capacity_bytes", f.capacity);
  fields.derived("uncertainty_bytes", f.doubt);
  fields.derived("retries", f.retries);
  fields.derived("fingerprint", f.fingerprint);
}

void describe_sweep(Fields& fields, std::string model, std::vector<SweepAxis>& axes, std::vector<SweepPoint>& points) {
  fields.constant("schema", kSweepSchema);
  fields("model", model);
  fields.list("axes", axes, {"an axis"}, [&](SweepAxis& axis) {
    fields("name", axis.name);
    fields.texts("values", axis.values, "a value");
  });
  fields.list("points", points, {"a point"}, [&](SweepPoint& point) { describe_point(fields, axes, point); });
}

}  // namespace

std::string sweep_csv(const std::vector<SweepAxis>& axes, const std::vector<SweepPoint>& points) {
  std::string text;
  for (const SweepAxis& axis : axes) text += axis.name + ",";
  text +=
      "verdict,process_bytes,needed_bytes,shortfall_bytes,persistent_bytes,host_bytes_per_node,wire_bytes_per_step,"
      "tokens_per_second,step_seconds,retries,reason\n";
  for (const SweepPoint& point : points) {
    for (const std::string& value : point.values) text += detail::quoted(value) + ",";
    const SweepFigures f = point.prediction ? figures_at(*point.prediction) : SweepFigures{};
    text += point.prediction ? std::string(name(point.prediction->verdict)) : "refused";
    for (const std::optional<Bytes>* one : {&f.process, &f.needed, &f.shortfall, &f.persistent, &f.host, &f.wire}) {
      text += "," + (*one ? std::to_string((**one).value()) : std::string());
    }
    text += "," + (f.tokens ? formatted("{:.1f}", *f.tokens) : std::string());
    text += "," + (f.seconds ? formatted("{:.6g}", *f.seconds) : std::string());
    text += formatted(",{},{}\n", f.retries ? std::to_string(*f.retries) : "", detail::quoted(remark(point)));
  }
  return text;
}

std::string sweep_json(const std::string& model, const std::vector<SweepAxis>& axes,
                       const std::vector<SweepPoint>& points) {
  return written([&](Fields& fields) { describe_sweep(fields, model, described(axes), described(points)); });
}

std::string sweep_schema() {
  return schema_of(kSweepSchema, "What `dsplan sweep --format json` prints. All sizes are bytes of one rank.",
                   [](Fields& fields) {
                     std::vector<SweepAxis> axes;
                     std::vector<SweepPoint> points;
                     describe_sweep(fields, "", axes, points);
                   });
}

}  // namespace dsplan
