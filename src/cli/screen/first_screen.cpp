#include "cli/screen/first_screen.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/report.h"
#include "cli/screen/table.h"
#include "cli/wrap.h"
#include "core/format.h"
#include "report/prediction_file.h"

namespace dsplan {
namespace {

constexpr std::size_t kMostBars = 6;

Paint paint_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::Fits: return Paint::Good;
    case Verdict::Tight:
    case Verdict::FitsWithRetries:
    case Verdict::Unknown: return Paint::Warning;
    case Verdict::DoesNotFit: return Paint::Bad;
  }
  return Paint::Strong;
}

std::string glued_size(Bytes bytes) { return glued(human(bytes)); }

// What the process takes at most; of a job without a peak its states.
Bytes taken(const Prediction& p) {
  if (p.peak && p.peak->process) return *p.peak->process;
  return p.needed.value_or(p.persistent.by_role.total());
}

std::string assumed_context(const Prediction& p) {
  const bool assumed =
      std::any_of(p.doubts.begin(), p.doubts.end(), [](const Doubt& doubt) { return doubt.what == "CUDA context"; });
  if (!assumed || !p.context) return {};
  return formatted("; {} of CUDA context assumed", glued_size(*p.context));
}

// With frees of other streams' blocks complete when their events would have, on the clock beside the allocator.
Bytes expected(const Prediction& p) {
  if (!p.peak || !p.peak->reserved_expected || !p.peak->process) return taken(p);
  return *p.peak->reserved_expected + p.context.value_or(Bytes(0)) + p.communicators.value_or(Bytes(0));
}

std::string spare_text(const Prediction& p) {
  const Bytes used = std::max(taken(p), expected(p));
  return glued_size(*p.capacity > used ? *p.capacity - used : Bytes(0));
}

// "takes 52.99 GiB of 79.65 GiB per GPU, at most 59.69 GiB: 19.96 GiB to spare".
std::string taken_text(const Prediction& p) {
  const Bytes as_a_rule = expected(p);
  const std::string most = as_a_rule >= taken(p) ? "," : formatted(", at most {}:", glued_size(taken(p)));
  return formatted("takes {} of {} per GPU{} {} to spare", glued_size(as_a_rule), glued_size(*p.capacity), most,
                   spare_text(p));
}

// How it goes on behind the first two steps: ", 1 in each later step".
std::string later_text(const Prediction& p) {
  const std::optional<LongRun>& run = p.long_run_expected ? p.long_run_expected : p.long_run;
  if (!run) return {};
  if (run->failed_step > 0) return formatted(", and memory runs out in step {}", run->failed_step);
  if (!run->repeats) return {};
  if (run->retries_period == 0) return ", none in later steps";
  if (run->period == 1) return formatted(", {} in each later step", run->retries_period);
  return formatted(", {} in every {} later steps", run->retries_period, run->period);
}

std::string retries_text(const Prediction& p) {
  if (p.retries == 0) return {};
  std::string text = formatted("the allocator gives its cache back {} time{}", p.retries, p.retries == 1 ? "" : "s");
  if (p.retries_expected && *p.retries_expected != p.retries) {
    text += formatted(" at most ({} expected)", *p.retries_expected);
  } else if (p.retries_low < p.retries) {
    text += formatted(" (or {})", p.retries_low);
  }
  return text + later_text(p);
}

// What retries only where frees end later than they are expected to.
bool runs_clean_as_a_rule(const Prediction& p) {
  const std::optional<LongRun>& run = p.long_run_expected;
  return run && run->retries == 0 && run->failed_step == 0;
}

std::string clean_as_a_rule(const Prediction& p) {
  const Bytes beside = p.context.value_or(Bytes(0)) + p.communicators.value_or(Bytes(0));
  return formatted(
      "takes {} of {} per GPU as a rule; where frees end late it would use {}, and {}",
      glued_size(p.long_run_expected->reserved + beside), glued_size(*p.capacity), glued_size(taken(p)),
      formatted("the allocator gives its cache back up to {} time{}", p.retries, p.retries == 1 ? "" : "s"));
}

std::string shortage(const Prediction& p, const std::string& device) {
  if (p.failure == "the host's memory" || p.failure == "the node's files") {
    return formatted("{} has room, the host has not: {}", device, p.verdict_reason);
  }
  if (!p.needed || !p.shortfall) return p.verdict_reason;
  const bool in_pieces = *p.needed + p.reserve <= *p.capacity;
  if (in_pieces) {
    return formatted("needs {} of {}, but what is free lies in pieces: {} missing for one request",
                     glued_size(*p.needed), glued_size(*p.capacity), glued_size(*p.shortfall));
  }
  const std::string kept = p.reserve > Bytes(0) ? formatted(", {} of them reserved", glued_size(p.reserve)) : "";
  return formatted("needs at least {} per GPU, {} has {}{}: {} short", glued_size(*p.needed), device,
                   glued_size(*p.capacity), kept, glued_size(*p.shortfall));
}

std::string said(const Prediction& p, const std::string& device) {
  switch (p.verdict) {
    case Verdict::Fits: return taken_text(p);
    case Verdict::Tight:
      if (p.retries > 0) {
        return formatted("fits in {} per GPU, but not in {} less, which is how far off this may be; {}",
                         glued_size(*p.capacity), glued_size(p.doubt()), retries_text(p));
      }
      return formatted("{}, and this may be {} too low", taken_text(p), glued_size(p.doubt()));
    case Verdict::FitsWithRetries:
      if (runs_clean_as_a_rule(p)) return clean_as_a_rule(p);
      return formatted("fits in {} per GPU, would use {} if it could: {}", glued_size(*p.capacity),
                       glued_size(taken(p)), retries_text(p));
    case Verdict::DoesNotFit: return shortage(p, device);
    case Verdict::Unknown: break;
  }
  if (!p.peak) return p.verdict_reason;
  return formatted("takes {} per GPU; how much there is nobody said: --hardware NAME, --capacity SIZE",
                   glued_size(taken(p)));
}

std::string runtime_text(const Job& job) {
  const Training& t = job.training;
  const Parallelism& ranks = job.parallelism;
  const std::string gpus = formatted("{} GPU{}", ranks.world, ranks.world == 1 ? "" : "s");
  if (t.runtime == Runtime::DeepSpeed) return formatted("ZeRO-{} on {}", t.zero.stage, gpus);
  const std::int64_t replicas = t.fsdp.replicate;
  if (is_fsdp(t.runtime) && replicas > 1) {
    return formatted("HSDP {} x {} on {}", replicas, ranks.dp / replicas, gpus);
  }
  if (t.runtime == Runtime::Fsdp2) return "FSDP2 on " + gpus;
  if (t.runtime == Runtime::Fsdp1) return "FSDP1 on " + gpus;
  return (ranks.dp > 1 ? "DDP on " : "PyTorch on ") + gpus;
}

// What the user would say of the job, the most telling first.
std::vector<std::string> job_items(const Prediction& p, const Job& job) {
  const Training& t = job.training;
  std::vector<std::string> items = {p.model, runtime_text(job)};
  if (job.parallelism.tp > 1) items.push_back(formatted("tp {}", job.parallelism.tp));
  items.emplace_back(name(t.dtype));
  items.push_back(formatted("micro-batch {}{}", t.micro_batch,
                            t.grad_accum > 1 ? formatted(" x {}", t.grad_accum) : std::string()));
  items.push_back(formatted("seq {}{}", t.seq, t.images > 0 ? formatted(" with {} images", t.images) : std::string()));
  items.push_back(t.checkpoint.text == "none" ? "no checkpointing" : "checkpoint " + t.checkpoint.text);
  items.push_back(optimizer_text(t));
  if (t.zero.offload_optimizer.device != OffloadDevice::None) {
    items.push_back(formatted("optimizer on {}", name(t.zero.offload_optimizer.device)));
  }
  if (t.zero.offload_param.device != OffloadDevice::None) {
    items.push_back(formatted("parameters on {}", name(t.zero.offload_param.device)));
  }
  if (p.parameters_trainable != p.parameters_total) {
    items.push_back(formatted("{} of {} parameters trained", grouped(p.parameters_trainable.value()),
                              grouped(p.parameters_total.value())));
  }
  return items;
}

struct Share {
  std::string what;
  Bytes bytes;
};

// What the peak is made of, largest first; small ones together. They sum to what the headline says.
std::vector<Share> shares(const Prediction& p, std::size_t most) {
  std::vector<Share> all;
  Bytes total =
      p.verdict == Verdict::Fits || p.verdict == Verdict::Unknown || (p.verdict == Verdict::Tight && p.retries == 0)
          ? taken(p)
          : p.needed.value_or(taken(p));
  Bytes told;
  const auto add = [&](std::string what, Bytes bytes) {
    if (bytes <= Bytes(0)) return;
    told += bytes;
    all.push_back({std::move(what), bytes});
  };
  const ByRole& roles = p.peak ? p.peak->by_role : p.persistent.by_role;
  for (std::size_t i = 0; i < kRoles; ++i) {
    std::string what(name(static_cast<Role>(i)));
    std::replace(what.begin(), what.end(), '_', ' ');
    add(std::move(what), roles.bytes[i]);
  }
  add("CUDA context", p.context.value_or(Bytes(0)));
  add("communicators", p.communicators.value_or(Bytes(0)));
  if (total > told) add("allocator's cache", total - told);
  std::stable_sort(all.begin(), all.end(), [](const Share& a, const Share& b) { return a.bytes > b.bytes; });
  if (all.size() <= most) return all;
  Share other{"other", Bytes(0)};
  for (std::size_t i = most - 1; i < all.size(); ++i) other.bytes += all[i].bytes;
  all.resize(most - 1);
  all.push_back(std::move(other));
  return all;
}

std::string bars(const Prediction& p, std::size_t most) {
  Table table({}, {Table::Align::Left, Table::Align::Right, Table::Align::Left});
  const std::vector<Share> all = shares(p, most);
  Bytes total;
  for (const Share& one : all) total += one.bytes;
  const std::int64_t whole = std::max(total, p.capacity.value_or(Bytes(0))).value();
  const std::size_t room = columns() > 40 ? columns() - 40 : 8;
  for (const Share& one : all) table.row({one.what, human(one.bytes), bar(one.bytes.value(), whole, room)});
  return table.text();
}

std::string speed_text(const FittingChange& change) {
  if (!change.speed) return {};
  return formatted("{:+.0f} %", 100 * (*change.speed - 1));
}

std::string change_rows(const Prediction& p) {
  if (p.changes.empty()) return {};
  Table table({"takes", "speed", "what would fit"}, {Table::Align::Right, Table::Align::Right, Table::Align::Left});
  for (std::size_t i = 0; i < std::min(kMostChanges, p.changes.size()); ++i) {
    const FittingChange& change = p.changes[i];
    std::string note = change.note;
    if (change.verdict != Verdict::Fits) note = in_words(change.verdict) + (note.empty() ? "" : "; " + note);
    table.row({human(change.process), speed_text(change), change.options + (note.empty() ? "" : "  (" + note + ")")});
  }
  return table.text();
}

// What is not the device's memory: time, traffic, the host.
std::string facts(const Prediction& p) {
  std::string text;
  std::vector<std::string> items;
  if (p.time) {
    items.push_back(formatted("step {} ({} to {})", seconds_text(p.time->total), seconds_text(p.time->low),
                              seconds_text(p.time->high)));
    items.push_back(formatted("{} tokens/s", grouped(std::llround(p.time->tokens_per_second))));
  }
  Bytes wire;
  for (const TrafficRow& row : p.communication.value_or(std::vector<TrafficRow>())) {
    if (row.phase != Pass::Setup && row.phase != Pass::Save) wire += row.wire;
  }
  if (wire > Bytes(0)) items.push_back(formatted("{} sent by each rank", human(wire)));
  if (!items.empty()) text += one_line(formatted("  {}", joined(items, ", ")));
  constexpr Bytes kWorthALine{1LL << 30};
  if (p.host.per_node && *p.host.per_node >= kWorthALine) {
    std::string line = formatted("  needs {} of host memory per node", human(*p.host.per_node));
    if (p.host.capacity) line += formatted(" of {}", human(*p.host.capacity));
    if (!p.host.capacity) line += ", size unknown (--host-memory)";
    text += one_line(line);
  }
  return text;
}

std::string tail(const Prediction& p, const Job& job) {
  std::vector<std::string> assumed;
  for (const ResolvedInput& input : job.assumptions()) {
    if (!input.name.ends_with("version")) assumed.push_back(input.name + " " + input.value);
  }
  std::vector<std::string> missing;
  for (const Absence& absence : all_absences(p)) missing.push_back(absence.what);
  std::string text;
  if (!assumed.empty()) text += fitted("assumed: ", assumed, " (--explain assumed)");
  if (!missing.empty()) text += fitted("not modelled: ", missing, " (--explain assumed)");
  return text + one_line("more: --explain memory|peak|time|traffic|assumed, --verbose; emit --format html");
}

std::size_t lines_in(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

std::string where(const Prediction& p) {
  if (p.verdict == Verdict::DoesNotFit && !p.failure.empty()) return one_line("  first fails at " + p.failure);
  if (!p.peak) return {};
  return one_line("  the most at " + p.peak->event);
}

}  // namespace

std::string in_words(Verdict verdict) {
  std::string text(name(verdict));
  for (char& c : text) c = c == '_' ? ' ' : static_cast<char>(c - 'a' + 'A');
  return text;
}

std::string headline(const Prediction& p, const std::string& device, bool colour) {
  const std::string word = in_words(p.verdict);
  std::string text = said(p, device.empty() ? "the device" : device) + assumed_context(p);
  if (p.world > 1) text += formatted(" {}", glued(formatted("(rank {} of {})", p.rank, p.world)));
  const std::string lines = wrapped(word + "  ", text, 2);
  return painted(word, paint_of(p.verdict), colour) + lines.substr(word.size());
}

std::string first_screen(const Prediction& p, const Job& job, bool colour) {
  const std::string head = headline(p, job.hardware ? job.hardware->name : std::string(), colour) +
                           fitted("  ", job_items(p, job), "") + where(p);
  const std::string changes = change_rows(p);
  const std::string below = facts(p);
  const std::string end = tail(p, job);
  const std::size_t others = lines_in(head) + lines_in(changes) + lines_in(below) + lines_in(end);
  // Blank lines between the parts, as far as there is room for them and for three bars.
  std::size_t blanks = 2;
  while (blanks > 0 && others + blanks + 3 > kScreenLines) --blanks;
  const std::size_t room = kScreenLines > others + blanks ? kScreenLines - others - blanks : 2;
  const std::string shown = bars(p, std::clamp<std::size_t>(room, 2, kMostBars));
  return head + (blanks > 0 ? "\n" : "") + shown + changes + below + (blanks > 1 ? "\n" : "") + end;
}

}  // namespace dsplan
