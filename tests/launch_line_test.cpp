#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "io/launch_line.h"
#include "io/text.h"
#include "run_binary.h"

using namespace dsplan;

namespace {

std::vector<std::string> words(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> all;
  for (std::string word; stream >> word;) all.push_back(word);
  return all;
}

Request read(const std::string& line) { return read_launch_line(words(line)); }

bool noticed(const Request& request, Notice::Kind kind, const std::string& part) {
  return std::any_of(request.notices.begin(), request.notices.end(), [&](const Notice& notice) {
    return notice.kind == kind && notice.message.find(part) != std::string::npos;
  });
}

std::string refusal(const std::string& line) {
  try {
    (void)read(line);
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("launch line: ranks by launcher") {
  struct Row {
    const char* line;
    std::optional<std::int64_t> gpus;
    std::optional<std::int64_t> per_node;
    std::optional<std::int64_t> nodes;
  };
  const Row rows[] = {
      {"deepspeed --num_gpus 8 train.py", 8, 8, {}},
      {"deepspeed --num_gpus=4 --num_nodes=2 train.py", 8, 4, 2},
      {"deepspeed --num_nodes 2 train.py", {}, {}, 2},
      {"deepspeed train.py", {}, {}, {}},
      {"deepspeed --include localhost:0,1,2 train.py", 3, 3, 1},
      {"deepspeed --include=a:0,1@b:2,3 --master_port 29500 train.py", 4, 2, 2},
      {"deepspeed --bind_cores_to_rank --num_gpus 2 train.py", 2, 2, {}},
      {"torchrun --nproc_per_node 8 train.py", 8, 8, {}},
      {"torchrun --nproc-per-node=8 --nnodes=4 --rdzv_backend c10d train.py", 32, 8, 4},
      {"torchrun --nnodes 1:4 --nproc_per_node 2 train.py", 8, 2, 4},
      {"torchrun train.py", 1, 1, {}},
      {"torchrun --standalone --nproc_per_node gpu train.py", {}, {}, {}},
      {"python -m torch.distributed.run --nproc_per_node 2 -m pkg.train", 2, 2, {}},
      {"python3.11 -u -m torch.distributed.launch --nproc_per_node=4 train.py", 4, 4, {}},
      {"accelerate launch --num_processes 16 --num_machines 2 train.py", 16, 8, 2},
      {"accelerate launch --multi_gpu --num_processes=4 train.py", 4, {}, {}},
      {"mpirun -np 8 -x NCCL_DEBUG=INFO --allow-run-as-root -mca btl tcp python train.py", 8, {}, {}},
      {"mpiexec -n 4 python train.py", 4, {}, {}},
      {"srun -n 16 -N 2 python train.py", 16, 8, 2},
      {"srun --nodes=2 --ntasks-per-node=4 --gres=gpu:4 python train.py", 8, 4, 2},
      {"srun -N 4 --ntasks-per-node=1 torchrun --nnodes 4 --nproc_per_node 8 train.py", 32, 8, 4},
      {"srun -n 4 -N 4 torchrun --nproc_per_node 2 train.py", 2, 2, {}},
      {"CUDA_VISIBLE_DEVICES=0,1 OMP_NUM_THREADS=1 torchrun --nproc_per_node 2 train.py", 2, 2, {}},
      {"CUDA_VISIBLE_DEVICES=0,1,2 torchrun --nproc-per-node gpu train.py", 3, 3, {}},
      {"CUDA_VISIBLE_DEVICES=0,1,2 torchrun train.py", 1, 1, {}},
      {"CUDA_VISIBLE_DEVICES=0,1 deepspeed train.py", 2, 2, {}},
      {"CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus 1 train.py", 1, 1, {}},
      {"CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_nodes 2 train.py", {}, {}, 2},
      {"CUDA_VISIBLE_DEVICES=4,5,6,7 accelerate launch train.py", 4, 4, {}},
      {"CUDA_VISIBLE_DEVICES=4,5,6,7 accelerate launch --num_processes 2 train.py", 2, {}, {}},
      {"CUDA_VISIBLE_DEVICES=0,1 python train.py", 1, {}, {}},
      {"/opt/bin/torchrun --nproc_per_node 2 train.py", 2, 2, {}},
      {"python train.py", 1, {}, {}},
      {"./train.py --seed 1", 1, {}, {}},
      {"", {}, {}, {}},
  };
  for (const Row& row : rows) {
    INFO(std::string(row.line));
    const Request request = read(row.line);
    CHECK(request.has_launch_line);
    CHECK(request.gpus.value == row.gpus);
    CHECK(request.gpus_per_node.value == row.per_node);
    CHECK(request.nodes.value == row.nodes);
    CHECK(!request.training_arguments.has_value());
  }
}

TEST_CASE("launch line: the script's own arguments") {
  const Request request = read(
      "deepspeed --num_gpus 8 run_clm.py --deepspeed ds.json --per_device_train_batch_size 4 "
      "--gradient-accumulation-steps=2 --bf16 --max_seq_length 2048 --gradient_checkpointing True --report_to wandb "
      "--learning_rate 1e-5 --lora_r 8");
  CHECK(request.gpus.value == 8);
  CHECK(request.deepspeed.value == "ds.json");
  CHECK(request.micro_batch.value == 4);
  CHECK(request.grad_accum.value == 2);
  CHECK(request.seq.value == 2048);
  CHECK(request.checkpoint.value == "full");
  REQUIRE(request.training_arguments.has_value());
  CHECK(request.training_arguments->bf16.value == true);
  CHECK(request.training_arguments->learning_rate.value == 1e-5);
  CHECK(request.micro_batch.place.text() == "launch line: --per_device_train_batch_size");
  CHECK(noticed(request, Notice::Kind::Inert, "\"report_to\""));
  REQUIRE(request.not_modelled.size() == 1);
  CHECK(request.not_modelled.front().key == "lora_r");
  CHECK(request.not_modelled.front().feature == "adapters of a script's own (say --lora)");
  CHECK(refusal("torchrun run_clm.py --per_device_train_batch_sze 4 --shard") ==
        "launch line: --per_device_train_batch_sze: error: unknown argument \"per_device_train_batch_sze\": "
        "TrainingArguments has no such key; did you mean \"per_device_train_batch_size\"?\n"
        "launch line: --shard: error: unknown argument \"shard\": TrainingArguments has no such key\n");
}

TEST_CASE("launch line: names that every script uses are not taken for Hugging Face's") {
  const Request request = read("deepspeed --num_gpus 2 train.py --deepspeed --deepspeed_config ds.json --seed 1");
  CHECK(request.deepspeed.value == "ds.json");
  CHECK(!request.training_arguments.has_value());
  CHECK(refusal("python train.py --seed 1 nowhere.json").find("nowhere.json: error: ") == 0);
}

TEST_CASE("launch line: accelerate's options") {
  const Request request = read(
      "accelerate launch --use_deepspeed --zero_stage 3 --mixed_precision bf16 --gradient_accumulation_steps 4 "
      "--num_processes 8 train.py");
  CHECK(request.zero_stage.value == 3);
  CHECK(request.mixed_precision.value == "bf16");
  CHECK(request.grad_accum.value == 4);
  CHECK(refusal("accelerate launch --config_file nowhere.yaml train.py").find("nowhere.yaml: error: ") == 0);
  CHECK(read("accelerate launch --use_deepspeed --deepspeed_config_file ds.json train.py").deepspeed.value ==
        "ds.json");
  CHECK(read_launch({"accelerate", "launch", "--use_fsdp", "train.py"}, {}).foreign.launched.on.value);
  CHECK_THROWS_AS((void)read("accelerate launch --zero_stage 4 train.py"), Refusal);
}

TEST_CASE("launch line: what is not a count is a fault") {
  try {
    (void)read("torchrun --nproc_per_node eight --nnodes $NNODES train.py");
    FAIL("accepted");
  } catch (const Refusal& refusal) {
    CHECK(std::string(refusal.what()) ==
          "launch line: --nproc_per_node: error: \"eight\" is not a positive number of ranks or nodes\n"
          "launch line: --nnodes: error: \"$NNODES\" is not a positive number of ranks or nodes\n");
  }
}

TEST_CASE("launch line: deepspeed's file of hosts") {
  const test::Folder folder;
  const std::string file = folder / "hosts";
  test::spill(file, "# two of a kind\nworker-0 slots=8\n\nworker-1   slots=4  # fewer\n");
  const auto counts = [&](const std::string& more) {
    const Request request = read("deepspeed --hostfile " + file + more + " train.py");
    return std::array{request.nodes.value_or(0), request.gpus.value_or(0), request.gpus_per_node.value_or(0)};
  };
  CHECK(counts("") == std::array<std::int64_t, 3>{2, 12, 8});
  CHECK(counts(" --num_nodes 1") == std::array<std::int64_t, 3>{1, 8, 8});
  CHECK(counts(" --num_gpus 2") == std::array<std::int64_t, 3>{2, 4, 2});
  for (const char* bad : {"worker-0\n", "worker-0 slots=many\n", "worker-0 slots=0\n"}) {
    test::spill(file, bad);
    CHECK(refusal("deepspeed --hostfile " + file + " train.py").find("hosts:1:1: error: is no host's line") !=
          std::string::npos);
  }
  test::spill(file, "# nobody\n");
  CHECK(refusal("deepspeed --hostfile " + file + " train.py").find("names no host") != std::string::npos);
}

TEST_CASE("launch line: words that start another program") {
  for (const char* before : {"nohup ", "time ", "exec ", "uv run ", "poetry run ", "env A=1 nohup "}) {
    INFO(before);
    CHECK(read(std::string(before) + "torchrun --nproc-per-node 8 train.py").gpus.value_or(0) == 8);
  }
}

TEST_CASE("launch line: a program that is nothing without its configuration") {
  for (const char* line : {"axolotl train", "axolotl train --micro_batch_size 2", "llamafactory-cli train"}) {
    CHECK_MESSAGE(refusal(line).find("its configuration is missing; name the YAML") != std::string::npos, line);
  }
}

TEST_CASE("launch line: host files and environment variables are not read, and that is said") {
  CHECK(noticed(read("deepspeed --hostfile hosts train.py"), Notice::Kind::Warning, "host files are not read"));
  CHECK(noticed(read("A=1 python train.py"), Notice::Kind::Inert, "this environment variable is not read"));
  const Request conf =
      read("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True PYTORCH_ALLOC_CONF=a:b torchrun train.py");
  CHECK(conf.alloc_conf.value == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
  CHECK(conf.alloc_conf.place.text() == "launch line: PYTORCH_CUDA_ALLOC_CONF");
}

TEST_CASE("launch line: accelerate's own configuration, which `accelerate config` leaves") {
  const test::Folder home;
  std::filesystem::create_directories(home / "accelerate");
  test::spill(home / "accelerate/default_config.yaml",
              "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\nfsdp_config: {fsdp_version: 2}\n");
  const auto said = [&](const std::string& line, LaunchedOn machine = LaunchedOn::ThisMachine) {
    return read_launch(words("HF_HOME=" + home.path() + " " + line), read_document, machine);
  };
  const Said taken = said("accelerate launch train.py");
  CHECK(taken.request.gpus.value == 8);
  CHECK(taken.request.mixed_precision.value == "bf16");
  CHECK(taken.foreign.launched.on.value);
  CHECK(noticed(taken.request, Notice::Kind::Announcement, "default_config.yaml is read"));
  CHECK(said("accelerate launch --num_processes 2 train.py").request.gpus.value == 2);
  CHECK(said("accelerate-launch train.py").request.gpus.value == 8);
  CHECK(said("trl sft --model_name_or_path gpt2 --dataset_name a").request.gpus.value == 8);
  // Another launcher, another file, another machine.
  CHECK(said("torchrun train.py").request.gpus.value == 1);
  test::spill(home / "other.yaml", "distributed_type: MULTI_GPU\nnum_processes: 4\n");
  CHECK(said("accelerate launch --config_file " + (home / "other.yaml") + " train.py").request.gpus.value == 4);
  const Said elsewhere = said("accelerate launch train.py", LaunchedOn::AnotherMachine);
  CHECK(!elsewhere.request.gpus.given());
  CHECK(noticed(elsewhere.request, Notice::Kind::Warning, "default_config.yaml is not read"));
}

TEST_CASE("launch line: one process that sees several devices") {
  const std::string line = "CUDA_VISIBLE_DEVICES=0,1,2,3 python train.py";
  CHECK(noticed(read(line), Notice::Kind::Warning, "one process that sees 4 devices: one of them is predicted"));
  CHECK(refusal(line + " --per_device_train_batch_size 4")
            .find("the Trainer puts the model into nn.DataParallel, which is not modelled; start a process for each: "
                  "CUDA_VISIBLE_DEVICES=... torchrun --nproc_per_node 4") != std::string::npos);
  CHECK(refusal(line + " --per_device_train_batch_size 4 --deepspeed ds.json") == "accepted");
  CHECK(refusal("CUDA_VISIBLE_DEVICES=0 python train.py --per_device_train_batch_size 4") == "accepted");
  CHECK(refusal("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 2 train.py --per_device_train_batch_size 4") ==
        "accepted");
}

TEST_CASE("launch line: LLaMA-Factory's module") {
  const ReadNamed file = [](const std::string& path) {
    return parse_yaml(path, "template: llama3\nstage: sft\ndo_train: true\n");
  };
  const Said said = read_launch(words("CUDA_VISIBLE_DEVICES=0,1 python -m llamafactory.cli train a.yaml"), file);
  CHECK(said.foreign.program.value == "llama-factory");
  CHECK(said.request.gpus.value == 2);
}
