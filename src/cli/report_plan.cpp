#include "cli/report_plan.h"

#include <algorithm>
#include <vector>

#include "cli/report.h"
#include "cli/screen/first_screen.h"
#include "cli/screen/table.h"
#include "cli/wrap.h"
#include "core/format.h"
#include "core/text/whole_numbers.h"
#include "planner/plan/space.h"

namespace dsplan {
namespace {

constexpr std::size_t kNeighbours = 12;

// The settings that people look for first; the others stand below.
std::string layout(const PlanRow& row) {
  std::vector<std::string> parts;
  const std::string& stage = setting(row, Axis::ZeroStage);
  parts.push_back(whole_number(stage) ? "ZeRO-" + stage
                  : stage == "fsdp2"  ? "FSDP2"
                  : stage == "hsdp"   ? "HSDP"
                                      : stage);
  if (setting(row, Axis::Offload) != "none") parts.push_back("offload " + setting(row, Axis::Offload));
  if (setting(row, Axis::TensorParallel) != "1") parts.push_back("tp " + setting(row, Axis::TensorParallel));
  parts.push_back("micro-batch " + setting(row, Axis::MicroBatch));
  parts.push_back("checkpoint " + setting(row, Axis::Checkpoint));
  return formatted("{}", joined(parts, ", "));
}

std::string speed_text(const PlanRow& row) {
  if (!row.time) return "no time";
  return formatted("{} tokens/s", grouped(static_cast<std::int64_t>(row.time->tokens_per_second + 0.5)));
}

std::string seconds(double value) {
  if (value >= 1) return formatted("{:.3g} s", value);
  return formatted("{:.3g} ms", value * 1e3);
}

std::string_view kind(const StepTime& time) { return time.calibrated ? "calibrated" : "estimated"; }

std::string found_text(const PlanAnswer& answer) {
  if (!answer.found) return {};
  switch (answer.objective) {
    case Objective::MicroBatch: return formatted("micro-batch {} is the largest that fits", *answer.found);
    case Objective::Seq: return formatted("seq {} is the longest that fits, in steps of 64", grouped(*answer.found));
    case Objective::Layers: return formatted("{} layers are the most that fit", *answer.found);
    default: return {};
  }
}

std::string head(const PlanAnswer& answer) {
  if (!answer.chosen) {
    if (!answer.complete) return "no plan yet: the search was ended before one was found to fit";
    if (!answer.nearest) return "no plan fits";
    return formatted("no plan fits: {} are missing with {}", glued(human(answer.nearest->missing.value_or(Bytes(0)))),
                     layout(*answer.nearest));
  }
  const PlanRow& row = *answer.chosen;
  std::string text;
  if (answer.found) text = found_text(answer) + ": ";
  if (answer.objective == Objective::Gpus) text = fewest_text(row.world);
  text += formatted("{}{}, {}",
                    answer.found || answer.objective == Objective::Gpus ? "" : "fastest that fits: ", layout(row),
                    speed_text(row));
  if (!answer.complete) text += "; the search was ended before it was complete";
  return text;
}

std::string row_line(std::string_view label, const std::string& text) {
  return wrapped(formatted("  {:<20}", label), text, 22);
}

std::string chosen_rows(const PlanAnswer& answer) {
  const PlanRow& row = *answer.chosen;
  std::string text;
  for (std::size_t i = 0; i < kAxes; ++i) {
    const AxisValues& axis = answer.space.axes[i];
    std::string value = row.settings[i];
    if (axis.pinned) value += formatted("  ({})", axis.reason);
    text += row_line(name(static_cast<Axis>(i)), value);
  }
  const std::int64_t rows = row.grad_accum * row.dp * std::stoll(setting(row, Axis::MicroBatch));
  text += row_line("grad_accum",
                   formatted("{}: {} rows of {} tokens per step", row.grad_accum, grouped(rows), grouped(row.seq)));
  return text;
}

std::string time_rows(const StepTime& time) {
  std::string text =
      row_line(formatted("step ({})", kind(time)),
               formatted("{} ({} to {}), MFU {:.1f} %, HFU {:.1f} %", glued(seconds(time.total)),
                         glued(seconds(time.low)), glued(seconds(time.high)), 100 * time.mfu, 100 * time.hfu));
  for (const PhaseTime& phase : time.phases) {
    std::vector<std::string> parts;
    const auto add = [&parts](const char* what, double value) {
      if (value > 0) parts.push_back(glued(formatted("{} {}", what, seconds(value))));
    };
    add("kernels", phase.compute);
    add("launching", phase.launch);
    add("exposed communication", phase.exposed);
    add("host", phase.host);
    std::string line = formatted("{}: {}", glued(seconds(phase.total())), joined(parts, ", "));
    if (phase.hidden > 0) line += formatted("; hidden communication {}", glued(seconds(phase.hidden)));
    text += row_line("  " + phase.name, line);
  }
  return text;
}

std::string memory_rows(const PlanAnswer& answer) {
  const PlanRow& row = *answer.chosen;
  std::string text;
  if (row.fate == Fate::FitsWithRetries && row.process) {
    text += row_line(
        "process", formatted("{} on the worst rank, and {} of them given back in time: {}", glued(human(*row.process)),
                             glued(human(*row.process - answer.limit)), row.reason));
  } else if (row.process) {
    text += row_line("process",
                     formatted("{} of {} on the worst rank", glued(human(*row.process)), glued(human(answer.limit))));
  }
  if (row.host && *row.host > Bytes(0)) text += row_line("host, per node", glued(human(*row.host)));
  if (row.nvme && *row.nvme > Bytes(0)) text += row_line("files, per node", glued(human(*row.nvme)));
  if (row.wire && *row.wire > Bytes(0)) text += row_line("sent per step", glued(human(*row.wire)) + " by each rank");
  return text;
}

std::string counts_rows(const PlanAnswer& answer) {
  const SearchCounts& counts = answer.counts;
  std::string text = row_line(
      "searched", formatted("{} candidates: {} impossible, {} too large by bound, {} slower than one that fits, {} "
                            "simulated",
                            grouped(counts.candidates), grouped(counts.refused), grouped(counts.bounded),
                            grouped(counts.slower), grouped(counts.simulated)));
  for (std::size_t i = 0; i < std::min<std::size_t>(3, answer.refusals.size()); ++i) {
    text += row_line(i == 0 ? "impossible" : "",
                     formatted("{}: {}", grouped(answer.refusals[i].count), answer.refusals[i].why));
  }
  return text;
}

std::string space_rows(const SearchSpace& space) {
  std::string text = "\n  space\n";
  for (std::size_t i = 0; i < kAxes; ++i) {
    const AxisValues& axis = space.axes[i];
    std::string line = formatted("{}", joined(axis.values, ", "));
    if (axis.origin == Origin::Given) line += formatted("  ({})", axis.reason);
    text += row_line(name(static_cast<Axis>(i)), line);
  }
  if (space.global_batch) text += row_line("global_batch", grouped(*space.global_batch));
  return text;
}

std::string fate_text(const PlanRow& row) {
  const std::string missing = row.missing ? formatted("{} missing", glued(human(*row.missing))) : std::string();
  switch (row.fate) {
    case Fate::Bounded: return formatted("too large: at least {}", missing);
    case Fate::DoesNotFit: return missing.empty() ? "does not fit: " + row.reason : "does not fit: " + missing;
    case Fate::Slower: return "slower; not simulated";
    case Fate::Fits:
    case Fate::Tight:
    case Fate::FitsWithRetries:
    case Fate::Unknown:
    case Fate::Refused: return row.reason;
  }
  return {};
}

std::string percent(double speed) { return formatted("{:+.1f} %", 100 * (speed - 1)); }

std::string change_text(const PlanChange& change) {
  std::vector<std::string> parts;
  for (const Axis axis : change.axes) {
    parts.push_back(formatted("{} {}", name(axis), setting(change.row, axis)));
  }
  return formatted("{}", joined(parts, ", "));
}

std::string neighbour_rows(const PlanAnswer& answer) {
  if (answer.neighbours.empty()) return {};
  std::string text = "\n  one setting changed\n";
  const std::size_t shown = std::min(kNeighbours, answer.neighbours.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const PlanChange& change = answer.neighbours[i];
    text += wrapped(formatted("  {:>9}  ", percent(change.speed)),
                    formatted("{}: {}", change_text(change), fate_text(change.row)), 13);
  }
  if (shown < answer.neighbours.size()) {
    text += formatted("             and {} slower ones\n", answer.neighbours.size() - shown);
  }
  return text;
}

// Nobody takes more than there is: what would be used beyond is the allocator's cache, which it gives back.
std::string taken(const PlanAnswer& answer, Bytes process) {
  if (process <= answer.limit) return formatted("; {}", glued(human(process)));
  return formatted("; all {}, would use {} if it could", glued(human(answer.limit)), glued(human(process)));
}

std::string plan_rows(std::string_view title, const std::vector<PlanRow>& rows, const PlanAnswer& answer) {
  if (rows.empty()) return {};
  std::string text = formatted("\n  {}\n", title);
  for (const PlanRow& row : rows) {
    const double base = answer.chosen->tokens_per_second();
    const double speed = base > 0 ? row.tokens_per_second() / base : 0;
    std::string line = layout(row);
    if (row.process) line += taken(answer, *row.process);
    if (row.wire) line += formatted(", {} sent", glued(human(*row.wire)));
    text += wrapped(formatted("  {:>9}  ", percent(speed)), line, 13);
  }
  return text;
}

// Beyond what a search chooses: whether they fit or not, each with its bytes.
std::string offer_rows(const PlanAnswer& answer) {
  if (answer.offers.empty()) return {};
  std::string text = "\n  other ways, with single rows and every layer checkpointed\n";
  for (const FittingChange& way : answer.offers) {
    const std::string note = way.note.empty() ? std::string() : formatted(" ({})", way.note);
    text += wrapped(formatted("  {:>10}  ", human(way.process)),
                    formatted("{}: {}{}", in_words(way.verdict), way.options, note), 14);
  }
  return text;
}

std::string failure_rows(const PlanAnswer& answer) {
  std::string text;
  if (!answer.states.empty()) text += wrapped("  ", answer.states, 4);
  if (answer.nearest && !answer.nearest->reason.empty()) text += wrapped("  ", answer.nearest->reason, 4);
  if (answer.remedies.empty()) {
    return text + "  no single change of the space, and no two of them, make it fit\n" + offer_rows(answer);
  }
  text += "\n  what makes it fit, by speed\n";
  for (const PlanChange& change : answer.remedies) {
    text += wrapped(formatted("  {:>9}  ", percent(change.speed)),
                    formatted("{}: {}; {}", change_text(change), layout(change.row), speed_text(change.row)), 13);
  }
  return text + offer_rows(answer);
}

std::string advice_rows(const std::vector<Advice>& advice) {
  if (advice.empty()) return {};
  std::string text = "\n  settings that do nothing, or harm\n";
  for (const Advice& one : advice) {
    const std::string cost = one.costs > Bytes(0) ? formatted(" ({})", glued(human(one.costs))) : std::string();
    text += wrapped("  ", formatted("{}{}: {}", one.key, cost, one.text), 4);
  }
  return text;
}

std::string first_line(const std::string& text, bool good, bool colour) {
  std::string lines = wrapped("", text, 2);
  lines.pop_back();  // The newline stays outside.
  return painted(lines, good ? Paint::Good : Paint::Bad, colour) + "\n";
}

}  // namespace

std::string fewest_text(std::int64_t gpus) {
  return gpus == 1 ? "1 GPU is enough: " : formatted("{} GPUs are the fewest that do: ", gpus);
}

std::string report_plan(const PlanAnswer& answer, bool colour) {
  std::string text = first_line(head(answer), answer.chosen.has_value(), colour);
  text += formatted("  {}\n\n", answer.model);
  if (answer.chosen) {
    text += chosen_rows(answer) + "\n";
    if (answer.chosen->time) text += time_rows(*answer.chosen->time);
    text += memory_rows(answer) + "\n";
  } else {
    text += failure_rows(answer) + "\n";
  }
  text += counts_rows(answer);
  if (answer.chosen) {
    text += plan_rows("next that fit, with other states", answer.next, answer);
    text += plan_rows("front of speed, memory and traffic", answer.front, answer);
    text += neighbour_rows(answer) + advice_rows(answer.advice);
  }
  return text + space_rows(answer.space);
}

namespace {

std::string time_text(const Chain& chain, Ticks ticks) {
  const double time = chain.time(ticks);
  const auto whole = static_cast<std::int64_t>(time);
  return static_cast<double>(whole) == time ? grouped(whole) : formatted("{:.6g}", time);
}

double percent_above(Ticks time, Ticks base) {
  return base == Ticks(0) ? 0.0
                          : 100.0 * static_cast<double>((time - base).value()) / static_cast<double>(base.value());
}

std::string head(const ChainPlan& plan, const Chain& chain) {
  if (plan.feasible) {
    std::string text = formatted("fits: {} of {}, time {}", glued(human(*plan.peak)), glued(human(plan.budget)),
                                 time_text(chain, *plan.time));
    if (*plan.time == *plan.lower_bound) return text + ": no schedule is faster";
    return text + formatted(": no schedule is more than {:.2f} % faster",
                            100.0 - 100.0 * chain.time(*plan.lower_bound) / chain.time(*plan.time));
  }
  return formatted("no plan fits: {} needs {}, {} more than the budget of {}", plan.method, glued(human(plan.minimum)),
                   glued(human(plan.minimum - plan.budget)), glued(human(plan.budget)));
}

std::string bytes_row(std::string_view label, Bytes bytes) {
  return formatted("  {:<24}{:>14}{:>24}\n", label, human(bytes), grouped(bytes.value()));
}

std::string figures(const ChainPlan& plan, const Chain& chain) {
  std::string text;
  const auto time_row = [&](std::string_view label, Ticks time, const std::string& remark) {
    text += formatted("  {:<24}{:>14}{}{}\n", label, time_text(chain, time), remark.empty() ? "" : "  ", remark);
  };
  const auto above = [&](Ticks time) {
    return formatted("+{:.2f} %", percent_above(time, plan.time_without_recompute));
  };
  time_row("time, nothing run twice", plan.time_without_recompute, "");
  if (plan.time) time_row("time of the plan", *plan.time, above(*plan.time));
  if (plan.method_bound) time_row("bound of the method", *plan.method_bound, above(*plan.method_bound) + " or more");
  if (plan.lower_bound) time_row("lower bound of time", *plan.lower_bound, above(*plan.lower_bound) + " or more");
  if (plan.peak) text += bytes_row("peak", *plan.peak);
  text += bytes_row("budget", plan.budget);
  text += bytes_row("smallest budget", plan.minimum);
  return text + bytes_row("lower bound of memory", plan.memory_bound);
}

std::string stages_text(std::int32_t first, std::int32_t last) {
  return first == last ? formatted("{}", first) : formatted("{} to {}", first, last);
}

std::string_view in_words(ChainSegment::Mode mode) {
  switch (mode) {
    case ChainSegment::Mode::Store: return "stored";
    case ChainSegment::Mode::Recompute: return "recomputed";
    case ChainSegment::Mode::RecomputeHeld: return "recomputed, weights held";
  }
  return "?";
}

std::string segments(const ChainPlan& plan, const Chain& chain) {
  if (plan.segments.empty()) return {};
  std::string text = "\n  stages\n";
  for (std::size_t at = 0; at < plan.segments.size();) {
    const ChainSegment& first = plan.segments[at];
    const auto alike = [&](const ChainSegment& other) {
      return other.mode == first.mode && other.option == first.option &&
             other.last - other.first == first.last - first.first;
    };
    std::size_t end = at + 1;
    while (end < plan.segments.size() && alike(plan.segments[end])) ++end;
    std::string what(in_words(first.mode));
    if (first.option != kNoOption) {
      const ChainStage& stage = chain.stages[static_cast<std::size_t>(first.first - 1)];
      what += formatted(" by {}", stage.options[static_cast<std::size_t>(first.option)].name);
    }
    const std::int32_t size = first.last - first.first + 1;
    if (end - at > 1 && size > 1) what += formatted(", in {} segments of {}", end - at, size);
    if (end - at > 1 && size == 1) what += ", one by one";
    if (end - at == 1 && size > 1 && first.mode != ChainSegment::Mode::Store) what += " as one segment";
    text += wrapped(formatted("  {:<16}", stages_text(first.first, plan.segments[end - 1].last)), what, 18);
    at = end;
  }
  return text;
}

std::string advice(const ChainPlan& plan) {
  std::string text = wrapped(
      "  ", formatted("the backward of stage {} alone takes {}", plan.culprit, glued(human(plan.memory_bound))), 4);
  text += wrapped("  ", formatted("smallest change: --budget {}B", plan.minimum.value()), 4);
  if (!plan.fitting.empty()) text += listed("  or another method: ", plan.fitting, 4);
  return text;
}

}  // namespace

std::string chain_report(const ChainPlan& plan, const Chain& chain, bool colour) {
  std::string text = first_line(head(plan, chain), plan.feasible, colour);
  const bool one = chain.stages.size() == 1;
  std::vector<std::string> what{chain.name, formatted("{} stage{}", chain.stages.size(), one ? "" : "s"), plan.method};
  if (plan.feasible) what.emplace_back(formatted("{} operations", plan.operations.size()));
  text += listed("  ", what, 2) + "\n" + figures(plan, chain) + segments(plan, chain);
  if (!plan.feasible) text += "\n" + advice(plan);
  return text;
}

}  // namespace dsplan
