// `dsplan emit`: a job as files of other tools, and as a plan.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/predicted.h"
#include "cli/saved_plan.h"
#include "cli/sources.h"
#include "core/error.h"
#include "io/snapshot.h"
#include "io/write_deepspeed.h"
#include "planner/handover/checkpointing_call.h"
#include "planner/handover/launch_line.h"
#include "planner/predict.h"
#include "sim/snapshot_of.h"

namespace dsplan {
namespace {

constexpr const char* kFooter =
    "--format takes:\n"
    "  deepspeed      the whole DeepSpeed JSON\n"
    "  plan           one file that the other commands take as MODEL\n"
    "  launch         the command that starts the job\n"
    "  checkpointing  the Python that checkpoints as the job does\n"
    "  snapshot       PyTorch's memory snapshot (binary: name it with --out)";

constexpr std::array<std::string_view, 5> kFormats = {"deepspeed", "plan", "launch", "checkpointing", "snapshot"};

const std::string& format_in(const Request& request) {
  if (!request.format.given()) {
    throw Refusal("--format", "is missing", fmt::format("formats are {}", fmt::join(kFormats, ", ")));
  }
  const std::string& format = *request.format;
  if (std::find(kFormats.begin(), kFormats.end(), format) != kFormats.end()) return format;
  std::string hint = did_you_mean(format, {kFormats.begin(), kFormats.end()});
  if (hint.empty()) hint = fmt::format("formats are {}", fmt::join(kFormats, ", "));
  throw Refusal({request.format.place.says(fmt::format("no format \"{}\" of emit", format), std::move(hint))});
}

int emit_snapshot(const SimulateWords& said) {
  if (!said.options.out.given()) {
    throw Refusal("--out", "is missing: a snapshot is binary", "name a file, such as --out predicted.pickle");
  }
  Output output(*said.options.out);
  const Predicted predicted = predicted_schedule(said, "--format snapshot");
  const Snapshot snapshot = snapshot_of(predicted.schedule, predicted.inputs.model, predicted.config, predicted.limit);
  output.add(write_snapshot(snapshot));
  output.finish();
  say(fmt::format("{}: {} entries, {} segments; times count entries (step times are not modelled yet)\n",
                  *said.options.out, snapshot.traces.front().size(), snapshot.segments.size()));
  return kDone;
}

// A job, and the files behind it.
struct Emitted {
  Sources sources;
  Inputs inputs;
  Job job;
};

Emitted read(const SimulateWords& said) {
  Emitted all;
  all.sources = read_sources({}, said, {});
  all.inputs = gather(all.sources, said);
  all.job = resolve(all.inputs);
  say(render(all.job.notices));
  return all;
}

std::string deepspeed_text(const Emitted& all) {
  const PlanParts parts = plan_parts(all.sources, {});
  const ModelSpec& model = all.inputs.model;
  const Training& t = all.job.training;
  std::string text =
      parts.deepspeed ? deepspeed_json(model, all.job, parts.deepspeed->root) : deepspeed_json(model, all.job);
  if (!optimizer_in_deepspeed_json(t)) {
    say(fmt::format("note: DeepSpeed does not make {} by name: the script hands it to deepspeed.initialize\n",
                    optimizer_text(t)));
  }
  return text;
}

std::string plan_text(const Emitted& all) {
  return plan_file(plan_parts(all.sources, "dsplan emit"), all.inputs.model, all.job,
                   predict_asked(all.inputs.model, all.job));
}

std::string text_in(const std::string& format, const Emitted& all) {
  if (format == "plan") return plan_text(all);
  if (format == "launch") return launch_line(all.inputs.model, all.job);
  if (format == "checkpointing") return checkpointing_call(all.inputs.model, all.job);
  return deepspeed_text(all);
}

}  // namespace

int emit_command(const Words& words) {
  CommandExtras extras;
  extras.description = "Writes one job as a file of another tool, or as a plan.";
  extras.footer = kFooter;
  SimulateWords said = parse_simulate("emit", words, extras);
  const std::string format = format_in(said.options);
  if (format == "snapshot") return emit_snapshot(said);
  said.renew = format == "plan";
  Output output(said.options.out.value_or(""));
  const Emitted all = read(said);
  output.add(text_in(format, all));
  output.finish();
  return kDone;
}

}  // namespace dsplan
