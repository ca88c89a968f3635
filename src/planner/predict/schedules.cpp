#include "planner/predict/schedules.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "model/lora.h"
#include "model/quantized.h"
#include "planner/lower/unsupported.h"

namespace dsplan {
namespace {

void refuse_what_cannot_run(const ModelSpec& model, const Job& job, const std::string& what) {
  const auto refuse = [&](const std::string& reason) { throw Refusal(what, "cannot be executed yet: " + reason); };
  if (const auto why = unsupported(model, job)) refuse(*why);
  // Each would have a part of what the head's gradients are, and frameworks do not agree on how the parts meet
  // (docs/tensor-parallelism.md).
  if (model.dims.kv_heads % job.parallelism.tp != 0) refuse("key-value heads that tensor-parallel ranks share");
  if (!is_executable(model.family)) refuse("the " + model.family + " family");
  if (job.parallelism.tp > 1 && model.family != "gpt2" && model.family != "llama") {
    refuse("the " + model.family + " family under tensor parallelism");
  }
  if (model.dims.labels == 1) refuse("regression to a number");
  if (has_magnitudes(model)) refuse("DoRA, whose unit matrices no backend makes");
  if (packing_of(model)) refuse("packed weights, which no backend unpacks");
  if (job.training.liger_kernels.any()) refuse("Liger's kernels, which no backend has");
  if (job.training.lora_kernels.any()) refuse("axolotl's kernels for adapters, which no backend has");
  if (job.training.loss == Loss::Weighted) refuse("LLaMA-Factory v1's loss");
  if (of_trainer(job.training.loss)) refuse("TRL's losses");
  if (job.training.activation_offloading != ActivationOffloading::None) {
    refuse("activation offloading, whose copies no backend makes");
  }
  if (job.training.windows_in_kernel) refuse("flash-attn's kernel over a sliding window, which no backend has");
  if (job.training.optimizer.paged) refuse("paged optimizer states, which no backend moves");
  if (job.training.level == Level::Dispatch) {
    refuse("--level dispatch, which leaves out the memory that kernels work in");
  }
  if (job.training.attention == Attention::CuDnn || job.training.attention == Attention::MathOrCuDnn) {
    const bool flash = job.training.attention == Attention::CuDnn;
    throw Refusal(what, "cannot be executed yet: cuDNN's attention, which no backend has",
                  flash ? "--attention flash" : "--attention eager");
  }
  // Where random state lies on the host, and the rows that attention keeps are rounded otherwise.
  const bool fused = job.training.attention == Attention::Flash || job.training.attention == Attention::MemoryEfficient;
  if (fused && job.training.torch < Version{2, 7, 0}) refuse("the fused attention of PyTorch before 2.7");
}

}  // namespace

bool is_executable(std::string_view family) {
  constexpr std::array<std::string_view, 71> kFamilies{"gpt2",       "gpt_bigcode", "llama",       "mistral",
                                                       "qwen2",      "qwen3",       "gemma",       "phi",
                                                       "phi3",       "gpt_neox",    "smollm3",     "starcoder2",
                                                       "olmo",       "exaone4",     "nemotron",    "hunyuan_v1_dense",
                                                       "arcee",      "seed_oss",    "cwm",         "ministral",
                                                       "gemma2",     "vaultgemma",  "gemma3_text", "granite",
                                                       "olmo2",      "olmo3",       "stablelm",    "opt",
                                                       "cohere",     "cohere2",     "glm",         "glm4",
                                                       "ernie4_5",   "helium",      "mixtral",     "qwen2_moe",
                                                       "qwen3_moe",  "olmoe",       "granitemoe",  "granitemoeshared",
                                                       "dots1",      "glm4_moe",    "solar_open",  "hunyuan_v1_moe",
                                                       "minimax_m2", "deepseek_v2", "deepseek_v3", "ernie4_5_moe",
                                                       "bert",       "roberta",     "xlm-roberta", "camembert",
                                                       "distilbert", "electra",     "bart",        "mbart",
                                                       "marian",     "m2m_100",     "pegasus",     "modernbert",
                                                       "t5",         "vit",         "bloom",       "falcon",
                                                       "gpt_oss",    "jais2",       "hyperclovax", "flex_olmo",
                                                       "umt5",       "gpt_neo",     "nanochat"};
  return std::find(kFamilies.begin(), kFamilies.end(), family) != kFamilies.end();
}

Schedule schedule_of(const ModelSpec& model, const Job& job, std::int64_t rank, const std::string& what) {
  if (const auto why = unsupported(model, job)) {
    throw Refusal(what, "needs a schedule, and none can be made for this job yet: " + *why);
  }
  return lower(model, job, build_shapes(model, job), job.parallelism.data_rank(rank));
}

ExecutableRanks executables_of(const ModelSpec& model, const Job& job, std::int64_t steps, const std::string& what) {
  refuse_what_cannot_run(model, job, what);
  ExecutableRanks result;
  const std::int64_t sharing = job.parallelism.tp;
  for (std::int64_t part = 0; part < sharing; ++part) result.shapes.push_back(build_shapes(model, job, part));
  for (std::int64_t rank = 0; rank < job.parallelism.dp * sharing; ++rank) {
    const Shapes& shapes = result.shapes[static_cast<std::size_t>(rank % sharing)];
    result.ranks.push_back(lower_to_execute(model, job, shapes, rank / sharing, steps, rank % sharing));
  }
  return result;
}

}  // namespace dsplan
