#include "planner/plan/evaluator.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/machine/in_parallel.h"
#include "core/text/whole_numbers.h"
#include "model/parts.h"
#include "planner/libraries/library_memory.h"
#include "planner/lower/lower.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/verdict.h"
#include "planner/resolve/checkpointing.h"
#include "planner/resolve/resolve.h"
#include "planner/zero/zero_facts.h"

namespace dsplan::detail {
namespace {

std::string first_reason(const Refusal& refusal) {
  const Diagnostic& first = refusal.diagnostics().front();
  return first.message;
}

// What leaves the device when something is offloaded to the host's memory must be there: pools round it up.
Bytes least_host(const ModelSpec& model, const Job& job, const Footprint& footprint_here) {
  if (!offloads(job.training)) return Bytes(0);
  Job kept = job;
  kept.training.zero.offload_optimizer.device = OffloadDevice::None;
  kept.training.zero.offload_param.device = OffloadDevice::None;
  kept.training.fsdp.cpu_offload = false;
  const Footprint there = footprint(model, kept);
  Bytes moved;
  const bool all = is_fsdp(job.training.runtime);
  const auto add = [&](Role role, OffloadDevice device) {
    if ((!all && device != OffloadDevice::Cpu) || there.persistent[role] <= footprint_here.persistent[role]) return;
    moved += there.persistent[role] - footprint_here.persistent[role];
  };
  add(Role::Optimizer, job.training.zero.offload_optimizer.device);
  add(Role::Parameters, job.training.zero.offload_param.device);
  return moved * std::min(job.parallelism.world, job.parallelism.gpus_per_node);
}

Settings settings_of(const SearchSpace& space, const std::array<std::size_t, kAxes>& at) {
  Settings settings;
  for (std::size_t i = 0; i < kAxes; ++i) settings[i] = space.axes[i].values[at[i]];
  return settings;
}

Fate fate_of_retries(const Prediction& p) { return surely_retries(p) ? Fate::FitsWithRetries : Fate::Fits; }

// What is free beside a job whose frees end at once: it may fit without retries, and its doubts decide as they do where
// it surely does.
std::optional<Bytes> least_spare(const Prediction& p) {
  const std::optional<Bytes> process = least_process(p);
  if (!process || !p.capacity) return std::nullopt;
  const Bytes taken = *process + p.reserve;
  return taken < *p.capacity ? *p.capacity - taken : Bytes(0);
}

// A search keeps free by how much the prediction may be too low. Whoever says how much to keep free has decided how
// much is enough.
void take_fate(Simulated& result, bool reserve_given) {
  const Prediction& p = result.prediction;
  result.reason = p.verdict_reason;
  switch (p.verdict) {
    case Verdict::Fits: result.fate = Fate::Fits; break;
    case Verdict::Tight: result.fate = reserve_given ? fate_of_retries(p) : Fate::Tight; break;
    case Verdict::DoesNotFit: result.fate = Fate::DoesNotFit; break;
    case Verdict::Unknown: result.fate = Fate::Unknown; break;
    case Verdict::FitsWithRetries: {
      result.fate = fate_of_retries(p);
      const std::optional<Bytes> spare = least_spare(p);
      if (reserve_given || result.fate != Fate::Fits || !spare || *spare >= p.doubt()) break;
      result.fate = Fate::Tight;
      result.reason = formatted("{} left where frees end at once, and the prediction may be {} too low; {}",
                                human(*spare), human(p.doubt()), p.verdict_reason);
      break;
    }
  }
}

// What DeepSpeed alone has, asked of plain PyTorch: why that is no candidate of its own; empty where it is one.
std::string not_pytorch(const Settings& settings, const SearchSpace& space) {
  const auto said = [&settings](Axis axis) { return settings[static_cast<std::size_t>(axis)]; };
  if (said(Axis::ZeroStage) != "pytorch") return {};
  if (said(Axis::Offload) != "none") return "offload is DeepSpeed's: plain PyTorch has none";
  if (said(Axis::ReduceBucket) != space[Axis::ReduceBucket].values.front()) {
    return "reduce_bucket_size is DeepSpeed's: plain PyTorch has none";
  }
  return {};
}

std::string& value(Settings& settings, Axis axis) { return settings[static_cast<std::size_t>(axis)]; }

bool sees_pictures(const ModelSpec& model) {
  return model.dims.image > 0 || (model.parts != nullptr && model.parts->tower != nullptr);
}

// Of the smallest micro-batch that is modelled; why none is, or nothing.
std::string resolve_family(const SearchInputs& inputs, const SearchSpace& space, Settings base, PlanFamily& family) {
  std::string& checkpoint = value(base, Axis::Checkpoint);
  if (!space[Axis::Checkpoint].pinned) checkpoint = "full";
  std::string refusal;
  for (const char* rows : {"1", "2"}) {
    value(base, Axis::MicroBatch) = rows;
    const CandidateInputs made = inputs_of(inputs, base, space);
    family.job = resolve(inputs.model, made.request, made.file(), inputs.hardware, inputs.cluster);
    // Its bounds count what is saved on the device.
    if (family.job.training.activation_offloading != ActivationOffloading::None) return "activation offloading";
    const auto why = unsupported(inputs.model, family.job);
    if (!why) return {};
    if (refusal.empty()) refusal = formatted("not modelled yet: {}", *why);
    if (!sees_pictures(inputs.model)) break;  // One picture alone may be what is not modelled.
  }
  return refusal;
}

PlanFamily family_of(const SearchInputs& inputs, const SearchSpace& space, const Settings& settings) {
  PlanFamily family;
  family.settings = settings;
  family.refusal = not_pytorch(settings, space);
  if (!family.refusal.empty()) return family;
  try {
    family.refusal = resolve_family(inputs, space, settings, family);
    if (!family.refusal.empty()) return family;
    family.rates = Rates::of(family.job);
    const Footprint states = footprint(inputs.model, family.job);
    family.persistent = states.persistent.total();
    family.beside = context_of(family.job) + communicators_of(family.job) + family.job.reserve;
    family.host = least_host(inputs.model, family.job, states);
    family.files = nvme_footprint(inputs.model, family.job, 0).files *
                   std::min(family.job.parallelism.world, family.job.parallelism.gpus_per_node);
    family.host_unknown = offloads(family.job.training) && !family.job.host_memory;
    family.job.rank = "worst";
  } catch (const Refusal& refusal) {
    family.refusal = first_reason(refusal);
  }
  return family;
}

// What a family is resolved from, as far as searches that share some differ.
std::string key_of(const SearchInputs& inputs, const SearchSpace& space, const Settings& settings) {
  std::string key = formatted("{} {} {} {} {} {}", inputs.request.seq.value_or(0), space[Axis::Checkpoint].pinned,
                              space.assumed_per_node.value_or(0), space.global_batch.value_or(0), space.grad_accum,
                              space[Axis::ReduceBucket].values.front());
  for (const std::string& value : settings) key += "|" + value;
  return key;
}

// What nobody knows yet is resolved at once: no family depends on another.
std::vector<PlanFamily> families_of(const SearchInputs& inputs, const SearchSpace& space, SharedGraphs& shared) {
  // Odometer over all axes but micro-batch and checkpointing, which are the last two.
  constexpr std::size_t kOuter = static_cast<std::size_t>(Axis::MicroBatch);
  std::array<std::size_t, kAxes> at{};
  std::vector<const PlanFamily*> in_order;
  std::vector<std::pair<Settings, PlanFamily*>> unknown;
  while (true) {
    const Settings settings = settings_of(space, at);
    const auto [found, added] = shared.families.try_emplace(key_of(inputs, space, settings));
    in_order.push_back(&found->second);
    if (added) unknown.emplace_back(settings, &found->second);
    std::size_t axis = kOuter;
    while (axis > 0 && ++at[axis - 1] == space.axes[axis - 1].values.size()) at[--axis] = 0;
    if (axis == 0) break;
  }
  in_parallel(unknown.size(), [&](std::size_t i) { *unknown[i].second = family_of(inputs, space, unknown[i].first); });
  std::vector<PlanFamily> families;
  for (const PlanFamily* family : in_order) families.push_back(*family);
  return families;
}

}  // namespace

Evaluator::Evaluator(const SearchInputs& inputs, const SearchSpace& space, std::size_t thinned)
    : inputs_(inputs),
      space_(space),
      thinned_(thinned),
      own_(inputs.model),
      graphs_(inputs.graphs != nullptr ? inputs.graphs->graphs : own_.graphs),
      shapes_(inputs.graphs != nullptr ? inputs.graphs->shapes : own_.shapes) {
  families_ = families_of(inputs, space, inputs.graphs != nullptr ? *inputs.graphs : own_);
  for (const std::string& rows : space.axes[static_cast<std::size_t>(Axis::MicroBatch)].values) {
    smallest_batch_ = std::min(smallest_batch_, whole_number(rows).value_or(1));
  }
  for (const PlanFamily& family : families_) {
    if (family.refusal.empty()) limit_ = std::max(limit_, family.job.capacity.value_or(Bytes(0)) - family.job.reserve);
  }
}

double Evaluator::fastest(std::size_t index) {
  PlanFamily& family = families_[index];
  Training before = family.job.training;
  double best = 0;
  std::string ignored;
  for (const std::string& rows : space_[Axis::MicroBatch].values) {
    const std::optional<Candidate> one = blank(index, whole_number(rows).value_or(1), ignored);
    if (!one) continue;
    Training& training = family.job.training;
    training.micro_batch = one->micro_batch;
    training.grad_accum = one->grad_accum;
    training.checkpoint = before.checkpoint;
    const PlanGraph& graph = graphs_.of(family.job);
    training.checkpoint = {};
    const StepTime time = estimate(inputs_.model, family.job, graph.graph, graph.times, *family.rates);
    best = std::max(best, time.tokens_per_second);
  }
  family.job.training = std::move(before);
  return best;
}

std::shared_ptr<const Checkpointing> Evaluator::segmentation(const PlanFamily& family, const std::string& text,
                                                             std::string& refusal) const {
  if (space_[Axis::Checkpoint].pinned) return std::make_shared<Checkpointing>(family.job.training.checkpoint);
  Request request;
  request.checkpoint = {text, Place{"--checkpoint", 0, 0, {}}};
  request.preserve_rng_state = inputs_.request.preserve_rng_state;
  try {
    Checkpointing made = resolve_checkpointing(request, inputs_.model, family.job.training.checkpoint.kind);
    made.deepspeed = family.job.training.checkpoint.deepspeed;
    return std::make_shared<Checkpointing>(std::move(made));
  } catch (const Refusal& fault) {
    refusal = first_reason(fault);
    return nullptr;
  }
}

std::optional<Candidate> Evaluator::blank(std::size_t index, std::int64_t micro_batch, std::string& refusal) const {
  if (sees_pictures(inputs_.model)) {  // One alone, or so many at once.
    Job job = families_[index].job;
    job.training.micro_batch = micro_batch;
    if (const auto why = unsupported(inputs_.model, job)) {
      refusal = formatted("not modelled yet: {}", *why);
      return std::nullopt;
    }
  }
  Candidate one;
  one.family = index;
  one.micro_batch = micro_batch;
  one.grad_accum = space_.grad_accum;
  if (!space_.global_batch) return one;
  const std::int64_t rows = checked_mul(micro_batch, families_[index].job.parallelism.dp);
  if (*space_.global_batch % rows != 0) {
    refusal = formatted("a step of {} rows cannot be cut into equal micro-batches", *space_.global_batch);
    return std::nullopt;
  }
  one.grad_accum = *space_.global_batch / rows;
  return one;
}

std::optional<Candidate> Evaluator::candidate(std::size_t index, std::int64_t micro_batch, std::string label,
                                              const std::shared_ptr<const Checkpointing>& segmented, double speed,
                                              std::string& refusal) {
  PlanFamily& family = families_[index];
  refusal = family.refusal;
  if (!refusal.empty()) return std::nullopt;
  std::optional<Candidate> one = blank(index, micro_batch, refusal);
  if (!one) return std::nullopt;
  one->checkpoint = std::move(label);
  one->segmented = segmented;
  const Training before = family.job.training;
  family.job.training.micro_batch = micro_batch;
  family.job.training.grad_accum = one->grad_accum;
  family.job.training.checkpoint = *segmented;
  one->graph = &graphs_.of(family.job);
  one->time = estimate(inputs_.model, family.job, one->graph->graph, one->graph->times, *family.rates);
  if (one->time->tokens_per_second > speed) judge_by_formula(family, *one, true);
  family.job.training = before;
  return one;
}

void Evaluator::profile_ahead(std::size_t index, std::span<const std::int64_t> batches) {
  PlanFamily& family = families_[index];
  Training before = family.job.training;
  std::vector<std::pair<PlanGraph*, Job>> unknown;
  std::string ignored;
  for (const std::int64_t rows : batches) {
    const std::optional<Candidate> one = blank(index, rows, ignored);
    if (!one) continue;
    family.job.training.micro_batch = rows;
    family.job.training.grad_accum = one->grad_accum;
    PlanGraph& graph = graphs_.of(family.job);
    if (!graph.activations) unknown.emplace_back(&graph, family.job);
  }
  family.job.training = std::move(before);
  if (unknown.size() < 2) return;  // Whoever asks for it profiles it.
  in_parallel(unknown.size(), [&](std::size_t at) {
    try {
      (void)graphs_.activations(*unknown[at].first, unknown[at].second);
    } catch (const std::exception&) {
      // It is thrown to whoever asks for it.
    }
  });
}

std::vector<Candidate> Evaluator::candidates(std::size_t index, std::int64_t micro_batch,
                                             std::map<std::string, std::int64_t>& refusals) {
  PlanFamily& family = families_[index];
  Job& job = family.job;
  std::string why_not;
  const std::optional<Candidate> base = blank(index, micro_batch, why_not);
  if (!base) {
    ++refusals[why_not];
    return {};
  }
  const Training before = job.training;
  job.training.micro_batch = micro_batch;
  job.training.grad_accum = base->grad_accum;
  std::vector<Candidate> made;
  for (const std::string& text : space_[Axis::Checkpoint].values) {
    Candidate one = *base;
    one.checkpoint = text;
    std::string refusal;
    if (text != "auto") one.segmented = segmentation(family, text, refusal);
    if (!refusal.empty()) {
      ++refusals[refusal];
      continue;
    }
    job.training.checkpoint = one.segmented != nullptr ? *one.segmented : before.checkpoint;
    one.graph = &graphs_.of(job);
    if (one.segmented == nullptr) {
      job.training.checkpoint.groups.clear();
    }
    judge_by_formula(family, one, false);
    made.push_back(std::move(one));
  }
  job.training = before;
  return made;
}

namespace {

// With it nothing is kept but what every recompute plan keeps: the loss's own tensors, and once each layer's.
Checkpointing keeping_least(std::size_t layers) {
  Checkpointing least;
  least.kind = CheckpointKind::DeepSpeed;
  least.deepspeed.cpu = true;
  for (std::size_t at = 0; at < layers; ++at) {
    const auto layer = static_cast<std::int32_t>(at);
    least.groups.push_back({layer, layer, CheckpointKind::DeepSpeed});
  }
  return least;
}

}  // namespace

void Evaluator::judge_by_formula(const PlanFamily& family, Candidate& candidate, bool always_time) const {
  const Job& job = family.job;
  const ActivationBytes& activations = graphs_.activations(*candidate.graph, job);
  const bool any = candidate.segmented == nullptr;
  const Checkpointing least = any ? keeping_least(activations.stored.size()) : Checkpointing{};
  const Checkpointing& checkpoint = any ? least : *candidate.segmented;
  Bytes requested = family.persistent;
  if (checkpoint.modules.empty()) {
    requested = std::max(requested, least_peak(inputs_.model, job, family.persistent, activations, checkpoint));
  }
  candidate.least = requested + family.beside - job.reserve;
  candidate.bounded = true;
  if (!always_time && missing(candidate)) return;
  candidate.time = estimate(inputs_.model, job, candidate.graph->graph, candidate.graph->times, *family.rates);
}

void Evaluator::add_time(Candidate& candidate) const {
  if (candidate.time) return;
  PlanFamily family = families_[candidate.family];
  family.job = job_of(candidate);
  judge_by_formula(family, candidate, true);
}

Job Evaluator::job_of(const Candidate& candidate) const {
  Job job = families_[candidate.family].job;
  job.training.micro_batch = candidate.micro_batch;
  job.training.grad_accum = candidate.grad_accum;
  job.training.checkpoint = candidate.segmented != nullptr ? *candidate.segmented : Checkpointing{};
  return job;
}

// The formulas' rows are exact but for ZeRO-3's gathers, which are those of a job that keeps nothing: one that keeps
// parameters from forward to backward leaves some of the latter out.
Bytes Evaluator::least_wire(const Candidate& candidate) const {
  const Job job = job_of(candidate);
  Bytes sum;
  for (const TrafficRow& row : traffic_formulas(inputs_.model, job)) {
    const bool may_be_left_out =
        job.training.zero.stage == 3 && row.phase == Pass::Backward && row.collective == Collective::AllGather;
    const bool of_step = row.phase != Pass::Setup && row.phase != Pass::Save;
    if (of_step && row.kind == TrafficKind::Data && !may_be_left_out) sum += row.wire;
  }
  return sum;
}

std::optional<Bytes> Evaluator::missing(const Candidate& candidate) const {
  const PlanFamily& family = families_[candidate.family];
  const Job& job = family.job;
  const Bytes device = candidate.least + job.reserve;
  if (job.capacity && device > *job.capacity) return device - *job.capacity;
  if (job.host_memory && family.host > *job.host_memory) return family.host - *job.host_memory;
  if (job.nvme_memory && family.files > *job.nvme_memory) return family.files - *job.nvme_memory;
  return std::nullopt;
}

namespace {

// Where ranks differ the worst one's fate is asked for, whatever others do.
std::optional<Prediction> predicted(const ModelSpec& model, const Job& job, Detail detail, Wanted wanted,
                                    const std::atomic<bool>* needless, SharedShapes& shapes) {
  if (ranks_differ(job.training, job.parallelism)) wanted = Wanted::Any;
  return predict_wanted(model, job, detail, wanted, needless, &shapes);
}

}  // namespace

std::optional<Simulated> Evaluator::simulate(const Candidate& candidate, Detail detail, Wanted wanted,
                                             const std::atomic<bool>* needless) const {
  const PlanFamily& family = families_[candidate.family];
  Settings settings = family.settings;
  value(settings, Axis::MicroBatch) = std::to_string(candidate.micro_batch);
  value(settings, Axis::Checkpoint) = candidate.from_front ? candidate.segmented->text : candidate.checkpoint;
  CandidateInputs made = inputs_of(inputs_, settings, space_);
  made.request.rank = {"worst", Place{"the search", 0, 0, {}}};
  Simulated result;
  result.job = resolve(inputs_.model, made.request, made.file(), inputs_.hardware, inputs_.cluster);
  std::optional<Prediction> made_here = predicted(inputs_.model, result.job, detail, wanted, needless, shapes_);
  if (!made_here) return std::nullopt;
  result.prediction = std::move(*made_here);
  take_fate(result, inputs_.request.reserve.given());
  return result;
}

PlanRow Evaluator::row(const Candidate& candidate) const {
  const PlanFamily& family = families_[candidate.family];
  PlanRow row;
  row.settings = family.settings;
  value(row.settings, Axis::MicroBatch) = std::to_string(candidate.micro_batch);
  value(row.settings, Axis::Checkpoint) = candidate.segmented != nullptr ? candidate.segmented->text : "auto";
  row.world = family.job.parallelism.world;
  row.dp = family.job.parallelism.dp;
  row.grad_accum = candidate.grad_accum;
  row.seq = family.job.training.seq;
  if (candidate.bounded) row.least = candidate.least;
  row.time = candidate.time;
  if (const auto lacking = missing(candidate)) {
    row.fate = Fate::Bounded;
    row.missing = *lacking;
  }
  return row;
}

PlanGraphs::Front Evaluator::front_of(const Candidate& candidate) const {
  Job job = families_[candidate.family].job;
  job.training.micro_batch = smallest_batch_;
  job.training.grad_accum = candidate.grad_accum;
  return graphs_.front_named(job, thinned_);
}

// Those of the front whose groups no listed recompute plan has.
const Evaluator::Plans& Evaluator::unlisted(const Candidate& candidate, std::span<const Candidate* const> others) {
  const PlanGraphs::Front front = front_of(candidate);
  const auto known = unlisted_.find(front.name);
  if (known != unlisted_.end()) return known->second;
  std::vector<std::shared_ptr<const Checkpointing>> listed;
  std::string ignored;
  for (const std::string& text : space_[Axis::Checkpoint].values) {
    if (text != "auto") listed.push_back(segmentation(families_[candidate.family], text, ignored));
  }
  std::vector<PlanGraphs::Front> beside;
  for (const Candidate* other : others) beside.push_back(front_of(*other));
  Plans plans;
  for (const Checkpointing& plan : graphs_.front(front, beside)) {
    const bool is_listed = std::any_of(listed.begin(), listed.end(), [&](const auto& one) {
      return one != nullptr && one->modules.empty() && one->groups == plan.groups;
    });
    if (!is_listed) plans.push_back(std::make_shared<Checkpointing>(plan));
  }
  return unlisted_.emplace(front.name, std::move(plans)).first->second;
}

std::vector<Candidate> Evaluator::expanded(const Candidate& candidate, std::span<const Candidate* const> others) {
  PlanFamily& family = families_[candidate.family];
  Training before = family.job.training;
  family.job.training.micro_batch = candidate.micro_batch;
  family.job.training.grad_accum = candidate.grad_accum;
  std::vector<Candidate> made;
  for (const std::shared_ptr<const Checkpointing>& choice : unlisted(candidate, others)) {
    Candidate one = candidate;
    one.segmented = choice;
    one.from_front = true;
    one.time.reset();
    family.job.training.checkpoint = *choice;
    judge_by_formula(family, one, false);
    made.push_back(std::move(one));
  }
  family.job.training = std::move(before);
  return made;
}

}  // namespace dsplan::detail
