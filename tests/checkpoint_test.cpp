// What the forms of activation checkpointing hold, run again, and refuse; sizes from PyTorch's rules, not from the
// tape.
#include <doctest/doctest.h>
#include <algorithm>

#include "core/format.h"
#include "lowered.h"
#include "model/graphs/graphs.h"
#include "planner/lower/lower.h"
#include "planner/predict/predict.h"
#include "planner/resolve/checkpointing.h"
#include "report/export/write_training.h"
#include "sim/memory.h"

using namespace dsplan;

namespace {

constexpr std::int64_t kCpuState = 5056;   // torch.get_rng_state().numel()
constexpr std::int64_t kDeviceState = 16;  // torch.cuda.get_rng_state().numel()

Job plain(const std::string& checkpoint, const ModelSpec& model, CheckpointKind kind = CheckpointKind::NonReentrant) {
  Job job = lowered::job(-1, 1);
  Request request;
  request.checkpoint = {checkpoint, option("--checkpoint")};
  job.training.checkpoint = resolve_checkpointing(request, model, kind);
  return job;
}

Schedule schedule_of(const ModelSpec& model, const Job& job) {
  const Graph graph = build_graph(model, graph_options(model, job));
  return lower(model, job, graph, RecipeBook(graph), 0);
}

// Bytes on the device between forward and backward of the second step, by the meter's mark.
Bytes held(const Schedule& schedule) {
  MemoryMeter meter(schedule);
  replay(schedule, meter);
  for (const PhaseMark& mark : meter.phases().back().marks) {
    if (mark.name == name(Moment::BackwardBegins)) return mark.requested;
  }
  return {};
}

std::size_t recomputed(const Schedule& schedule, std::string_view work) {
  std::size_t count = 0;
  for (const Event& event : schedule.events) {
    const auto* compute = std::get_if<Compute>(&event);
    if (compute != nullptr && compute->pass == Pass::Recompute && compute->work == work) ++count;
  }
  return count;
}

// Bytes that the operators `op` of the layers give out.
Bytes outputs_of(const ModelSpec& model, const Job& job, Op op) {
  const Graph graph = build_graph(model, graph_options(model, job));
  Bytes sum;
  for (const Node& node : graph.nodes) {
    if (node.op != op || model.module_at(node.module).layer == kNone) continue;
    for (TensorId out : graph.out(node)) sum += graph.bytes(out);
  }
  return sum;
}

}  // namespace

TEST_CASE("kept results live from forward to their node, and their operators do not run again") {
  for (const ModelSpec& model : {lowered::bundled("tiny-llama"), lowered::bundled("tiny-gpt2")}) {
    CAPTURE(model.name);
    const Schedule all = schedule_of(model, plain("full", model));
    const Job job = plain("keep:linear", model);
    const Schedule kept = schedule_of(model, job);
    CHECK(recomputed(all, "linear") > 0);
    CHECK(recomputed(kept, "linear") == 0);
    CHECK(recomputed(kept, "add") == recomputed(all, "add"));
    // A layer's output is one of its products plus the residual: no kept result is held by anybody else.
    CHECK(held(kept) - held(all) == outputs_of(model, job, Op::Linear));
  }
}

TEST_CASE("keep:mm keeps what has no bias; where others have one it is refused") {
  const auto held_by = [](const char* words, const ModelSpec& model) {
    return held(schedule_of(model, plain(words, model)));
  };
  const ModelSpec llama = lowered::bundled("tiny-llama");
  CHECK(held_by("keep:mm", llama) == held_by("keep:linear", llama));
  const ModelSpec gpt2 = lowered::bundled("tiny-gpt2");
  CHECK(held_by("keep:mm", gpt2) == held_by("full", gpt2));
  const ModelSpec qwen2 = lowered::inlined("tiny-qwen2", R"({"model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97})");
  CHECK_THROWS_WITH_AS(plain("keep:mm", qwen2), doctest::Contains("keeping mm alone"), Refusal);
}

TEST_CASE("checkpoints around modules run these again and nothing else") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const Schedule none = schedule_of(model, plain("none", model));
  const Schedule mlp = schedule_of(model, plain("modules:mlp", model));
  CHECK(held(mlp) < held(none));
  CHECK(recomputed(mlp, "silu") == 2 * static_cast<std::size_t>(model.dims.layers));
  CHECK(recomputed(mlp, "scaled_dot_product_attention") == 0);
  const Schedule core = schedule_of(model, plain("modules:core_attn", model));
  CHECK(recomputed(core, "scaled_dot_product_attention") == 2 * static_cast<std::size_t>(model.dims.layers));
  CHECK(recomputed(core, "linear") == 0);
}

// Of each layer attention is given its input by keyword, which its frame holds. The layer runs again up to the MLP,
// whose input is the last that was saved, and then each of its modules on its own, up to the last product.
TEST_CASE("checkpoints within a layer's keep what attention is given, and run most of the layer twice") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const Schedule all = schedule_of(model, plain("full", model));
  const Job job = plain("nested", model);
  const Schedule nested = schedule_of(model, job);
  const auto layers = static_cast<std::size_t>(model.dims.layers);
  const Training& t = job.training;
  const Bytes input = storage(Elements(t.rows() * t.seq * model.dims.hidden), t.dtype);
  CHECK(held(nested) - held(all) == input * model.dims.layers);
  CHECK(recomputed(all, "linear") == 12 * layers);     // Two steps: q, k, v, o, gate and up of each layer.
  CHECK(recomputed(nested, "linear") == 18 * layers);  // The four of attention, then q, k and v, then gate and up.
  CHECK(recomputed(nested, "scaled_dot_product_attention") == 4 * layers);
  CHECK(checkpoint_words(t.checkpoint, model.dims.layers) == "nested");
}

TEST_CASE("both forms hold the same between forward and backward, and stash random state on the host") {
  for (const ModelSpec& model : {lowered::bundled("tiny-llama"), lowered::bundled("tiny-gpt2")}) {
    CAPTURE(model.name);
    const Job non_reentrant = plain("full", model);
    const Job reentrant = plain("full", model, CheckpointKind::Reentrant);
    CHECK(held(schedule_of(model, non_reentrant)) == held(schedule_of(model, reentrant)));
    for (const Job& job : {non_reentrant, reentrant}) {
      const Prediction p = predict(model, job, 0);
      CHECK(p.host.pageable == Bytes(model.dims.layers * (kCpuState + kDeviceState)));
      CHECK(p.host.pinned == Bytes(0));
    }
    Job without = non_reentrant;
    for (CheckpointGroup& group : without.training.checkpoint.groups) group.preserve_rng_state = false;
    CHECK(predict(model, without, 0).host.peak == Bytes(0));
  }
}

TEST_CASE("a reentrant region runs whole, its last operator too; early stop leaves that out") {
  const ModelSpec model = lowered::bundled("tiny-gpt2");
  const auto layers = static_cast<std::size_t>(model.dims.layers);
  // Two residual additions per block; the last one's result nobody saves.
  CHECK(recomputed(schedule_of(model, plain("full", model)), "add") + 2 * layers ==
        recomputed(schedule_of(model, plain("full", model, CheckpointKind::Reentrant)), "add"));
}

TEST_CASE("what cannot be checkpointed is refused") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  struct Row {
    const char* words;
    CheckpointKind kind;
    const char* message;
  };
  const Row rows[] = {
      {"keep:linera", CheckpointKind::NonReentrant, "no operator \"linera\"; did you mean \"linear\"?"},
      {"keep:", CheckpointKind::NonReentrant, "has an empty name"},
      {"keep:linear+", CheckpointKind::NonReentrant, "has an empty name"},
      {"keep:linear", CheckpointKind::Reentrant, "keeping results needs the non-reentrant form"},
      {"nested", CheckpointKind::Reentrant, "within reentrant ones are not modelled yet"},
      {"modules:mpl", CheckpointKind::NonReentrant, "no module \"mpl\" in a layer of"},
      {"modules:moe", CheckpointKind::NonReentrant, "no module \"moe\""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.words);
    try {
      (void)plain(row.words, model, row.kind);
      FAIL_CHECK("not refused");
    } catch (const Refusal& refusal) {
      CHECK(std::string(refusal.what()).find(row.message) != std::string::npos);
      CAPTURE(refusal.what());
    }
  }
  Job frozen = plain("full", model, CheckpointKind::Reentrant);
  frozen.training.freeze = {"*embed_tokens*"};
  CHECK_NOTHROW((void)predict(model, frozen, 0));  // transformers 5 makes the embeddings' output require a gradient.
  frozen.training.transformers = {4, 57, 0};
  CHECK_THROWS_AS(predict(model, frozen, 0), Refusal);
  frozen.training.checkpoint = plain("full", model).training.checkpoint;
  CHECK_NOTHROW((void)predict(model, frozen, 0));
}
