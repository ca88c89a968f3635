#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "cli/report_plan.h"
#include "cli/screen/first_screen.h"
#include "cli/screen/table.h"
#include "cli/wrap.h"
#include "core/format.h"

namespace dsplan {
namespace {

using Align = Table::Align;

constexpr std::size_t kMostRows = 4;
constexpr std::size_t kMostWays = 3;  // Of two lines each, mostly.
constexpr std::size_t kMostRemedies = 2;

std::string states(const PlanRow& row) {
  const std::string& stage = setting(row, Axis::ZeroStage);
  if (stage == "pytorch") return "PyTorch";
  if (stage == "fsdp2" || stage == "hsdp") return stage == "hsdp" ? "HSDP" : "FSDP2";
  const bool number = stage.find_first_not_of("0123456789") == std::string::npos;
  return number ? "ZeRO-" + stage : stage;
}

// The files that frameworks read of such a plan, before those of every plan.
std::string_view written_as(const PlanRow& row) {
  const std::string& stage = setting(row, Axis::ZeroStage);
  if (stage == "pytorch") return "";
  return stage == "fsdp2" ? "accelerate|" : stage == "hsdp" ? "torchtitan|" : "deepspeed|";
}

std::string layout(const PlanRow& row) {
  std::vector<std::string> parts = {states(row)};
  if (setting(row, Axis::Offload) != "none") parts.push_back("offload " + setting(row, Axis::Offload));
  if (setting(row, Axis::TensorParallel) != "1") parts.push_back("tp " + setting(row, Axis::TensorParallel));
  parts.push_back("micro-batch " + setting(row, Axis::MicroBatch));
  const std::string& checkpoint = setting(row, Axis::Checkpoint);
  parts.push_back(checkpoint == "none" ? "no checkpointing" : "checkpoint " + checkpoint);
  return formatted("{}", joined(parts, ", "));
}

std::string speed(const PlanRow& row) {
  return row.time ? grouped(std::llround(row.time->tokens_per_second)) : std::string("-");
}

std::string found(const PlanAnswer& answer) {
  if (answer.objective == Objective::Gpus) return fewest_text(answer.chosen->world);
  if (!answer.found) return {};
  switch (answer.objective) {
    case Objective::MicroBatch: return formatted("micro-batch {} is the largest that fits: ", *answer.found);
    case Objective::Seq: return formatted("seq {} is the longest that fits, in steps of 64: ", grouped(*answer.found));
    case Objective::Layers: return formatted("{} layers are the most that fit: ", *answer.found);
    default: return {};
  }
}

std::string memory_of(const PlanAnswer& answer) {
  const PlanRow& row = *answer.chosen;
  if (!row.process) return {};
  const Bytes doubt = answer.prediction ? answer.prediction->doubt() : Bytes(0);
  std::string text;
  if (row.fate == Fate::FitsWithRetries || *row.process > answer.limit) {
    text = formatted("fits in {} per GPU, would use {} if it could: the allocator gives cache back",
                     human(answer.limit), human(*row.process));
  } else {
    text = formatted("takes {} of {} per GPU, {} to spare", human(*row.process), human(answer.limit),
                     human(answer.limit - *row.process));
    if (row.fate == Fate::Tight) {
      text += formatted(": TIGHT, this may be {} too low", human(doubt));
    } else if (doubt > Bytes(0) && *row.process + doubt <= answer.limit) {
      text += formatted(" (this may be {} too low)", human(doubt));
    } else if (doubt > Bytes(0)) {
      text += formatted("; should this be {} too low, the allocator gives cache back", human(doubt));
    }
  }
  return wrapped("  ", text, 2);
}

std::string chosen_head(const PlanAnswer& answer, bool colour) {
  const PlanRow& row = *answer.chosen;
  std::string text = found(answer) + layout(row);
  if (row.time) text += formatted("; {} tokens/s, step {:.3g} s", speed(row), row.time->total);
  if (!answer.complete) text += "; the search was ended before it was complete";
  const std::string lines = wrapped("BEST  ", text, 6);
  std::string head = painted("BEST", row.fate == Fate::Fits ? Paint::Good : Paint::Warning, colour) + lines.substr(4);
  const std::string& model = answer.model;
  std::vector<std::string> items = {
      model, formatted("{} GPU{}", row.world, row.world == 1 ? "" : "s"), formatted("seq {}", grouped(row.seq)),
      formatted("{} rows per step", grouped(row.grad_accum * row.dp * std::stoll(setting(row, Axis::MicroBatch))))};
  return head + fitted("  ", items, "") + memory_of(answer);
}

// The plan and those that come next to it: each fits.
std::string plans_table(const PlanAnswer& answer) {
  Table table(
      {"", "states", "tp", "mb", "checkpoint", "takes", "tokens/s", ""},
      {Align::Left, Align::Left, Align::Right, Align::Right, Align::Left, Align::Right, Align::Right, Align::Left});
  const auto add = [&](std::string what, const PlanRow& row) {
    std::string offload = setting(row, Axis::Offload);
    std::string checkpoint = setting(row, Axis::Checkpoint);
    constexpr std::size_t kWide = 22;
    if (checkpoint.size() > kWide) checkpoint = checkpoint.substr(0, kWide - 3) + "...";
    table.row({std::move(what), states(row) + (offload == "none" ? "" : "+offload"), setting(row, Axis::TensorParallel),
               setting(row, Axis::MicroBatch), checkpoint,
               row.process ? human(std::min(*row.process, answer.limit)) : "-", speed(row),
               row.fate == Fate::Fits    ? ""
               : row.fate == Fate::Tight ? "tight"
                                         : "retries"});
  };
  add("best", *answer.chosen);
  if (answer.tight) add("tight", *answer.tight);
  for (std::size_t i = 0; i < std::min(kMostRows - 1, answer.next.size()); ++i) {
    const bool shown = answer.tight && answer.next[i].settings == answer.tight->settings;
    if (!shown) add("next", answer.next[i]);
  }
  return table.lines(kMostRows);
}

// What is given up for what is kept free, and how to have it all the same.
std::string tight_one(const PlanAnswer& answer) {
  if (!answer.tight || !answer.tight->process) return {};
  const PlanRow& row = *answer.tight;
  const double faster = row.tokens_per_second() / answer.chosen->tokens_per_second() - 1;
  const Bytes doubt = answer.prediction ? answer.prediction->doubt() : Bytes(0);
  const Bytes spare = *row.process < answer.limit ? answer.limit - *row.process : Bytes(0);
  return wrapped("  ",
                 formatted("tight is {:.1f} % faster and leaves {}, where a prediction may be {} too low; --reserve 0B "
                           "takes it",
                           100 * faster, human(spare), human(doubt)),
                 2);
}

std::string why_not(const PlanAnswer& answer) {
  std::vector<std::string> reasons;
  for (const PlanChange& change : answer.neighbours) {
    if (reasons.size() == 3) break;
    const Axis axis = change.axes.front();
    const std::string what = formatted("{} {}", name(axis), setting(change.row, axis));
    const bool too_large = change.row.fate == Fate::Bounded || change.row.fate == Fate::DoesNotFit;
    if (too_large && change.row.missing) {
      reasons.push_back(formatted("{} is {} too large", what, human(*change.row.missing)));
    } else if (change.row.fate == Fate::Tight) {
      reasons.push_back(formatted("{} is tight", what));
    } else if (fits(change.row.fate) && change.speed > 1) {
      reasons.push_back(formatted("{} is {:.1f} % faster, but {} says {}", what, 100 * (change.speed - 1),
                                  answer.space[axis].reason, formatted("{}", joined(answer.space[axis].values, ", "))));
    } else if (change.speed < 1 && change.speed > 0) {
      reasons.push_back(formatted("{} is {:.1f} % slower", what, 100 * (1 - change.speed)));
    }
  }
  if (reasons.empty()) return {};
  return fitted("  why not: ", reasons, "");
}

std::string searched(const PlanAnswer& answer, double seconds) {
  const SearchCounts& counts = answer.counts;
  return wrapped("",
                 formatted("searched {} candidates in {:.1f} s: {} simulated, {} too large, {} slower, {} impossible",
                           grouped(counts.candidates), seconds, grouped(counts.simulated), grouped(counts.bounded),
                           grouped(counts.slower), grouped(counts.refused)),
                 2);
}

std::string tail(const PlanAnswer& answer, const std::string& model, double seconds) {
  std::string text = searched(answer, seconds);
  if (!answer.assumed.empty()) text += fitted("assumed: ", answer.assumed, "");
  if (!answer.not_searched.empty()) text += fitted("not searched: ", answer.not_searched, "");
  if (answer.chosen)
    text += one_line(formatted("write it: --emit {}launch|plan   all of it: --verbose", written_as(*answer.chosen)));
  if (!answer.chosen) text += one_line(formatted("more: dsplan plan {} ... --verbose", model));
  return text;
}

std::string failure(const PlanAnswer& answer, bool colour) {
  std::string text = "the search was ended before one was found to fit";
  if (answer.complete) text = "no plan fits";
  if (answer.nearest) {
    text = formatted("the nearest misses {}: {}", glued(human(answer.nearest->missing.value_or(Bytes(0)))),
                     layout(*answer.nearest));
  }
  const std::string lines = wrapped("NO PLAN FITS  ", text, 2);
  std::string head = painted("NO PLAN FITS", Paint::Bad, colour) + lines.substr(12);
  if (!answer.states.empty()) head += one_line("  " + answer.states);
  Table remedies({"what makes it fit", "takes", "tokens/s"}, {Align::Left, Align::Right, Align::Right});
  for (std::size_t i = 0; i < std::min(kMostRemedies, answer.remedies.size()); ++i) {
    const PlanRow& row = answer.remedies[i].row;
    std::string what;
    for (const Axis axis : answer.remedies[i].axes) {
      what += formatted("{}{} {}", what.empty() ? "" : ", ", name(axis), setting(row, axis));
    }
    remedies.row({std::move(what), row.process ? human(std::min(*row.process, answer.limit)) : "-", speed(row)});
  }
  Table ways({"takes", "or, with single rows and every layer checkpointed"}, {Align::Right, Align::Left});
  // What does not fit is told only where nothing does: those come last.
  for (std::size_t i = 0; i < std::min(kMostWays, answer.offers.size()); ++i) {
    const FittingChange& way = answer.offers[i];
    if (i > 0 && !fits(way.verdict)) break;
    std::string what = way.options.substr(0, way.options.find("--micro-batch"));
    if (what.empty()) what = "as it is ";
    std::string note = in_words(way.verdict);
    if (!way.note.empty()) note += "; " + way.note;
    ways.row({human(way.process), formatted("{} ({})", what, note)});
  }
  if (!remedies.empty()) head += "\n" + remedies.lines(kMostRows);
  if (!ways.empty()) head += (remedies.empty() ? "\n" : "") + ways.text();
  return head;
}

}  // namespace

std::string plan_screen(const PlanAnswer& answer, const std::string& model, double seconds, bool colour) {
  if (!answer.chosen) return failure(answer, colour) + tail(answer, model, seconds);
  return chosen_head(answer, colour) + "\n" + plans_table(answer) + tight_one(answer) + why_not(answer) +
         tail(answer, model, seconds);
}

}  // namespace dsplan
