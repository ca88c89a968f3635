// `dsplan explain`: what a log's messages about memory mean, and every topic of --explain.
#include <algorithm>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/predicted.h"
#include "cli/wrap.h"
#include "core/error.h"
#include "core/format.h"
#include "io/oom_log.h"
#include "io/text.h"
#include "planner/advise/explain_log.h"
#include "report/replay_report.h"
#include "sim/allocator.h"

namespace dsplan {
namespace {

// Takes `--log FILE` out of the words before "--"; what is left is `simulate`'s.
std::optional<std::string> take_log(Words& words) {
  std::optional<std::string> log;
  const auto end = std::find(words.begin(), words.end(), "--");
  Words rest;
  for (auto at = words.begin(); at != end; ++at) {
    const bool alone = *at == "--log";
    if (!alone && !at->starts_with("--log=")) {
      rest.push_back(*at);
      continue;
    }
    if (log) throw Refusal("--log", "is given more than once");
    if (alone && std::next(at) == end) throw Refusal("--log", "needs a value");
    log = alone ? *++at : at->substr(6);
  }
  rest.insert(rest.end(), end, words.end());
  words = std::move(rest);
  return log;
}

bool says_topic(const Words& words) {
  const auto end = std::find(words.begin(), words.end(), "--");
  return std::any_of(words.begin(), end,
                     [](const std::string& word) { return word == "--explain" || word.starts_with("--explain="); });
}

constexpr const char* kExplainFooter =
    "--log FILE holds PyTorch's out-of-memory message or see_memory_usage lines\n"
    "(- is standard input): which event they match, what is alive then, and what\n"
    "would avoid it. Without it, the topic of --explain; peak by default.\n"
    "Example: dsplan explain llama-3-8b --gpus 8 --zero-stage 2 --log job.err\n"
    "Exit codes: 0 done, 2 refused.";

CommandExtras extras_of(std::optional<std::string>& log) {
  CommandExtras extras;
  extras.description = "Says which event of the prediction a log's messages about memory match.";
  extras.footer = kExplainFooter;
  extras.add = [&log](CommandLine& line) { line.option("--log", "FILE", "A log with messages about memory", log); };
  return extras;
}

std::string in_words(const LogMessage& message) {
  const auto size = [](const char* what, const std::optional<PrintedSize>& printed) {
    return printed ? formatted(", {} {}", what, printed->text) : std::string();
  };
  std::string text = message.kind == LogMessage::Kind::OutOfMemory
                         ? formatted("line {}: out of memory, asked for {}", message.line, message.request->text)
                         : formatted("line {}: {}", message.line,
                                     message.title.empty() ? "see_memory_usage" : "\"" + message.title + "\"");
  text += size("allocated", message.allocated) + size("reserved", message.reserved) +
          size("reserved but unallocated", message.unallocated) + size("free", message.free) +
          size("peak allocated", message.peak_allocated);
  if (message.times > 1) text += formatted(" ({} times)", message.times);
  return text;
}

std::string candidate_lines(const LogCandidate& candidate, bool failed, bool with_live) {
  std::string text = wrapped("  ", formatted("event {}: {}", candidate.event, candidate.moment), 4);
  if (failed) {
    text += wrapped("    ",
                    formatted("asks for {} bytes when {} bytes are allocated; {} stay reserved when the "
                              "cache is given back",
                              grouped(candidate.request.value()), grouped(candidate.allocated.value()),
                              glued(human(candidate.reserved))),
                    4);
  } else {
    text += wrapped("    ",
                    formatted("{} bytes allocated, {} reserved", grouped(candidate.allocated.value()),
                              grouped(candidate.reserved.value())),
                    4);
  }
  for (const std::string& apart : candidate.apart) text += wrapped("    apart: ", apart, 11);
  if (!with_live) return text;
  text += "    alive then\n";
  for (const LiveBuffer& buffer : candidate.live) {
    const std::string what = buffer.module.empty() ? buffer.name : buffer.name + ", " + buffer.module;
    text += wrapped(formatted("{:>15}{:>7} x  ", human(buffer.bytes), buffer.count), what, 26);
  }
  return text;
}

std::string finding_lines(const LogFinding& finding) {
  const bool failed = finding.message.kind == LogMessage::Kind::OutOfMemory;
  std::string text = wrapped("", in_words(finding.message), 2);
  if (finding.candidates.empty()) return text + "  the prediction has no such event at all\n";
  if (!finding.matches) {
    text += failed ? "  no event of the prediction prints the same; the nearest is\n"
                   : "  no mark of the prediction prints the same; the nearest is\n";
  }
  for (const LogCandidate& candidate : finding.candidates) {
    text += candidate_lines(candidate, failed, failed && &candidate == &finding.candidates.front());
  }
  return text;
}

std::string_view outcome_in_words(Remedy::Outcome outcome) {
  switch (outcome) {
    case Remedy::Outcome::Fits: return "fits";
    case Remedy::Outcome::FitsWithRetries: return "fits, with retries";
    case Remedy::Outcome::DoesNotFit: return "does not fit";
    case Remedy::Outcome::NotModelled: return "not modelled";
  }
  return "?";
}

std::string remedy_lines(const Explanation& explanation) {
  if (explanation.remedies.empty()) {
    const bool failed = std::any_of(explanation.findings.begin(), explanation.findings.end(), [](const LogFinding& f) {
      return f.message.kind == LogMessage::Kind::OutOfMemory;
    });
    return failed ? "\nwhat would avoid it: unknown, since neither the log nor the options say what the device has\n"
                  : "";
  }
  std::string text = "\n" + wrapped("",
                                    formatted("what would avoid it: the allocator may reserve {} ({})",
                                              glued(human(*explanation.limit)), explanation.limit_from),
                                    2);
  for (const Remedy& remedy : explanation.remedies) {
    std::string said = std::string(outcome_in_words(remedy.outcome));
    if (remedy.reserved) said += formatted(", reserves {} without a limit", glued(human(*remedy.reserved)));
    if (!remedy.note.empty()) said += ": " + remedy.note;
    text += wrapped(formatted("  {}: ", remedy.change), said, 6);
  }
  return text;
}

std::string table(const Explanation& explanation) {
  std::string text = formatted("{}, rank {}: {} message{} about memory\n", explanation.model, explanation.rank,
                               explanation.findings.size(), explanation.findings.size() == 1 ? "" : "s");
  for (const LogFinding& finding : explanation.findings) text += "\n" + finding_lines(finding);
  return text + remedy_lines(explanation);
}

// Changes of the request, nearest first, each alone. What resolving refuses is no remedy.
class Remedies {
 public:
  Remedies(const Predicted& predicted, Bytes limit, std::vector<Remedy>& into)
      : predicted_(predicted), limit_(limit), into_(into) {}

  void try_all() {
    AllocatorConfig config = predicted_.config;
    judge_change({"as it is", predicted_.job, config});
    if (!config.expandable_segments) {
      config.expandable_segments = true;
      judge_change({"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", predicted_.job, config});
    }
    try_micro_batch();
    if (predicted_.job.training.checkpoint.groups.empty()) {
      try_request("--checkpoint full", [](Request& request) {
        request.checkpoint = {std::string("full"), option("--checkpoint")};
        request.checkpoint_groups = {};
      });
    }
    const Training& training = predicted_.job.training;
    const int stage = training.runtime == Runtime::DeepSpeed ? training.zero.stage : 0;
    for (int next = std::max(stage + 1, 1); next <= 3 && predicted_.job.parallelism.dp > 1; ++next) {
      try_request(formatted("--zero-stage {}", next), [next](Request& request) {
        request.zero_stage = {std::int64_t{next}, option("--zero-stage")};
      });
    }
  }

 private:
  void judge_change(const Change& change) {
    into_.push_back(judge(change, predicted_.inputs.model, predicted_.prediction.rank, limit_));
  }

  // Halves, with as many more steps of accumulation: the batch stays what it is. Ends with the first that fits.
  void try_micro_batch() {
    std::int64_t rows = predicted_.job.training.micro_batch;
    std::int64_t steps = predicted_.job.training.grad_accum;
    while (rows % 2 == 0) {
      rows /= 2;
      steps = checked_mul(steps, 2);
      const std::size_t before = into_.size();
      try_request(formatted("--micro-batch {} --grad-accum {}", rows, steps), [=](Request& request) {
        request.micro_batch = {rows, option("--micro-batch")};
        request.grad_accum = {steps, option("--grad-accum")};
      });
      const bool fits = into_.size() > before && (into_.back().outcome == Remedy::Outcome::Fits ||
                                                  into_.back().outcome == Remedy::Outcome::FitsWithRetries);
      if (fits) return;
    }
  }

  template <class Edit>
  void try_request(const std::string& text, Edit&& edit) {
    Inputs inputs = predicted_.inputs;
    edit(inputs.request);
    try {
      const Job job = resolve(inputs);
      judge_change({text, job, allocator_config(job)});
    } catch (const Refusal& refusal) {
      const std::vector<Diagnostic>& faults = refusal.diagnostics();
      into_.push_back({text, Remedy::Outcome::NotModelled, std::nullopt, faults.empty() ? "" : faults.front().message});
    }
  }

  const Predicted& predicted_;
  Bytes limit_;
  std::vector<Remedy>& into_;
};

void add_remedies(const Predicted& predicted, Explanation& explanation) {
  for (const LogFinding& finding : explanation.findings) {
    if (finding.message.kind != LogMessage::Kind::OutOfMemory) continue;
    explanation.limit = limit_in(finding.message);
    explanation.limit_from = "reserved and free, by the log";
    if (!explanation.limit && predicted.limit != CachingAllocator::kUnlimited) {
      explanation.limit = predicted.limit;
      explanation.limit_from = "capacity less context, communicators and reserve, by the options";
    }
    if (explanation.limit) Remedies(predicted, *explanation.limit, explanation.remedies).try_all();
    return;
  }
}

int explain_log(const SimulateWords& said, const std::string& path) {
  const std::string format = said.options.format.value_or("table");
  if (format != "table" && format != "json") {
    throw Refusal("--format", formatted("no format \"{}\" of explain", format), "formats are table, json");
  }
  const std::vector<LogMessage> messages = read_oom_log(path, read_file(path));
  Output output(said.options.out.value_or(""));
  const Predicted predicted = predicted_schedule(said, "--log");
  Explanation explanation;
  explanation.fingerprint = predicted.prediction.fingerprint;
  explanation.model = predicted.prediction.model;
  explanation.rank = predicted.prediction.rank;
  explanation.findings = find_in_schedule(messages, predicted.schedule, predicted.inputs.model, predicted.config);
  add_remedies(predicted, explanation);
  output.add(format == "json" ? explanation_json(explanation) : table(explanation));
  output.finish();
  return kDone;
}

}  // namespace

int explain_command(const Words& words) {
  const auto end = std::find(words.begin(), words.end(), "--");
  if (std::any_of(words.begin(), end, [](const std::string& word) { return word == "--help" || word == "-h"; })) {
    std::optional<std::string> ignored;
    (void)parse_simulate("explain", {"--help"}, extras_of(ignored));
  }
  Words rest = words;
  const std::optional<std::string> log = take_log(rest);
  if (log) return explain_log(parse_simulate("explain", rest), *log);
  // A topic of the prediction: `simulate` dispatches them, in its report.
  if (!says_topic(rest)) rest.insert(rest.begin(), "--explain=peak");
  const int code = simulate_command(rest);
  return code == kDoesNotFit ? kDone : code;
}

}  // namespace dsplan
