// Bundled models under options that nobody would put together by hand: each command answers or is refused. What it may
// not do is end in a broken invariant, which checks its schedule against its formulas, or in a signal.
//
// DSPLAN_DRAWN=SEED:COUNT draws others, and more of them.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "core/format.h"
#include "random_jobs.h"
#include "run_binary.h"

using namespace dsplan;
using namespace dsplan::test;

namespace {

using Words = std::vector<std::string>;

std::vector<std::string> bundled_models() {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(test_paths::source_dir() + "/models")) {
    if (file.path().extension() == ".json") names.push_back(file.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void add(Words& words, const Words& more) { words.insert(words.end(), more.begin(), more.end()); }

std::string deepspeed_json(Dice& dice, std::int64_t stage) {
  std::string zero = formatted("\"stage\": {}", stage);
  const auto sometimes = [&](std::int64_t of_ten, const std::string& key) {
    if (dice.from(1, 10) <= of_ten) zero += ", " + key;
  };
  sometimes(4, R"("offload_optimizer": {"device": "cpu", "pin_memory": true})");
  if (stage == 3) sometimes(3, R"("offload_param": {"device": "cpu", "pin_memory": true})");
  sometimes(3, formatted("\"overlap_comm\": {}", dice.coin() ? "true" : "false"));
  sometimes(3, formatted("\"reduce_bucket_size\": {}", dice.one_of({1000, 500'000, 50'000'000})));
  if (stage == 3) {
    sometimes(3, formatted("\"stage3_param_persistence_threshold\": {}", dice.one_of({0, 100, 1'000'000})));
    sometimes(3, formatted("\"stage3_prefetch_bucket_size\": {}", dice.one_of({0, 10'000'000})));
  }
  std::string text = formatted("{{\"zero_optimization\": {{{}}}", zero);
  const auto dtype = dice.one_of<const char*>({"bf16", "bf16", "fp16", ""});
  if (*dtype != '\0') text += formatted(", \"{}\": {{\"enabled\": true}}", dtype);
  if (dice.coin()) text += R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.0001}})";
  return text + "}";
}

void draw_runtime(Dice& dice, const Folder& folder, Words& words) {
  const std::string ranks = formatted("{}", dice.one_of({2, 3, 4, 8, 16}));
  switch (dice.from(0, 7)) {
    case 0:
    case 1: return;
    case 2: return add(words, {"--runtime", "ddp", "--gpus", ranks});
    case 3: return add(words, {"--runtime", dice.one_of<const char*>({"fsdp1", "fsdp2"}), "--gpus", ranks});
    case 4: return add(words, {"--runtime", "hsdp", "--gpus", "8", "--gpus-per-node", "4"});
    case 5: return add(words, {"--zero-stage", formatted("{}", dice.from(1, 3)), "--gpus", ranks});
    default: spill(folder / "ds.json", deepspeed_json(dice, dice.from(1, 3)));
  }
  add(words, {"--deepspeed", folder / "ds.json", "--gpus", ranks});
}

void draw_training(Dice& dice, Words& words) {
  const auto sometimes = [&](std::int64_t of_twenty, const Words& more) {
    if (dice.from(1, 20) <= of_twenty) add(words, more);
  };
  const bool json = std::find(words.begin(), words.end(), "--deepspeed") != words.end();
  if (!json) {
    const auto dtype = dice.one_of<const char*>({"bf16", "bf16", "fp16", "fp32", "mixed"});
    add(words, dtype[0] == 'm' ? Words{"--dtype", "fp32", "--autocast", "bf16"} : Words{"--dtype", dtype});
  }
  sometimes(9, {"--checkpoint", dice.one_of<const char*>({"full", "full", "every:2", "segments:3", "auto"}),
                "--checkpoint-impl", dice.one_of<const char*>({"reentrant", "non_reentrant"})});
  const auto adapters = dice.one_of<const char*>({"", "", "", "lora", "nf4", "int8", "freeze"});
  if (adapters[0] == 'f') add(words, {"--freeze", "*embed*"});
  if (adapters[0] == 'l') add(words, {"--lora", "r=8,targets=all-linear"});
  if (adapters[0] == 'n' || adapters[0] == 'i') {
    add(words, {"--quantization", adapters, "--lora", "r=8,targets=all-linear"});
  }
  sometimes(4, {"--optimizer", dice.one_of<const char*>({"adamw:foreach", "sgd", "lion", "adamw8bit", "adafactor"})});
  sometimes(3, {"--attention", dice.one_of<const char*>({"eager", "math", "flash", "cudnn", "mem-efficient"})});
  sometimes(3, {"--loss", dice.one_of<const char*>({"liger", "native", "chunked:4", "trl"})});
  sometimes(4, {"--loop", dice.one_of<const char*>({"trainer", "minimal", "loss", "script"})});
  sometimes(2, {"--liger-kernels", "all"});
  sometimes(1, {"--placement", "planned"});
  sometimes(1, {"--images", "2"});
  sometimes(2, {"--verbose"});
}

Words drawn(Dice& dice, const Folder& folder, const std::vector<std::string>& models) {
  Words words{
      "simulate",      models[static_cast<std::size_t>(dice.from(0, static_cast<std::int64_t>(models.size()) - 1))],
      "--seq",         formatted("{}", dice.one_of({64, 128, 512, 1000, 2048})),
      "--micro-batch", formatted("{}", dice.from(1, 3)),
      "--hardware",    dice.one_of<const char*>({"h100-sxm", "a100-sxm-40", "rtx-4090"})};
  draw_runtime(dice, folder, words);
  draw_training(dice, words);
  return words;
}

}  // namespace

TEST_CASE("drawn options: a command answers or is refused") {
  std::int64_t seed = 1;
  std::int64_t count = 250;
  if (const char* said = std::getenv("DSPLAN_DRAWN")) {
    const std::string text = said;
    seed = std::stoll(text);
    if (const std::size_t colon = text.find(':'); colon != std::string::npos)
      count = std::stoll(text.substr(colon + 1));
  }
  Dice dice(static_cast<std::uint32_t>(seed));
  const Folder folder;
  const std::vector<std::string> models = bundled_models();
  REQUIRE(models.size() > 300);
  std::int64_t answered = 0;
  for (std::int64_t at = 0; at < count; ++at) {
    const Words words = drawn(dice, folder, models);
    const Ran ran = run_binary(folder, words);
    std::string command;
    for (const std::string& word : words) command += " " + word;
    const bool ends_well = ran.code == 0 || ran.code == 2 || ran.code == 3;
    CHECK_MESSAGE(ends_well, formatted("{} by{}\n{}", ran.code, command, ran.err));
    answered += ran.code == 0 || ran.code == 3 ? 1 : 0;
  }
  CHECK(answered * 2 > count);  // Refused are those that cannot be.
}
