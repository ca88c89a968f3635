// Partial offload and immediate gradient updates, from what was said to the job.
#include <doctest/doctest.h>
#include <algorithm>

#include "resolving.h"

#include "core/format.h"

using namespace dsplan;
using namespace resolving;

TEST_CASE("resolve: partial offload of the optimizer, and where DeepSpeed has none") {
  const auto zero = [](const std::string& inside, const std::string& outside = "") {
    return Given{dsplan::formatted("{{{}\"zero_optimization\": {{{}}}}}", outside, inside), gpus(2)};
  };
  const auto job = [&](const std::string& more, const char* version = "0.19.8", const char* top = "") {
    Given given = zero(R"("stage": 3, "offload_optimizer": {"device": "cpu")" + more + "}", top);
    set(given.request.deepspeed_version, std::string(version), "--deepspeed-version");
    return given;
  };
  CHECK(run(job("")).training.zero.offload_optimizer.ratio == 1);
  CHECK(run(job(R"(, "ratio": 0.25)")).training.zero.offload_optimizer.ratio == 0.25);
  CHECK(run(job(R"(, "ratio": 1.0)")).training.zero.offload_optimizer.ratio == 1);
  says(job(R"(, "ratio": 1.5)"), "\"ratio\" must be from 0 to 1, not 1.5");
  says(job(R"(, "ratio": 0.5)", "0.12.2"), "unknown key \"ratio\": DeepSpeed 0.12.2 forbids it");
  CHECK(run(job(R"(, "ratio": 0.5)", "0.12.3")).training.zero.offload_optimizer.ratio == 0.5);
  says(job(R"(, "ratio": 0.5)", "0.19.8", R"("optimizer": {"type": "Lion"}, )"), "lion with a partial offload");
  says(zero(R"("stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/x", "ratio": 0.5})"),
       "partial optimizer offload beside NVMe is not modelled yet");
  says(zero(R"("stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5},
               "offload_param": {"device": "nvme", "nvme_path": "/x"})"),
       "partial optimizer offload beside NVMe is not modelled yet");
  // Nothing is offloaded: inert.
  const Job none = run(zero(R"("stage": 3, "offload_optimizer": {"device": "none", "ratio": 0.5})"));
  CHECK(none.training.zero.offload_optimizer.ratio == 1);
}

TEST_CASE("resolve: immediate_grad_update is BF16_Optimizer's alone, and was on by default for a while") {
  const auto job = [](const char* stage, const std::string& bf16, const char* version) {
    Given given{dsplan::formatted(R"({{"bf16": {{"enabled": true{}}}, "data_types": {{"grad_accum_dtype": "fp32"}},
                                "zero_optimization": {{"stage": {}}}}})",
                                  bf16, stage),
                gpus(2)};
    set(given.request.deepspeed_version, std::string(version), "--deepspeed-version");
    return run(given);
  };
  const std::string on = R"(, "immediate_grad_update": true)";
  CHECK(job("1", on, "0.19.8").training.immediate_grad_update);
  CHECK(!job("1", "", "0.19.8").training.immediate_grad_update);
  CHECK(!job("1", "", "0.17.1").training.immediate_grad_update);
  CHECK(job("1", "", "0.17.0").training.immediate_grad_update);
  CHECK(job("1", "", "0.16.5").training.immediate_grad_update);
  CHECK(!job("1", "", "0.16.4").training.immediate_grad_update);
  CHECK(!job("1", on, "0.13.2").training.immediate_grad_update);
  const Job other = job("2", on, "0.19.8");
  CHECK(!other.training.immediate_grad_update);
  CHECK(std::any_of(other.notices.begin(), other.notices.end(), [](const Notice& notice) {
    return notice.kind == Notice::Kind::Inert && notice.message.find("only BF16_Optimizer") != std::string::npos;
  }));
}
