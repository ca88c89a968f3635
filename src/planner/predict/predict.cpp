#include "planner/predict/predict.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/machine/in_parallel.h"
#include "planner/advise/advice.h"
#include "planner/fsdp/fsdp_facts.h"
#include "planner/predict/evidence.h"
#include "planner/predict/sections.h"
#include "planner/predict/verdict.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {
namespace {

// Of what retries a screen says how later steps fare, and a search asks where the two ends of what waiting frees can do
// disagree.
std::optional<LongRun> expected_run_of(const Evidence& evidence, const Judgement& judged) {
  if (!evidence.readings) return std::nullopt;
  const Detail detail = evidence.shared.detail;
  const bool retries = fits(judged.verdict) && judged.retries > 0;
  const bool open = detail == Detail::Fate && judged.retries_low == 0;
  if (detail != Detail::All && !(retries && (open || detail == Detail::Screen))) return std::nullopt;
  return evidence.readings->expected_run(evidence.shared.job, evidence.shared.room);
}

std::optional<LongRun> long_run_of(const Evidence& evidence, const Judgement& judged) {
  if (!evidence.readings) return std::nullopt;
  const Readings& readings = *evidence.readings;
  const bool retries = fits(judged.verdict) && judged.retries > 0 && !readings.placements.asked.waited;
  if (evidence.shared.detail != Detail::Screen || !retries) return readings.later_steps;
  return readings.long_run(evidence.shared.job, evidence.shared.room);
}

// Evidence, then its sections, then the verdict. `evidence` is const from here on.
Prediction concluded(const Evidence& evidence) {
  const SharedEvidence& shared = evidence.shared;
  const Job& job = shared.job;
  const Footprint& formulas = shared.formulas;
  const Readings* readings = evidence.readings.get();
  const bool told = tells_what(shared.detail);
  std::optional<PlannedArena> arena = arena_of(evidence);
  HostMemory host = host_of(evidence);
  Judgement judged = judge(evidence, arena, host);
  std::optional<LongRun> long_run = long_run_of(evidence, judged);
  std::optional<LongRun> expected_run = expected_run_of(evidence, judged);
  std::optional<Peak> peak = peak_of(evidence, arena);
  const bool lacks_expected = readings != nullptr && readings->times && !readings->expected && !arena;
  if (lacks_expected && fits(judged.verdict) && judged.retries == 0)
    peak->reserved_expected = expected_reserved(*readings);
  return {
      .fingerprint = shared.fingerprint,
      .model = shared.model.name,
      .rank = evidence.rank,
      .world = job.parallelism.world,
      .parameters_total = formulas.parameters_total,
      .parameters_trainable = formulas.parameters_trainable,
      .states = footprints_differ(job.training) ? footprint(shared.model, job, evidence.rank).states : formulas.states,
      .persistent = persistent_of(evidence),
      .held_for_backward = held_of(evidence),
      .saved = std::nullopt,         // saved_tensors.h, where they are asked for.
      .above_inputs = std::nullopt,  // Of an op-graph.
      .peak = std::move(peak),
      .loss_spike = loss_spike_of(evidence),
      .fragmentation = fragmentation_of(evidence),
      .arena = std::move(arena),
      .advice = told ? advice_by_formula(shared.model, job, evidence.rank, formulas.parameters_trainable)
                     : std::vector<Advice>(),
      .phases = phases_of(evidence),
      .host = std::move(host),
      .communication = communication_of(evidence),
      .traffic_terms = terms_of(evidence),
      .time = shared.time().time,
      .fetches = readings != nullptr ? readings->schedule.counts : std::vector<FrameworkCount>(),
      .capacity = shared.room.capacity,
      .context = shared.room.context,
      .communicators = shared.room.communicators,
      .reserve = shared.room.reserve,
      .verdict = judged.verdict,
      .verdict_reason = std::move(judged.reason),
      .retries = judged.retries,
      .retries_low = judged.retries_low,
      .retries_expected = judged.retries_expected,
      .needed = judged.needed,
      .shortfall = judged.shortfall,
      .failure = std::move(judged.failure),
      .doubts = std::move(judged.doubts),
      .changes = {},  // planner/advise, where they are asked for.
      .long_run = std::move(long_run),
      .long_run_expected = std::move(expected_run),
      .events = readings != nullptr ? readings->schedule.events.size() : 0,
      .buffers = readings != nullptr ? readings->schedule.buffers.size() : 0,
      .not_modelled = absences_of(evidence),
  };
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
// parameters and keeps other gradients, under ZeroRedundancyOptimizer other states; everywhere else all ranks do the
// same and the first stands for them. Up to kAllRanks every rank is simulated; beyond that those that keep the most
// gradient bytes, and the first and the last.
constexpr std::int64_t kAllRanks = 16;
constexpr std::size_t kCandidates = 8;

// Under ZeroRedundancyOptimizer, by rank.
std::vector<Elements> updated_elements(const ModelSpec& model, const Job& job) {
  std::vector<Elements> sizes;
  for (const RankParameter& p : rank_parameters(model, job)) {
    if (p.trained) sizes.push_back(p.elements);
  }
  std::vector<Elements> updated(static_cast<std::size_t>(job.parallelism.dp));
  const std::vector<std::int64_t> owners = redundancy_owners(sizes, job.parallelism.dp);
  for (std::size_t at = 0; at < sizes.size(); ++at) updated[static_cast<std::size_t>(owners[at])] += sizes[at];
  return updated;
}

std::vector<std::int64_t> candidates(const ModelSpec& model, const Job& job) {
  if (!ranks_differ(job.training, job.parallelism)) return {0};
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(job.parallelism.dp));
  for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r] = static_cast<std::int64_t>(r);
  if (job.parallelism.dp <= kAllRanks) return ranks;
  const std::vector<Elements> kept =
      job.training.ddp.zero_redundancy ? updated_elements(model, job) : kept_gradients(model, job);
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

// Of data-parallel ranks, several at once where none asks for another one's host.
std::optional<Prediction> worst_of(const SharedEvidence& shared, const std::vector<std::int64_t>& ranks,
                                   HostPeaks& hosts) {
  constexpr std::size_t kMost = 4;  // A large model's schedule takes a hundred megabytes while it is looked at.
  const Job& job = shared.job;
  const bool asks = offloads_optimizer(job.training) || job.training.model_init == ModelInit::Rank0;
  const std::size_t at_once = asks ? 1 : kMost;
  const std::int64_t model_ranks = job.parallelism.tp * job.parallelism.sp;
  std::optional<Prediction> worst;
  for (std::size_t begin = 0; begin < ranks.size(); begin += at_once) {
    std::vector<std::optional<Prediction>> some(std::min(at_once, ranks.size() - begin));
    in_parallel(some.size(), [&](std::size_t at) {
      HostPeaks none;
      some[at].emplace(concluded(gather(shared, ranks[begin + at] * model_ranks, asks ? hosts : none)));
    });
    for (std::optional<Prediction>& one : some) {
      if (!worst || badness(*one) > badness(*worst)) worst = std::move(one);
    }
  }
  return worst;
}

std::optional<Prediction> worst_rank(const SharedEvidence& shared, HostPeaks& hosts) {
  const Job& job = shared.job;
  const std::vector<std::int64_t> ranks = candidates(shared.model, job);
  std::optional<Prediction> worst = worst_of(shared, ranks, hosts);
  if (ranks_differ(job.training, job.parallelism) && static_cast<std::int64_t>(ranks.size()) < job.parallelism.dp) {
    worst->not_modelled.push_back(
        {"rank", formatted("the worst of {} ranks that keep the most {}; the other {} were not simulated", ranks.size(),
                           job.training.ddp.zero_redundancy ? "optimizer states" : "gradient bytes",
                           job.parallelism.dp - static_cast<std::int64_t>(ranks.size()))});
  }
  return worst;
}

std::vector<Prediction> predict_ranks(const ModelSpec& model, const Job& job, Detail detail) {
  const SharedEvidence shared(model, job, detail);
  HostPeaks hosts;
  const auto predicted = [&](std::int64_t rank) { return concluded(gather(shared, rank, hosts)); };
  std::vector<Prediction> predictions;
  if (job.rank != "worst" && job.rank != "all") {
    predictions.push_back(predicted(rank_number(job)));
    return predictions;
  }
  if (job.rank == "all") {
    const bool alike = !ranks_differ(job.training, job.parallelism);
    for (std::int64_t rank = 0; rank < job.parallelism.world; ++rank) {
      // Ranks that share each layer do the same.
      const std::int64_t model_ranks = job.parallelism.tp * job.parallelism.sp;
      const bool shards = is_fsdp(job.training.runtime);
      // The rank before loads for the others, or keeps the dict that is saved.
      const bool keeps = job.training.fsdp.state_dict == "full" ||
                         (job.training.zero.stage == 3 && job.training.zero.gather_16bit_weights_on_model_save);
      const bool first = job.training.model_init == ModelInit::Rank0 || keeps;
      if (rank > 0 && !(rank == 1 && first) &&
          (rank % model_ranks > 0 || (shards ? same_shards(model, job, rank - 1, rank) : alike))) {
        predictions.push_back(predictions.back());
        predictions.back().rank = rank;
      } else {
        predictions.push_back(predicted(rank));
      }
    }
    return predictions;
  }
  if (shared.unsupported) return {predicted(0)};
  predictions.push_back(std::move(*worst_rank(shared, hosts)));
  return predictions;
}

}  // namespace

Prediction predict(const ModelSpec& model, const Job& job, std::int64_t rank) {
  const SharedEvidence shared(model, job);
  HostPeaks hosts;
  return concluded(gather(shared, rank, hosts));
}

std::vector<Prediction> predict_asked(const ModelSpec& model, const Job& job, Detail detail) {
  std::vector<Prediction> predictions = predict_ranks(model, job, detail);
  if (job.explain_advice) add_predicted_advice(model, job, predictions);
  return predictions;
}

std::optional<Prediction> predict_wanted(const ModelSpec& model, const Job& job, Detail detail, Wanted wanted,
                                         const std::atomic<bool>* needless, SharedShapes* shapes) {
  SharedEvidence shared(model, job, detail, shapes);
  HostPeaks hosts;
  if (shared.unsupported) return concluded(gather(shared, 0, hosts));
  shared.wanted = wanted;
  shared.until.unwanted = needless;
  const std::optional<VerdictLimit> limit = verdict_limit(shared.room);
  if (limit && wanted != Wanted::Any) shared.until.room = limit->limit;
  try {
    return worst_rank(shared, hosts);
  } catch (const Ended&) {
    return std::nullopt;
  }
}

}  // namespace dsplan
