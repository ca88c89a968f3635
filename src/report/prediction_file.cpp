#include "report/prediction_file.h"

#include <algorithm>

#include "core/format.h"
#include "io/fields.h"
#include "io/own_file.h"
#include "report/compare.h"

namespace dsplan {
namespace {

// What a file has beside the prediction: of its job, and of its own nulls.
struct BesidePrediction {
  std::vector<ResolvedInput> assumptions;  // Name, value, reason, option.
  std::vector<Absence> absences;
};

constexpr std::initializer_list<Role> kAnyRole = {Role::Parameters,     Role::Gradients,     Role::Optimizer,
                                                  Role::RuntimeBuffers, Role::Activations,   Role::Temporaries,
                                                  Role::Inputs,         Role::ModuleBuffers, Role::Workspace};
constexpr std::initializer_list<Verdict> kAnyVerdict = {Verdict::Fits, Verdict::Tight, Verdict::FitsWithRetries,
                                                        Verdict::DoesNotFit, Verdict::Unknown};
constexpr std::initializer_list<DType> kAnyDType = {DType::Float64,  DType::Float32, DType::Float16,
                                                    DType::BFloat16, DType::Int64,   DType::Int32,
                                                    DType::Int8,     DType::UInt8,   DType::Bool};

// Estimates have no more digits than they deserve, and the same ones on every machine.
double six_digits(double value) { return value == 0 ? 0 : std::stod(formatted("{:.6g}", value)); }

void estimate(Fields& fields, const Key& key, double& value) {
  double shown = six_digits(value);
  fields(key, shown);
  if (fields.reader() != nullptr) value = shown;
}

void describe_roles(Fields& fields, ByRole& roles) {
  for (std::size_t i = 0; i < kRoles; ++i) fields(name(static_cast<Role>(i)), roles.bytes[i]);
}

void describe_by_role(Fields& fields, ByRole& roles) {
  fields.object("by_role", {"bytes by role"}, [&] { describe_roles(fields, roles); });
}

void describe_live(Fields& fields, const Key& key, std::vector<LiveBuffer>& buffers) {
  fields.list(key, buffers, {"a buffer"}, [&](LiveBuffer& buffer) {
    fields("name", buffer.name);
    fields("module", buffer.module);
    fields.named("role", buffer.role, kAnyRole, true);
    fields("bytes", buffer.bytes);
    fields("count", buffer.count);
    fields("rule", buffer.rule);
  });
}

void describe_saved(Fields& fields, std::optional<std::vector<SavedTensor>>& saved) {
  fields.list(Key::if_there("saved", saved.has_value()), saved, {"a saved tensor"}, [&](SavedTensor& tensor) {
    using Storage = SavedTensor::Storage;
    fields("node", tensor.node);
    fields("module", tensor.module);
    fields("name", tensor.name);
    fields("tensor", tensor.tensor);
    fields("bytes", tensor.bytes);
    fields("count", tensor.count);
    fields("counted_bytes", tensor.counted);
    fields.named("storage", tensor.storage, {Storage::Own, Storage::Shared, Storage::Parameter});
  });
}

void describe_held(Fields& fields, Prediction& prediction) {
  const Nested part = {"what is held for backward"};
  fields.object("held_for_backward", prediction.held_for_backward, part, [&](HeldForBackward& held) {
    fields.derived("total", held.by_role.total());
    describe_by_role(fields, held.by_role);
    fields.list("by_module", held.by_module, {"a module"}, [&](ModuleBytes& module) {
      fields("module", module.module);
      fields("bytes", module.bytes);
    });
    describe_live(fields, "largest", held.largest);
    describe_saved(fields, prediction.saved);
  });
}

void describe(Fields& fields, Peak& peak) {
  fields("requested", peak.requested);
  fields("allocated", peak.allocated);
  fields("active", peak.active);
  fields("reserved", peak.reserved);
  fields("reserved_low", peak.reserved_low);
  fields(Key::if_there("reserved_expected", peak.reserved_expected.has_value()), peak.reserved_expected);
  fields("process", peak.process);
  fields("process_high", peak.process_high);
  fields("phase", peak.phase);
  fields("event", peak.event);
  fields("event_index", peak.event_index);
  describe_by_role(fields, peak.by_role);
  describe_live(fields, "live", peak.live);
}

void describe(Fields& fields, LongRun& run) {
  fields("steps", run.steps);
  fields("repeats", run.repeats);
  fields("period", run.period);
  fields("reserved", run.reserved);
  fields("retries", run.retries);
  fields("retries_period", run.retries_period);
  fields("first_retry_step", run.first_retry);
  fields("failed_step", run.failed_step);
  fields.named("verdict", run.verdict,
               {Verdict::Fits, Verdict::FitsWithRetries, Verdict::DoesNotFit, Verdict::Unknown});
}

void describe(Fields& fields, LossSpike& spike) {
  fields("requested", spike.requested);
  fields("at", spike.event);
  describe_live(fields, "live", spike.live);
}

void describe(Fields& fields, PinnedSegment& segment) {
  fields("address", segment.address);
  fields("size", segment.size);
  fields("free", segment.free);
  fields("blocks", segment.blocks);
  fields.list("pins", segment.pins, {"a pinning block"}, [&](PinningBlock& pin) {
    fields("name", pin.name);
    fields("module", pin.module);
    fields.named("role", pin.role, kAnyRole, true);
    fields("address", pin.address);
    fields("requested", pin.requested);
    fields("size", pin.size);
  });
}

void describe(Fields& fields, Fragmentation& f) {
  fields("event", f.event);
  fields("event_index", f.event_index);
  fields("reserved", f.reserved);
  fields("requested", f.requested);
  fields("slack", f.slack);
  fields("awaiting", f.awaiting);
  fields("inactive_split", f.inactive_split);
  fields("cached", f.cached);
  fields("segments_in_use", f.segments_in_use);
  fields.list("segments", f.segments, {"a segment"}, [&](PinnedSegment& segment) { describe(fields, segment); });
  fields.list("remedies", f.remedies, {"a remedy"}, [&](AllocatorRemedy& remedy) {
    fields("conf", remedy.conf);
    fields("reserved", remedy.reserved);
    fields("fits", remedy.fits);
  });
}

void describe(Fields& fields, PlannedArena& arena) {
  fields("height", arena.height);
  fields("lower_bound", arena.lower_bound);
  fields("reserved", arena.reserved);
  fields.derived("saved", arena.saved(), INT64_MIN);  // Negative where the plan takes more.
  fields("buffers", arena.buffers);
}

void describe(Fields& fields, Phase& phase) {
  fields("name", phase.name);
  fields.list("parts", phase.parts, {"a part of a phase"}, [&](PhasePart& part) {
    fields("name", part.name);
    fields("peak_requested", part.peak.requested);
    fields("peak_allocated", part.peak.allocated);
    fields("peak_active", part.peak.active);
    fields("peak_reserved", part.peak.reserved);
  });
  fields.list("marks", phase.marks, {"a mark"}, [&](PhaseMark& mark) {
    fields("name", mark.name);
    fields("requested", mark.requested);
    fields("allocated", mark.allocated);
    fields("active", mark.active);
    fields("reserved", mark.reserved);
  });
  // As DeepSpeed's lines have them: MA, Max_MA, CA and Max_CA.
  fields.list("see_memory_usage", phase.prints, {"a line of see_memory_usage"}, [&](PhasePrint& print) {
    fields("name", print.name);
    fields("allocated", print.allocated);
    fields("max_allocated", print.peak_allocated);
    fields("reserved", print.reserved);
    fields("max_reserved", print.peak_reserved);
  });
  fields("peak_requested", phase.peak_requested);
  fields("peak_allocated", phase.peak_allocated);
  fields("peak_active", phase.peak_active);
  fields("peak_reserved", phase.peak_reserved);
  fields("requested_total", phase.requested_total);
  fields("allocations", phase.allocations);
  fields("host_requested_total", phase.host_requested_total);
}

void describe(Fields& fields, HostMemory& host) {
  fields("pinned", host.pinned);
  fields("pinned_requested", host.pinned_requested);
  fields("pageable", host.pageable);
  fields("peak", host.peak);
  fields("per_node", host.per_node);
  fields("nvme", host.nvme);
  fields("nvme_per_node", host.nvme_per_node);
  fields("nvme_read", host.nvme_read);
  fields("nvme_written", host.nvme_written);
  fields.named("verdict", host.verdict, {Verdict::Fits, Verdict::DoesNotFit, Verdict::Unknown});
  fields("verdict_reason", host.verdict_reason);
  fields.named("nvme_verdict", host.nvme_verdict, {Verdict::Fits, Verdict::DoesNotFit, Verdict::Unknown});
  fields("nvme_verdict_reason", host.nvme_verdict_reason);
}

void describe_memory(Fields& fields, Prediction& prediction) {
  fields.object("states", {"the states"}, [&] {
    fields("parameters", prediction.states.parameters);
    fields("gradients", prediction.states.gradients);
    fields("optimizer", prediction.states.optimizer);
    fields.derived("total", prediction.states.total());
  });
  fields.object("persistent", {"persistent memory"}, [&] {
    fields.derived("total", prediction.persistent.by_role.total());
    describe_roles(fields, prediction.persistent.by_role);
    fields("allocated", prediction.persistent.allocated);
  });
  describe_held(fields, prediction);
  fields.object("peak", prediction.peak, {"a peak"}, [&](Peak& of) { describe(fields, of); });
  fields.object("loss_spike", prediction.loss_spike, {"a peak of logits and loss"},
                [&](LossSpike& of) { describe(fields, of); });
  fields.object(Key::if_there("fragmentation", prediction.fragmentation.has_value()), prediction.fragmentation,
                {"fragmentation"}, [&](Fragmentation& of) { describe(fields, of); });
  fields.object(Key::if_there("planned", prediction.arena.has_value()), prediction.arena, {"a planned arena"},
                [&](PlannedArena& of) { describe(fields, of); });
  fields.list("phases", prediction.phases, {"a phase", FieldLine::Own, true, !prediction.phases.empty()},
              [&](Phase& phase) { describe(fields, phase); });
  fields.object("host", {"host memory"}, [&] { describe(fields, prediction.host); });
}

void describe(Fields& fields, AboveInputs& above) {
  fields("after_forward", above.after_forward);
  fields("forward_peak", above.forward_peak);
  fields("backward_peak", above.backward_peak);
  fields("after_backward", above.after_backward);
}

void describe(Fields& fields, TrafficRow& row) {
  using C = Collective;
  using G = Group;
  fields.named("collective", row.collective,
               {C::AllReduce, C::ReduceScatter, C::AllGather, C::Broadcast, C::Reduce, C::AllToAll, C::SendRecv});
  fields.named("group", row.group,
               {G::DataParallel, G::TensorParallel, G::SequenceParallel, G::ExpertParallel, G::DataParallelInside,
                G::DataParallelBetween});
  Pass shown = row.phase == Pass::Recompute ? Pass::Backward : row.phase;
  fields.named("phase", shown, {Pass::Setup, Pass::Forward, Pass::Backward, Pass::Step, Pass::Save});
  if (fields.reader() != nullptr) row.phase = shown;
  fields.named("dtype", row.dtype, kAnyDType, true);
  std::string kind = row.kind == TrafficKind::Data ? "data" : "control";
  fields.word("kind", kind, {"data", "control"});
  if (fields.reader() != nullptr) row.kind = kind == "data" ? TrafficKind::Data : TrafficKind::Control;
  fields("calls", row.calls);
  fields("payload_bytes", row.payload);
  fields("wire_bytes", row.wire);
}

void describe(Fields& fields, StepTime& time) {
  fields("basis", time.basis);
  fields("calibrated", time.calibrated);
  estimate(fields, "seconds", time.total);
  estimate(fields, "low_seconds", time.low);
  estimate(fields, "high_seconds", time.high);
  estimate(fields, "tokens_per_second", time.tokens_per_second);
  estimate(fields, "model_flops", time.model_flops);
  estimate(fields, "hardware_flops", time.hardware_flops);
  estimate(fields, "mfu", time.mfu);
  estimate(fields, "hfu", time.hfu);
  fields.list("phases", time.phases, {"the time of a phase"}, [&](PhaseTime& phase) {
    fields.word("name", phase.name, {"forward", "backward", "step"});
    fields.derived("seconds", six_digits(phase.total()));
    estimate(fields, "compute_seconds", phase.compute);
    estimate(fields, "recompute_seconds", phase.recompute);
    estimate(fields, "launch_seconds", phase.launch);
    estimate(fields, "exposed_seconds", phase.exposed);
    estimate(fields, "hidden_seconds", phase.hidden);
    estimate(fields, "host_seconds", phase.host);
  });
}

std::optional<bool> says_fits(Verdict verdict) {
  if (verdict == Verdict::Unknown) return std::nullopt;
  return fits(verdict);
}

// What the verdict rests on. Files of earlier releases are without.
void describe_need(Fields& fields, Prediction& prediction) {
  fields(Key::if_there("needed_bytes", true), prediction.needed);
  fields(Key::if_there("shortfall_bytes", true), prediction.shortfall);
  fields(Key::if_there("first_failure", !prediction.failure.empty()), prediction.failure);
  fields.derived("uncertainty_bytes", prediction.doubt());
  fields.list(Key::if_there("uncertainty", true), prediction.doubts, {"a part of the uncertainty"}, [&](Doubt& doubt) {
    fields("what", doubt.what);
    fields("bytes", doubt.bytes);
    fields("why", doubt.why);
  });
  fields.list(Key::if_there("changes", !prediction.changes.empty()), prediction.changes, {"a change that fits"},
              [&](FittingChange& change) {
                fields("options", change.options);
                fields.named("verdict", change.verdict, kAnyVerdict);
                fields("process", change.process);
                fields("speed", change.speed);
                fields("note", change.note);
              });
}

void describe_lists(Fields& fields, Prediction& prediction, BesidePrediction& beside) {
  fields.list("communication", prediction.communication, {"a row of \"communication\""},
              [&](TrafficRow& row) { describe(fields, row); });
  fields.list(Key::if_there("traffic_terms", !prediction.traffic_terms.empty()), prediction.traffic_terms,
              {"a term of the traffic"}, [&](TrafficTerm& term) {
                fields("what", term.what);
                fields("wire_bytes", term.wire, INT64_MIN);
                fields("why", term.why);
              });
  fields.object("time", prediction.time, {"a time"}, [&](StepTime& of) { describe(fields, of); });
  fields.list("advice", prediction.advice, {"an advice"}, [&](Advice& advice) {
    fields("rule", advice.rule);
    fields("key", advice.key);
    fields("costs_bytes", advice.costs);
    fields("text", advice.text);
  });
  fields.list("assumptions", beside.assumptions, {"an assumption"}, [&](ResolvedInput& input) {
    fields("name", input.name);
    fields("value", input.value);
    fields("reason", input.reason);
    fields("option", input.option);
  });
  fields.list("not_modelled", beside.absences, {"an entry of \"not_modelled\""}, [&](Absence& absence) {
    fields("what", absence.what);
    fields("why", absence.why);
  });
}

// What a file of a prediction holds, key by key: the one description behind writer, reader and schema.
void describe_prediction(Fields& fields, Prediction& prediction, BesidePrediction& beside) {
  fields.constant("schema", kPredictionSchema);
  fields("fingerprint", prediction.fingerprint);
  fields("model", prediction.model);
  fields("world_size", prediction.world);
  fields("rank", prediction.rank);
  fields.named("verdict", prediction.verdict, kAnyVerdict);
  fields("verdict_reason", prediction.verdict_reason);
  fields.derived("fits", says_fits(prediction.verdict));
  fields.derived("host_verdict", std::string(name(prediction.host.verdict)));
  describe_need(fields, prediction);
  fields("retries", prediction.retries);
  fields("retries_low", prediction.retries_low);
  fields(Key::if_there("retries_expected", prediction.retries_expected.has_value()), prediction.retries_expected);
  fields.object(Key::if_there("long_run", prediction.long_run.has_value()), prediction.long_run, {"a long run"},
                [&](LongRun& run) { describe(fields, run); });
  fields.object(Key::if_there("long_run_expected", prediction.long_run_expected.has_value()),
                prediction.long_run_expected, {"a long run"}, [&](LongRun& run) { describe(fields, run); });
  fields("capacity_bytes", prediction.capacity);
  fields("reserve_bytes", prediction.reserve);
  fields("context_bytes", prediction.context);
  fields("communicators_bytes", prediction.communicators);
  fields.object("parameters", {"parameters"}, [&] {
    fields("total", prediction.parameters_total);
    fields("trainable", prediction.parameters_trainable);
  });
  fields.object("memory", {"a prediction's memory"}, [&] { describe_memory(fields, prediction); });
  fields.object(Key::if_there("above_inputs", prediction.above_inputs.has_value()), prediction.above_inputs,
                {"what lies above the inputs"}, [&](AboveInputs& of) { describe(fields, of); });
  describe_lists(fields, prediction, beside);
}

constexpr const char* kSchemaOfRanks = "dsplan.predictions/1";

bool covers(const std::string& what, const std::string& path) {
  return path == what || (path.size() > what.size() && path.starts_with(what) && path[what.size()] == '.');
}

std::string why_absent(const std::string& path, const Prediction& prediction) {
  if (path == "capacity_bytes" || path == "context_bytes") return "no --hardware, --cluster or --capacity";
  if (path == "shortfall_bytes") return "nothing is known to be missing: there is no capacity, or no whole schedule";
  if (path == "fits") return prediction.verdict_reason.empty() ? "the verdict is unknown" : prediction.verdict_reason;
  return "not modelled yet";
}

BesidePrediction beside(const Prediction& prediction, const Job& job) {
  return {job.assumptions(), all_absences(prediction)};
}

}  // namespace

std::vector<Absence> all_absences(const Prediction& prediction) {
  BesidePrediction none;
  std::vector<Absence> all = prediction.not_modelled;
  for (const std::string& path :
       nulls_of([&](Fields& fields) { describe_prediction(fields, described(prediction), none); })) {
    const bool said = std::any_of(all.begin(), all.end(), [&](const Absence& absence) {
      return covers(absence.what, path) || covers(path, absence.what);
    });
    if (!said) all.push_back({path, why_absent(path, prediction)});
  }
  return all;
}

std::string prediction_json(const Prediction& prediction, const Job& job) {
  BesidePrediction known = beside(prediction, job);
  return written([&](Fields& fields) { describe_prediction(fields, described(prediction), known); });
}

std::string predictions_json(const std::vector<Prediction>& predictions, const Job& job) {
  return written([&](Fields& fields) {
    fields.constant("schema", kSchemaOfRanks);
    fields.list("ranks", described(predictions), {"a prediction"}, [&](Prediction& prediction) {
      BesidePrediction known = beside(prediction, job);
      describe_prediction(fields, prediction, known);
    });
  });
}

std::string prediction_schema() {
  return schema_of(kPredictionSchema,
                   "What `dsplan simulate --format json` prints; with --rank all these are the items of \"ranks\" in "
                   "{\"schema\": \"dsplan.predictions/1\", \"ranks\": [...]}. All sizes are bytes of one rank.",
                   [](Fields& fields) {
                     Prediction any;
                     BesidePrediction known;
                     describe_prediction(fields, any, known);
                   });
}

std::vector<SavedPrediction> read_saved_predictions(const Document& document) {
  expect_object(document, "a prediction");
  Diagnostics faults;
  ObjectReader reader(document, document.root, faults);
  const std::string schema = reader.choice("schema", {kPredictionSchema, kSchemaOfRanks}).value_or("");
  if (schema.empty() && !faults.any()) reader.fault("schema", "\"schema\" is missing: is this a prediction?");
  faults.throw_if_any();
  std::vector<SavedPrediction> ranks;
  const auto read = [&](Fields& fields, Prediction& prediction) {
    BesidePrediction known;
    describe_prediction(fields, prediction, known);
    prediction.not_modelled = std::move(known.absences);
    ranks.push_back({prediction, std::move(known.assumptions)});
  };
  read_fields(document, "a prediction", [&](Fields& fields) {
    std::vector<Prediction> all(1);
    if (schema == kPredictionSchema) return read(fields, all.front());
    fields.constant("schema", kSchemaOfRanks);
    fields.list("ranks", all, {"a prediction"}, [&](Prediction& prediction) { read(fields, prediction); });
  });
  return ranks;
}

std::vector<PredictedRank> read_predictions(const Document& document) {
  std::vector<PredictedRank> ranks;
  for (const SavedPrediction& one : read_saved_predictions(document)) ranks.push_back(figures_of(one.prediction));
  return ranks;
}

}  // namespace dsplan
