#include <memory>

#include "model/parts.h"
#include "paths.h"
#include "resolving.h"

using namespace dsplan;
using namespace resolving;

TEST_CASE("resolve: nothing given is one GPU of plain PyTorch, and every assumption is named") {
  const Job job = run({});
  CHECK(job.training.runtime == Runtime::PyTorch);
  CHECK(job.training.dtype == DType::BFloat16);
  CHECK(job.training.grad_accum_dtype == DType::BFloat16);
  CHECK(job.training.optimizer.kind == OptimizerKind::AdamW);
  CHECK(job.training.optimizer.implementation == Implementation::Fused);
  CHECK(job.training.seq == 2048);
  CHECK(job.training.micro_batch == 1);
  CHECK(job.training.grad_accum == 1);
  CHECK(job.training.attention == Attention::Flash);
  CHECK(job.training.checkpoint.groups.empty());
  CHECK(job.training.gradient_clipping == 0);
  CHECK(job.training.torch == *Version::parse(kTorchVersion));
  CHECK(job.parallelism.world == 1);
  CHECK(!job.capacity.has_value());
  std::vector<std::string> names;
  for (const ResolvedInput& one : job.assumptions()) names.push_back(one.name);
  CHECK(names == std::vector<std::string>{"torch version", "transformers version", "dtype", "GPUs", "micro-batch",
                                          "accumulation", "optimizer", "seq", "attention", "loss", "checkpointing"});
  CHECK(input(job, "runtime").origin == Origin::Derived);
}

TEST_CASE("resolve: --strict refuses what is assumed, naming each option") {
  Given given;
  given.request = gpus(1);
  set(given.request.strict, true, "--strict");
  set(given.request.torch_version, std::string("2.11"), "--torch-version");
  set(given.request.transformers_version, std::string("5.17.0"), "--transformers-version");
  set(given.request.dtype, std::string("bf16"), "--dtype");
  set(given.request.micro_batch, std::int64_t{1}, "--micro-batch");
  set(given.request.grad_accum, std::int64_t{1}, "--grad-accum");
  set(given.request.optimizer, std::string("adamw"), "--optimizer");
  set(given.request.attention, std::string("flash"), "--attention");
  set(given.request.loss, std::string("hf"), "--loss");
  CHECK(refusal(given) ==
        "--seq: error: seq is assumed to be 2048 (min(2048, max_position_embeddings), all rows full), which --strict "
        "does not allow; give --seq\n"
        "--checkpoint: error: checkpointing is assumed to be none (nothing turns it on), which --strict does not "
        "allow; give --checkpoint\n");
  set(given.request.seq, std::int64_t{1024}, "--seq");
  set(given.request.checkpoint, std::string("none"), "--checkpoint");
  CHECK(refusal(given) == "accepted");
}

TEST_CASE("resolve: runtime and stage") {
  CHECK(run({"{}", gpus(1)}).training.runtime == Runtime::DeepSpeed);
  CHECK(run({"{}", gpus(1)}).training.zero.stage == 0);
  Given staged{"", gpus(4)};
  set(staged.request.zero_stage, std::int64_t{2}, "--zero-stage");
  CHECK(run(staged).training.runtime == Runtime::DeepSpeed);
  CHECK(run(staged).training.zero.stage == 2);
  staged.deepspeed = R"({"zero_optimization": {"stage": 3}})";
  CHECK(run(staged).training.zero.stage == 2);
  CHECK(find_notice(run(staged), "stage 3 of the DeepSpeed JSON gives way to 2 of --zero-stage") != nullptr);
  set(staged.request.runtime, std::string("pytorch"), "--runtime");
  says(staged, "--runtime: error: runtime pytorch contradicts the ZeRO stage");
  set(staged.request.zero_stage, std::int64_t{4}, "--zero-stage");
  says(staged, "--zero-stage: error: ZeRO stage 4 does not exist; DeepSpeed has stages 0 to 3");
}

TEST_CASE("resolve: ZeRO needs a number of ranks") {
  CHECK(refusal({R"({"zero_optimization": {"stage": 2}})"}) ==
        "--gpus: error: ZeRO stage 2 needs the number of GPUs; give --gpus, a cluster, or train_batch_size, "
        "micro-batch and accumulation as numbers\n");
  const Job job = run({R"({"zero_optimization": {"stage": 2}, "train_batch_size": 64,
      "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2})"});
  CHECK(job.parallelism.world == 8);
  CHECK(input(job, "GPUs").origin == Origin::Derived);
  Cluster cluster;
  cluster.gpus_per_node = 8;
  cluster.nodes = 2;
  Given clustered{R"({"zero_optimization": {"stage": 2}})"};
  clustered.cluster = &cluster;
  CHECK(run(clustered).parallelism.world == 16);
  CHECK(run(clustered).parallelism.nodes == 2);
}

TEST_CASE("resolve: dtype") {
  struct Row {
    const char* deepspeed;
    DType dtype;
    Origin origin;
  };
  const Row rows[] = {
      {R"({"bf16": {"enabled": true}})", DType::BFloat16, Origin::Given},
      {R"({"fp16": {"enabled": true}})", DType::Float16, Origin::Given},
      {R"({"fp16": {"enabled": false}})", DType::Float32, Origin::Derived},
      {"{}", DType::Float32, Origin::Derived},
      {R"({"bf16": {"enabled": "auto"}})", DType::Float32, Origin::Derived},
  };
  for (const Row& row : rows) {
    INFO(std::string(row.deepspeed));
    const Job job = run({row.deepspeed, gpus(1)});
    CHECK(job.training.dtype == row.dtype);
    CHECK(job.training.grad_accum_dtype == row.dtype);
    CHECK(job.training.communication_dtype == row.dtype);
    CHECK(input(job, "dtype").origin == row.origin);
  }
  const Job fallback = run({R"({"bf16": {"enabled": "auto"}})", gpus(1)});
  const Notice* notice = find_notice(fallback, "DeepSpeed's default, fp32, instead of 16 bits");
  REQUIRE(notice != nullptr);
  CHECK(notice->bytes == Bytes(2 * (4096 * 4096 + 100'001 + 40'960)));
  // TrainingArguments fill in "auto" and missing blocks.
  CHECK(run({R"({"bf16": {"enabled": "auto"}})", trainer("bf16: true")}).training.dtype == DType::BFloat16);
  CHECK(run({"{}", trainer("fp16: true")}).training.dtype == DType::Float16);
  CHECK(run({R"({"bf16": {"enabled": "auto"}})", trainer("seed: 1")}).training.dtype == DType::Float32);
  says({"{}", trainer("bf16: true\nfp16: true")}, "bf16 and fp16 are both true");
  // The option wins.
  Given wished{R"({"fp16": {"enabled": true}})", gpus(1)};
  set(wished.request.dtype, std::string("bf16"), "--dtype");
  CHECK(run(wished).training.dtype == DType::BFloat16);
  CHECK(find_notice(run(wished), "fp16 of the DeepSpeed JSON gives way to bf16 of --dtype") != nullptr);
}

TEST_CASE("resolve: accumulation and communication dtypes") {
  const Job job = run({R"({"bf16": {"enabled": true}, "zero_optimization": {"stage": 3},
      "data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"})",
                       gpus(2)});
  CHECK(job.training.grad_accum_dtype == DType::Float32);
  CHECK(job.training.communication_dtype == DType::Float32);
  CHECK(job.training.master_dtype == DType::Float32);
  says({R"({"bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"}})", gpus(1)},
       "ds.json:1:64: error: accumulation in fp32 with weights in bf16 needs ZeRO");
  says({R"({"bf16": {"enabled": true}, "data_types": {"param_dtype": "fp16"}})", gpus(1)},
       "\"param_dtype\" is fp16, but the weights are bf16");
}

TEST_CASE("resolve: the batch triple is completed and checked as DeepSpeed does") {
  struct Row {
    const char* triple;
    std::int64_t micro;
    std::int64_t accum;
  };
  const Row rows[] = {
      {R"({"train_batch_size": 64})", 8, 1},
      {R"({"train_batch_size": 64, "gradient_accumulation_steps": 4})", 2, 4},
      {R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2})", 2, 4},
      {R"({"train_micro_batch_size_per_gpu": 3})", 3, 1},
      {R"({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 5})", 3, 5},
      {R"({"gradient_accumulation_steps": 5})", 1, 5},
  };
  for (const Row& row : rows) {
    INFO(std::string(row.triple));
    const Job job = run({row.triple, gpus(8)});
    CHECK(job.training.micro_batch == row.micro);
    CHECK(job.training.grad_accum == row.accum);
  }
  CHECK(refusal({"{\"train_batch_size\": 512,\n \"train_micro_batch_size_per_gpu\": 4,\n"
                 " \"gradient_accumulation_steps\": 1}",
                 gpus(8)}) ==
        "ds.json:1:22: error: \"train_batch_size\" is 512, but micro-batch 4 x accumulation 1 x 8 data-parallel ranks "
        "is 32; DeepSpeed wants them equal\n"
        "    1 | {\"train_batch_size\": 512,\n"
        "      |                      ^\n");
  says({R"({"train_batch_size": 10})", gpus(8)}, "micro-batch 1 x accumulation 1 x 8 data-parallel ranks is 8");
  says({R"({"train_batch_size": 4})", gpus(8)}, "micro-batch 0 x accumulation 1");
  says({R"({"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1})"},
       "no multiple of micro-batch 2 x accumulation 1");
  // Options lie over the JSON's values.
  Given wished{R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2})", gpus(8)};
  set(wished.request.micro_batch, std::int64_t{4}, "--micro-batch");
  CHECK(run(wished).training.grad_accum == 2);
  set(wished.request.micro_batch, std::int64_t{0}, "--micro-batch");
  says(wished, "--micro-batch: error: the micro-batch must be at least 1, not 0");
}

TEST_CASE("resolve: ranks and tensor parallelism") {
  Given given{"", gpus(8)};
  set(given.request.tp, std::int64_t{2}, "--tp");
  CHECK(run(given).parallelism.dp == 4);
  set(given.request.tp, std::int64_t{16}, "--tp");  // Key-value heads are replicated.
  set(given.request.gpus, std::int64_t{32}, "--gpus");
  CHECK(run(given).parallelism.dp == 2);
  CHECK(run(given).parallelism.nodes == 4);
  CHECK(input(run(given), "GPUs per node").origin == Origin::Assumed);
  set(given.request.gpus, std::int64_t{24}, "--gpus");
  says(given, "--gpus: error: 24 GPUs cannot be cut into groups of tp x sp = 16");
  set(given.request.tp, std::int64_t{3}, "--tp");
  says(given, "--tp: error: 32 heads of small cannot be cut into tp = 3 equal parts");
  says(given, "--tp: error: 8 key-value heads of small cannot be cut into tp = 3 equal parts");
  says(given, "--tp: error: 14336 feed-forward columns of small cannot be cut into tp = 3 equal parts");
}

TEST_CASE("resolve: zero_optimization's defaults and values") {
  const Zero two = run({R"({"zero_optimization": {"stage": 2}})", gpus(2)}).training.zero;
  CHECK(two.reduce_bucket_size == Elements(500'000'000));
  CHECK(two.contiguous_gradients);
  CHECK(two.reduce_scatter);
  CHECK(!two.overlap_comm);
  CHECK(two.use_multi_rank_bucket_allreduce);
  const Zero three = run({R"({"zero_optimization": {"stage": 3, "sub_group_size": 7,
      "stage3_prefetch_bucket_size": 8, "stage3_param_persistence_threshold": 9,
      "stage3_model_persistence_threshold": 10, "stage3_max_live_parameters": 11, "stage3_max_reuse_distance": 12,
      "reduce_bucket_size": 13, "stage3_gather_16bit_weights_on_model_save": true, "contiguous_gradients": false,
      "reduce_scatter": false, "round_robin_gradients": true, "use_multi_rank_bucket_allreduce": false,
      "offload_param": {"device": "nvme", "nvme_path": "/nvme", "pin_memory": false, "buffer_count": 6,
                        "buffer_size": 8388608, "max_in_cpu": 15},
      "offload_optimizer": {"device": "cpu", "buffer_count": 3, "pipeline_read": true, "pipeline_write": true}},
      "aio": {"block_size": 16, "intra_op_parallelism": 17}})",
                          gpus(2)})
                         .training.zero;
  CHECK(three.overlap_comm);
  CHECK(three.sub_group_size == Elements(7));
  CHECK(three.prefetch_bucket_size == Elements(8));
  CHECK(three.param_persistence_threshold == Elements(9));
  CHECK(three.model_persistence_threshold == Elements(10));
  CHECK(three.max_live_parameters == Elements(11));
  CHECK(three.max_reuse_distance == Elements(12));
  CHECK(three.reduce_bucket_size == Elements(13));
  CHECK(three.gather_16bit_weights_on_model_save);
  CHECK(!three.contiguous_gradients);
  CHECK(!three.reduce_scatter);
  CHECK(three.round_robin_gradients);
  CHECK(!three.use_multi_rank_bucket_allreduce);
  CHECK(three.offload_param.device == OffloadDevice::Nvme);
  CHECK(three.offload_param.nvme_path == "/nvme");
  CHECK(!three.offload_param.pin_memory);
  CHECK(three.offload_param.buffer_count == 6);
  CHECK(three.offload_param.buffer_size == Elements(8'388'608));
  CHECK(three.offload_param.max_in_cpu == Elements(15));
  CHECK(three.offload_optimizer.device == OffloadDevice::Cpu);
  CHECK(three.offload_optimizer.pin_memory);
  CHECK(three.offload_optimizer.buffer_count == 3);
  CHECK(three.offload_optimizer.pipeline_read);
  CHECK(three.offload_optimizer.pipeline_write);
  CHECK(three.aio_block_size == 16);
  CHECK(three.aio_intra_op_parallelism == 17);
}

TEST_CASE("resolve: combinations that DeepSpeed rejects") {
  const auto zero = [](const std::string& inside, const std::string& outside = "") {
    return Given{dsplan::formatted("{{{}\"zero_optimization\": {{{}}}}}", outside, inside), gpus(2)};
  };
  says(zero(R"("stage": 2, "offload_param": {"device": "cpu"})"), "offload_param with ZeRO stage 2");
  says(zero(R"("stage": 0, "offload_optimizer": {"device": "cpu"})"), "offload_optimizer with ZeRO stage 0");
  says(zero(R"("stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/x"})"),
       "NVMe offload with ZeRO stage 2");
  says(zero(R"("stage": 3, "offload_optimizer": {"device": "nvme"})"),
       "offload_optimizer to NVMe without \"nvme_path\"");
  says(zero(R"("stage": 2)", R"("prescale_gradients": true, )"),
       "\"prescale_gradients\" with reduce_scatter and ZeRO stage 2");
  says(zero(R"("stage": 3)", R"("gradient_predivide_factor": 2.0, )"), "\"gradient_predivide_factor\" 2 with");
  says(zero(R"("stage": 3)", R"("gradient_allreduce_op": "sum", )"), "\"sum\" with ZeRO stage 3");
  CHECK(refusal(zero(R"("stage": 1)", R"("prescale_gradients": true, )")) == "accepted");
  CHECK(refusal(zero(R"("stage": 2, "reduce_scatter": false)", R"("prescale_gradients": true, )")) == "accepted");
  says(zero(R"("stage": 3)", R"("optimizer": {"type": "Muon"}, )"), "Muon with ZeRO stage 3 and reduce_scatter");
  CHECK(refusal(zero(R"("stage": 3, "reduce_scatter": false)", R"("optimizer": {"type": "Muon"}, )")) == "accepted");
  says(zero(R"("stage": 1)", R"("optimizer": {"type": "SGD"}, )"),
       "ds.json:1:24: error: sgd is an untested optimizer for ZeRO; DeepSpeed wants "
       "\"zero_allow_untested_optimizer\": true");
  CHECK(refusal(zero(R"("stage": 1)", R"("optimizer": {"type": "SGD"}, "zero_allow_untested_optimizer": true, )")) ==
        "accepted");
  says(zero(R"("stage": 2, "offload_optimizer": {"device": "cpu"})",
            R"("optimizer": {"type": "SGD"}, "zero_allow_untested_optimizer": true, )"),
       "sgd with an offloaded optimizer");
  says(zero(R"("stage": 2, "offload_optimizer": {"device": "cpu"})",
            R"("optimizer": {"type": "Adam", "params": {"torch_adam": true}}, )"),
       "torch's Adam on the host is not modelled yet");
}

TEST_CASE("resolve: rules of DeepSpeed's configuration classes, by version") {
  struct Row {
    const char* zero;
    const char* top;
    const char* before;  // 0.19.6
    const char* since;   // 0.19.8
  };
  const Row rows[] = {
      {R"("stage": 2, "reduce_bucket_size": 0)", "", "accepted",
       "ds.json:1:58: error: \"reduce_bucket_size\" must be at least 1"},
      {R"("stage": 2, "mics_shard_size": -1)", "", "accepted", "no longer has \"zero_optimization.mics_shard_size\""},
      {R"("stage": 2)", R"("nebula": {}, )", "accepted",
       "ds.json:1:2: error: DeepSpeed 0.19.8 no longer has \"nebula\" and refuses the key"},
      {R"("stage": 2)", R"("amp": {"enabled": true}, )", "\"amp\": not modelled yet: Apex AMP",
       "no longer has \"amp\""},
      {R"("stage": 2, "compute_grad_norm": true)", "", "DeepSpeed 0.19.6 forbids it; it is there since 0.19.7",
       "accepted"},
      {R"("stage": 3, "compute_grad_norm": false)", R"("gradient_clipping": 0, )", "forbids it",
       "false with ZeRO stage 3"},
      {R"("stage": 2, "compute_grad_norm": false)", "", "forbids it", "false with gradient clipping"},
      {R"("stage": 2, "compute_grad_norm": false, "offload_optimizer": {"device": "cpu"})",
       R"("gradient_clipping": 0, )", "forbids it", "false with an offloaded optimizer"},
      {R"("stage": 1, "compute_grad_norm": false)",
       R"("gradient_clipping": 0, "bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"}, )",
       "forbids it", "false with bf16, fp32 accumulation"},
      {R"("stage": 2, "compute_grad_norm": false)", R"("gradient_clipping": 0, )", "forbids it",
       "without the gradient norm is not modelled yet"},
      {R"("stage": 2, "offload_optimizer": {"ratio": 0.5})", "", "\"ratio\" 0.5 with ZeRO stage 2",
       "\"ratio\" 0.5 with ZeRO stage 2"},
  };
  for (const Row& row : rows) {
    Given given{dsplan::formatted("{{{}\"zero_optimization\": {{{}}}}}", row.top, row.zero), gpus(2)};
    set(given.request.deepspeed_version, std::string("0.19.6"), "--deepspeed-version");
    INFO(given.deepspeed);
    says(given, row.before);
    set(given.request.deepspeed_version, std::string("0.19.8"), "--deepspeed-version");
    says(given, row.since);
  }
}

TEST_CASE("resolve: what a key does not mean is a warning with its bytes") {
  const auto notice_of = [](const std::string& zero, const char* rule) -> std::optional<Notice> {
    const Job job =
        run({dsplan::formatted(R"({{"bf16": {{"enabled": true}}, "zero_optimization": {{{}}}}})", zero), gpus(2)});
    for (const Notice& notice : job.notices) {
      if (notice.rule == rule) return notice;
    }
    return std::nullopt;
  };
  const auto unit = notice_of(R"("stage": 2, "reduce_bucket_size": 536870912)", "wrong_unit");
  REQUIRE(unit.has_value());
  CHECK(unit->bytes == Bytes(536'870'912));
  CHECK(unit->message.find("536,870,912 of them take 1.00 GiB; for 512.00 MiB write 268,435,456") != std::string::npos);
  CHECK(notice_of(R"("stage": 2, "overlap_comm": true, "reduce_bucket_size": 536870912)", "wrong_unit")->bytes ==
        Bytes(2 * 536'870'912LL));
  CHECK(notice_of(R"("stage": 3, "stage3_prefetch_bucket_size": 104857600)", "wrong_unit").has_value());
  CHECK(!notice_of(R"("stage": 2, "reduce_bucket_size": 5e8)", "wrong_unit").has_value());
  CHECK(!notice_of(R"("stage": 2, "reduce_bucket_size": 16777216)", "wrong_unit").has_value());  // hidden^2
  CHECK(!notice_of(R"("stage": 0, "reduce_bucket_size": 536870912)", "wrong_unit").has_value());
  CHECK(notice_of(R"("stage": 3, "stage3_max_live_parameters": 1e10)", "no_cap").has_value());
  const auto fallen = notice_of(R"("stage": 2, "reduce_bucket_size": "auto")", "auto_fallback");
  REQUIRE(fallen.has_value());
  CHECK(fallen->key == "zero_optimization.reduce_bucket_size");
  CHECK(fallen->bytes == Bytes(2 * (500'000'000LL - 4096 * 4096)));
  CHECK(notice_of(R"("stage": 2, "allgather_bucket_size": 5e8)", "inert_key")->key ==
        "zero_optimization.allgather_bucket_size");
}

TEST_CASE("resolve: optimizers") {
  const auto of = [](const std::string& block) {
    return run({dsplan::formatted("{{\"optimizer\": {}}}", block), gpus(1)}).training.optimizer;
  };
  CHECK(of(R"({"type": "Adam"})").kind == OptimizerKind::AdamW);
  CHECK(of(R"({"type": "Adam", "params": {"adam_w_mode": false}})").kind == OptimizerKind::Adam);
  CHECK(of(R"({"type": "AdamW"})").implementation == Implementation::Fused);
  CHECK(of(R"({"type": "AdamW", "params": {"torch_adam": true}})").implementation == Implementation::Foreach);
  CHECK(of(R"({"type": "Lion"})").kind == OptimizerKind::Lion);
  CHECK(of(R"({"type": "SGD", "params": {"momentum": 0.9}})").momentum == 0.9);
  says({R"({"optimizer": {"type": "OneBitAdam"}})", gpus(1)}, "optimizer \"OneBitAdam\" is not modelled yet");
  const auto wished = [](const std::string& name) {
    Given given;
    set(given.request.optimizer, name, "--optimizer");
    return given;
  };
  CHECK(run(wished("adamw:foreach")).training.optimizer.implementation == Implementation::Foreach);
  CHECK(run(wished("adamw_torch")).training.optimizer.implementation == Implementation::Foreach);
  CHECK(run(wished("adamw_bnb_8bit")).training.optimizer.kind == OptimizerKind::Adam8bit);
  CHECK(run(wished("adafactor")).training.optimizer.kind == OptimizerKind::Adafactor);
  says(wished("adamww"), "--optimizer: error: optimizer \"adamww\" is not known; did you mean \"adamw\"?");
  says(wished("adamw_hf"), "optimizer \"adamw_hf\": transformers 5 has its own AdamW no longer; write \"adamw_torch\"");
  says(wished("galore_adamw"),
       "optimizer \"galore_adamw\" (GaLore, whose gradients are projected) is not modelled yet; \"adamw_torch\" is");
  const auto is = [&](const char* name, OptimizerKind kind, bool paged, bool embeddings_32bit) {
    const Optimizer made = run(wished(name)).training.optimizer;
    return made.kind == kind && made.paged == paged && made.embeddings_32bit == embeddings_32bit;
  };
  CHECK(is("paged_adamw_8bit", OptimizerKind::Adam8bit, true, true));
  CHECK(is("paged_adamw_32bit", OptimizerKind::AdamW32bit, true, false));
  CHECK(is("lion_8bit", OptimizerKind::Lion8bit, false, true));
  CHECK(is("paged_lion_8bit", OptimizerKind::Lion8bit, true, true));
  CHECK(is("lion_32bit", OptimizerKind::Lion, false, false));
  CHECK(is("ademamix", OptimizerKind::AdEmaMix, false, false));
  CHECK(is("ademamix_8bit", OptimizerKind::AdEmaMix8bit, false, true));
  CHECK(is("lion8bit", OptimizerKind::Lion8bit, false, false));
  says(wished("adamw:quick"), "\"quick\" is none of fused, foreach, for-loop");
  says(wished("adafactor:fused"), "adafactor has no fused implementation");
  says(wished("adagrad:fused"), "adagrad has no fused implementation");
  CHECK(run(wished("rmsprop:for-loop")).training.optimizer.implementation == Implementation::ForLoop);
  CHECK(run(wished("adamw_bnb_8bit")).training.optimizer.embeddings_32bit);
  CHECK(!run(wished("adam8bit")).training.optimizer.embeddings_32bit);
  // The JSON's optimizer stands over TrainingArguments' and under an option's.
  const std::string json = R"({"optimizer": {"type": "Lion"}})";
  CHECK(run({json, trainer("optim: sgd")}).training.optimizer.kind == OptimizerKind::Lion);
  says({json, trainer("optim: adafactor")}, "TrainingArguments ask for adafactor");
  Given over = wished("sgd");
  over.deepspeed = json;
  CHECK(run(over).training.optimizer.kind == OptimizerKind::Sgd);
}

TEST_CASE("resolve: versions switch defaults") {
  const auto at = [](const std::string& version, const std::string& json) {
    Given given{json, gpus(2)};
    set(given.request.deepspeed_version, version, "--deepspeed-version");
    return run(given).training;
  };
  const std::string two = R"({"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}})";
  CHECK(at("0.19.8", two).gradient_clipping == 1.0);
  CHECK(at("0.19.2", two).gradient_clipping == 0.0);
  CHECK(at("0.19.3", two).check_grad_overflow);
  CHECK(!at("0.19.2", two).check_grad_overflow);
  CHECK(at("0.19.5", two).zero.offload_optimizer.pin_memory);
  CHECK(!at("0.19.4", two).zero.offload_optimizer.pin_memory);
  CHECK(at("0.12.4", two).zero.use_multi_rank_bucket_allreduce);
  CHECK(!at("0.12.3", two).zero.use_multi_rank_bucket_allreduce);
  const std::string zero = R"({"bf16": {"enabled": true}})";
  CHECK(at("0.17.6", zero).grad_accum_dtype == DType::BFloat16);
  CHECK(at("0.17.5", zero).grad_accum_dtype == DType::Float32);
  const std::string sequential = R"({"zero_optimization": {"stage": 3, "stage3_allgather_sequential": true}})";
  CHECK(at("0.18.5", sequential).zero.allgather_sequential);
  Given early{sequential, gpus(2)};
  set(early.request.deepspeed_version, std::string("0.18.4"), "--deepspeed-version");
  says(early, "unknown key \"stage3_allgather_sequential\": DeepSpeed 0.18.4 forbids it");
  Given bad{"{}", gpus(1)};
  set(bad.request.deepspeed_version, std::string("new"), "--deepspeed-version");
  says(bad, "--deepspeed-version: error: \"new\" is no version");
}

TEST_CASE("resolve: \"auto\" by Hugging Face's rules, or as DeepSpeed drops it") {
  const std::string json = R"({"bf16": {"enabled": true}, "zero_optimization": {"stage": 3,
      "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
      "stage3_param_persistence_threshold": "auto"}})";
  const Zero filled = run({json, trainer("bf16: true")}).training.zero;
  CHECK(filled.reduce_bucket_size == Elements(4096 * 4096));
  CHECK(filled.prefetch_bucket_size == Elements(15'099'494));
  CHECK(filled.param_persistence_threshold == Elements(40'960));

  const Job dropped = run({json, gpus(8)});
  CHECK(dropped.training.zero.reduce_bucket_size == Elements(500'000'000));
  CHECK(dropped.training.zero.prefetch_bucket_size == Elements(50'000'000));
  CHECK(dropped.training.zero.param_persistence_threshold == Elements(100'000));
  const Notice* bucket = find_notice(dropped, "\"reduce_bucket_size\" is \"auto\" and nobody fills it in");
  REQUIRE(bucket != nullptr);
  CHECK(bucket->kind == Notice::Kind::Announcement);
  CHECK(bucket->bytes == Bytes(2 * (500'000'000 - 4096 * 4096)));
  CHECK(bucket->place.text() == "ds.json:2:29");
  const Notice* prefetch = find_notice(dropped, "\"stage3_prefetch_bucket_size\" is \"auto\"");
  REQUIRE(prefetch != nullptr);
  CHECK(prefetch->bytes == Bytes(2 * (50'000'000 - 15'099'494)));
  // 100,001 elements are above both thresholds, 40,960 are within both.
  const Notice* threshold = find_notice(dropped, "\"stage3_param_persistence_threshold\" is \"auto\"");
  REQUIRE(threshold != nullptr);
  CHECK(threshold->bytes == Bytes(0));
  Given wider{json, gpus(8)};
  wider.model.dims.hidden = 4000;  // Now 40,960 elements are kept whole by DeepSpeed's default only.
  CHECK(find_notice(run(wider), "\"stage3_param_persistence_threshold\" is \"auto\"")->bytes == Bytes(81'920));

  // A training file is enough for Hugging Face's rules; without a width they cannot work.
  Given file{json,
             overlay(read_training_file(parse_json("t.json", R"({"dsplan": 1, "kind": "training", "source": "x"})")),
                     gpus(8))};
  CHECK(run(file).training.zero.reduce_bucket_size == Elements(4096 * 4096));
  file.model.dims.hidden = 0;
  says(file, "\"reduce_bucket_size\" is \"auto\", but small has no hidden size to derive it from");

  // Stage 2 with overlap has two buckets.
  const Job two = run({R"({"bf16": {"enabled": true}, "zero_optimization": {"stage": 2, "overlap_comm": true,
      "reduce_bucket_size": "auto"}})",
                       gpus(8)});
  CHECK(find_notice(two, "\"reduce_bucket_size\" is \"auto\"")->bytes == Bytes(4 * (500'000'000 - 4096 * 4096)));
  CHECK(find_notice(run({R"({"train_micro_batch_size_per_gpu": "auto"})", gpus(1)}),
                    "DeepSpeed itself does not start with it") != nullptr);
  CHECK(
      run({R"({"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto"})", trainer("max_grad_norm: 0.5")})
          .training.micro_batch == 8);
}

TEST_CASE("resolve: TrainingArguments that contradict the JSON") {
  CHECK(refusal({R"({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.5})",
                 trainer("per_device_train_batch_size: 4")}) ==
        "ds.json:1:36: error: \"train_micro_batch_size_per_gpu\" is 2 here, but TrainingArguments have "
        "per_device_train_batch_size = 4; transformers refuses the mismatch; \"auto\" takes TrainingArguments' value\n"
        "    1 | {\"train_micro_batch_size_per_gpu\": 2, \"gradient_clipping\": 0.5}\n"
        "      |                                    ^\n"
        "ds.json:1:60: error: \"gradient_clipping\" is 0.5 here, but TrainingArguments have max_grad_norm = 1; "
        "transformers refuses the mismatch; \"auto\" takes TrainingArguments' value\n"
        "    1 | {\"train_micro_batch_size_per_gpu\": 2, \"gradient_clipping\": 0.5}\n"
        "      |                                                            ^\n");
  says({R"({"bf16": {"enabled": true}})", trainer("fp16: true")},
       "\"bf16.enabled\" is true here, but TrainingArguments have bf16 = false");
  says({R"({"optimizer": {"type": "AdamW", "params": {"lr": 0.001}}})", trainer("seed: 1\nweight_decay: 0.0")},
       "\"optimizer.params.lr\" is 0.001 here");
  says({R"({"train_batch_size": 100})", trainer("per_device_train_batch_size: 2")},
       "\"train_batch_size\" is 100 here, but TrainingArguments have ranks x micro-batch x accumulation = 16");
  CHECK(run({R"({"train_batch_size": "auto", "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})",
             trainer("per_device_train_batch_size: 2")})
            .training.micro_batch == 2);
}

TEST_CASE("resolve: what is not modelled yet is refused by name, where it would matter") {
  says({R"({"zero_optimization": {"stage": 3, "zero_quantized_gradients": true}})", gpus(8)},
       "ds.json:1:64: error: \"zero_optimization.zero_quantized_gradients\": not modelled yet: qgZ");
  const Job two = run({R"({"zero_optimization": {"stage": 2, "zero_hpz_partition_size": 8,
      "stage3_prefetch_bucket_size": 1}})",
                       gpus(8)});
  CHECK(find_notice(two, "\"zero_optimization.zero_hpz_partition_size\" has no effect here: it needs ZeRO stage 3") !=
        nullptr);
  CHECK(find_notice(two, "\"zero_optimization.stage3_prefetch_bucket_size\" has no effect here") != nullptr);
  struct Row {
    const char* name;
    Setting<std::string> Request::*setting;
    const char* value;
    const char* said;
  };
  const Row rows[] = {
      {"--env", &Request::env, "freeze.txt", "an environment file"},
      {"--attention", &Request::attention, "flash_attention_3", "attention \"flash_attention_3\""},
  };
  for (const Row& row : rows) {
    Given given;
    set(given.request.*row.setting, std::string(row.value), row.name);
    says(given, dsplan::formatted("{}: error: {}", row.name, row.said));
    says(given, "is not modelled yet");
  }
  for (const auto& [name, degree] : {std::pair{"--sp", &Request::sp}, std::pair{"--ep", &Request::ep}}) {
    Given given{"", gpus(4)};
    set(given.request.*degree, std::int64_t{2}, name);
    says(given, "is not modelled yet");
    set(given.request.*degree, std::int64_t{1}, name);
    CHECK(refusal(given) == "accepted");
  }
  Given harmless;
  set(harmless.request.alloc_conf, std::string(), "--alloc-conf");
  set(harmless.request.placement, std::string("caching"), "--placement");
  set(harmless.request.stream_frees, std::string("at-sync"), "--stream-frees");
  CHECK(refusal(harmless) == "accepted");
}

TEST_CASE("resolve: grouped heads are flash's, or the math kernel's; a window's mask is the memory-efficient one's") {
  Given grouped;
  grouped.model.dims.heads = 32;
  grouped.model.dims.kv_heads = 8;
  CHECK(run(grouped).training.attention == Attention::Flash);
  set(grouped.request.dtype, std::string("fp32"), "--dtype");
  CHECK(run(grouped).training.attention == Attention::Math);
  grouped.model.dims.sliding_window = 1024;
  CHECK(run(grouped).training.attention == Attention::MemoryEfficient);
  // Transformers before 4.54 repeats grouped heads itself.
  grouped.model.dims.sliding_window = 0;
  set(grouped.request.transformers_version, std::string("4.53.3"), "--transformers-version");
  CHECK(run(grouped).training.attention == Attention::MemoryEfficient);
}

TEST_CASE("resolve: cuDNN's attention is the default where torch prefers it") {
  const auto on = [](const char* device, const auto& change) {
    const Hardware hardware = load_hardware(device);
    Given given;
    given.hardware = &hardware;
    change(given);
    return run(given).training.attention;
  };
  const auto plain = [](Given&) {};
  for (const char* device : {"h100-sxm", "h200-sxm", "gh200-96", "b200-sxm", "b300"}) {
    INFO(device);
    CHECK(on(device, plain) == Attention::CuDnn);
  }
  for (const char* device : {"a100-sxm-80", "rtx4090", "rtx5090"}) {
    INFO(device);
    CHECK(on(device, plain) == Attention::Flash);
  }
  CHECK(on("h100-sxm", [](Given& g) { set(g.request.torch_version, std::string("2.10.0"), "--torch-version"); }) ==
        Attention::Flash);
  CHECK(on("h100-sxm", [](Given& g) { set(g.request.dtype, std::string("fp32"), "--dtype"); }) == Attention::Math);
  CHECK(on("h100-sxm", [](Given& g) { g.model.dims.head_dim = 65; }) == Attention::Flash);
  CHECK(on("h100-sxm", [](Given& g) { g.model.dims.head_dim = 256; }) == Attention::CuDnn);
  CHECK(on("b200-sxm", [](Given& g) { g.model.dims.head_dim = 256; }) == Attention::Flash);
  // It takes masks.
  CHECK(on("h100-sxm", [](Given& g) { g.model.dims.sliding_window = 1024; }) == Attention::CuDnn);
  CHECK(on("h100-sxm", [](Given& g) { set(g.request.seq, std::int64_t{1}, "--seq"); }) == Attention::Flash);
  CHECK(on("a100-sxm-80", [](Given& g) { set(g.request.attention, std::string("cudnn"), "--attention"); }) ==
        Attention::CuDnn);
}

TEST_CASE("resolve: attention's kernel is named") {
  CHECK(run({}).training.attention == Attention::Flash);
  Given given;
  set(given.request.dtype, std::string("fp32"), "--dtype");
  CHECK(run(given).training.attention == Attention::Math);  // The model's heads are grouped.
  set(given.request.attention, std::string("flash"), "--attention");
  says(given, "flash attention with fp32");
  Given windowed;
  windowed.model.dims.sliding_window = 1024;
  CHECK(run(windowed).training.attention == Attention::MemoryEfficient);
  set(windowed.request.seq, std::int64_t{1024}, "--seq");  // transformers builds a mask from the window's length on.
  CHECK(run(windowed).training.attention == Attention::MemoryEfficient);
  set(windowed.request.seq, std::int64_t{1023}, "--seq");
  CHECK(run(windowed).training.attention == Attention::Flash);
  DecoderParts parts;
  parts.kinds = {LayerKind::Sliding};
  windowed.model.parts = std::make_shared<const DecoderParts>(parts);
  set(windowed.request.attention, std::string("flash_attention_2"), "--attention");
  CHECK_FALSE(run(windowed).training.windows_in_kernel);
  set(windowed.request.seq, std::int64_t{1024}, "--seq");
  CHECK(run(windowed).training.windows_in_kernel);
  Hardware volta = load_hardware("v100-sxm2-32");
  Given old;
  old.hardware = &volta;
  CHECK(run(old).training.attention == Attention::Math);
  old.model.dims.kv_heads = old.model.dims.heads;
  CHECK(run(old).training.attention == Attention::MemoryEfficient);
  set(old.request.attention, std::string("sdpa"), "--attention");
  CHECK(input(run(old), "attention").origin == Origin::Given);
  set(old.request.attention, std::string("eagre"), "--attention");
  says(old, "attention \"eagre\" is not known; did you mean \"eager\"?");
}

TEST_CASE("resolve: no fused kernel takes the bias of t5") {
  Given given;
  given.model.family = "t5";
  CHECK(run(given).training.attention == Attention::MathOrEfficient);
  set(given.request.attention, std::string("sdpa"), "--attention");
  CHECK(run(given).training.attention == Attention::MathOrEfficient);
  set(given.request.attention, std::string("mem-efficient"), "--attention");
  CHECK(find_notice(run(given), "whose bias was made contiguous") != nullptr);
  given.model.dims.heads = 1;  // Rows without gaps.
  CHECK(find_notice(run(given), "whose bias was made contiguous") == nullptr);
}

TEST_CASE("resolve: sequence length and frozen parameters") {
  Given given;
  given.model.dims.max_positions = 1024;
  CHECK(run(given).training.seq == 1024);
  set(given.request.seq, std::int64_t{4096}, "--seq");
  CHECK(find_notice(run(given), "beyond max_position_embeddings = 1024") != nullptr);
  given.model.family = "gpt2";
  says(given, "--seq: error: seq 4096 is beyond the 1024 learned positions of small");
  Given frozen;
  frozen.request.freeze = {std::vector<std::string>{"*embed*"}, option("--freeze")};
  CHECK(run(frozen).training.freeze == std::vector<std::string>{"*embed*"});
  frozen.request.freeze.value->push_back("layers.*");
  says(frozen, "--freeze: error: freeze \"layers.*\" matches no parameter of small");
  frozen.request.freeze.value->push_back("*");
  says(frozen, "--freeze: error: freeze leaves nothing to train");
}

TEST_CASE("resolve: capacities") {
  const Hardware h100 = load_hardware("h100-sxm");
  Given given;
  given.hardware = &h100;
  Job job = run(given);
  CHECK(job.capacity == Bytes(81559LL << 20));
  CHECK(job.context == kUncalibratedContext);
  CHECK(input(job, "context").origin == Origin::Assumed);
  CHECK(job.reserve == Bytes(0));
  set(given.request.capacity, Bytes(40'000'000'000), "--capacity");
  set(given.request.reserve, Bytes(1'000'000'000), "--reserve");
  set(given.request.host_memory, Bytes(5), "--host-memory");
  set(given.request.nvme_memory, Bytes(6), "--nvme-memory");
  set(given.request.rank, std::string("0"), "--rank");
  job = run(given);
  CHECK(job.capacity == Bytes(40'000'000'000));
  CHECK(job.reserve == Bytes(1'000'000'000));
  CHECK(job.host_memory == Bytes(5));
  CHECK(job.nvme_memory == Bytes(6));
  CHECK(job.rank == "0");
  set(given.request.rank, std::string("1"), "--rank");
  set(given.request.reserve, Bytes(40'000'000'000), "--reserve");
  says(given, "--rank: error: rank \"1\" is none of 0 to 0, all, worst");
  says(given, "--reserve: error: a reserve of 37.25 GiB leaves nothing of 37.25 GiB");
}

TEST_CASE("resolve: an offloaded stage 2 gathers its gradients") {
  const Job job = run({R"({"zero_optimization": {"stage": 2, "contiguous_gradients": false,
      "offload_optimizer": {"device": "cpu"}}})",
                       gpus(2)});
  CHECK(job.training.zero.contiguous_gradients);
  CHECK(find_notice(job, "optimizer offload forces contiguous gradients") != nullptr);
}

TEST_CASE("resolve: the overview files") {
  const auto at = [](const std::string& name, const Request& request) {
    const std::string path = test_paths::source_dir() + "/tests/data/deepspeed/" + name;
    const DeepSpeedInput ds = read_deepspeed(parse_hjson(path, read_file(path)));
    return resolve(small_model(), request, &ds, nullptr, nullptr).training;
  };
  const Training fp16 = at("overview-fp16.json", gpus(8));
  CHECK(fp16.dtype == DType::Float16);
  CHECK(fp16.zero.stage == 2);
  CHECK(fp16.micro_batch == 64);
  CHECK(fp16.optimizer.kind == OptimizerKind::AdamW);
  const Training two = at("overview-stage2.json", gpus(8));
  CHECK(two.dtype == DType::Float32);
  CHECK(two.zero.reduce_bucket_size == Elements(200'000'000));
  CHECK(two.zero.overlap_comm);
  CHECK(two.zero.offload_optimizer.device == OffloadDevice::Cpu);
  const Training three = at("overview-stage3.json", trainer("bf16: true\nper_device_train_batch_size: 2"));
  CHECK(three.dtype == DType::BFloat16);
  CHECK(three.micro_batch == 2);
  CHECK(three.zero.reduce_bucket_size == Elements(4096 * 4096));
  CHECK(three.zero.offload_param.device == OffloadDevice::Cpu);
}
