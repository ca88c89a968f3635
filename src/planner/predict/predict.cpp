#include "planner/predict/predict.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "model/graphs/graphs.h"
#include "planner/advise/advice.h"
#include "planner/lower/lower.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/footprint.h"
#include "planner/predict/fragmentation.h"
#include "planner/predict/judge.h"
#include "planner/predict/label_rules.h"
#include "planner/predict/library_workspaces.h"
#include "planner/predict/planned.h"
#include "planner/predict/report_details.h"
#include "planner/predict/traffic_terms.h"
#include "planner/time/predicted.h"
#include "sim/memory.h"
#include "sim/placement.h"
#include "sim/traffic.h"

namespace dsplan {
namespace {

// What every rank shares: the graph and its recipes do not depend on the rank.
struct Ground {
  std::optional<std::string> obstacle;
  std::optional<Shapes> shapes;
  TimeAnswer time;
  // Peaks of data-parallel ranks on their hosts, memory and files, of those that were asked for.
  mutable std::map<std::int64_t, std::pair<Bytes, Bytes>> hosts;
};

Ground prepare(const ModelSpec& model, const Job& job) {
  DSPLAN_CHECK(job.training.checkpoint.text != "auto", "a segmentation that nobody has chosen");
  Ground ground;
  ground.obstacle = unsupported(model, job);
  if (ground.obstacle) return ground;
  ground.shapes.emplace(build_shapes(model, job));
  ground.time = time_of(model, job, *ground.shapes);
  return ground;
}

// The fields that formulas give, for every job.
Prediction outline(const ModelSpec& model, const Job& job, std::int64_t rank, const Footprint& formulas,
                   const std::string& hash) {
  Prediction p;
  p.fingerprint = hash;
  p.model = model.name;
  p.rank = rank;
  p.world = job.parallelism.world;
  p.parameters_total = formulas.parameters_total;
  p.parameters_trainable = formulas.parameters_trainable;
  p.states = formulas.states;
  p.persistent.by_role = formulas.persistent;
  p.capacity = job.capacity;
  p.context = context_of(job);
  p.reserve = job.reserve;
  p.communicators = communicators_of(job);
  p.advice = advice_by_formula(model, job, rank, formulas.parameters_trainable);
  return p;
}

// Without a schedule the states alone can still refute a configuration.
void judge_states(const std::string& obstacle, Prediction& p) {
  p.not_modelled.push_back({"memory.held_for_backward", obstacle});
  p.not_modelled.push_back({"memory.peak", obstacle});
  p.not_modelled.push_back({"memory.loss_spike", obstacle});
  p.not_modelled.push_back({"memory.phases", obstacle});
  p.not_modelled.push_back({"memory.persistent.allocated", obstacle});
  p.not_modelled.push_back({"communication", obstacle});
  p.not_modelled.push_back({"time", obstacle});
  const Bytes least = p.persistent.by_role.total() + p.communicators.value_or(Bytes(0)) + p.context.value_or(Bytes(0));
  if (p.capacity && least + p.reserve > *p.capacity) {
    p.verdict = Verdict::DoesNotFit;
    p.verdict_reason =
        formatted("the persistent state alone needs {} more than there is", human(least + p.reserve - *p.capacity));
    return;
  }
  p.verdict = Verdict::Unknown;
  p.verdict_reason = formatted("only the states are predicted: not modelled yet: {}", obstacle);
}

// Traffic of a step in steady state, as far as it is of this part: the turn has none.
void keep_traffic(StepPart part, Prediction& p) {
  std::erase_if(*p.communication, [&](const TrafficRow& row) {
    switch (row.phase) {
      case Pass::Forward: return part != StepPart::Forward;
      case Pass::Backward:
      case Pass::Recompute: return part != StepPart::Backward;
      case Pass::Step: return part != StepPart::Step;
      default: return true;
    }
  });
  p.traffic_terms.clear();
}

// --phase: peaks and marks of one phase, and the traffic of initialisation or of a step. The verdict stays that of the
// whole run, as what does not fit in one phase never comes to the next; the persistent state is no phase's own.
void keep_only(const Window& window, Prediction& p) {
  const Stretch stretch = window.stretch;
  std::erase_if(p.phases, [&](const Phase& phase) {
    if (phase.name == kRecord) return stretch != Stretch::FirstStep;
    return window.recording || phase.name != name(stretch);
  });
  if (window.part) {
    for (Phase& phase : p.phases) phase = part_of(phase, *window.part);
    return keep_traffic(*window.part, p);
  }
  const auto of = [](const TrafficRow& row) {
    return row.phase == Pass::Setup ? Stretch::Init : row.phase == Pass::Save ? Stretch::Save : Stretch::SecondStep;
  };
  const Stretch traffic = stretch == Stretch::Init || stretch == Stretch::Save ? stretch : Stretch::SecondStep;
  std::erase_if(*p.communication, [&](const TrafficRow& row) { return of(row) != traffic; });
  if (stretch == Stretch::SecondStep) return;
  if (window.recording) {
    p.communication.reset();
    p.traffic_terms.clear();
    p.not_modelled.push_back({"communication", "of a step in steady state, which --phase record leaves out"});
  }
  p.held_for_backward.reset();
  p.not_modelled.push_back({"memory.held_for_backward", "of the second step, which --phase leaves out"});
}

void add_recording(std::vector<Phase>& phases) {
  std::optional<Phase> record = recording_micro_batch(phases);
  if (!record) return;
  const auto first = std::find_if(phases.begin(), phases.end(),
                                  [](const Phase& phase) { return phase.name == name(Stretch::FirstStep); });
  phases.insert(first + 1, std::move(*record));
}

bool ranks_differ(const Job& job) {
  const Training& t = job.training;
  return t.runtime == Runtime::DeepSpeed && (t.zero.stage == 1 || t.zero.stage == 2) && job.parallelism.dp > 1;
}

void list_tensor_parallel(const ModelSpec& model, const Job& job, Prediction& p) {
  const Training& t = job.training;
  if (job.parallelism.tp == 1) return;
  if (model.dims.kv_heads % job.parallelism.tp != 0) {
    p.not_modelled.push_back(
        {"communication.tp", "how ranks that share a key-value head bring its gradients together"});
  }
  if (t.runtime == Runtime::DeepSpeed && t.zero.stage == 0 && t.dtype != DType::Float32) {
    p.not_modelled.push_back({"memory.peak.temporaries",
                              "on tensor-parallel ranks other than the first, FP16_Optimizer masks what is replicated "
                              "when it takes the norm (runtime/utils.py, get_flattened_grad_norm)"});
  }
}

void list_what_is_missing(const ModelSpec& model, const Job& job, Prediction& p) {
  if (job.training.level == Level::Dispatch) {
    p.not_modelled.push_back({"kernel temporaries", "left out by --level dispatch"});
    p.not_modelled.push_back({"workspace", "the libraries' workspaces are left out by --level dispatch"});
  } else if (!job.hardware) {
    p.not_modelled.push_back(
        {"workspace", "no device is named: the size of cuBLAS's and cuBLASLt's workspaces depends on it"});
  } else if (!library_workspaces(job)) {
    p.not_modelled.push_back({"workspace", formatted("the libraries' workspaces on {}", job.hardware->architecture)});
  }
  if (!job.context) {
    p.not_modelled.push_back({"context", "no device is named: an uncalibrated 600 MiB stand for its CUDA context"});
  }
  if (job.training.runtime == Runtime::DeepSpeed) {
    p.not_modelled.push_back({"eval", "forwards without gradients between steps; under ZeRO-3 they break the trace"});
    p.not_modelled.push_back({"resume", "loading a checkpoint, in which its tensors stand beside the engine's"});
  }
  if (ranks_differ(job) && job.parallelism.nodes > 1 &&
      job.training.zero.offload_optimizer.device != OffloadDevice::None) {
    p.not_modelled.push_back({"memory.host.per_node", "ranks differ, and so do nodes: it is that of this rank's node"});
  }
  list_tensor_parallel(model, job, p);
}

// All ranks of `rank`'s node. Where ranks differ each of them is simulated, once.
NodeMemory node_of(const ModelSpec& model, const Job& job, std::int64_t rank, const Ground& ground,
                   const HostMeter& own) {
  const Parallelism& parallel = job.parallelism;
  NodeMemory node;
  const std::int64_t first = rank / parallel.gpus_per_node * parallel.gpus_per_node;
  const std::int64_t end = std::min(parallel.world, first + parallel.gpus_per_node);
  node.ranks = end - first;
  const bool alike = !ranks_differ(job) || job.training.zero.offload_optimizer.device == OffloadDevice::None;
  if (alike) {
    // A last node need not be full: what is judged is one that is.
    node.ranks = std::min(parallel.world, parallel.gpus_per_node);
    node.peak = own.peak() * node.ranks;
    node.nvme = own.nvme_peak() * node.ranks;
    return node;
  }
  ground.hosts.emplace(rank % parallel.dp, std::pair(own.peak(), own.nvme_peak()));
  for (std::int64_t other = first; other < end; ++other) {
    const std::int64_t data_rank = other % parallel.dp;
    auto known = ground.hosts.find(data_rank);
    if (known == ground.hosts.end()) {
      const Schedule schedule = lower(model, job, *ground.shapes, data_rank);
      HostMeter meter(schedule);
      replay(schedule, meter);
      known = ground.hosts.emplace(data_rank, std::pair(meter.peak(), meter.nvme_peak())).first;
    }
    node.peak += known->second.first;
    node.nvme += known->second.second;
  }
  return node;
}

Prediction predict_one(const ModelSpec& model, const Job& job, std::int64_t rank, const Ground& ground,
                       const Footprint& formulas, const std::string& hash) {
  Prediction p = outline(model, job, rank, formulas, hash);
  list_what_is_missing(model, job, p);
  if (ground.obstacle) {
    p.not_modelled.push_back({"memory.host", *ground.obstacle});
    p.host.verdict_reason = "not modelled yet: " + *ground.obstacle;
    p.host.nvme_verdict_reason = p.host.verdict_reason;
    if (!formulas.batch_known) {
      p.not_modelled.push_back({"memory.persistent.inputs", formatted("the batch of the {} family", model.family)});
    }
    judge_states(*ground.obstacle, p);
    return p;
  }
  for (const char* what : ground.shapes->recipes.front().unknown()) {
    p.not_modelled.push_back({"memory.peak.temporaries", formatted("{}: the GPU alone knows its size", what)});
  }
  const Schedule schedule = lower(model, job, *ground.shapes, job.parallelism.data_rank(rank));
  const std::optional<Window> only = window_named(job.phase);
  MemoryMeter meter(schedule, only);
  TrafficMeter traffic;
  HostMeter host(schedule);
  replay(schedule, meter, traffic, host);
  const PlacementOptions options = without_limit(job);
  const BothPlacements both = place_both(schedule, options);
  const Placement& placement = both.asked;
  p.events = schedule.events.size();
  p.buffers = schedule.buffers.size();
  DSPLAN_CHECK(meter.by_role() == formulas.persistent, "persistent bytes by schedule and by formula differ");
  DSPLAN_CHECK(rank != 0 || host.nvme_peak() == nvme_footprint(model, job, rank).files,
               "files by schedule and by formula differ");
  const std::string checkpoint = checkpoint_fault(model, job, schedule);
  DSPLAN_CHECK(checkpoint.empty(), "what checkpoints take by schedule and by formula differs: " + checkpoint);
  p.persistent.allocated = placement.marks.back().allocated;  // The schedule ends with the second step's last mark.
  p.phases = with_allocator(meter.phases(), schedule, placement);
  if (job.training.runtime == Runtime::DeepSpeed && job.training.zero.stage == 3) add_recording(p.phases);
  p.communication = traffic.rows(job.parallelism.dp, schedule.dp_inside, job.parallelism.tp);
  p.traffic_terms = traffic_terms(model, job, *p.communication);
  p.fetches = schedule.counts;
  p.held_for_backward = held_for_backward(schedule, model);
  p.loss_spike = loss_spike(schedule, model);
  add_peak(schedule, model, job, meter, ends_of(schedule, both, options, only), p);
  add_host(host, node_of(model, job, rank, ground, host), job, p);
  if (job.placement == PlacementKind::Planned) {
    judge_planned(plan_arena(schedule, placement.peak.reserved), p);
  } else {
    judge(schedule, model, job, both, p);
  }
  judge_host(job, p);
  p.time = ground.time.time;
  if (!p.time) p.not_modelled.push_back({"time", ground.time.why});
  if (job.explain_fragmentation) {
    p.fragmentation =
        explain_fragmentation(schedule, model, job, options, peaks_of(schedule, placement, only), verdict_limit(p));
  }
  if (only) keep_only(*only, p);
  name_rules(job.training, p);
  return p;
}

std::int64_t rank_number(const Job& job) {
  std::int64_t rank = -1;
  const char* end = job.rank.data() + job.rank.size();
  const auto [stop, fault] = std::from_chars(job.rank.data(), end, rank);
  if (fault != std::errc() || stop != end || rank < 0 || rank >= job.parallelism.world) {
    throw Refusal("--rank", formatted("must be \"all\", \"worst\" or a rank from 0 to {}, not \"{}\"",
                                      job.parallelism.world - 1, job.rank));
  }
  return rank;
}

// The data-parallel ranks among which the worst one is sought. Under ZeRO-1 and 2 each owns another part of the
// parameters and keeps other gradients; everywhere else all ranks do the same and the first stands for them. Up to
// kAllRanks every rank is simulated; beyond that those that keep the most gradient bytes, and the first and the last.
constexpr std::int64_t kAllRanks = 16;
constexpr std::size_t kCandidates = 8;

std::vector<std::int64_t> candidates(const ModelSpec& model, const Job& job) {
  if (!ranks_differ(job)) return {0};
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(job.parallelism.dp));
  for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r] = static_cast<std::int64_t>(r);
  if (job.parallelism.dp <= kAllRanks) return ranks;
  const std::vector<Elements> kept = kept_gradients(model, job);
  std::stable_sort(ranks.begin(), ranks.end(), [&](std::int64_t a, std::int64_t b) {
    return kept[static_cast<std::size_t>(a)] > kept[static_cast<std::size_t>(b)];
  });
  ranks.resize(kCandidates);
  ranks.push_back(0);
  ranks.push_back(job.parallelism.dp - 1);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

Bytes badness(const Prediction& p) {
  return p.peak && p.peak->process ? *p.peak->process : p.persistent.by_role.total();
}

}  // namespace

Prediction predict(const ModelSpec& model, const Job& job, std::int64_t rank) {
  return predict_one(model, job, rank, prepare(model, job), footprint(model, job), fingerprint(model, job));
}

namespace {

std::vector<Prediction> predict_ranks(const ModelSpec& model, const Job& job) {
  const Ground ground = prepare(model, job);
  const Footprint formulas = footprint(model, job);
  const std::string hash = fingerprint(model, job);
  std::vector<Prediction> predictions;
  if (job.rank != "worst" && job.rank != "all") {
    predictions.push_back(predict_one(model, job, rank_number(job), ground, formulas, hash));
    return predictions;
  }
  if (job.rank == "all") {
    const bool alike = !ranks_differ(job);
    for (std::int64_t rank = 0; rank < job.parallelism.world; ++rank) {
      // Ranks that share each layer do the same.
      const std::int64_t model_ranks = job.parallelism.tp * job.parallelism.sp;
      if (rank > 0 && (alike || rank % model_ranks > 0)) {
        predictions.push_back(predictions.back());
        predictions.back().rank = rank;
      } else {
        predictions.push_back(predict_one(model, job, rank, ground, formulas, hash));
      }
    }
    return predictions;
  }
  std::optional<Prediction> worst;
  if (ground.obstacle) return {predict_one(model, job, 0, ground, formulas, hash)};
  const std::vector<std::int64_t> ranks = candidates(model, job);
  for (std::int64_t rank : ranks) {
    Prediction candidate =
        predict_one(model, job, rank * job.parallelism.tp * job.parallelism.sp, ground, formulas, hash);
    if (!worst || badness(candidate) > badness(*worst)) worst = std::move(candidate);
  }
  if (ranks_differ(job) && static_cast<std::int64_t>(ranks.size()) < job.parallelism.dp) {
    worst->not_modelled.push_back(
        {"rank", formatted("the worst of {} ranks that keep the most gradient bytes; the other {} were not simulated",
                           ranks.size(), job.parallelism.dp - static_cast<std::int64_t>(ranks.size()))});
  }
  predictions.push_back(std::move(*worst));
  return predictions;
}

}  // namespace

std::vector<Prediction> predict_asked(const ModelSpec& model, const Job& job) {
  std::vector<Prediction> predictions = predict_ranks(model, job);
  if (job.explain_advice) add_predicted_advice(model, job, predictions);
  return predictions;
}

}  // namespace dsplan
