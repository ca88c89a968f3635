// TRL's losses, and LLaMA-Factory's: what real trl, llamafactory, transformers and peft took on the dry device
// (tests/witnesses/trl_losses.json, llama_factory_losses.json and axolotl_losses.json, by the programs of these names
// in tools/oracles) against the prediction, phase by phase; which trainer a file means; what is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "phase_peaks.h"
#include "run_binary.h"

using namespace dsplan;
using namespace dsplan::test;
using Json = nlohmann::json;

namespace {

const std::string kWitnesses = std::string(test_paths::source_dir()) + "/tests/witnesses/";

std::string class_of(const Json& config) {
  const std::string family = config["model_type"];
  return family == "qwen2" ? "Qwen2ForCausalLM" : "LlamaForCausalLM";
}

Ran simulate(const Folder& folder, const Json& job) {
  Json training = job["training"];
  training.update({{"dsplan", 1}, {"kind", "training"}, {"source", "a test"}, {"loop", "minimal"}});
  training["loss"] = job["trainer"];
  // from_pretrained: tables of positions are computed on the host, wherever the weights are loaded.
  if (!training.contains("quantization") && !training.contains("model_init")) training["model_init"] = "host";
  Json config = job["config"];
  config["architectures"] = Json::array({class_of(config)});
  if (training["loss"].get<std::string>().ends_with("-logits")) {  // A reference stays in the dtype of the file.
    const bool narrow = job["training"]["dtype"] == "bf16" || job["training"].contains("mixed_precision");
    config["torch_dtype"] = narrow ? "bfloat16" : "float32";
  }
  spill(folder / "config.json", config.dump());
  spill(folder / "training.json", training.dump());
  return run_binary(folder, {"simulate", folder / "config.json", "--training", folder / "training.json", "--hardware",
                             "a100-sxm-80", "--stream-frees", "immediate", "--format", "json"});
}

Ran dsplan_runs(const Folder& folder, const std::string& line) {
  std::istringstream text(line);
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  return run_binary(folder, words);
}

// Lines are broken where they are full.
std::string in_one_line(const std::string& text) {
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) line += word + " ";
  return line;
}

// How many rows were compared. `reserved_apart`: by how much reserved bytes may part; -1: they are not looked at.
std::size_t compare_with(const std::string& file, std::int64_t reserved_apart = -1) {
  const Json witness = Json::parse(slurp(kWitnesses + file));
  std::size_t compared = 0;
  for (const auto& [name, job] : witness["cases"].items()) {
    CAPTURE(name);
    // Which blocks are left free by logits that are kept for logs or for nobody was not traced.
    const bool kept = name.starts_with("kto") || name.starts_with("reward");
    const Folder folder;
    const Ran ran = simulate(folder, job);
    REQUIRE_MESSAGE(ran.code == 0, ran.err);
    const auto peaks = peaks_of(ran.out);
    for (const Json& row : job["rows"]) {
      const std::string phase = row[0];
      if (phase[1] != '.') continue;
      CAPTURE(phase);
      REQUIRE(peaks.contains(phase));
      CHECK(peaks.at(phase)[0] == row[1].get<std::int64_t>());
      // Into which free blocks tensors are put was not traced.
      CHECK(std::abs(peaks.at(phase)[1] - row[2].get<std::int64_t>()) <= row[2].get<std::int64_t>() / 50);
      if (reserved_apart >= 0 && !kept)
        CHECK(std::abs(peaks.at(phase)[2] - row[3].get<std::int64_t>()) <= reserved_apart);
      ++compared;
    }
  }
  return compared;
}

}  // namespace

TEST_CASE("TRL's losses: the peaks of each phase are those that the trainers took") {
  CHECK(compare_with("trl_losses.json") >= 120);
}

TEST_CASE("LLaMA-Factory's dpo, kto and rm: the peaks of each phase are those that its trainers took") {
  CHECK(compare_with("llama_factory_losses.json", 0) >= 200);
}

TEST_CASE("axolotl's pairs and rewards: the peaks of each phase are those that TRL 1.9.0's trainers took") {
  CHECK(compare_with("axolotl_losses.json", 2 << 20) >= 90);
}

TEST_CASE("trainers of pairs: what a file of LLaMA-Factory or axolotl means, and which are refused by name") {
  const Folder folder;
  const auto told = [&](const std::string& text) {
    spill(folder / "file.yaml", text);
    const Ran ran = dsplan_runs(folder, "simulate --verbose --training file.yaml --hardware h100-sxm");
    return in_one_line(ran.out + ran.err);
  };
  const std::string factory = "model_name_or_path: llama-3.2-1b\ncutoff_len: 512\nbf16: true\nfinetuning_type: lora\n";
  CHECK(told(factory + "stage: dpo\n").find(", loss dpo-logits") != std::string::npos);
  CHECK(told(factory + "stage: dpo\nenable_liger_kernel: true\n").find(", loss dpo-logits") != std::string::npos);
  CHECK(told(factory + "stage: rm\n").find(", loss reward-values") != std::string::npos);
  CHECK(told(factory + "stage: kto\n").find(", loss kto-logits") != std::string::npos);
  CHECK(told(factory + "stage: dpo\npref_loss: orpo\n").find(", loss orpo-logits") != std::string::npos);
  CHECK(told(factory + "stage: dpo\npref_loss: simpo\n").find(", loss simpo-logits") != std::string::npos);
  CHECK(told(factory + "stage: dpo\npref_loss: hinge\n")
            .find("the loss of pairs hinge is not modelled yet; sigmoid, orpo and simpo are") != std::string::npos);
  CHECK(told(factory + "stage: ppo\n").find("stage ppo, which generates while it trains, is not modelled yet") !=
        std::string::npos);
  CHECK(told(factory + "stage: dpo\nld_alpha: 0.5\n").find("LD-DPO") != std::string::npos);
  const std::string axolotl =
      "base_model: llama-3.2-1b\nsequence_len: 512\nadapter: lora\nlora_r: 8\nlora_target_linear: true\n";
  const std::string pairs = told(axolotl + "rl: dpo\n");
  CHECK(pairs.find(", loss dpo-rows") != std::string::npos);
  CHECK(pairs.find("kernels for adapters") == std::string::npos);
  CHECK(
      told(axolotl + "rl: grpo\n").find("axolotl's rl: grpo is not modelled yet; dpo, ipo, orpo, simpo and kto are") !=
      std::string::npos);
  for (const std::string kind : {"ipo", "orpo", "simpo", "kto"}) {
    CHECK(told(axolotl + "rl: " + kind + "\n").find(", loss " + kind + "-rows") != std::string::npos);
  }
  CHECK(told(axolotl + "rl: simpo\ncpo_alpha: 0\n").find(", loss simpo-rows-bare") != std::string::npos);
  const std::string headed =
      "base_model: llama-3.2-1b\nsequence_len: 512\nadapter: lora\nlora_r: 8\nlora_target_modules: [q_proj]\n";
  const std::string rewards = told(headed + "reward_model: true\nmodel_type: AutoModelForSequenceClassification\n");
  CHECK(rewards.find(", loss reward") != std::string::npos);
  CHECK(told(headed + "reward_model: true\ncenter_rewards_coefficient: 0.01\n").find(", loss reward-centered") !=
        std::string::npos);
  CHECK(told(axolotl + "center_rewards_coefficient: 0.01\n").find(", loss reward") == std::string::npos);
  CHECK(told(axolotl + "model_type: AutoModelForSequenceClassification\n")
            .find("not modelled yet: another class than the one for causal language modelling") != std::string::npos);
  CHECK(told(axolotl + "rl: dpo\ndpo_use_weighting: true\n").find("weighted pairs") != std::string::npos);
  spill(
      folder / "half.json",
      R"({"dsplan": 1, "kind": "training", "source": "a test", "dtype": "bf16", "loss": "dpo-rows", "lora": {"r": 8}})");
  const Ran half = dsplan_runs(folder, "simulate --verbose llama-3.2-1b --training half.json");
  CHECK(in_one_line(half.out + half.err).find("log-probabilities row by row of logits in 16 bits") !=
        std::string::npos);
}

TEST_CASE("TRL's losses: which trainer a launch line or a file means") {
  const Folder folder;
  const auto loss_of = [&](const std::string& line) {
    const Ran ran = dsplan_runs(folder, "simulate --verbose " + line);
    REQUIRE_MESSAGE(ran.code == 0, ran.err);
    const std::string told = in_one_line(ran.out);
    const std::size_t at = told.find(", loss ");
    REQUIRE(at != std::string::npos);
    return told.substr(at + 7, told.find_first_of(", ", at + 7) - at - 7);
  };
  const std::string model = " --model_name_or_path llama-3.2-1b";
  CHECK(loss_of("-- trl sft" + model) == "trl");
  CHECK(loss_of("-- trl dpo" + model) == "dpo");
  CHECK(loss_of("-- trl dpo --precompute_ref_log_probs true" + model) == "dpo-precomputed");
  CHECK(loss_of("-- trl kto" + model) == "kto");
  CHECK(loss_of("-- trl reward" + model) == "reward");
  CHECK(loss_of("-- trl reward --center_rewards_coefficient 0.01" + model) == "reward-centered");
  spill(folder / "dpo.yaml", "model_name_or_path: llama-3.2-1b\nbeta: 0.1\ndataset_train_split: train\n");
  CHECK(loss_of("--training dpo.yaml") == "dpo");
  spill(folder / "kto.yaml",
        "model_name_or_path: llama-3.2-1b\nbeta: 0.1\ndesirable_weight: 1.5\ndataset_train_split: train\n");
  CHECK(loss_of("--training kto.yaml") == "kto");
  CHECK(loss_of("--loss hf -- trl sft" + model) == "hf");
  const Ran hinge = dsplan_runs(folder, "simulate -- trl dpo --loss_type hinge" + model);
  CHECK(hinge.code == 2);
  CHECK(hinge.err.find("the loss \"hinge\" of `trl dpo` is not modelled yet; sigmoid is") != std::string::npos);
  const Ran apo = dsplan_runs(folder, "simulate -- trl kto --loss_type apo_zero_unpaired" + model);
  CHECK(apo.err.find("the loss \"apo_zero_unpaired\" of `trl kto` is not modelled yet; kto is") != std::string::npos);
  const Ran grpo = dsplan_runs(folder, "simulate -- trl grpo" + model);
  CHECK(grpo.err.find("`trl sft`, `trl dpo`, `trl kto` and `trl reward` are") != std::string::npos);
}

TEST_CASE("TRL's losses: a reference beside DeepSpeed's engine, and heads that are none, are refused by name") {
  const Folder folder;
  const auto why = [&](const std::string& words) {
    const Ran ran = dsplan_runs(folder, "simulate --verbose " + words);
    CHECK(ran.code == 0);
    return in_one_line(ran.out + ran.err);
  };
  CHECK(why("llama-3.2-1b --loss dpo --zero-stage 2 --gpus 2").find("a reference model in a DeepSpeed engine") !=
        std::string::npos);
  CHECK(why("llama-3.2-1b --loss kto --micro-batch 1").find("KTO of one row, which TRL refuses") != std::string::npos);
  CHECK(why("gpt2 --loss dpo").find("TRL's fused head and the gpt2 family") != std::string::npos);
  CHECK(why("mixtral-8x7b --loss trl").find("a mixture, whose router has a loss of its own there") !=
        std::string::npos);
}
