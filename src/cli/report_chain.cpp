#include "cli/report_chain.h"

#include "cli/report.h"
#include "cli/wrap.h"
#include "core/format.h"

namespace dsplan {
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
  std::string text =
      painted(wrapped("", head(plan, chain), 2), plan.feasible ? Verdict::Fits : Verdict::DoesNotFit, {colour, {}});
  const bool one = chain.stages.size() == 1;
  std::vector<std::string> what{chain.name, formatted("{} stage{}", chain.stages.size(), one ? "" : "s"), plan.method};
  if (plan.feasible) what.emplace_back(formatted("{} operations", plan.operations.size()));
  text += listed("  ", what, 2) + "\n" + figures(plan, chain) + segments(plan, chain);
  if (!plan.feasible) text += "\n" + advice(plan);
  return text;
}

}  // namespace dsplan
