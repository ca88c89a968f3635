// Versions of DeepSpeed: both sides of switches of the offload, of sums in fp32 and of the wrappers without ZeRO; and
// what an executor computes with those wrappers.
#include <doctest/doctest.h>

#include "audited.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/footprint.h"
#include "running.h"
#include "sim/host_memory.h"

using namespace dsplan;

namespace {

std::string unsupported_in(const Job& job, const char* model = "tiny-llama") {
  return unsupported(lowered::bundled(model), job).value_or("");
}

Job at(Job job, int minor, int patch) {
  job.training.deepspeed = Version{0, minor, patch};
  return job;
}

// Sizes of all buffers with this label in this space, in order.
std::vector<Bytes> sizes(const Schedule& schedule, std::string_view label, Space space = Space::Device) {
  std::vector<Bytes> list;
  for (const Buffer& buffer : schedule.buffers) {
    if (label == buffer.label && buffer.space == space) list.push_back(buffer.size);
  }
  return list;
}

std::vector<double> losses(const ModelSpec& model, const Job& job) {
  std::int64_t rows = 0;
  const std::string differs = running::differences(model, job, false, running::run(model, job), rows);
  CHECK_MESSAGE(differs == "", differs);
  CHECK(rows > 50);
  running::Options options;
  options.steps = 4;
  const exec::RunResult result = running::run(model, job, options);
  CHECK_MESSAGE(result.message == "", result.message);
  return running::losses_by_step(result, job.training.grad_accum);
}

}  // namespace

TEST_CASE("offload to NVMe: locked buffers since 0.19.4; small gradients go when they are read, until 0.19.8") {
  Job job = lowered::job(3, 2);
  job.training.zero.offload_optimizer.device = OffloadDevice::Nvme;
  job.training.zero.offload_optimizer.buffer_count = 5;
  job.training.zero.sub_group_size = Elements(1'200'000);
  CHECK(unsupported_in(at(job, 19, 3)) == "offload to NVMe before DeepSpeed 0.19.4");
  CHECK(unsupported_in(at(job, 19, 4)) == "");
  const ModelSpec model = lowered::inlined("swappable-llama", R"({"model_type": "llama",
    "architectures": ["LlamaForCausalLM"], "vocab_size": 4500, "hidden_size": 504, "intermediate_size": 2081,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": false})");
  // Whether a gradient that is kept in memory is still there at the first update of a swapped sub-group.
  const auto kept_at_update = [&](const Job& of) {
    const Schedule schedule = audited::ranks(model, of).front();
    std::int64_t there = 0;
    for (const Event& event : schedule.events) {
      const auto* made = std::get_if<Allocate>(&event);
      const auto* freed = std::get_if<Release>(&event);
      const auto* work = std::get_if<Compute>(&event);
      const auto is = [&](BufferId id) {
        const Buffer& buffer = schedule.buffers[id];
        return std::string_view(buffer.label) == "gradient in master dtype" && buffer.space == Space::Device;
      };
      if (made != nullptr && is(made->buffer)) ++there;
      if (freed != nullptr && is(freed->buffer)) --there;
      if (work != nullptr && std::string_view(work->work) == "optimizer update on the host") return there;
    }
    return std::int64_t{-1};
  };
  const std::int64_t since = kept_at_update(at(job, 19, 8));
  const std::int64_t before = kept_at_update(at(job, 19, 7));
  CHECK(since > 0);
  CHECK(before >= 0);
  CHECK(before < since);
}

TEST_CASE("optimizer offload below ZeRO-3: masters cross in fp32 before 0.17.0, and are pinned anyhow before 0.18.3") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  for (const int stage : {1, 2}) {
    CAPTURE(stage);
    Job job = lowered::job(stage, 2);
    job.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
    job.training.zero.offload_optimizer.pin_memory = false;
    CHECK(unsupported_in(at(job, 14, 3)) == "optimizer offload below ZeRO-3 before DeepSpeed 0.14.4");
    CHECK(unsupported_in(at(job, 14, 4)) == "");
    const Schedule old = audited::ranks(model, at(job, 16, 9)).front();
    const Schedule here = audited::ranks(model, at(job, 17, 0)).front();
    const Schedule latest = audited::ranks(model, at(job, 18, 3)).front();
    const std::vector<Bytes> master = sizes(latest, "master weights", Space::Pageable);
    REQUIRE(master.size() == 1);
    // In each of the two steps.
    CHECK(sizes(old, "master weights on the device") == std::vector<Bytes>(2, master.front()));
    CHECK(sizes(here, "master weights on the device").empty());
    CHECK(sizes(old, "16-bit parameters on the host", Space::Pageable).empty());
    CHECK(sizes(here, "16-bit parameters on the host", Space::Pageable).size() == 1);
    CHECK(sizes(here, "master weights", Space::Pinned) == master);
    CHECK(sizes(latest, "master weights", Space::Pinned).empty());
  }
}

TEST_CASE("sums in fp32: before 0.19.8 ZeRO-2 keeps 16 bits, and pads them in fp32") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = lowered::job(1, 2);
  job.training.grad_accum_dtype = DType::Float32;
  job.training.dtype = job.training.communication_dtype = DType::Float16;
  CHECK(unsupported_in(at(job, 19, 7)) == "gradient accumulation in fp32 with ZeRO-1 before DeepSpeed 0.19.8");
  CHECK(unsupported_in(job) == "");
  for (const std::int64_t ranks : {2, 3, 5}) {
    for (const std::int64_t accumulation : {1, 2}) {
      CAPTURE(ranks);
      CAPTURE(accumulation);
      job = lowered::job(2, ranks);
      job.training.grad_accum = accumulation;
      const std::vector<Schedule> plain = audited::ranks(model, at(job, 19, 7));
      job.training.grad_accum_dtype = DType::Float32;
      const std::vector<Schedule> old = audited::ranks(model, at(job, 19, 7));
      const std::vector<Schedule> since = audited::ranks(model, job);
      for (std::size_t rank = 0; rank < old.size(); ++rank) {
        CHECK(sizes(old[rank], "gradients in partition") == sizes(plain[rank], "gradients in partition"));
        CHECK(sizes(since[rank], "gradients in partition").empty());
        CHECK(sizes(since[rank], "gradient partition").size() == 2);
        const std::vector<Bytes> padding = sizes(plain[rank], "padding of the partition");
        std::vector<Bytes> wide;
        for (const Bytes bytes : padding) wide.push_back(bytes * 2);
        CHECK(sizes(old[rank], "padding of the partition") == wide);
        // Where there is padding, all is joined in fp32 and needs no cast.
        const std::vector<Bytes> flat = sizes(plain[rank], "flat gradient");
        REQUIRE(flat.size() == 2);
        CHECK(sizes(old[rank], "flat gradient").front() == flat.front() * (padding.empty() ? 1 : 2));
        CHECK(sizes(old[rank], "gradient in master dtype").empty() == !padding.empty());
      }
      CHECK((ranks == 2 || !sizes(plain.back(), "padding of the partition").empty()));
    }
  }
  // An executor sums in 16 bits, then: as without the key, not as since.
  const ModelSpec small = running::model(running::kLlama);
  Job sums = lowered::job(2, 3);
  sums.training.grad_accum = 2;
  const std::vector<double> plain = losses(small, at(sums, 19, 7));
  sums.training.grad_accum_dtype = DType::Float32;
  CHECK(losses(small, at(sums, 19, 7)) == plain);
  CHECK(losses(small, sums) != plain);
}

TEST_CASE("bf16 without ZeRO: BF16_Optimizer before 0.17.6, FP16_Optimizer since") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = lowered::job(0, 2);
  CHECK(unsupported_in(at(job, 17, 6)) == "");
  const Footprint since = footprint(model, at(job, 17, 6));
  job.training.grad_accum_dtype = DType::Float32;  // What resolve takes it for.
  CHECK(unsupported_in(at(job, 17, 5)) == "bf16 without ZeRO before DeepSpeed 0.17.6 (BF16_Optimizer)");
  const Footprint before = footprint(model, at(job, 17, 5));
  const Bytes padded = before.persistent[Role::Parameters];  // Of two bytes each.
  CHECK(before.persistent[Role::Gradients] == padded * 2);
  CHECK(before.persistent[Role::Optimizer] == padded * 3);  // 12 bytes of every second element.
  CHECK(since.persistent[Role::Gradients] == Bytes(0));
  CHECK(since.persistent[Role::Optimizer] > padded * 5);
}

TEST_CASE("FP16_UnfusedOptimizer: a master and states of each parameter, and what a step makes besides") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  std::int64_t elements = 0;
  std::int64_t largest = 0;
  for (const Parameter& parameter : model.parameters) {
    if (parameter.tied_to != kNone) continue;
    elements += parameter.shape.elements().value();
    largest = std::max(largest, parameter.shape.elements().value());
  }
  Job job = lowered::job(0, 2);
  job.training.optimizer.implementation = Implementation::Foreach;
  for (const DType dtype : {DType::BFloat16, DType::Float16}) {
    lowered::set_dtype(job, dtype);
    const Schedule schedule = audited::ranks(model, job).front();
    Bytes masters;
    for (const Bytes bytes : sizes(schedule, "master weights")) masters += bytes;
    CHECK(masters == Bytes(4 * elements));
    MemoryMeter step(schedule, Window{Stretch::SecondStep, StepPart::Step});
    replay(schedule, step);
    MemoryMeter end(schedule);
    replay(schedule, end);
    // 16-bit gradients, their casts, and the square roots of torch's multi-tensor form: 10 bytes per element.
    CHECK(step.peak_requested() - end.requested() >= Bytes(10 * elements));
    MemoryMeter init(schedule, Window{Stretch::Init});
    replay(schedule, init);
    // 16-bit weights and zeros, masters, fp32 zeros, two states and the square roots.
    CHECK(init.peak_by_role()[Role::Temporaries] >= Bytes((2 + 4 + 4) * elements));
  }
  // Each gradient in turn was summed as fp32 before 0.19.6; the norm does so still.
  const auto scans = [&](const Job& of) { return sizes(audited::ranks(model, of).front(), "overflow scan").size(); };
  CHECK(scans(at(job, 19, 5)) == 2 * sizes(lowered::all_ranks(model, job).front(), "master weights").size());
  CHECK(scans(at(job, 19, 6)) == 0);
  // SGD without momentum keeps masters only; of Adam's decay something is made.
  job.training.optimizer.kind = OptimizerKind::Sgd;
  CHECK(footprint(model, job).persistent[Role::Optimizer] == Bytes(4 * elements));
  audited::ranks(model, job);
  job.training.optimizer.momentum = 0.9;
  CHECK(footprint(model, job).persistent[Role::Optimizer] == Bytes(8 * elements));
  audited::ranks(model, job);
}

TEST_CASE("FP16_UnfusedOptimizer computes what FP16_Optimizer does") {
  const ModelSpec model = running::model(running::kLlama);
  for (const std::int64_t ranks : {1, 2}) {
    for (const double clip : {0.0, 0.5}) {
      CAPTURE(ranks);
      CAPTURE(clip);
      Job job = lowered::job(0, ranks);
      job.training.grad_accum = 2;
      job.training.gradient_clipping = clip;
      const std::vector<double> fused = losses(model, job);
      for (const Implementation form : {Implementation::Foreach, Implementation::ForLoop}) {
        job.training.optimizer.implementation = form;
        CHECK(losses(model, job) == fused);
      }
    }
  }
}

TEST_CASE("immediate_grad_update: added and let go of at once, since 0.19.8") {
  const ModelSpec model = running::model(running::kLlama);
  Job job = lowered::job(1, 2);
  job.training.grad_accum_dtype = DType::Float32;
  job.training.grad_accum = 2;
  const auto backward = [&](const Job& of) {
    const Schedule schedule = audited::ranks(model, of).front();
    MemoryMeter meter(schedule, Window{Stretch::SecondStep, StepPart::Backward});
    replay(schedule, meter);
    return meter.peak_requested();
  };
  const Bytes late = backward(job);
  const std::vector<double> numbers = losses(model, job);
  job.training.immediate_grad_update = true;
  CHECK(unsupported(model, at(job, 19, 7)).value_or("") == "immediate gradient updates before DeepSpeed 0.19.8");
  CHECK(!unsupported(model, job));
  CHECK(backward(job) < late);
  CHECK(losses(model, job) == numbers);
}
