// ZeRO-3 with the optimizer, and then the parameters too, in real files: the same numbers, and as many bytes moved as
// were predicted.
#include <doctest/doctest.h>

#include "running.h"

using namespace dsplan;

namespace {

// Matrices that are large enough to be swapped: a megabyte or more of each partition.
ModelSpec wide(std::int64_t width) {
  return running::model(dsplan::formatted(R"({{"model_type": "gpt2", "n_embd": {}, "n_layer": 2, "n_head": 4,
    "n_positions": 16, "vocab_size": 97}})",
                                          width)
                            .c_str());
}

Job job_of(std::int64_t ranks, DType dtype) {
  Job job = lowered::job(3, ranks);
  job.training.micro_batch = 1;
  job.training.seq = 8;
  lowered::set_dtype(job, dtype);
  if (dtype == DType::Float32) job.training.attention = Attention::MemoryEfficient;
  Zero& zero = job.training.zero;
  zero.sub_group_size = Elements(700'000);
  zero.prefetch_bucket_size = Elements(0);
  zero.offload_optimizer.device = OffloadDevice::Cpu;
  zero.offload_optimizer.buffer_count = 5;
  zero.offload_param.buffer_count = 8;
  zero.offload_param.buffer_size = Elements(1'200'000);
  return job;
}

struct Ran {
  std::vector<double> losses;
  Bytes files;
};

Ran run(const ModelSpec& model, const Job& job) {
  running::Options options;
  options.learning_rate = 1e-3;
  options.steps = 4;
  const exec::RunResult result = running::run(model, job, options);
  CHECK_MESSAGE(result.message == "", result.message);
  std::int64_t rows = 0;
  const std::string differs = running::differences(model, job, false, result, rows);
  CHECK_MESSAGE(differs == "", differs);
  CHECK(rows > 100);
  return {running::losses_by_step(result, job.training.grad_accum),
          result.ranks.front().figures.host.nvme.value_or(Bytes(0))};
}

}  // namespace

TEST_CASE("an optimizer in files computes what one in memory does") {
  const ModelSpec model = wide(256);
  for (const std::int64_t accumulation : {1, 2}) {
    for (const DType dtype : {DType::BFloat16, DType::Float32}) {
      if (dtype == DType::Float32 && accumulation == 2) continue;
      Job job = job_of(2, dtype);
      job.training.grad_accum = accumulation;
      job.training.gradient_clipping = accumulation == 2 ? 1 : 0;
      const Ran here = run(model, job);
      CHECK(here.files == Bytes(0));
      for (const bool read : {false, true}) {
        for (const bool write : {false, true}) {
          if (read != write && accumulation == 2) continue;
          Job away = job;
          away.training.zero.offload_optimizer.device = OffloadDevice::Nvme;
          away.training.zero.offload_optimizer.pipeline_read = read;
          away.training.zero.offload_optimizer.pipeline_write = write;
          away.training.zero.offload_optimizer.buffer_count = 10;
          CAPTURE(name(dtype));
          CAPTURE(accumulation);
          CAPTURE(read);
          CAPTURE(write);
          const Ran swapped = run(model, away);
          CHECK(swapped.losses == here.losses);
          CHECK(swapped.files > Bytes(1 << 20));
        }
      }
    }
  }
}

TEST_CASE("parameters in files compute what those in memory do") {
  for (const std::int64_t ranks : {1, 2}) {
    const ModelSpec model = wide(ranks == 1 ? 256 : 512);
    Job job = job_of(ranks, ranks == 1 ? DType::Float32 : DType::BFloat16);
    job.training.zero.offload_param.device = OffloadDevice::Cpu;
    const Ran here = run(model, job);
    CHECK(here.files == Bytes(0));
    for (const bool both : {false, true}) {
      Job away = job;
      away.training.zero.offload_param.device = OffloadDevice::Nvme;
      away.training.zero.offload_param.max_in_cpu = Elements(0);
      if (both) {
        away.training.zero.offload_optimizer.device = OffloadDevice::Nvme;
        away.training.zero.offload_optimizer.buffer_count = 10;
      }
      CAPTURE(ranks);
      CAPTURE(both);
      const Ran swapped = run(model, away);
      CHECK(swapped.losses == here.losses);
      CHECK(swapped.files > Bytes(1 << 20));
    }
  }
}
