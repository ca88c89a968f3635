#include "cli/report.h"

#include <algorithm>
#include <cmath>

#include "cli/screen/first_screen.h"
#include "cli/screen/table.h"
#include "cli/wrap.h"
#include "core/format.h"
#include "core/units.h"
#include "report/cells.h"
#include "report/prediction_file.h"

namespace dsplan {
namespace {

std::string size(const std::optional<Bytes>& bytes) { return bytes ? human(*bytes) : "-"; }
std::string size_or_dash(Bytes bytes) { return bytes == Bytes(0) ? "-" : human(bytes); }

using detail::spaced;

// The largest figure that is known of a peak, and what it is called.
struct Figure {
  Bytes bytes;
  std::string_view what;
};

Figure largest_figure(const Prediction& prediction) {
  if (!prediction.peak) return {prediction.persistent.by_role.total(), "persistent"};
  const Peak& peak = *prediction.peak;
  if (peak.process) return {*peak.process, "peak"};
  if (peak.reserved) return {*peak.reserved, "peak reserved"};
  return {peak.allocated, "peak allocated"};
}

std::string sharding_text(Runtime runtime) { return runtime == Runtime::Fsdp1 ? "FSDP1" : "FSDP2"; }

std::string job_lines(const Prediction& prediction, const Job& job) {
  const Training& training = job.training;
  const Parallelism& ranks = job.parallelism;
  std::vector<std::string> model = {prediction.model, grouped(prediction.parameters_total.value()) + " parameters"};
  if (prediction.parameters_trainable != prediction.parameters_total) {
    model.push_back(grouped(prediction.parameters_trainable.value()) + " trainable");
  }
  std::vector<std::string> run;
  const Fsdp& fsdp = training.fsdp;
  if (is_fsdp(training.runtime)) {
    run.push_back(fsdp.replicate > 1 ? formatted("HSDP {} x {}", fsdp.replicate, ranks.dp / fsdp.replicate)
                                     : sharding_text(training.runtime));
    run.push_back(formatted("groups {}", fsdp.wrap));
    if (training.master_dtype != training.dtype) run.push_back(formatted("shards {}", name(training.master_dtype)));
  } else {
    run.emplace_back(training.runtime == Runtime::DeepSpeed ? formatted("ZeRO stage {}", training.zero.stage)
                                                            : (ranks.dp > 1 ? "PyTorch DDP" : "PyTorch"));
  }
  run.push_back(formatted("{} GPU{}", ranks.world, ranks.world == 1 ? "" : "s"));
  if (ranks.tp > 1) run.push_back(formatted("tp {}", ranks.tp));
  run.emplace_back(name(training.dtype));
  if (training.autocast) run.push_back(formatted("autocast {}", name(*training.autocast)));
  run.push_back(optimizer_text(training));
  run.push_back(formatted("micro-batch {}", training.micro_batch));
  run.push_back(formatted("accumulation {}", training.grad_accum));
  if (training.seq_list.empty()) {
    run.push_back(formatted("seq {}", training.seq));
  } else {
    run.push_back(formatted("seq {} in turn", joined(training.seq_list, ", ")));
  }
  if (training.target_seq > 0) run.push_back(formatted("target {}", training.target_seq));
  if (training.images > 0) run.push_back(formatted("images {}", training.images));
  if (!training.image_size.empty()) run.push_back(formatted("of {} pixels", joined(training.image_size, " x ")));
  run.push_back(formatted("checkpointing {}", training.checkpoint.text));
  run.push_back(formatted("attention {}", name(training.attention)));
  run.push_back("loss " + loss_text(training));
  run.push_back(formatted("torch {}", training.torch.text()));
  run.push_back(formatted("transformers {}", training.transformers.text()));
  if (training.level == Level::Dispatch) run.emplace_back("dispatch level");
  if (!job.allocator_conf.empty()) run.push_back("allocator " + job.allocator_conf);
  if (job.stream_frees == StreamFrees::Immediate) run.emplace_back("frees immediate");
  const auto offload = [&run](const char* what, const Offload& to) {
    if (to.device != OffloadDevice::None) run.push_back(formatted("{} on {}", what, name(to.device)));
  };
  offload("optimizer", training.zero.offload_optimizer);
  offload("parameters", training.zero.offload_param);
  return listed("", model, 2) + listed("", run, 2);
}

// A row of the memory table; absent columns on the right leave no blanks behind.
std::string memory_row(std::string_view label, const std::vector<std::string>& columns) {
  // Columns end where they end in every row: a long label reaches into those that are empty.
  std::string text = formatted("  {}", label);
  std::size_t end = 18;
  for (const std::string& column : columns) {
    end += 15;
    if (column.empty()) continue;
    const std::size_t begin = end - std::min(end, column.size());
    text += std::string(begin - std::min(begin, text.size() + 1) + 1, ' ') + column;
  }
  return text + "\n";
}

std::string memory_table(const Prediction& prediction) {
  const ByRole& persistent = prediction.persistent.by_role;
  const bool peaked = prediction.peak.has_value();
  const bool holds = prediction.held_for_backward.has_value();
  const ByRole held = holds ? prediction.held_for_backward->by_role : ByRole{};
  const ByRole peak = peaked ? prediction.peak->by_role : ByRole{};
  std::string text;
  if (holds || peaked) text += memory_row("", {"", holds ? "held for" : "", peaked ? "transient" : ""});
  text += memory_row("role", {"persistent", holds ? "backward" : "", peaked ? "at peak" : "", peaked ? "at peak" : ""});
  const auto row = [&](std::string_view label, Bytes of_persistent, Bytes of_held, Bytes of_peak) {
    text +=
        memory_row(label, {size_or_dash(of_persistent), holds ? size_or_dash(of_held) : "",
                           peaked ? size_or_dash(of_peak - of_persistent) : "", peaked ? size_or_dash(of_peak) : ""});
  };
  for (std::size_t i = 0; i < kRoles; ++i) {
    const bool empty = persistent.bytes[i] == Bytes(0) && held.bytes[i] == Bytes(0) && peak.bytes[i] == Bytes(0);
    if (!empty) row(spaced(name(static_cast<Role>(i))), persistent.bytes[i], held.bytes[i], peak.bytes[i]);
  }
  row("total", persistent.total(), held.total(), peak.total());
  const bool spikes = prediction.loss_spike && prediction.loss_spike->requested > Bytes(0);
  if (spikes) text += memory_row("logits and loss", {"", "", "", human(prediction.loss_spike->requested)});
  return text + process_rows(prediction);
}

std::string states_line(const Prediction& prediction) {
  const States& states = prediction.states;
  return listed(formatted("  states {}: ", human(states.total())),
                {"parameters " + human(states.parameters), "gradients " + human(states.gradients),
                 "optimizer " + human(states.optimizer)},
                4);
}

constexpr char kTrafficRow[] = "  {:<24}{:>8}{:>22}{:>22}\n";

// One line per collective and group; control rows, which are small and many, fold into one.
std::string traffic(const std::vector<TrafficRow>& rows) {
  struct Sum {
    std::string label;
    bool once;  // Before the first step or when the model is saved: no part of a step.
    std::int64_t calls = 0;
    Bytes payload{};
    Bytes wire{};
  };
  std::vector<Sum> sums;
  Sum control{.label = "control", .once = false};
  for (const TrafficRow& row : rows) {
    const std::string_view once = row.phase == Pass::Setup ? ", init" : row.phase == Pass::Save ? ", save" : "";
    const std::string label = formatted("{} ({}){}", name(row.collective), name(row.group), once);
    auto at = std::find_if(sums.begin(), sums.end(), [&](const Sum& sum) { return sum.label == label; });
    if (row.kind == TrafficKind::Data && at == sums.end())
      at = sums.insert(at, {.label = label, .once = !once.empty()});
    Sum& sum = row.kind == TrafficKind::Data ? *at : control;
    sum.calls += row.calls;
    sum.payload += row.payload;
    sum.wire += row.wire;
  }
  if (control.calls > 0) sums.push_back(control);
  if (sums.empty()) return "  no traffic\n";
  std::stable_partition(sums.begin(), sums.end(), [](const Sum& sum) { return !sum.once; });
  std::string text = formatted(kTrafficRow, "traffic of one step", "calls", "payload", "wire");
  for (const Sum& sum : sums) {
    text += formatted(kTrafficRow, sum.label, sum.calls, human(sum.payload), human(sum.wire));
  }
  return text;
}

std::string traffic_in_full(const std::vector<TrafficRow>& rows) {
  static constexpr char kRow[] = "  {:<15}{:<6}{:<9}{:<6}{:<8}{:>8}{:>13}{:>13}\n";
  std::string text = formatted(kRow, "collective", "group", "phase", "dtype", "kind", "calls", "payload", "wire");
  for (const TrafficRow& row : rows) {
    text +=
        formatted(kRow, name(row.collective), name(row.group),
                  name(row.phase == Pass::Recompute ? Pass::Backward : row.phase), name(row.dtype),
                  row.kind == TrafficKind::Data ? "data" : "control", row.calls, human(row.payload), human(row.wire));
  }
  return text;
}

// ZeRO-3: the words of DeepSpeed's own profiler (partitioned_param_profiler.py), which prints partitions where a fetch
// is counted, whole parameters where they are gathered.
std::string fetches(const std::vector<FrameworkCount>& counts) {
  if (counts.empty()) return {};
  std::string text = "\nthe parameter coordinator's events in one steady micro-batch\n";
  for (const FrameworkCount& count : counts) {
    text += formatted("  {}: count = {}, numel = {}\n", count.name, count.count, count.elements);
  }
  return text;
}

std::string departures(const std::vector<TrafficTerm>& terms) {
  if (terms.empty()) return {};
  std::string text = "\n  what a rank sends in one step (wire), beside the paper's count\n";
  Bytes sum;
  for (const TrafficTerm& term : terms) {
    sum += term.wire;
    text += wrapped(formatted("{:>13}  ", human(term.wire)), term.what + ": " + term.why, 15);
  }
  return text + formatted("{:>13}  in all\n", human(sum));
}

std::string buffers(std::string_view title, const std::vector<LiveBuffer>& list) {
  std::string text = formatted("  {}\n{:>13}{:>7}  {:<16}{}\n", title, "each", "count", "role", "what");
  for (const LiveBuffer& buffer : list) {
    const bool told = buffer.module.empty() || buffer.name.find(buffer.module) != std::string::npos;
    std::string what = told ? buffer.name : buffer.name + ", " + buffer.module;
    if (!buffer.rule.empty()) what += " (" + buffer.rule + ")";
    text += wrapped(formatted("{:>13}{:>7}  {:<16}", human(buffer.bytes), buffer.count, spaced(name(buffer.role))),
                    what, 38);
  }
  return text;
}

std::string closing(const Prediction& prediction, const Job& job) {
  std::vector<std::string> assumed;
  for (const ResolvedInput& input : job.assumptions()) assumed.push_back(input.name + "=" + input.value);
  std::vector<std::string> missing;
  for (const Absence& absence : all_absences(prediction)) missing.push_back(absence.what);
  return listed("assumed: ", assumed, 2) + listed("not modelled: ", missing, 2);
}

bool asked(const ReportStyle& style, Topic topic) {
  return std::find(style.explain.begin(), style.explain.end(), topic) != style.explain.end();
}

// What costs nothing stands on the error stream already, and in the topic.
std::string advice(const std::vector<Advice>& list, bool all) {
  std::string text;
  for (const Advice& one : list) {
    if (!all && one.costs == Bytes(0)) continue;
    const std::string costs = one.costs > Bytes(0) ? "costs " + glued(human(one.costs)) : std::string("costs nothing");
    text += wrapped("  ", formatted("{} ({}) {}: {}", one.key, one.rule, costs, one.text), 4);
  }
  if (text.empty()) return all ? "  no advice\n" : text;
  return "  advice\n" + text;
}

// Enumerated from the best to the worst, but that nothing is worse than what does not fit.
int badness(Verdict verdict) {
  if (verdict == Verdict::DoesNotFit) return static_cast<int>(Verdict::Unknown) + 1;
  return static_cast<int>(verdict);
}

std::string device_of(const Job& job) { return job.hardware ? job.hardware->name : std::string(); }

// Each assumption and absence with its reason.
std::string reasons(const Prediction& prediction, const Job& job) {
  using Align = Table::Align;
  Table assumed({"assumed", "value", "settled by", "because"}, {Align::Left, Align::Left, Align::Left, Align::Left});
  for (const ResolvedInput& input : job.assumptions()) {
    assumed.row({input.name, input.value, input.option, input.reason});
  }
  std::string text = assumed.empty() ? "  nothing is assumed\n" : assumed.text();
  if (!prediction.doubts.empty()) {
    Table doubts({}, {Align::Right, Align::Left, Align::Left});
    for (const Doubt& doubt : prediction.doubts) doubts.row({human(doubt.bytes), doubt.what, doubt.why});
    text += formatted("\n  the process may take up to {} more\n", human(prediction.doubt())) + doubts.text(4);
  }
  Table missing({"not modelled", "because"}, {Align::Left, Align::Left});
  for (const Absence& absence : all_absences(prediction)) missing.row({absence.what, absence.why});
  return missing.empty() ? text : text + "\n" + missing.text();
}

}  // namespace

// What lies around the allocator's bytes; nothing without a peak.
std::string process_rows(const Prediction& prediction) {
  if (!prediction.peak) return {};
  const Peak& peak = *prediction.peak;
  std::string text = memory_row("allocated", {size(prediction.persistent.allocated), "", "", human(peak.allocated)});
  const auto row = [&text](std::string_view label, const std::optional<Bytes>& bytes) {
    if (bytes.value_or(Bytes(0)) > Bytes(0)) text += memory_row(label, {"", "", "", human(*bytes)});
  };
  if (peak.active != peak.allocated) row("active", peak.active);
  if (prediction.arena) {
    row("arena, planned", prediction.arena->height);
    row("  load bound", prediction.arena->lower_bound);
    row("  caching", prediction.arena->reserved);
  } else {
    row("reserved", peak.reserved);
  }
  if (peak.reserved_expected) row("reserved at estimated times", peak.reserved_expected);
  if (peak.reserved_low != peak.reserved) row("reserved if frees complete at once", peak.reserved_low);
  row("context", prediction.context);
  row("communicators", prediction.communicators);
  row("process", peak.process);
  if (peak.process_high != peak.process) row("process, high", peak.process_high);
  return text;
}

std::string moment(const Prediction& prediction) {
  const Peak& peak = *prediction.peak;
  const std::string where = peak.event.empty() ? formatted("event {}", peak.event_index) : peak.event;
  return wrapped("  ", formatted("peak in {}: {}", spaced(peak.phase), where), 4);
}

namespace {

std::string phase_table(const std::vector<Phase>& phases) {
  static constexpr char kRow[] = "  {:<22}{:>14}{:>14}{:>14}{:>14}\n";
  std::string text = "\n" + formatted(kRow, "peaks by phase", "requested", "allocated", "reserved", "asked in all");
  for (const Phase& phase : phases) {
    text += formatted(kRow, spaced(phase.name), human(phase.peak_requested), human(phase.peak_allocated),
                      human(phase.peak_reserved), phase.requested_total ? human(*phase.requested_total) : "-");
    for (const PhasePart& part : phase.parts) {
      text += formatted(kRow, "  " + part.name, human(part.peak.requested), human(part.peak.allocated),
                        human(part.peak.reserved), "-");
    }
  }
  return text;
}

}  // namespace

std::string explained(const Prediction& prediction) {
  std::string text;
  if (prediction.peak) text += buffers("the largest live buffers at the peak", prediction.peak->live);
  if (!prediction.phases.empty()) text += phase_table(prediction.phases);
  if (!prediction.held_for_backward) return text.empty() ? "  no peak is known\n" : text;
  const HeldForBackward& held = *prediction.held_for_backward;
  if (held.by_module.empty()) return text;
  text += formatted("\n  held for backward by module\n");
  for (const ModuleBytes& module : held.by_module) {
    text += wrapped(formatted("{:>13}  ", human(module.bytes)), module.module.empty() ? "(root)" : module.module, 15);
  }
  return text;
}

std::string saved_table(const std::vector<SavedTensor>& saved) {
  std::string text =
      formatted("  saved for backward, node by node\n{:>13}{:>7}  {:<11}{}\n", "each", "count", "storage", "what");
  Bytes total;
  for (const SavedTensor& tensor : saved) {
    total += tensor.counted;
    std::string what = formatted("{} of {}", tensor.name, tensor.node);
    if (!tensor.tensor.empty()) what += formatted(" = {}", tensor.tensor);
    if (!tensor.module.empty()) what += formatted(", {}", tensor.module);
    text +=
        wrapped(formatted("{:>13}{:>7}  {:<11}", human(tensor.bytes), tensor.count, name(tensor.storage)), what, 33);
  }
  return text + formatted("  {} in all: shared storages once, parameters not at all\n", human(total));
}

// Only where later steps differ from the first two.
std::string long_run_line(const Prediction& prediction) {
  if (!prediction.long_run || !prediction.peak || !prediction.peak->reserved_low) return "";
  const LongRun& run = *prediction.long_run;
  std::string text;
  if (run.failed_step > 0) {
    text = formatted("out of memory in step {}", run.failed_step);
  } else if (run.retries_period > 0) {
    text = formatted("{} allocator retries in {}, for good", run.retries_period,
                     run.period == 1 ? "each" : formatted("every {}", run.period));
  } else if (run.first_retry > 0) {
    text = formatted("{} allocator retries, the first in step {}", run.retries, run.first_retry);
  } else if (run.reserved > *prediction.peak->reserved_low) {
    text = formatted("{} reserved", human(run.reserved));
  }
  if (!run.repeats && run.failed_step == 0) {
    text += formatted("{}no rest within {} steps", text.empty() ? "" : ", ", run.steps);
  }
  return text.empty() ? text : formatted("  later steps: {}\n", text);
}

// Small change (random state, step counters) is not worth a line.
std::string host_line(const HostMemory& host) {
  constexpr Bytes kWorthALine{1 << 20};
  if (!host.peak || (*host.peak < kWorthALine && host.verdict != Verdict::DoesNotFit)) return {};
  std::string text = formatted("host: pinned {} ({} requested), pageable {}; {} on a node", human(*host.pinned),
                               human(*host.pinned_requested), human(*host.pageable), human(*host.per_node));
  if (*host.nvme > Bytes(0)) {
    text += formatted("; files {}, {} on a node; each step reads {} and writes {}", human(*host.nvme),
                      human(*host.nvme_per_node), human(*host.nvme_read), human(*host.nvme_written));
    if (host.nvme_verdict != Verdict::Unknown) text += "; " + host.nvme_verdict_reason;
  }
  if (host.verdict != Verdict::Unknown) text += "; " + host.verdict_reason;
  return wrapped("", text, 2);
}

const Prediction& worst_of(const std::vector<Prediction>& predictions) {
  return *std::max_element(predictions.begin(), predictions.end(), [](const Prediction& a, const Prediction& b) {
    if (badness(a.verdict) != badness(b.verdict)) return badness(a.verdict) < badness(b.verdict);
    return largest_figure(a).bytes < largest_figure(b).bytes;
  });
}

namespace {

std::string topic(const Prediction& prediction, const Job& job, Topic of) {
  switch (of) {
    case Topic::Memory: {
      std::string text = memory_table(prediction) + states_line(prediction);
      if (prediction.peak) text += moment(prediction);
      return text + host_line(prediction.host);
    }
    case Topic::Time: return prediction.time ? time_report(*prediction.time) : "  no time is known\n";
    case Topic::Assumed: return reasons(prediction, job);
    case Topic::Peak: return explained(prediction);
    case Topic::Saved: return prediction.saved ? saved_table(*prediction.saved) : std::string();
    case Topic::Traffic:
      if (!prediction.communication) return "  the traffic is not known\n";
      if (prediction.communication->empty()) return "  no traffic\n";
      return traffic_in_full(*prediction.communication) + departures(prediction.traffic_terms) +
             fetches(prediction.fetches);
    case Topic::Fragmentation:
      return prediction.fragmentation ? fragmentation_report(*prediction.fragmentation) : std::string();
    case Topic::Advice: return advice(prediction.advice, true);
  }
  return {};
}

}  // namespace

std::string topics(const Prediction& prediction, const Job& job, const std::vector<Topic>& asked) {
  std::string text;
  for (auto at = asked.begin(); at != asked.end(); ++at) {
    if (std::find(asked.begin(), at, *at) != at) continue;
    const std::string part = topic(prediction, job, *at);
    if (!part.empty()) text += "\n" + part;
  }
  return text;
}

std::string verdict_lines(const Prediction& prediction, const std::string& device, const ReportStyle& style) {
  return headline(prediction, device, style.colour);
}

namespace {

// What the first screen cuts at its edge, whole.
std::string changes_that_fit(const Prediction& prediction) {
  if (prediction.changes.empty()) return {};
  std::string text = "\n  what would fit, the best verdict and then the fastest first\n";
  for (const FittingChange& change : prediction.changes) {
    std::string words = formatted("{}: {}", spaced(name(change.verdict)), change.options);
    if (change.speed) words += formatted(" ({:+.0f} % tokens/s)", 100 * (*change.speed - 1));
    if (!change.note.empty()) words += formatted("; {}", change.note);
    text += wrapped(formatted("  {:>10}  ", human(change.process)), words, 14);
  }
  return text;
}

}  // namespace

std::string report(const Prediction& prediction, const Job& job, const ReportStyle& style) {
  if (!style.verbose) {
    return first_screen(prediction, job, style.colour) + topics(prediction, job, style.explain);
  }
  std::string text = headline(prediction, device_of(job), style.colour) + long_run_line(prediction);
  text += "\n" + job_lines(prediction, job) + "\n" + memory_table(prediction) + states_line(prediction);
  if (prediction.peak) text += moment(prediction);
  text += host_line(prediction.host);
  text += changes_that_fit(prediction);
  if (prediction.communication) text += "\n" + traffic(*prediction.communication);
  if (prediction.time) text += "\n" + time_report(*prediction.time);
  std::vector<Topic> more = style.explain;
  std::erase_if(more, [](Topic one) { return one == Topic::Memory || one == Topic::Time || one == Topic::Advice; });
  text += topics(prediction, job, more);
  const std::string hints = advice(prediction.advice, asked(style, Topic::Advice));
  if (!hints.empty()) text += "\n" + hints;
  return text + "\n" + closing(prediction, job);
}

std::string report_ranks(const std::vector<Prediction>& predictions, const Job& job, const ReportStyle& style) {
  const Prediction& worst = worst_of(predictions);
  std::string text = headline(worst, device_of(job), style.colour) + "\n" + job_lines(worst, job) + "\n";
  using Align = Table::Align;
  Table table({"rank", "persistent", "peak", "reserved", "process", "verdict"},
              {Align::Right, Align::Right, Align::Right, Align::Right, Align::Right, Align::Left});
  for (const Prediction& one : predictions) {
    table.row({std::to_string(one.rank), human(one.persistent.by_role.total()),
               one.peak ? human(one.peak->requested) : "-", one.peak ? size(one.peak->reserved) : "-",
               one.peak ? size(one.peak->process) : "-", spaced(name(one.verdict))});
  }
  return text + table.text() + "\n" + closing(worst, job);
}

namespace {

constexpr char kRow[] = "  {:<16}{:>10}{:>10}{:>11}{:>10}{:>9}{:>9}\n";

// Nothing at all is a dash.
std::string part(double seconds) { return seconds <= 0 ? "-" : seconds_text(seconds); }

}  // namespace

std::string seconds_text(double seconds) {
  if (seconds >= 99.95) return formatted("{:.0f} s", seconds);
  if (seconds >= 0.9995) return formatted("{:.3g} s", seconds);
  if (seconds >= 0.9995e-3) return formatted("{:.3g} ms", seconds * 1e3);
  return formatted("{:.3g} us", seconds * 1e6);
}

std::string time_report(const StepTime& time) {
  std::string text = formatted(kRow, time.calibrated ? "step, calibrated" : "step, estimated", "time", "compute",
                               "recompute", "exposed", "host", "hidden");
  for (const PhaseTime& phase : time.phases) {
    text += formatted(kRow, phase.name, part(phase.total()), part(phase.compute + phase.launch), part(phase.recompute),
                      part(phase.exposed), part(phase.host), part(phase.hidden));
  }
  const auto tokens = static_cast<std::int64_t>(std::llround(time.tokens_per_second));
  text += wrapped("  ",
                  formatted("together {} ({} to {}), {} tokens/s, MFU {:.1f} %, HFU {:.1f} %; {}",
                            seconds_text(time.total), seconds_text(time.low), seconds_text(time.high), grouped(tokens),
                            100 * time.mfu, 100 * time.hfu, time.basis),
                  4);
  return text;
}

namespace {

// The table shows fewer than JSON holds.
constexpr std::size_t kSegmentsShown = 8;
constexpr std::size_t kPinsShown = 3;

std::string sums(const Fragmentation& f) {
  std::string text = wrapped("  ", "reserved is largest at " + f.event, 4);
  const auto row = [&text](const char* label, Bytes bytes, const char* meaning) {
    if (bytes > Bytes(0)) text += formatted("  {:<16}{:>13}  {}\n", label, human(bytes), meaning);
  };
  row("requested", f.requested, "what was asked for");
  row("slack", f.slack, "rounding, and rests too small to split off");
  row("awaiting", f.awaiting, "freed, but another stream may still use it");
  row("inactive split", f.inactive_split, "free parts of segments in use");
  row("cached", f.cached, "wholly free: empty_cache gives it back");
  row("reserved", f.reserved, "the sum");
  return text;
}

std::string pinned(const Fragmentation& f) {
  if (f.segments.empty()) return {};
  std::string text = f.segments_in_use == 1
                         ? std::string("\n  one segment in use has free parts; what pins it\n")
                         : formatted("\n  {} segments in use have free parts; what pins them\n", f.segments_in_use);
  text += formatted("{:>13}{:>13}  {}\n", "free", "of", "pinned by");
  for (std::size_t i = 0; i < std::min(kSegmentsShown, f.segments.size()); ++i) {
    const PinnedSegment& segment = f.segments[i];
    std::string pins;
    const std::size_t shown = std::min(kPinsShown, segment.pins.size());
    for (std::size_t k = 0; k < shown; ++k) {
      const PinningBlock& pin = segment.pins[k];
      if (k > 0) pins += "; ";
      pins += formatted("{} ({}{}{})", pin.name, human(pin.requested), pin.module.empty() ? "" : ", ", pin.module);
    }
    if (const auto rest = segment.blocks - static_cast<std::int64_t>(shown); rest > 0) {
      pins += formatted("; {} more", rest);
    }
    text += wrapped(formatted("{:>13}{:>13}  ", human(segment.free), human(segment.size)), pins, 28);
  }
  return text;
}

std::string tried(const Fragmentation& f) {
  if (f.remedies.empty()) return {};
  std::string text = formatted("\n  {:>13}{:>13}  other allocator confs\n", "reserved", "saved");
  for (const AllocatorRemedy& remedy : f.remedies) {
    const bool less = remedy.reserved <= f.reserved;
    const Bytes difference = less ? f.reserved - remedy.reserved : remedy.reserved - f.reserved;
    const std::string saved = difference == Bytes(0) ? std::string("nothing") : (less ? "" : "-") + human(difference);
    const std::string verdict = !remedy.fits ? "" : (*remedy.fits ? " (fits)" : " (does not fit)");
    text += wrapped(formatted("  {:>13}{:>13}  ", human(remedy.reserved), saved), remedy.conf + verdict, 30);
  }
  return text;
}

}  // namespace

std::string fragmentation_report(const Fragmentation& fragmentation) {
  return sums(fragmentation) + pinned(fragmentation) + tried(fragmentation);
}

}  // namespace dsplan
