// Plans carried out on the host: prediction and measurement agree to the byte at every event, and the numbers are
// right.
#include <doctest/doctest.h>

#include <cmath>

#include "running.h"

using namespace dsplan;

TEST_CASE("one rank runs GPT-2 and Llama, and the loss falls") {
  for (const char* config : {running::kGpt2, running::kGpt2Dropout, running::kLlama}) {
    const ModelSpec model = running::model(config);
    Job job = lowered::job(-1, 1);
    lowered::set_dtype(job, DType::Float32);
    job.training.attention = Attention::MemoryEfficient;
    running::Options options;
    options.steps = 20;
    const exec::RunResult result = running::run(model, job, options);
    CHECK(result.message == "");
    REQUIRE(result.outcome == Receipt::Outcome::Ran);
    const std::vector<double>& losses = result.ranks.front().losses;
    REQUIRE(losses.size() == 20);
    CHECK(std::abs(losses.front() - std::log(97.0)) < 0.3);
    CHECK(losses.back() < losses.front() - 0.5);
  }
}

namespace {

void no_kernels(const dsplan_launch&) {}

}  // namespace

TEST_CASE("every plan that can be executed asks for what was predicted, at every event") {
  std::int64_t ran = 0;
  std::map<std::string, int> refused;
  for (const char* config : {running::kGpt2Dropout, running::kLlama}) {
    const ModelSpec model = running::model(config);
    for (int stage = -1; stage <= 3; ++stage) {
      for (std::int64_t ranks : {1, 2, 3}) {
        for (const lowered::Case& one : lowered::variants(stage, ranks, static_cast<std::int32_t>(model.dims.layers))) {
          CAPTURE(one.name);
          running::Options options;
          exec::HostOptions machine;
          machine.kernels = no_kernels;
          const exec::HostBackend host(machine);
          options.backend = &host.table();
          try {
            const exec::RunResult result = running::run(model, one.job, options);
            CHECK_MESSAGE(result.message == "", result.message);
            ++ran;
          } catch (const Refusal& refusal) {
            ++refused[refusal.diagnostics().front().message];
          }
        }
      }
    }
  }
  MESSAGE(ran << " plans ran");
  for (const auto& [why, count] : refused) MESSAGE(count << " refused: " << why);
}
