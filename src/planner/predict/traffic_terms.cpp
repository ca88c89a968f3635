#include "planner/predict/traffic_terms.h"

#include "core/format.h"
#include "planner/predict/footprint.h"
#include "planner/predict/formulas.h"
#include "planner/zero/zero_facts.h"
#include "sim/traffic.h"

namespace dsplan {
namespace {

bool of_data(const TrafficRow& row) {
  const bool shards = row.group == Group::DataParallel || row.group == Group::DataParallelInside ||
                      row.group == Group::DataParallelBetween || row.group == Group::Replicas;
  return shards && row.kind == TrafficKind::Data && row.phase != Pass::Setup && row.phase != Pass::Save;
}

class Terms {
 public:
  Terms(const ModelSpec& model, const Job& job, const std::vector<TrafficRow>& rows) : job_(job), rows_(rows) {
    for (const RankParameter& one : rank_parameters(model, job)) {
      all_ += one.elements;
      if (one.trained) trained_ += one.elements;
    }
  }

  std::vector<TrafficTerm> list() {
    const bool rows = is_fsdp(training().runtime);
    const bool sharded = training().runtime == Runtime::DeepSpeed && training().zero.stage == 3;
    const int stage = rows ? 3 : training().runtime == Runtime::DeepSpeed ? training().zero.stage : 0;
    // The paper trains everything in the model's dtype and takes one micro-batch per step.
    terms_.push_back({formatted("the ZeRO paper, {} N", stage == 3 ? 3 : 2),
                      sent(paper_traffic(all_, stage), training().dtype), "arXiv 1910.02054, section 7"});
    frozen(stage);
    communication_dtype(stage);
    if (rows) {
      fully_sharded();
    } else if (sharded) {
      gathers();
    } else if (stage > 0) {
      reduces();
    }
    Bytes rest = wire(nullptr);
    for (const TrafficTerm& term : terms_) rest -= term.wire;
    add("padding and rounding", rest, "partitions and buckets are padded to whole elements for every rank");
    return std::move(terms_);
  }

 private:
  [[nodiscard]] const Training& training() const { return job_.training; }

  // One pass over so many elements.
  [[nodiscard]] Bytes sent(Elements elements, DType type) const {
    return wire_bytes(Collective::AllGather, storage(elements, type),
                      job_.parallelism.dp / job_.training.fsdp.replicate);
  }

  [[nodiscard]] Bytes wire(bool (*counts)(const TrafficRow&)) const {
    Bytes sum;
    for (const TrafficRow& row : rows_) {
      if (of_data(row) && (counts == nullptr || counts(row))) sum += row.wire;
    }
    return sum;
  }

  void add(std::string what, Bytes bytes, std::string why) {
    if (bytes != Bytes(0)) terms_.push_back({std::move(what), bytes, std::move(why)});
  }

  // Gradients of what is frozen never travel; its parameters do, under stage 3.
  void frozen(int stage) {
    const Elements still = all_ - trained_;
    add("frozen parameters", Bytes(0) - sent(still * (stage == 3 ? 1 : 2), training().dtype),
        stage == 3 ? "they have no gradients to reduce" : "they have no gradients to reduce, and no updates to gather");
  }

  void communication_dtype(int stage) {
    if (training().communication_dtype == training().dtype) return;
    const std::int64_t passes = stage == 0 ? 2 : 1;
    const Elements moved = trained_ * passes;
    add(formatted("gradients in {}", name(training().communication_dtype)),
        sent(moved, training().communication_dtype) - sent(moved, training().dtype),
        "they travel in the communication dtype, not in the model's");
  }

  // Stages 1 and 2.
  void reduces() {
    const DType type = training().communication_dtype;
    const bool to_owners = reduces_to_owners(training());
    const std::int64_t reductions = reductions_per_step(training());
    const Bytes once = sent(trained_, type);
    if (!to_owners) {
      add("all-reduce for reduce-scatter", once * reductions,
          "every rank receives all gradients and keeps its part (stage_1_and_2.py, average_tensor)");
    }
    if (reductions > 1) {
      add(formatted("{} micro-batches", reductions), once * (reductions - 1),
          "stage 2 reduces after each backward; stage 1 once per step");
    }
    if (to_owners) {
      const Bytes reduced = wire([](const TrafficRow& r) { return r.collective == Collective::Reduce; });
      add("one reduce per owner", reduced - once * reductions, "a reduce sends its whole input");
    }
  }

  void gathers() {
    const std::int64_t micro = training().grad_accum;
    const Bytes pass = sent(all_, training().dtype);
    const Bytes reduced = sent(trained_, training().communication_dtype);
    if (micro > 1) {
      add(formatted("{} micro-batches", micro), (pass * 2 + reduced) * (micro - 1),
          "each of them may gather all parameters twice and reduces all gradients");
    }
    const Bytes forward = wire([](const TrafficRow& r) { return gathers_in(r, Pass::Forward); });
    const Bytes backward =
        wire([](const TrafficRow& r) { return gathers_in(r, Pass::Backward) || gathers_in(r, Pass::Recompute); });
    const Bytes step = wire([](const TrafficRow& r) { return gathers_in(r, Pass::Step); });
    const Bytes spared = forward - pass * micro;
    add("gathers in forward", spared,
        spared < Bytes(0) ? "what is persistent, or was kept since the last backward, is there already"
                          : "its last modules fetch ahead what backward needs first; padding");
    const Bytes beyond = backward - pass * micro;
    add("gathers in backward", beyond,
        beyond < Bytes(0) ? "what is persistent or within stage3_max_reuse_distance is there since forward"
                          : "recomputation gathers what it has let go of since forward");
    add("gathers after the step", step, "persistent parameters come back one by one (stage3.py, _post_step)");
    if (!training().zero.reduce_scatter) {
      const Bytes all_reduced = wire([](const TrafficRow& r) { return r.collective == Collective::AllReduce; });
      add("all-reduce for reduce-scatter", all_reduced - reduced * micro, "reduce_scatter is off");
    }
  }

  void fully_sharded() {
    const std::int64_t micro = training().grad_accum;
    const Bytes pass = sent(all_, training().dtype);
    const Bytes reduced = sent(trained_, training().communication_dtype);
    const bool every = training().fsdp.sync_every;
    if (micro > 1) {
      add(formatted("{} micro-batches", micro), (pass * 2 + (every ? reduced : Bytes(0))) * (micro - 1),
          every ? "each of them gathers all parameters twice and reduces all gradients"
                : "each of them gathers all parameters twice; gradients are reduced in the last one");
    }
    const Bytes backward = wire([](const TrafficRow& r) { return gathers_in(r, Pass::Backward); });
    add("gathers in backward", backward - pass * micro, "what is not resharded after forward is there already");
    add("sums of replicas", wire([](const TrafficRow& r) { return r.group == Group::Replicas; }),
        "each shard is summed over the ranks that hold it");
  }

  static bool gathers_in(const TrafficRow& row, Pass pass) {
    return row.collective == Collective::AllGather && row.phase == pass;
  }

  const Job& job_;
  const std::vector<TrafficRow>& rows_;
  Elements all_;
  Elements trained_;
  std::vector<TrafficTerm> terms_;
};

// What the tensor-parallel ranks send each other; the terms add up to those rows.
void add_tensor_parallel(const ModelSpec& model, const Job& job, const std::vector<TrafficRow>& rows,
                         std::vector<TrafficTerm>& terms) {
  if (job.parallelism.tp == 1) return;
  Bytes rest;
  for (const TrafficRow& row : rows) {
    if (row.group == Group::TensorParallel && row.kind == TrafficKind::Data) rest += row.wire;
  }
  const TensorParallelSums sums = tensor_parallel_sums(model, job);
  const auto add = [&](Collective collective, std::string what, Bytes payload, const char* why) {
    const Bytes wire = wire_bytes(collective, payload, job.parallelism.tp);
    rest -= wire;
    if (wire != Bytes(0)) terms.push_back({std::move(what), wire, why});
  };
  const std::int64_t layers = sums.forward_layers + sums.backward_layers;
  add(Collective::AllReduce, formatted("tensor parallelism, {} hidden states in layers", layers), sums.hidden * layers,
      "two sums in forward and two in backward for each layer (arXiv 1909.08053, section 3)");
  add(Collective::AllReduce, "of the embedding's output and the head's input", sums.hidden * (1 + sums.head),
      "both are cut along the vocabulary");
  add(Collective::AllReduce, "of the loss", sums.loss,
      "the largest logit, the target's and the sum of exponentials, in fp32 for each token");
  add(Collective::AllReduce, formatted("{} sums repeated by recomputation", sums.repeated), sums.hidden * sums.repeated,
      "early stop leaves out the last one of a region where nothing behind it is saved");
  add(Collective::AllGather, "of partitioned checkpoints", sums.hidden * sums.gathered,
      "partition_activations: each argument is gathered in backward");
  if (rest != Bytes(0)) terms.push_back({"beside these", rest, "rounding; recomputation around modules"});
}

}  // namespace

std::vector<TrafficTerm> traffic_terms(const ModelSpec& model, const Job& job, const std::vector<TrafficRow>& rows) {
  std::vector<TrafficTerm> terms;
  if (job.parallelism.dp > 1) terms = Terms(model, job, rows).list();
  add_tensor_parallel(model, job, rows, terms);
  return terms;
}

}  // namespace dsplan
