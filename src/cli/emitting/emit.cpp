// `dsplan emit`: a job as files of other tools, and as a plan.
#include "cli/emitting/emit.h"

#include <algorithm>
#include <array>

#include "cli/assemble.h"
#include "cli/commands.h"
#include "cli/emitting/emit_page.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/predicted.h"
#include "cli/saved_plan.h"
#include "core/error.h"
#include "core/format.h"
#include "io/snapshot.h"
#include "planner/predict/predict.h"
#include "report/export/checkpointing_call.h"
#include "report/export/launch_line.h"
#include "report/export/write_deepspeed.h"
#include "report/export/write_sharding.h"
#include "report/timeline_report.h"
#include "sim/snapshot_of.h"

namespace dsplan {
namespace {

constexpr const char* kEmitFooter =
    "--format takes:\n"
    "  deepspeed      the whole DeepSpeed JSON\n"
    "  accelerate     accelerate's YAML of a job under fully_shard\n"
    "  torchtitan     torchtitan's TOML of a job under fully_shard\n"
    "  plan           one file that the other commands take as MODEL\n"
    "  launch         the command that starts the job\n"
    "  checkpointing  the Python that checkpoints as the job does\n"
    "  perfetto       a trace for ui.perfetto.dev, in estimated time\n"
    "  html           the prediction as one page for a browser\n"
    "  svg, png       its chart as a picture for slides (png: with librsvg)\n"
    "  snapshot       PyTorch's memory snapshot (binary: name it with --out)\n"
    "Example: dsplan emit llama-3-8b --zero-stage 3 --gpus 8 --format deepspeed";

constexpr std::array<std::string_view, 11> kFormats = {"deepspeed", "accelerate",    "torchtitan", "plan",
                                                       "launch",    "checkpointing", "perfetto",   "html",
                                                       "svg",       "png",           "snapshot"};

const std::string& format_in(const Request& request) {
  if (!request.format.given()) {
    throw Refusal("--format", "is missing", formatted("formats are {}", joined(kFormats, ", ")));
  }
  const std::string& format = *request.format;
  if (std::find(kFormats.begin(), kFormats.end(), format) != kFormats.end()) return format;
  std::string hint = did_you_mean(format, {kFormats.begin(), kFormats.end()});
  if (hint.empty()) hint = formatted("formats are {}", joined(kFormats, ", "));
  throw Refusal({request.format.place.says(formatted("no format \"{}\" of emit", format), std::move(hint))});
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
  say(formatted("{}: {} entries, {} segments; times count entries\n", *said.options.out, snapshot.traces.front().size(),
                snapshot.segments.size()));
  return kDone;
}

int emit_trace(const SimulateWords& said) {
  Output output(said.options.out.value_or(""));
  const Predicted predicted = predicted_schedule(said, "--format perfetto");
  output.add(perfetto_json(timeline_of(predicted), predicted.prediction));
  output.finish();
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

std::string deepspeed_text(const PlanParts& parts, const ModelSpec& model, const Job& job) {
  std::string text = parts.deepspeed ? deepspeed_json(model, job, parts.deepspeed->root) : deepspeed_json(model, job);
  if (!optimizer_in_deepspeed_json(job.training)) {
    say(formatted("note: DeepSpeed does not make {} by name: the script hands it to deepspeed.initialize\n",
                  optimizer_text(job.training)));
  }
  return text;
}

// What is checkpointed stands in no such file, but for all of accelerate's layers at once.
std::string with_note_on_checkpoints(std::string text, const Job& job) {
  const Checkpointing& c = job.training.checkpoint;
  const bool said = text.find("fsdp_activation_checkpointing: true") != std::string::npos;
  if (!said && (!c.groups.empty() || !c.modules.empty())) {
    say("note: the file does not say what is checkpointed, the script does; its call is the format \"checkpointing\"\n");
  }
  return text;
}

}  // namespace

std::string emitted(std::string_view format, const PlanParts& parts, const ModelSpec& model, const Job& job,
                    const std::string& option) {
  if (format == "deepspeed") return with_note_on_checkpoints(deepspeed_text(parts, model, job), job);
  if (format == "accelerate") return with_note_on_checkpoints(accelerate_yaml(model, job), job);
  if (format == "torchtitan") return torchtitan_toml(model, job);
  if (format == "plan") return plan_file(parts, model, job, predict_asked(model, job));
  if (format == "launch") return launch_line(model, job);
  if (format == "checkpointing") return checkpointing_call(model, job);
  std::string hint = did_you_mean(format, {"deepspeed", "accelerate", "torchtitan", "plan", "launch", "checkpointing"});
  if (hint.empty()) hint = "formats are deepspeed, accelerate, torchtitan, plan, launch, checkpointing";
  throw Refusal(option, formatted("no format \"{}\"", format), std::move(hint));
}

int emit_command(const Words& words) {
  CommandExtras extras;
  extras.description = "Writes one job as a file of another tool, or as a plan.";
  extras.footer = kEmitFooter;
  extras.without = {"--explain", "--verbose", "--color"};
  std::optional<std::string> measured;
  extras.add = [&measured](CommandLine& line) {
    line.option("--measured", "FILE", "html: a receipt of the same job, shown beside it", measured);
  };
  SimulateWords said = parse_simulate("emit", words, extras);
  const std::string format = format_in(said.options);
  if (measured && format != "html") throw Refusal("--measured", "belongs to --format html");
  if (format == "snapshot") return emit_snapshot(said);
  if (format == "perfetto") return emit_trace(said);
  if (format == "html") return emit_page(said, words, measured.value_or(""));
  if (format == "svg" || format == "png") return emit_slide(said, format);
  said.renew = format == "plan";
  Output output(said.options.out.value_or(""));
  const Emitted all = read(said);
  output.add(emitted(format, plan_parts(all.sources, "dsplan emit"), all.inputs.model, all.job, "--format"));
  output.finish();
  return kDone;
}

}  // namespace dsplan
