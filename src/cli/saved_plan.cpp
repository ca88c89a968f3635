#include "cli/saved_plan.h"

#include <algorithm>

#include "core/format.h"
#include "io/deepspeed.h"
#include "io/launch_line.h"
#include "io/locate.h"
#include "io/machine_files.h"
#include "io/text.h"
#include "io/training_file.h"
#include "model/families.h"
#include "planner/predict/predict.h"
#include "report/calibration.h"
#include "report/export/write_deepspeed.h"
#include "report/export/write_training.h"
#include "report/kept_figures.h"
#include "report/plan_file.h"

namespace dsplan {
namespace {

std::optional<Document> content_of(const std::optional<SourceFile>& file) {
  return file ? std::optional(file->content) : std::nullopt;
}

// Everything but what a request decides of the model.
Inputs read_parts(const SavedPlan& plan, Diagnostics& faults) {
  Inputs inputs;
  attempt(faults, [&] { inputs.model = build_model(plan.model, plan.model_name); });
  attempt(faults, [&] { inputs.request = read_training_file(plan.training); });
  attempt(faults, [&] {
    if (plan.deepspeed) inputs.deepspeed = read_deepspeed(*plan.deepspeed);
  });
  attempt(faults, [&] {
    if (plan.hardware) lay_hardware(*plan.hardware, option("the plan"), inputs);
  });
  attempt(faults, [&] {
    if (plan.cluster) inputs.cluster = read_cluster(*plan.cluster);
  });
  attempt(faults, [&] {
    if (plan.calibration) inputs.request.measured = {read_calibration(*plan.calibration), option("the plan")};
  });
  return inputs;
}

Inputs inputs_of(const SavedPlan& plan) {
  Diagnostics faults;
  Inputs inputs = read_parts(plan, faults);
  faults.throw_if_any();
  read_what_it_names(inputs, faults);
  faults.throw_if_any();
  return inputs;
}

// Files that options name replace parts of the plan.
void lay_files(const Sources& sources, Inputs& into, Diagnostics& faults) {
  const auto with = [&](SourceKind kind, auto&& read) {
    if (const auto& file = sources[kind]) attempt(faults, [&] { read(*file); });
  };
  with(SourceKind::DeepSpeed, [&](const SourceFile& file) { into.deepspeed = read_deepspeed(file.content); });
  with(SourceKind::Checkpoint, [&](const SourceFile& file) {
    into.request.checkpoint_groups = {read_checkpoint_file(file.content), into.request.checkpoint.place};
  });
  with(SourceKind::Routing, [&](const SourceFile& file) {
    into.request.token_counts = {read_routing_file(file.content), into.request.routing.place};
  });
  with(SourceKind::Cluster, [&](const SourceFile& file) {
    into.cluster = read_cluster(file.content);
    into.hardware.reset();  // The cluster names its own.
  });
  with(SourceKind::Hardware, [&](const SourceFile& file) {
    into.request.measured = {};  // Of the device before.
    lay_hardware(file.content, into.request.hardware.place, into);
  });
  with(SourceKind::Calibration, [&](const SourceFile& file) {
    into.request.measured = {read_calibration(file.content), into.request.calibration.place};
  });
}

// The triple of the plan's JSON is consistent; what is asked for beside the plan makes another one.
void free_the_batch(const Sources& sources, const Request& above, Inputs& into) {
  const bool other = above.micro_batch.given() || above.grad_accum.given() || above.gpus.given() ||
                     above.nodes.given() || above.tp.given() || sources[SourceKind::Cluster].has_value();
  if (other && into.deepspeed && !sources[SourceKind::DeepSpeed]) into.deepspeed->train_batch_size = {};
}

std::string in_words(const std::vector<InputChange>& changes) {
  std::vector<std::string> words;
  for (const InputChange& change : changes) {
    const auto shown = [](const std::string& text) { return text.empty() ? std::string("nothing") : text; };
    words.push_back(formatted("{} {} -> {}", change.name, shown(change.before), shown(change.after)));
  }
  return words.empty() ? "its inputs" : formatted("{}", joined(words, ", "));
}

[[noreturn]] void refuse_stale(const SavedPlan& plan, const std::string& now) {
  throw Refusal({plan.fingerprint_place.says(
      formatted("the plan's own inputs resolve to {}: it was edited, or another dsplan wrote it (it says {})", now,
                plan.written.dsplan),
      formatted("`dsplan emit {} --format plan --out NEW.json` writes it anew", plan.path))});
}

// In a plan everything is said; what nobody had said before it was written stays known as such.
std::vector<ResolvedInput> assumed_in(const PlanParts& parts, const Job& job) {
  std::vector<ResolvedInput> assumed;
  for (const ResolvedInput& before : parts.assumed) {
    const bool still = std::any_of(job.inputs.begin(), job.inputs.end(), [&](const ResolvedInput& now) {
      return now.name == before.name && now.value == before.value && now.origin != Origin::Derived;
    });
    if (still) assumed.push_back(before);
  }
  for (ResolvedInput& now : job.assumptions()) {
    const bool known =
        std::any_of(assumed.begin(), assumed.end(), [&](const ResolvedInput& one) { return one.name == now.name; });
    if (!known) assumed.push_back(std::move(now));
  }
  return assumed;
}

SavedPlan written_by_us(const PlanParts& parts, const ModelSpec& model, const Job& job,
                        const std::vector<Prediction>& predictions) {
  SavedPlan plan;
  plan.source = parts.source;
  const Training& t = job.training;
  plan.written = {DSPLAN_VERSION, t.torch.text(), t.transformers.text(), t.deepspeed.text()};
  plan.fingerprint = fingerprint(model, job);
  plan.model_name = parts.model_name;
  plan.model = parts.model;
  if (t.runtime == Runtime::DeepSpeed) {
    const std::string text =
        parts.deepspeed ? deepspeed_json(model, job, parts.deepspeed->root) : deepspeed_json(model, job);
    plan.deepspeed = parse_json("the plan's DeepSpeed JSON", text);
  }
  plan.training = parse_json("the plan's training file", training_json(model, job, parts.source));
  plan.hardware = parts.hardware;
  plan.cluster = parts.cluster;
  plan.calibration = parts.calibration;
  for (const Prediction& prediction : predictions) plan.ranks.push_back(figure_rows(prediction));
  if (!predictions.empty()) plan.time = predictions.front().time;
  plan.assumed = assumed_in(parts, job);
  return plan;
}

}  // namespace

PlanParts plan_parts(const Sources& sources, const std::string& source) {
  const auto& model = sources[SourceKind::Model];
  PlanParts parts;
  parts.source = source;
  parts.deepspeed = content_of(sources[SourceKind::DeepSpeed]);
  parts.hardware = content_of(sources[SourceKind::Hardware]);
  parts.cluster = content_of(sources[SourceKind::Cluster]);
  parts.calibration = content_of(sources[SourceKind::Calibration]);
  if (is_plan(model->content)) {
    const SavedPlan plan = read_plan(model->content);
    parts.model_name = plan.model_name;
    parts.model = plan.model;
    if (!parts.deepspeed) parts.deepspeed = plan.deepspeed;
    if (!parts.hardware && !parts.cluster) parts.hardware = plan.hardware;
    if (!parts.cluster) parts.cluster = plan.cluster;
    if (!parts.calibration) parts.calibration = plan.calibration;
    parts.assumed = plan.assumed;
  } else {
    parts.model_name = model->model;
    parts.model = model->content;
  }
  if (!parts.hardware && parts.cluster) {
    parts.hardware = read_document(locate_hardware(read_cluster(*parts.cluster).hardware));
  }
  return parts;
}

std::string plan_file(const PlanParts& parts, const ModelSpec& model, const Job& job,
                      const std::vector<Prediction>& predictions) {
  const SavedPlan plan = written_by_us(parts, model, job, predictions);
  std::string text = plan_json(plan);
  std::string again;
  try {
    const Inputs inputs = inputs_of(read_plan(parse_json("the plan", text)));
    again = fingerprint(inputs.model, resolve(inputs));
  } catch (const Refusal& refusal) {
    throw Refusal(model.name, formatted("no plan file can say this job: {}", refusal.what()));
  }
  if (again != plan.fingerprint) {
    throw Refusal(model.name, formatted("no plan file can say this job: read again it resolves to {}, not {}", again,
                                        plan.fingerprint));
  }
  return text;
}

void refuse_training_file(const SimulateWords& said) {
  throw Refusal({said.options.training.place.says("a plan is its own training file", "say it by options")});
}

Inputs gather_plan(const SavedPlan& plan, const Sources& sources, const SimulateWords& said) {
  if (said.options.training.given()) refuse_training_file(said);
  const Inputs alone = inputs_of(plan);
  const Job as_saved = resolve(alone);
  const std::string own = fingerprint(alone.model, as_saved);
  if (own != plan.fingerprint && !said.renew) refuse_stale(plan, own);
  Diagnostics faults;
  Inputs laid = read_parts(plan, faults);
  Request above;
  attempt(faults, [&] {
    if (!said.launch.empty()) above = read_launch_line(said.launch);
  });
  above = overlay(above, said.options);
  laid.request = overlay(laid.request, above);
  lay_files(sources, laid, faults);
  free_the_batch(sources, above, laid);
  read_what_it_names(laid, faults);
  faults.throw_if_any();
  const Job job = resolve(laid);
  if (fingerprint(laid.model, job) != own) {
    laid.request.notices.push_back(
        {Notice::Kind::Announcement,
         plan.fingerprint_place,
         formatted("what is said beside the plan changes it: {}; the plan's own figures are not of this job",
                   in_words(changes_of(as_saved.inputs, job.inputs))),
         {}});
  }
  return laid;
}

}  // namespace dsplan
