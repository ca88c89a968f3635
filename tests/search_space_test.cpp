// The space of a search: what pins an axis, what a list may hold, and what is refused.
#include "io/deepspeed.h"
#include "io/plan_inputs.h"
#include "io/text.h"
#include "resolving.h"
#include "searching.h"
#include "texts.h"

using namespace dsplan;
using namespace dsplan::test;

namespace {

SearchSpace space_for(const Asked& asked, Objective objective = Objective::TokensPerSecond) {
  return space_of(asked.inputs(), asked.space, objective);
}

std::string refused(const Asked& asked) {
  try {
    (void)space_for(asked);
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "accepted";
}

std::string refused_file(const std::string& text) {
  try {
    (void)read_space(parse_json("space.json", text));
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("what the user's own configuration says is pinned, and the rest is dsplan's own list") {
  Asked asked("tiny-llama");
  asked.deepspeed = read_deepspeed(parse_hjson("ds.json", R"({"train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": 1000}})"));
  const SearchSpace space = space_for(asked);
  CHECK(space[Axis::ZeroStage].pinned);
  CHECK(space[Axis::ZeroStage].values == std::vector<std::string>{"2"});
  CHECK(has(space[Axis::ZeroStage].reason, "ds.json:2:"));
  CHECK(space[Axis::Offload].values == std::vector<std::string>{"as given"});
  CHECK(space[Axis::ReduceBucket].pinned);
  CHECK(space[Axis::MicroBatch].values == std::vector<std::string>{"4"});
  CHECK(space[Axis::Gpus].values == std::vector<std::string>{"8"});
  CHECK(!space[Axis::TensorParallel].pinned);
  CHECK(space[Axis::TensorParallel].values == std::vector<std::string>{"1", "2", "4", "8"});
  CHECK(space[Axis::Checkpoint].values == std::vector<std::string>{"none", "full", "auto"});
}

TEST_CASE("packed weights and plain autocast are for PyTorch alone, unless a list says otherwise") {
  for (const bool packed : {true, false}) {
    Asked asked("tiny-llama");
    CHECK(space_for(asked)[Axis::ZeroStage].values.size() > 1);
    if (packed) {
      asked.request.quantization = {std::string("int8"), option("--quantization")};
    } else {
      asked.request.autocast = {std::string("bf16"), option("--autocast")};
    }
    const SearchSpace space = space_for(asked);
    CHECK(space[Axis::ZeroStage].values == std::vector<std::string>{"pytorch"});
    CHECK(space[Axis::Offload].values == std::vector<std::string>{"none"});
    CHECK(space[Axis::ReduceBucket].values.size() == 1);
  }
}

TEST_CASE("what a candidate says is what its job has") {
  Asked asked("tiny-llama");
  asked.deepspeed = read_deepspeed(parse_hjson("ds.json", R"({"train_batch_size": 64, "gradient_clipping": 1.0,
    "bf16": {"enabled": true}, "zero_optimization": {"overlap_comm": true}})"));
  SearchSpace space = space_for(asked);
  CHECK(space.global_batch == 64);
  Settings settings;
  const auto set = [&](Axis axis, const char* value) { settings[static_cast<std::size_t>(axis)] = value; };
  set(Axis::Gpus, "4");
  set(Axis::ZeroStage, "3");
  set(Axis::Offload, "optimizer+parameters");
  set(Axis::TensorParallel, "2");
  set(Axis::Loss, "liger");
  set(Axis::ReduceBucket, "12345678");
  set(Axis::MicroBatch, "4");
  set(Axis::Checkpoint, "every:2");
  const CandidateInputs made = inputs_of(asked.inputs(), settings, space);
  const Job job = resolve(asked.model, made.request, made.file(), &h100(), &eight_h100());
  CHECK(job.parallelism.world == 4);
  CHECK(job.parallelism.tp == 2);
  CHECK(job.training.zero.stage == 3);
  CHECK(job.training.zero.offload_optimizer.device == OffloadDevice::Cpu);
  CHECK(job.training.zero.offload_param.device == OffloadDevice::Cpu);
  CHECK(job.training.loss == Loss::Liger);
  CHECK(job.training.zero.reduce_bucket_size == Elements(12345678));
  CHECK(job.training.micro_batch == 4);
  CHECK(job.training.grad_accum == 8);
  CHECK(job.training.checkpoint.text == "every:2");
  // What the user's file has beside is kept.
  CHECK(job.training.gradient_clipping == 1.0);
  CHECK(job.training.zero.overlap_comm);
  set(Axis::Offload, "none");
  set(Axis::Checkpoint, "none");
  const CandidateInputs plain = inputs_of(asked.inputs(), settings, space);
  const Job other = resolve(asked.model, plain.request, plain.file(), &h100(), &eight_h100());
  CHECK(other.training.zero.offload_optimizer.device == OffloadDevice::None);
  CHECK(other.training.checkpoint.groups.empty());
}

TEST_CASE("without a file of the user's own the dtype stays dsplan's default") {
  Asked asked("tiny-llama");
  const SearchSpace space = space_for(asked);
  Settings settings;
  for (std::size_t i = 0; i < kAxes; ++i) settings[i] = space.axes[i].values.front();
  const CandidateInputs made = inputs_of(asked.inputs(), settings, space);
  CHECK(resolve(asked.model, made.request, made.file(), &h100(), &eight_h100()).training.dtype == DType::BFloat16);
}

TEST_CASE("contradictions are refused together, each at its place") {
  Asked asked("tiny-llama");
  asked.request.zero_stage = {2, option("--zero-stage")};
  asked.vary(Axis::ZeroStage, {"3"})
      .vary(Axis::MicroBatch, {"1", "x", "1", "0"})
      .vary(Axis::Loss, {"lige"})
      .vary(Axis::TensorParallel, {})
      .vary(Axis::MicroBatch, {"2"});
  const std::string said = refused(asked);
  CAPTURE(said);
  CHECK(has(said, "\"zero_stage\" is listed, and --zero-stage already says 2"));
  CHECK(has(said, "micro_batch cannot be \"x\""));
  CHECK(has(said, "micro_batch cannot be \"0\""));
  CHECK(has(said, "\"1\" stands twice"));
  CHECK(has(said, "loss cannot be \"lige\""));
  CHECK(has(said, "no value for tp"));
  CHECK(has(said, "\"micro_batch\" is listed twice"));
}

TEST_CASE("a search needs to know how many GPUs there are, unless it looks for the fewest") {
  Asked asked("tiny-llama");
  asked.request.gpus = {};
  const SearchInputs alone{asked.model, asked.request, nullptr, &h100(), nullptr};
  CHECK_THROWS_AS((void)space_of(alone, asked.space, Objective::TokensPerSecond), Refusal);
  const SearchSpace fewest = space_of(alone, asked.space, Objective::Gpus);
  CHECK(fewest[Axis::Gpus].values.front() == "1");
  CHECK(fewest[Axis::Gpus].values.size() > 8);
}

TEST_CASE("a space file: numbers and words; faults with line and column, all together") {
  const ListedSpace space = read_space(parse_json("space.json", R"({"dsplan": 1, "kind": "space", "source": "test",
    "zero_stage": [2, 3], "checkpoint": ["none", "every:4"], "micro_batch": [1, 2], "global_batch": 512})"));
  REQUIRE(space.axes.size() == 3);
  CHECK(*space.global_batch == 512);
  CHECK(*space.axes[0].values[1].value == "3");
  const std::string said = refused_file(R"({"dsplan": 1, "kind": "space", "source": "test",
    "zero_stag": [2], "micro_batch": [1.5, true],
    "tp": 4})");
  CAPTURE(said);
  CHECK(has(said, "space.json:2:"));
  CHECK(has(said, "zero_stage"));
  CHECK(has(said, "a value of \"micro_batch\" is a whole number or a word"));
  CHECK(has(said, "space.json:3:"));
}

TEST_CASE("a space in which everything is impossible is refused with the reasons") {
  Asked asked("tiny-llama");
  asked.vary(Axis::ZeroStage, {"0"}).vary(Axis::Offload, {"optimizer"});
  try {
    (void)asked.answer();
    FAIL("accepted");
  } catch (const Refusal& refusal) {
    CHECK(has(refusal.what(), "every combination is impossible"));
    CHECK(has(refusal.what(), "offload_optimizer with ZeRO stage 0"));
  }
}
