#include "report/write_markdown.h"

#include "core/format.h"
#include "report/prediction_file.h"
#include "report/write_cells.h"

namespace dsplan {
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
