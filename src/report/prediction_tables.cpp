#include "report/prediction_tables.h"

#include <algorithm>
#include <map>

#include "core/format.h"
#include "io/json_text.h"
#include "io/text.h"
#include "report/cells.h"
#include "report/prediction_file.h"

namespace dsplan {

namespace {

using detail::quoted;

std::string scalar(const Value& value) {
  if (value.is(Value::Kind::Null)) return {};
  return value.is(Value::Kind::String) ? quoted(value.string) : json_text(value);
}

// The keys that name an item of a list, and that its own rows then need not repeat.
const std::vector<std::string>& naming_keys(const std::string& list) {
  static const std::vector<std::string> kTraffic = {"collective", "group", "phase", "dtype", "kind"};
  static const std::vector<std::string> kName = {"name"};
  static const std::vector<std::string> kNone;
  if (list == "communication") return kTraffic;
  if (list == "memory.phases" || list == "time.phases" || list.ends_with(".marks") ||
      list.ends_with(".see_memory_usage") || list.ends_with(".parts") || list == "assumptions")
    return kName;
  return kNone;
}

class Writer {
 public:
  explicit Writer(std::int64_t rank) : rank_(rank) {}

  void write(const std::string& path, const Value& value) {
    if (value.is(Value::Kind::Object)) {
      for (const Member& child : value.members) write(path.empty() ? child.key : path + "." + child.key, child.value);
    } else if (value.is(Value::Kind::Array)) {
      items(path, value);
    } else {
      text_ += formatted("{},{},{}\n", rank_, quoted(path), scalar(value));
    }
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  void items(const std::string& path, const Value& list) {
    // The last part of a path says which list it is, wherever in the tree its parent was named.
    const std::size_t dot = path.rfind('.');
    const std::string kind = path.ends_with(".marks") || path.ends_with(".see_memory_usage") || path.ends_with(".parts")
                                 ? path.substr(dot)
                                 : path;
    const std::vector<std::string>& keys = naming_keys(kind);
    std::map<std::string, int> seen;
    std::size_t index = 0;
    for (const Value& item : list.items) {
      std::string label;
      for (const std::string& key : keys) {
        if (!label.empty()) label += '.';
        label += item.find(key)->string;
      }
      if (keys.empty()) label = std::to_string(index++);
      if (const int again = ++seen[label]; again > 1) label += formatted("#{}", again);
      for (const Member& child : item.members) {
        const bool said = std::find(keys.begin(), keys.end(), child.key) != keys.end();
        if (!said) write(formatted("{}.{}.{}", path, label, child.key), child.value);
      }
    }
  }

  std::int64_t rank_;
  std::string text_;
};

}  // namespace

std::string predictions_csv(const std::vector<Prediction>& predictions, const Job& job) {
  std::string text = "rank,path,value\n";
  for (const Prediction& prediction : predictions) {
    Writer writer(prediction.rank);
    writer.write({}, parse_json({}, prediction_json(prediction, job)).root);  // The rows are the JSON's.
    text += writer.text();
  }
  return text;
}

namespace {

using detail::cell;

std::string size(const std::optional<Bytes>& bytes) { return bytes ? human(*bytes) : "-"; }

std::string memory_table(const Prediction& prediction) {
  std::string text = "| role | persistent | held for backward | at peak |\n|:--|--:|--:|--:|\n";
  const auto row = [&](std::string_view label, std::optional<Bytes> persistent, std::optional<Bytes> held,
                       std::optional<Bytes> peak) {
    text += formatted("| {} | {} | {} | {} |\n", cell(label), size(persistent), size(held), size(peak));
  };
  const auto part = [](const auto& from, const ByRole& roles, auto select) -> std::optional<Bytes> {
    return from ? std::optional<Bytes>(select(roles)) : std::nullopt;
  };
  const ByRole none;
  const ByRole& held = prediction.held_for_backward ? prediction.held_for_backward->by_role : none;
  const ByRole& peak = prediction.peak ? prediction.peak->by_role : none;
  const auto line = [&](std::string_view label, auto select) {
    row(label, select(prediction.persistent.by_role), part(prediction.held_for_backward, held, select),
        part(prediction.peak, peak, select));
  };
  for (std::size_t i = 0; i < kRoles; ++i) {
    line(name(static_cast<Role>(i)), [i](const ByRole& roles) { return roles.bytes[i]; });
  }
  line("total", [](const ByRole& roles) { return roles.total(); });
  row("allocated", prediction.persistent.allocated, std::nullopt,
      prediction.peak ? std::optional(prediction.peak->allocated) : std::nullopt);
  if (prediction.loss_spike) {
    row("logits and loss", std::nullopt, std::nullopt, prediction.loss_spike->requested);
  }
  if (prediction.peak) {
    row("active", std::nullopt, std::nullopt, prediction.peak->active);
    row("reserved", std::nullopt, std::nullopt, prediction.peak->reserved);
    row("process", std::nullopt, std::nullopt, prediction.peak->process);
  }
  return text;
}

std::string traffic_table(const std::vector<TrafficRow>& rows) {
  std::string text = "| collective | group | phase | dtype | kind | calls | payload | wire |\n";
  text += "|:--|:--|:--|:--|:--|--:|--:|--:|\n";
  for (const TrafficRow& row : rows) {
    text +=
        formatted("| {} | {} | {} | {} | {} | {} | {} | {} |\n", cell(name(row.collective)), name(row.group),
                  name(row.phase == Pass::Recompute ? Pass::Backward : row.phase), name(row.dtype),
                  row.kind == TrafficKind::Data ? "data" : "control", row.calls, human(row.payload), human(row.wire));
  }
  return text;
}

std::string time_table(const StepTime& time) {
  std::string text =
      formatted("Time of one optimizer step, {}: {:.4g} s ({:.4g} to {:.4g} s), {:.4g} tokens/s, MFU {:.1f} %. {}.\n\n",
                time.calibrated ? "calibrated" : "estimated", time.total, time.low, time.high, time.tokens_per_second,
                100 * time.mfu, cell(time.basis));
  text += "| phase | seconds | compute | of it recomputed | launch | exposed | host | hidden |\n";
  text += "|:--|--:|--:|--:|--:|--:|--:|--:|\n";
  for (const PhaseTime& phase : time.phases) {
    text +=
        formatted("| {} | {:.4g} | {:.4g} | {:.4g} | {:.4g} | {:.4g} | {:.4g} | {:.4g} |\n", phase.name, phase.total(),
                  phase.compute, phase.recompute, phase.launch, phase.exposed, phase.host, phase.hidden);
  }
  return text;
}

std::string section(const Prediction& prediction, const Job& job) {
  std::string text = formatted("## {}, rank {} of {}\n\n**{}**", cell(prediction.model), prediction.rank,
                               prediction.world, cell(name(prediction.verdict)));
  if (!prediction.verdict_reason.empty()) text += ": " + cell(prediction.verdict_reason);
  text += "\n\n" + memory_table(prediction);
  if (prediction.peak) {
    text += formatted("\nPeak in {}: {}\n", cell(prediction.peak->phase), cell(prediction.peak->event));
  }
  if (prediction.communication && !prediction.communication->empty()) {
    text += "\nTraffic of one optimizer step:\n\n" + traffic_table(*prediction.communication);
  }
  if (prediction.time) text += "\n" + time_table(*prediction.time);
  if (const auto assumed = job.assumptions(); !assumed.empty()) {
    text += "\n| assumed | value | because | option |\n|:--|:--|:--|:--|\n";
    for (const ResolvedInput& input : assumed) {
      text += formatted("| {} | {} | {} | {} |\n", cell(input.name), cell(input.value), cell(input.reason),
                        cell(input.option));
    }
  }
  text += "\n| not modelled | because |\n|:--|:--|\n";
  for (const Absence& absence : all_absences(prediction)) {
    text += formatted("| {} | {} |\n", cell(absence.what), cell(absence.why));
  }
  return text;
}

}  // namespace

std::string predictions_markdown(const std::vector<Prediction>& predictions, const Job& job) {
  std::string text;
  for (const Prediction& prediction : predictions) {
    if (!text.empty()) text += '\n';
    text += section(prediction, job);
  }
  return text;
}

}  // namespace dsplan
