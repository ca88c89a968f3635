#include "cli/run_report.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "cli/report_comparison.h"
#include "core/format.h"

namespace dsplan {
namespace {

double seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; }

void add_times(const exec::RankRun& rank, std::string& text) {
  if (rank.times.empty()) return;
  const exec::PhaseTime& last = rank.times.back();
  append_formatted(text,
                   "last step of rank 0: forward {:.3f} s, backward {:.3f} s, optimizer {:.3f} s; of these {:.3f} s in "
                   "collectives\n",
                   seconds(last.forward), seconds(last.backward), seconds(last.step), seconds(last.communication));
}

void add_losses(const exec::RankRun& rank, std::string& text) {
  if (rank.losses.empty()) return;
  append_formatted(text, "loss of rank 0: {:.6f} in the first micro-batch, {:.6f} in the last of {}\n",
                   rank.losses.front(), rank.losses.back(), rank.losses.size());
}

void add_steps(const exec::RankRun& rank, std::string& text) {
  if (rank.steps.empty()) return;
  const auto skipped =
      std::count_if(rank.steps.begin(), rank.steps.end(), [](const auto& step) { return step.skipped; });
  append_formatted(text, "loss scale: {} in the first step, {} in the last of {}; {} left out\n",
                   rank.steps.front().loss_scale, rank.steps.back().loss_scale, rank.steps.size(), skipped);
}

std::string signed_bytes(std::int64_t bytes) { return (bytes < 0 ? "-" : "+") + human(Bytes(std::abs(bytes))); }

void add_process(const ProcessBytes& process, std::string& text) {
  const ProcessMoment& end = process.moments.back();
  if (!end.process && !end.device_used) return;
  text += "process";
  if (end.process) text += formatted(": {} in all", human(*end.process));
  text += formatted("{} {} reserved", end.process ? "," : ":", human(end.reserved));
  for (const ProcessRow& row : process.rows) text += formatted(", {} {}", row.what, human(row.bytes));
  if (const auto left = process.unexplained()) text += formatted(", {} unexplained", signed_bytes(*left));
  if (end.device_used) text += formatted("; of the device {} are used", human(*end.device_used));
  text += "\n";
}

// Beside the plan, and no row of it: connections come at the first calls, so that this is the smaller part.
void add_communicators(const exec::RankRun& rank, Bytes predicted, std::string& text) {
  append_formatted(text, "communicators of rank 0 as they were made: {} by formula, measured {}\n", human(predicted),
                   rank.communicators ? human(*rank.communicators) : "not at all");
}

}  // namespace

std::string report_run(const exec::RunResult& result, const Receipt& receipt, const ReceiptComparison& comparison,
                       std::optional<Bytes> communicators) {
  std::string text;
  if (!result.ranks.empty()) {
    add_losses(result.ranks.front(), text);
    add_steps(result.ranks.front(), text);
    add_times(result.ranks.front(), text);
    if (communicators) add_communicators(result.ranks.front(), *communicators, text);
  }
  if (result.resident_growth >= 0) {
    append_formatted(text, "resident set: grew by {}, all ranks and libraries together\n",
                     human(Bytes(result.resident_growth)));
  }
  if (receipt.process) add_process(*receipt.process, text);
  if (result.strangers > 0) {
    append_formatted(text, "strangers: {} connection{} not of this run, and dropped\n", result.strangers,
                     result.strangers == 1 ? " was" : "s were");
  }
  if (!result.message.empty()) text += result.message + "\n";
  return text + report({comparison}, {});
}

}  // namespace dsplan
