// DistributedDataParallel carried out: however gradients are held and sent, the same model is trained.
#include <doctest/doctest.h>

#include "running.h"

using namespace dsplan;

using running::fp32_job;
using running::largest_gap;

namespace {

struct Way {
  const char* name;
  double gap;  // Of losses that were sent in 16 bits.
  void (*change)(Job&);
};

constexpr double kAlike = 1e-6;
constexpr double kNarrow = 0.02;

constexpr Way kWays[] = {
    {"views of buckets", kAlike, [](Job& job) { job.training.ddp.gradient_as_bucket_view = true; }},
    {"views that are zeroed", kAlike,
     [](Job& job) {
       job.training.ddp.gradient_as_bucket_view = true;
       job.training.zero_grad_to_none = false;
     }},
    {"a static graph", kAlike, [](Job& job) { job.training.ddp.static_graph = true; }},
    {"views of a static graph's buckets", kAlike,
     [](Job& job) { job.training.ddp.static_graph = job.training.ddp.gradient_as_bucket_view = true; }},
    {"each rank updates some", kAlike, [](Job& job) { job.training.ddp.zero_redundancy = true; }},
    {"sent in bf16", kNarrow, [](Job& job) { job.training.ddp.comm_hook = DType::BFloat16; }},
    {"views that are sent in fp16", kNarrow,
     [](Job& job) {
       job.training.ddp.gradient_as_bucket_view = true;
       job.training.ddp.comm_hook = DType::Float16;
     }},
};

std::vector<double> losses_of(const ModelSpec& model, Job job) {
  job.training.optimizer = {OptimizerKind::Sgd, Implementation::Foreach, 0, 0, false};
  running::Options options;
  options.steps = 4;
  options.learning_rate = 0.5;
  return running::losses_of(model, job, options);
}

}  // namespace

TEST_CASE("gradients in buckets train as gradients of their own do") {
  for (const char* config : {running::kGpt2Dropout, running::kLlama}) {
    const ModelSpec model = running::model(config);
    for (const std::int64_t micro_batches : {1, 3}) {
      Job plain = fp32_job(model, -1, 3);
      plain.training.grad_accum = micro_batches;
      const std::vector<double> losses = losses_of(model, plain);
      CHECK(losses.back() < losses.front());
      for (const Way& way : kWays) {
        if (micro_batches > 1 && std::string(way.name).find("static") != std::string::npos) continue;
        CAPTURE(way.name);
        CAPTURE(micro_batches);
        Job job = plain;
        way.change(job);
        CHECK(largest_gap(losses_of(model, job), losses) < way.gap);
      }
    }
  }
}
