// `dsplan simulate` as users see it: its reports in every format, their sums and their schema.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lowered.h"
#include "run_binary.h"
#include "schema.h"

using namespace dsplan::test;
using Json = nlohmann::ordered_json;

namespace {

Ran dsplan_runs(const Folder& folder, const std::string& line) { return run_binary(folder, split(line)); }

// Of rows of 64 tokens.
Json short_answer(const Folder& folder, const std::string& words) {
  const Ran ran = dsplan_runs(folder, "simulate " + words + " --seq 64 --format json");
  CHECK_MESSAGE(ran.code == 0, words, ran.err);
  return Json::parse(ran.out);
}
std::int64_t held_bytes(const Json& answer) { return answer["memory"]["persistent"]["total"].get<std::int64_t>(); }

std::int64_t sum_of_roles(const Json& roles) {
  std::int64_t sum = 0;
  for (const char* role : {"parameters", "gradients", "optimizer", "runtime_buffers", "activations", "temporaries",
                           "inputs", "module_buffers", "workspace"}) {
    sum += roles.at(role).get<std::int64_t>();
  }
  return sum;
}

void check_sums(const Json& report) {
  const Json& memory = report.at("memory");
  const Json& states = memory.at("states");
  CHECK(states.at("parameters").get<std::int64_t>() + states.at("gradients").get<std::int64_t>() +
            states.at("optimizer").get<std::int64_t>() ==
        states.at("total").get<std::int64_t>());
  CHECK(sum_of_roles(memory.at("persistent")) == memory.at("persistent").at("total").get<std::int64_t>());
  if (!memory.at("held_for_backward").is_null()) {
    const Json& held = memory.at("held_for_backward");
    CHECK(sum_of_roles(held.at("by_role")) == held.at("total").get<std::int64_t>());
  }
  if (!memory.at("peak").is_null()) {
    const Json& peak = memory.at("peak");
    CHECK(sum_of_roles(peak.at("by_role")) == peak.at("requested").get<std::int64_t>());
    CHECK(peak.at("allocated").get<std::int64_t>() >= peak.at("requested").get<std::int64_t>());
  }
}

// Every null has an entry in not_modelled, at its own path or one around or inside it.
void check_nulls(const Json& value, const std::string& path, const Json& absences) {
  if (value.is_object()) {
    for (const auto& [key, child] : value.items()) check_nulls(child, path.empty() ? key : path + "." + key, absences);
  }
  if (!value.is_null()) return;
  bool said = false;
  for (const Json& absence : absences) {
    const auto what = absence.at("what").get<std::string>();
    CHECK(!absence.at("why").get<std::string>().empty());
    said = said || path == what || path.starts_with(what + ".") || what.starts_with(path + ".");
  }
  CHECK_MESSAGE(said, path);
}

const std::vector<std::string> kRuns = {
    "simulate tiny-llama",
    "simulate tiny-llama --gpus 4",
    "simulate tiny-llama --zero-stage 1 --gpus 4 --hardware l4",
    "simulate tiny-llama --zero-stage 2 --gpus 4 --grad-accum 2 --capacity 16GiB",
    "simulate tiny-llama --zero-stage 3 --gpus 8 --checkpoint full --cluster 8xh100",
    "simulate tiny-llama --cluster 8xh100 --explain fragmentation --alloc-conf max_split_size_mb:64",
    "simulate tiny-llama --explain fragmentation --stream-frees immediate --phase first_step",
    "simulate tiny-gpt2 --capacity 1GiB --alloc-conf per_process_memory_fraction:0.3 --phase init",
    "simulate tiny-gpt2 --seq 64 --capacity 700MiB",
    "simulate tiny-gpt2 --dtype fp32 --optimizer sgd --freeze '*wte*'",
    "simulate bloom-560m --zero-stage 3 --gpus 8",
    "simulate t5-small --zero-stage 3 --gpus 8 --target-seq 512 --attention eager",
    "simulate t5-small --zero-stage 3 --gpus 8",
    "simulate whisper-tiny --zero-stage 2 --gpus 2 --checkpoint full",
    "simulate qwen2.5-7b --deepspeed zero3-offload --gpus 8",
    "simulate tiny-llama --training example --seq 128",
    "simulate tiny-llama --zero-stage 1 -- deepspeed --num_gpus 2 train.py --bf16 true --per_device_train_batch_size 2",
};

}  // namespace

TEST_CASE("simulate: layers that are left out at random are predicted all, and it is said") {
  const Folder folder;
  const Ran ran = dsplan_runs(folder, "simulate m2m100-418m --seq 16 --format json");
  CHECK(ran.err.find(
            "\"encoder_layerdrop\" leaves layers out at random: the steps told are those that run all of them") !=
        std::string::npos);
  CHECK(!Json::parse(ran.out).at("memory").at("peak").is_null());
}

TEST_CASE("every report fits 80 columns, parses, sums up and obeys the schema") {
  const Folder folder;
  for (const std::string& line : kRuns) {
    CAPTURE(line);
    // An option stands before the launch line.
    const std::size_t at = line.find(" -- ");
    const auto with = [&](const std::string& more) {
      return at == std::string::npos ? line + " " + more : line.substr(0, at) + " " + more + line.substr(at);
    };
    const Ran table = dsplan_runs(folder, with("--explain peak --explain traffic"));
    CAPTURE(table.err);
    CHECK((table.code == 0 || table.code == 3));
    CHECK(widest_line(table.out) <= 80);
    const std::string verdict = table.out.substr(0, table.out.find("  "));
    const bool known = verdict == "FITS" || verdict == "TIGHT" || verdict == "FITS WITH RETRIES" ||
                       verdict == "DOES NOT FIT" || verdict == "UNKNOWN";
    CHECK_MESSAGE(known, verdict);
    CHECK((verdict == "DOES NOT FIT") == (table.code == 3));
    const Ran screen = dsplan_runs(folder, line);
    const bool with_topic = line.find("--explain") != std::string::npos;
    CHECK_MESSAGE((with_topic || std::count(screen.out.begin(), screen.out.end(), '\n') <= 16), screen.out);
    CHECK(widest_line(screen.out) <= 80);
    CHECK(widest_line(dsplan_runs(folder, with("--verbose --explain assumed")).out) <= 80);

    const Ran json = dsplan_runs(folder, with("--format json"));
    CHECK(json.code == table.code);
    const Json report = Json::parse(json.out, nullptr, false);
    REQUIRE(!report.is_discarded());
    check_sums(report);
    check_nulls(report, "", report.at("not_modelled"));
    check_schema(folder, "prediction", json.out);

    const Ran csv = dsplan_runs(folder, with("--format csv"));
    CHECK(csv.out.starts_with("rank,path,value\n"));
    const std::string total = std::to_string(report["memory"]["persistent"]["total"].get<std::int64_t>());
    CHECK(csv.out.find(",memory.persistent.total," + total + "\n") != std::string::npos);
    CHECK(dsplan_runs(folder, with("--format md")).out.starts_with("## "));
  }
}

TEST_CASE("a launch line gives ranks and micro-batch, and an option beats it") {
  const Folder folder;
  const std::string launch = " -- deepspeed --num_gpus 2 train.py --bf16 true --per_device_train_batch_size 3";
  const Ran line = dsplan_runs(folder, "simulate tiny-llama --zero-stage 1" + launch);
  CHECK(line.out.find("2 GPUs, ") != std::string::npos);
  CHECK(line.out.find("micro-batch 3,") != std::string::npos);
  const Ran option = dsplan_runs(folder, "simulate tiny-llama --zero-stage 1 --micro-batch 4" + launch);
  CHECK(option.out.find("micro-batch 4,") != std::string::npos);
}

TEST_CASE("the first screen says a mesh of replicas as one") {
  const Folder folder;
  const std::string words = "simulate tiny-llama --gpus 4 --seq 16 --runtime ";
  CHECK(dsplan_runs(folder, words + "hsdp --set fsdp.replicate=2").out.find("HSDP 2 x 2 on 4 GPUs") !=
        std::string::npos);
  CHECK(dsplan_runs(folder, words + "fsdp2").out.find("FSDP2 on 4 GPUs") != std::string::npos);
}

TEST_CASE("--rank all prints one report per rank") {
  const Folder folder;
  const std::string line = "simulate tiny-llama --zero-stage 2 --gpus 3 --rank all";
  const Ran json = dsplan_runs(folder, line + " --format json");
  REQUIRE(json.code == 0);
  const Json all = Json::parse(json.out);
  CHECK(all.at("schema") == "dsplan.predictions/1");
  REQUIRE(all.at("ranks").size() == 3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CHECK(all["ranks"][rank].at("rank") == rank);
    CHECK(all["ranks"][rank].at("schema") == "dsplan.prediction/1");
    check_sums(all["ranks"][rank]);
  }
  const Ran table = dsplan_runs(folder, line);
  CHECK(widest_line(table.out) <= 80);
  CHECK(table.out.find("\n     2  ") != std::string::npos);
}

TEST_CASE("too small a device: exit 3, the missing bytes and the moment") {
  const Folder folder;
  const Ran ran = dsplan_runs(folder, "simulate llama-3-8b --zero-stage 3 --gpus 8 --capacity 24GiB");
  CHECK(ran.code == 3);
  CHECK(ran.out.starts_with("DOES NOT FIT  needs at least "));
  CHECK(ran.out.find("GiB short") < ran.out.find("first fails at "));
  CHECK(ran.out.find("what would fit") != std::string::npos);
  // The shortfall is that of the largest moment, whatever the allocator makes of it.
  const Ran json = dsplan_runs(folder, "simulate llama-3-8b --zero-stage 3 --gpus 8 --capacity 24GiB --format json");
  const Json report = Json::parse(json.out);
  const auto bytes = [&report](const char* key) { return report.at(key).get<std::int64_t>(); };
  CHECK(bytes("shortfall_bytes") == bytes("needed_bytes") - bytes("capacity_bytes"));
  CHECK(bytes("needed_bytes") == report.at("memory").at("peak").at("allocated").get<std::int64_t>() +
                                     bytes("context_bytes") + bytes("communicators_bytes"));
}

TEST_CASE("tight: with less to spare than the prediction may be off; never a peak above the capacity as if it fitted") {
  const Folder folder;
  const auto predicted = [&](std::int64_t capacity) {
    const Ran ran = dsplan_runs(
        folder, "simulate tiny-llama --seq 1024 --format json --capacity " + std::to_string(capacity) + "B");
    return Json::parse(ran.out);
  };
  const Json roomy = predicted(INT64_C(1) << 40);
  const std::int64_t process = roomy.at("memory").at("peak").at("process").get<std::int64_t>();
  const std::int64_t doubt = roomy.at("uncertainty_bytes").get<std::int64_t>();
  CHECK(roomy.at("verdict") == "fits");
  std::int64_t sum = 0;
  for (const Json& part : roomy.at("uncertainty")) {
    sum += part.at("bytes").get<std::int64_t>();
    CHECK(!part.at("why").get<std::string>().empty());
  }
  CHECK(sum == doubt);
  CHECK(doubt > 0);  // The context is assumed.
  CHECK(predicted(process + doubt).at("verdict") == "fits");
  const Json tight = predicted(process + doubt - 1);
  CHECK(tight.at("verdict") == "tight");
  CHECK(tight.at("fits") == true);
  CHECK(tight.at("shortfall_bytes") == 0);
  CHECK(predicted(process).at("verdict") == "tight");
  CHECK(predicted(roomy.at("needed_bytes").get<std::int64_t>() - 1).at("verdict") == "does_not_fit");
  const Ran ran = dsplan_runs(folder, "simulate tiny-llama --seq 1024 --capacity " + std::to_string(process) + "B");
  CHECK(ran.code == 0);
  CHECK(ran.out.starts_with("TIGHT  takes "));
  CHECK(ran.err.find("warning: less is to spare") != std::string::npos);
}

TEST_CASE("offload without a known host: the device's verdict stands, and the host's need is said beside it") {
  const Folder folder;
  const std::string line = "simulate qwen2.5-7b --deepspeed zero3-offload --gpus 8 --hardware h100-sxm ";
  const Json alone = Json::parse(dsplan_runs(folder, line + "--format json").out);
  CHECK(alone.at("verdict") == "fits");
  CHECK(alone.at("host_verdict") == "unknown");
  CHECK(dsplan_runs(folder, line).out.find(" of host memory per node, size unknown (--host-memory)") !=
        std::string::npos);
  const Json small = Json::parse(dsplan_runs(folder, line + "--format json --host-memory 16GiB").out);
  CHECK(small.at("verdict") == "does_not_fit");
  CHECK(small.at("host_verdict") == "does_not_fit");
  CHECK(Json::parse(dsplan_runs(folder, line + "--format json --host-memory 2TiB").out).at("host_verdict") == "fits");
}

TEST_CASE("what retries never shows a peak above the device as if it fitted") {
  const Folder folder;
  const std::string line = "simulate llama-3-8b --zero-stage 3 --gpus 8 --hardware h100-sxm --micro-batch 3 ";
  const Json json = Json::parse(dsplan_runs(folder, line + "--format json").out);
  CHECK(json.at("verdict") == "fits_with_retries");
  CHECK(json.at("memory").at("peak").at("process").get<std::int64_t>() > json.at("capacity_bytes").get<std::int64_t>());
  const Ran ran = dsplan_runs(folder, line);
  CHECK(ran.out.starts_with("FITS WITH RETRIES  fits in 79.65 GiB per GPU, would use "));
  CHECK(ran.err.find("warning: it fits only after") != std::string::npos);
}

TEST_CASE("colour is the terminal's, or as --color says") {
  const Folder folder;
  const std::string line = "simulate tiny-llama --capacity 16GiB ";
  CHECK(dsplan_runs(folder, line).out.starts_with("FITS"));
  CHECK(dsplan_runs(folder, line + "--color always").out.starts_with("\x1b[1;32mFITS\x1b[0m"));
  CHECK(dsplan_runs(folder, line + "--color never").out.starts_with("FITS"));
  const Ran wrong = dsplan_runs(folder, line + "--color blue");
  CHECK(wrong.code == 2);
  CHECK(wrong.err.find("it is auto, always or never") != std::string::npos);
}

TEST_CASE("a model of 10^15 parameters is counted, not wrapped") {
  const Folder folder;
  spill(folder / "config.json",
        "{\"model_type\": \"llama\", \"hidden_size\": 1000000, \"num_hidden_layers\": 60, \"num_attention_heads\": 8,\n"
        "\"intermediate_size\": 4000000, \"vocab_size\": 32000}");
  const Ran ran = dsplan_runs(folder, "simulate config.json --gpus 1024 --zero-stage 3 --format json --seq 16");
  if (ran.code == 2) {
    CHECK(ran.err.find("63 bits") != std::string::npos);
  } else {
    const Json report = Json::parse(ran.out);
    // 60 layers of 4 h^2 + 3 h ffn + 2 h, two embeddings and a norm.
    CHECK(report.at("parameters").at("total").get<std::int64_t>() ==
          60LL * (4 * 1'000'000'000'000 + 12 * 1'000'000'000'000 + 2'000'000) + 64'000'000'000 + 1'000'000);
    check_sums(report);
  }
}

TEST_CASE("the saved tensors of a model follow its checkpointing and its versions") {
  const Folder folder;
  const auto saved = [&](const std::string& options) {
    const Ran ran = dsplan_runs(folder, "simulate tiny-llama --seq 128 --explain saved " + options);
    CHECK(ran.code == 0);
    return ran.out;
  };
  CHECK(saved("").find("argument of checkpoint") == std::string::npos);
  CHECK(saved("").find("model.layers.*.mlp") != std::string::npos);
  // Around the MLPs alone: theirs go, attention's stay.
  const std::string around = saved("--checkpoint modules:mlp");
  CHECK(around.find("argument of checkpoint") != std::string::npos);
  CHECK(around.find("model.layers.*.mlp") == std::string::npos);
  CHECK(around.find("model.layers.*.self_attn") != std::string::npos);
}

TEST_CASE("a note says where it comes from, also where no file of the user's says it") {
  const Folder folder;
  spill(folder / "plugin.yaml",
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\nmixed_precision: bf16\nnum_processes: 2\n");
  const Ran plugin = dsplan_runs(folder, "simulate gpt2 --training plugin.yaml --capacity 80GiB");
  CHECK_MESSAGE(plugin.code == 0, plugin.err);
  // accelerate fills in what its plugin leaves open.
  CHECK(plugin.err.find("DeepSpeed itself does not start") == std::string::npos);
  const Ran trl = dsplan_runs(folder, "simulate --capacity 80GiB -- trl sft --model_name_or_path gpt2");
  CHECK_MESSAGE(trl.code == 0, trl.err);
  CHECK(trl.err.find("TRL's default: warning: TRL's own loss is not modelled") != std::string::npos);
  for (const Ran* ran : {&plugin, &trl}) {
    CHECK(!ran->err.starts_with(": "));
    CHECK(ran->err.find("\n: ") == std::string::npos);
  }
  // A file of the user's with "auto", and nothing that fills it in.
  spill(folder / "auto.json", R"({"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": true}})");
  const Ran alone = dsplan_runs(folder, "simulate gpt2 --deepspeed auto.json --gpus 2 --capacity 80GiB");
  CHECK(alone.err.find("DeepSpeed itself does not start") != std::string::npos);
}

TEST_CASE("tables of tensors that fully_shard's copies send lie pinned on the host") {
  const Folder folder;
  const auto pinned = [&](const std::string& words) {
    const Ran ran = run_binary(
        folder, split("simulate " + words + " --gpus 8 --rank 7 --seq 1024 --hardware h100-sxm --format json"));
    CHECK_MESSAGE(ran.code == 0, words, ran.err);
    return Json::parse(ran.out)["memory"]["host"]["pinned"].get<std::int64_t>();
  };
  // As PyTorch 2.11 counts them: 16, 32, 64 and 256 KiB, and with gradients in fp32 twice as many rows of blocks.
  CHECK(pinned("llama-3.2-1b --micro-batch 2 --runtime fsdp2") == 376'832);
  CHECK(pinned("llama-3.2-1b --micro-batch 2 --runtime fsdp2 --set fsdp.reduce_dtype=fp32") == 704'512);
  CHECK(pinned("llama-3.2-1b --micro-batch 2 --zero-stage 1") == 0);
}

TEST_CASE("a model that was cast whole has narrower tables, and where it was made on the device nothing is predicted") {
  const Folder folder;
  const auto simulated = [&](const std::string& words) { return short_answer(folder, words); };
  const auto held = [&](const std::string& words) { return held_bytes(simulated(words)); };
  const std::string host = "tiny-llama --set model_init=host";
  const std::int64_t half = lowered::bundled("tiny-llama").dims.head_dim / 2;
  for (const std::string& words : {host, host + " --gpus 2", host + " --gpus 2 --zero-stage 1"}) {
    CAPTURE(words);  // inv_freq, and the copy of it that its class keeps.
    CHECK(held(words) - held(words + " --set cast_model=true") == 2 * half * 2);
  }
  for (const std::string words : {"tiny-llama", "tiny-llama --gpus 2 --zero-stage 3"}) {
    CAPTURE(words);
    const Ran ran = run_binary(folder, split("simulate " + words + " --set cast_model=true --seq 64 --format json"));
    CHECK_MESSAGE((ran.out + ran.err).find("\"cast_model\" of a model whose model_init is") != std::string::npos,
                  ran.out, ran.err);
  }
  const Ran packed =
      run_binary(folder, split("simulate tiny-llama --quantization nf4 --lora r=2 --set cast_model=true"));
  CHECK(packed.code == 2);
  CHECK(packed.err.find("\"cast_model\" of packed weights") != std::string::npos);
}

TEST_CASE("LongRoPE's table is one attribute, whatever the lengths of rows that share it") {
  const Folder folder;
  const auto buffers = [&](const std::string& words) {
    const Ran ran = dsplan_runs(folder, "simulate phi-4-mini --checkpoint full --format json " + words);
    CHECK_MESSAGE(ran.code == 0, words, ran.err);
    return Json::parse(ran.out)["memory"]["persistent"]["module_buffers"].get<std::int64_t>();
  };
  const std::int64_t table = 48 * 4;
  CHECK(buffers("--seq 4096") == table);                // The constructor's copy.
  CHECK(buffers("--seq-list 4096,1024") == table);      // Whichever is first.
  CHECK(buffers("--seq 4097") == 2 * table);            // And the one that the last forward made.
  CHECK(buffers("--seq-list 6000,5000") == 2 * table);  // Of either length.
  CHECK(buffers("--seq 4096 --gpus 2") == 2 * table);   // DDP's list has the first one.
  CHECK(buffers("--seq 5000 --gpus 2") == 3 * table);
}

TEST_CASE("how long the rows are that LongRoPE leaves alone is part of the fingerprint") {
  const Folder folder;
  const auto answer = [&](int rows) {
    spill(folder / "phi.json",
          R"({"model_type": "phi3", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 640, "pad_token_id": 0,
              "rope_scaling": {"type": "longrope", "short_factor": [1, 1], "long_factor": [2, 2]},
              "original_max_position_embeddings": )" +
              std::to_string(rows) + "}");
    return short_answer(folder, folder / "phi.json");
  };
  const Json longer = answer(63);
  const Json shorter = answer(64);
  CHECK(held_bytes(longer) > held_bytes(shorter));
  CHECK(longer["fingerprint"] != shorter["fingerprint"]);
}

TEST_CASE("keys and values that a model keeps are held by a script, and refused where nobody compared them") {
  const Folder folder;
  const auto simulated = [&](const std::string& words) { return short_answer(folder, words + " --loop script"); };
  // Schedule and formula agree, or nothing would be predicted; 2 layers of 4 key heads of 16 in bf16.
  const auto held = [&](const std::string& words) { return held_bytes(simulated(words)); };
  const std::string tiny = "tiny-llama --micro-batch 3";
  const dsplan::Dimensions d = lowered::bundled("tiny-llama").dims;
  CHECK(held(tiny + " --set use_cache=true") - held(tiny) == d.layers * 2 * 3 * 64 * d.kv_heads * d.head_dim * 2);
  CHECK(held("mistral-7b --set use_cache=true") - held("mistral-7b") == 32 * (2 * 64 * 8 * 128 * 2 + 8));
  // Without tables that turn them in fp32, keys are as their product leaves them under autocast; Liger makes no logits.
  for (const std::string words : {"gpt2 --dtype fp32 --autocast bf16", "tiny-llama --loss liger",
                                  "tiny-llama --gpus 2 --zero-stage 1", "tiny-llama --gpus 2 --runtime fsdp2"}) {
    CAPTURE(words);
    CHECK(held(words + " --set use_cache=true") > held(words));
  }
  for (const char* words :
       {"tiny-llama --checkpoint full", "bart-base", "deepseek-v2-lite", "tiny-llama --loss chunked:2"}) {
    CAPTURE(words);
    const Json answer = simulated(std::string(words) + " --set use_cache=true");
    CHECK(answer.dump().find("not modelled yet: use_cache") != std::string::npos);
  }
}

TEST_CASE("a loop holds its loss, and one tensor is ids and labels") {
  const Folder folder;
  const auto simulated = [&](const std::string& words) { return short_answer(folder, words); };
  const auto held = [&](const std::string& words) { return held_bytes(simulated(words)); };
  for (const std::string words : {"tiny-llama --micro-batch 3", "gpt2 --micro-batch 3 --gpus 2",
                                  "tiny-llama --micro-batch 3 --gpus 2 --zero-stage 3 --checkpoint full"}) {
    CAPTURE(words);
    CHECK(held(words + " --loop loss") - held(words + " --loop minimal") == 4);
    CHECK(held(words) - held(words + " --set labels_are_ids=true") == 3 * 64 * 8);
  }
  for (const char* words : {"bert-base", "t5-small", "tiny-llama --loss chunked:2"}) {
    CAPTURE(words);
    const Json answer = simulated(std::string(words) + " --set labels_are_ids=true");
    CHECK(answer.dump().find("not modelled yet: labels_are_ids") != std::string::npos);
  }
}
