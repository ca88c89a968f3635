// Every family that has a witness of what it computes, carried out: at every event of every rank each operator asks for
// what was predicted, in half precision under ZeRO-3 and with eager attention under whole checkpoints.
#include <filesystem>
#include <fstream>

#include "model/traits.h"
#include "paths.h"
#include "running.h"

using namespace dsplan;

namespace {

// The line "# config {...}" of a witness; nullopt: it has none.
std::optional<ModelSpec> small_model(const std::filesystem::path& path) {
  constexpr std::string_view kMark = "# config ";
  std::ifstream file(path);
  for (std::string line; std::getline(file, line) && line.starts_with('#');) {
    if (line.starts_with(kMark)) return running::model(line.substr(kMark.size()).c_str());
  }
  return std::nullopt;
}

Job small_job(int stage, Attention attention) {
  Job job = lowered::job(stage, stage < 0 ? 1 : 2);
  job.training.seq = 6;
  job.training.attention = attention;
  job.training.grad_accum = 2;
  return job;
}

// Some have no fused kernel that is predicted, and some nothing but one.
Attention attention_of(const ModelSpec& model, bool eager) {
  if (shares_one_head(model)) return Attention::Math;
  const bool composed = eager_alone(model) || biases_positions(model);
  if ((eager || composed) && !always_masked(model)) return Attention::Eager;
  return model.family.starts_with("deepseek") || always_masked(model) ? Attention::MemoryEfficient : Attention::Flash;
}

void check_runs(const ModelSpec& model, bool eager) {
  INFO(model.family << (eager ? ", eager" : ", fused"));
  Job job = small_job(eager ? -1 : 3, attention_of(model, eager));
  if (model.dims.image > 0) job.training.seq = model.dims.max_positions;
  if (model.dims.decoder_layers > 0) job.training.target_seq = 5;
  for (std::int32_t at = 0; eager && at < model.dims.layers; ++at) {
    job.training.checkpoint.groups.push_back({at, at, CheckpointKind::NonReentrant, true});
  }
  const exec::RunResult result = running::run(model, job);
  CHECK_MESSAGE(result.message == "", result.message);
  for (const exec::RankRun& rank : result.ranks) {
    CHECK(!rank.losses.empty());
    for (const double loss : rank.losses) CHECK(std::isfinite(loss));
  }
}

}  // namespace

TEST_CASE("each family runs as predicted, row by row, and its losses are numbers") {
  std::size_t ran = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test_paths::source_dir() + "/tests/witnesses/exec")) {
    const std::optional<ModelSpec> model = small_model(entry.path());
    if (!model) continue;
    check_runs(*model, false);
    check_runs(*model, true);
    ++ran;
  }
  CHECK(ran >= 57);
}
