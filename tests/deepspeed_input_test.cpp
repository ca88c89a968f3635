#include <doctest/doctest.h>
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/format.h"
#include "core/settings.h"
#include "io/deepspeed.h"
#include "io/text.h"
#include "paths.h"

using namespace dsplan;

namespace {

DeepSpeedInput read(const std::string& text) { return read_deepspeed(parse_hjson("ds.json", text)); }

std::string refusal(const std::string& text) {
  try {
    (void)read(text);
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "accepted";
}

DeepSpeedInput case_file(const std::string& name) {
  const std::string path = test_paths::source_dir() + "/tests/data/deepspeed/" + name;
  return read_deepspeed(parse_hjson(path, read_file(path)));
}

bool noticed(const DeepSpeedInput& input, Notice::Kind kind, const std::string& part) {
  return std::any_of(input.notices.begin(), input.notices.end(), [&](const Notice& notice) {
    return notice.kind == kind && notice.message.find(part) != std::string::npos;
  });
}

// "a.b.c" with a value, as nested objects.
std::string nested(std::string path, const std::string& value) {
  std::string text = value;
  while (!path.empty()) {
    const std::size_t dot = path.rfind('.');
    const std::string key = dot == std::string::npos ? path : path.substr(dot + 1);
    text = dsplan::formatted("{{\"{}\": {}}}", key, text);
    path = dot == std::string::npos ? "" : path.substr(0, dot);
  }
  return text;
}

// deepspeed-zero.md, section 12, written out.
struct Expected {
  DeepSpeedKey::Treatment treatment;
  std::vector<std::string> paths;
};
const std::vector<Expected> kKeysThatMatter = {
    {DeepSpeedKey::Treatment::Honoured,
     {"zero_optimization.stage",
      "zero_optimization.contiguous_gradients",
      "zero_optimization.reduce_scatter",
      "zero_optimization.reduce_bucket_size",
      "zero_optimization.use_multi_rank_bucket_allreduce",
      "zero_optimization.overlap_comm",
      "zero_optimization.round_robin_gradients",
      "zero_optimization.sub_group_size",
      "zero_optimization.stage3_prefetch_bucket_size",
      "zero_optimization.stage3_param_persistence_threshold",
      "zero_optimization.stage3_model_persistence_threshold",
      "zero_optimization.stage3_max_live_parameters",
      "zero_optimization.stage3_max_reuse_distance",
      "zero_optimization.stage3_gather_16bit_weights_on_model_save",
      "zero_optimization.legacy_stage1",
      "zero_optimization.offload_param.device",
      "zero_optimization.offload_param.nvme_path",
      "zero_optimization.offload_param.pin_memory",
      "zero_optimization.offload_param.buffer_count",
      "zero_optimization.offload_param.buffer_size",
      "zero_optimization.offload_param.max_in_cpu",
      "zero_optimization.offload_optimizer.device",
      "zero_optimization.offload_optimizer.nvme_path",
      "zero_optimization.offload_optimizer.pin_memory",
      "zero_optimization.offload_optimizer.buffer_count",
      "zero_optimization.offload_optimizer.pipeline_read",
      "zero_optimization.offload_optimizer.pipeline_write",
      "aio.block_size",
      "aio.intra_op_parallelism",
      "bf16.enabled",
      "bf16.check_grad_overflow",
      "fp16.enabled",
      "data_types.grad_accum_dtype",
      "data_types.param_dtype",
      "communication_data_type",
      "train_batch_size",
      "train_micro_batch_size_per_gpu",
      "gradient_accumulation_steps",
      "gradient_clipping",
      "prescale_gradients",
      "gradient_predivide_factor",
      "optimizer.type",
      "optimizer.params.torch_adam",
      "zero_allow_untested_optimizer",
      "zero_optimization.compute_grad_norm",
      "zero_optimization.stage3_module_granularity_threshold",
      "zero_optimization.stage3_use_all_reduce_for_fetch_params",
      "zero_optimization.stage3_allgather_sequential",
      "zero_optimization.zero_hpz_partition_size",
      "zero_optimization.zero_quantized_weights",
      "zero_optimization.leaf_module.classes",
      "activation_checkpointing.partition_activations",
      "activation_checkpointing.cpu_checkpointing",
      "activation_checkpointing.contiguous_memory_optimization",
      "activation_checkpointing.number_checkpoints",
      "zero_optimization.offload_optimizer.ratio",
      "bf16.immediate_grad_update"}},
    {DeepSpeedKey::Treatment::NotModelled,
     {"zero_optimization.zero_quantized_nontrainable_weights",
      "zero_optimization.memory_efficient_linear",
      "zero_optimization.zero_quantized_gradients",
      "zero_optimization.zeropp_loco_param",
      "zero_optimization.mics_shard_size",
      "zero_optimization.mics_hierarchical_params_gather",
      "zero_optimization.parameter_alignment",
      "zero_optimization.save_muon_momentum_buffer_in_memory",
      "zero_optimization.zenflow",
      "zero_optimization.offload_optimizer.fast_init",
      "zero_optimization.offload_optimizer.super_offload",
      "aio.use_gds",
      "bf16.bf16_master_weights_and_grads",
      "bf16.bf16_optimizer_states",
      "fp16.fp16_master_weights_and_grads",
      "torch_autocast.enabled",
      "data_types.buffer_dtype",
      "data_types.keep_in_fp32_modules",
      "managed_gradient_accumulation",
      "graph_harvesting",
      "sparse_gradients",
      "optimizer.params.fp32_optimizer_states",
      "compile.deepcompile"}},
    {DeepSpeedKey::Treatment::Inert,
     {"zero_optimization.allgather_partitions",
      "zero_optimization.allgather_bucket_size",
      "zero_optimization.ignore_unused_parameters",
      "zero_optimization.elastic_checkpoint",
      "zero_optimization.offload_optimizer.cpuadam_cores_perc",
      "aio.queue_depth",
      "aio.single_submit",
      "aio.overlap_events",
      "fp16.loss_scale",
      "fp16.initial_scale_power",
      "torch_autocast.dtype",
      "torch_autocast.lower_precision_safe_modules",
      "seq_parallel_communication_data_type",
      "scheduler",
      "activation_checkpointing.synchronize_checkpoint_boundary",
      "activation_checkpointing.profile",
      "compile.free_activation_threshold",
      "compile.offload_activation",
      "compile.offload_opt_states",
      "compile.offload_parameters",
      "compile.double_buffer"}},
};

// A value with which a key matters, where `true` is not one.
std::string telling_value(const std::string& path) {
  if (path.ends_with("memory_efficient_linear") || path.ends_with("compute_grad_norm") ||
      path == "managed_gradient_accumulation" || path == "zero_force_ds_cpu_optimizer" ||
      path == "optimizer.params.fp32_optimizer_states") {
    return "false";
  }
  if (path.ends_with(".ratio")) return "0.5";
  if (path.ends_with("_size") || path.ends_with("_threshold") || path.ends_with("mics_shard_size")) return "4";
  if (path == "tensor_parallel") return "{\"autotp_size\": 4}";
  if (path.ends_with("buffer_dtype") || path.ends_with("ns_method")) return "\"bf16\"";
  return "true";
}

}  // namespace

TEST_CASE("deepspeed: every key that matters has exactly one row, and the treatment it is promised") {
  std::set<std::string_view> seen;
  for (const SettingRow& row : dsplan::settings()) {
    const DeepSpeedKey& key = row.json;
    if (key.path.empty()) continue;
    INFO(key.path);
    CHECK(seen.insert(key.path).second);
    const bool silent =
        key.treatment == DeepSpeedKey::Treatment::Honoured || key.treatment == DeepSpeedKey::Treatment::Block;
    CHECK(key.note.empty() == silent);
  }
  for (const Expected& expected : kKeysThatMatter) {
    for (const std::string& path : expected.paths) {
      INFO(path);
      const SettingRow* row = find_deepspeed_key(path);
      REQUIRE(row != nullptr);
      CHECK(row->json.treatment == expected.treatment);
    }
  }
}

TEST_CASE("deepspeed: each row does what it says") {
  for (const SettingRow& row : dsplan::settings()) {
    const DeepSpeedKey& key = row.json;
    if (key.path.empty()) continue;
    const std::string path(key.path);
    INFO(path);
    if (key.treatment == DeepSpeedKey::Treatment::NotModelled) {
      const DeepSpeedInput input = read(nested(path, telling_value(path)));
      REQUIRE(input.not_modelled.size() == 1);
      CHECK(input.not_modelled[0].key == path);
      CHECK(input.not_modelled[0].feature == key.note);
      CHECK(input.notices.empty());
      CHECK(read(nested(path, "null")).not_modelled.empty());
    } else if (key.treatment == DeepSpeedKey::Treatment::Inert) {
      const DeepSpeedInput input = read(nested(path, "2"));
      CHECK(noticed(input, Notice::Kind::Inert, dsplan::formatted("\"{}\" has no effect here", path)));
      CHECK(input.not_modelled.empty());
    } else if (key.treatment == DeepSpeedKey::Treatment::Honoured && path != "optimizer.params.max_grad_norm") {
      // An honoured key reads null as absent and says nothing; a nonsensical value is a fault or is kept.
      const DeepSpeedInput input = read(nested(path, "null"));
      CHECK(input.notices.empty());
      CHECK(refusal(nested(path, "[[]]")).find("must be") != std::string::npos);
    }
  }
}

TEST_CASE("deepspeed: defaults that are written out disturb nobody") {
  const DeepSpeedInput input = read(R"({"zero_optimization": {"zero_hpz_partition_size": 1, "mics_shard_size": -1,
      "zero_quantized_weights": false, "memory_efficient_linear": true, "stage3_module_granularity_threshold": 0,
      "zeropp_loco_param": null, "offload_optimizer": {"ratio": 1.0, "super_offload": "off"}},
      "elasticity": {"enabled": false}, "pipeline": {}, "sequence_parallel_size": 1, "amp": {"enabled": 0},
      "tensor_parallel": {"autotp_size": 0}, "compile": {"deepcompile": false}})");
  CHECK(input.not_modelled.empty());
}

TEST_CASE("deepspeed: the overview files read as DeepSpeed reads them") {
  SUBCASE("fp16") {
    const DeepSpeedInput input = case_file("overview-fp16.json");
    CHECK(input.train_batch_size.value == 512);
    CHECK(input.grad_accum.value == 1);
    CHECK(!input.micro_batch.mentioned());
    CHECK(input.fp16_enabled.value == true);
    CHECK(!input.bf16_enabled.mentioned());
    CHECK(input.optimizer.type.value == "Adam");
    CHECK(input.optimizer.learning_rate.value == 0.001);
    CHECK(input.optimizer.betas.value == std::vector<double>{0.9, 0.999});
    CHECK(input.zero.stage.value == 2);
    CHECK(input.zero.stage.place.line == 21);
    CHECK(noticed(input, Notice::Kind::Inert, "fp16.loss_scale"));
    CHECK(noticed(input, Notice::Kind::Inert, "fp16.hysteresis"));
    CHECK(input.not_modelled.empty());
  }
  SUBCASE("stage 2") {
    const DeepSpeedInput input = case_file("overview-stage2.json");
    CHECK(input.zero.stage.value == 2);
    CHECK(input.zero.offload_optimizer.device.value == OffloadDevice::Cpu);
    CHECK(input.zero.offload_optimizer.pin_memory.value == true);
    CHECK(input.zero.overlap_comm.value == true);
    CHECK(input.zero.reduce_bucket_size.value == 200'000'000);
    CHECK(input.zero.contiguous_gradients.value == true);
    CHECK(noticed(input, Notice::Kind::Inert, "allgather_partitions"));
    CHECK(noticed(input, Notice::Kind::Inert, "allgather_bucket_size"));
    CHECK(input.notices.size() == 2);
  }
  SUBCASE("stage 3") {
    const DeepSpeedInput input = case_file("overview-stage3.json");
    CHECK(input.zero.stage.value == 3);
    CHECK(input.zero.offload_param.device.value == OffloadDevice::Cpu);
    CHECK(input.zero.reduce_bucket_size.is_auto);
    CHECK(!input.zero.reduce_bucket_size.given());
    CHECK(input.zero.prefetch_bucket_size.is_auto);
    CHECK(input.zero.param_persistence_threshold.is_auto);
    CHECK(input.zero.sub_group_size.value == 1'000'000'000);
    CHECK(input.zero.max_live_parameters.value == 1'000'000'000);
    CHECK(input.zero.gather_16bit_weights_on_model_save.value == true);
    CHECK(input.notices.empty());
  }
}

TEST_CASE("deepspeed: faults have their place, the line and a caret") {
  CHECK(refusal("{\n  \"zero_optimization\": {\"stage\": 4}\n}") ==
        "ds.json:2:34: error: ZeRO stage 4 does not exist; DeepSpeed has stages 0 to 3\n"
        "    2 |   \"zero_optimization\": {\"stage\": 4}\n"
        "      |                                  ^\n");
  CHECK(refusal("{\"train_micro_batch_size_per_gpu\": 0}") ==
        "ds.json:1:36: error: \"train_micro_batch_size_per_gpu\" must be at least 1, not 0\n"
        "    1 | {\"train_micro_batch_size_per_gpu\": 0}\n"
        "      |                                    ^\n");
}

TEST_CASE("deepspeed: what DeepSpeed refuses is a fault") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"zero_optimization": {"stge": 2}})",
       R"(unknown key "stge" in zero_optimization: DeepSpeed forbids it; did you mean "stage"?)"},
      {R"({"zero_optimization": {"offload_optimizer": {"devise": "cpu"}}})",
       R"(unknown key "devise" in zero_optimization.offload_optimizer: DeepSpeed forbids it; did you mean "device"?)"},
      {R"({"bf16": {"enabled": true, "loss_scale": 0}})", R"(unknown key "loss_scale" in bf16)"},
      {R"({"fp16": {"enable": true}})", R"(did you mean "enabled"?)"},
      {R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})", "bf16 and fp16 are both enabled"},
      {R"({"zero_optimization": {"reduce_bucket_size": -1}})", R"("reduce_bucket_size" must be at least 0, not -1)"},
      {R"({"zero_optimization": {"reduce_bucket_size": 1.5}})", R"("reduce_bucket_size" must be an integer)"},
      {R"({"zero_optimization": {"reduce_bucket_size": 1e30}})", "does not fit in 63 bits"},
      {R"({"zero_optimization": {"allgather_bucket_size": 500000001}})", "must be even, not 500000001"},
      {R"({"zero_optimization": {"legacy_stage1": true}})", "no longer has the legacy stage 1"},
      {R"({"zero_optimization": {"overlap_comm": "maybe"}})", R"("overlap_comm" must be true or false, not "maybe")"},
      {R"({"zero_optimization": {"offload_param": {"device": "gpu"}}})", "must be one of none, cpu, nvme"},
      {R"({"zero_optimization": {"cpu_offload": true, "offload_optimizer": {"device": "cpu"}}})",
       R"(the deprecated "cpu_offload" stands beside its successor)"},
      {R"({"zero_optimization": 2})", R"("zero_optimization" must be an object)"},
      {R"({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1.0}}})",
       R"(use the top-level "gradient_clipping")"},
      {R"({"communication_data_type": "fp8"})", R"(must be one of fp16, bf16, fp32, not "fp8")"},
      {R"({"communication_data_type": "float16"})", R"(must be one of fp16, bf16, fp32, not "float16")"},
      {R"({"communication_data_type": "auto"})", R"(must be one of fp16, bf16, fp32, not "auto")"},
      {R"({"fp16": {"loss_scale": -1}})", R"("loss_scale" must not be negative)"},
      {R"({"fp16": {"loss_scale": true}})", R"("loss_scale" must be a number, not a boolean)"},
      {R"({"fp16": {"min_loss_scale": true}})", R"("min_loss_scale" must be an integer, not a boolean)"},
      {R"({"activation_checkpointing": {"contiguous_memory_optimization": true, "partition_activations": true}})",
       R"("contiguous_memory_optimization" without "number_checkpoints")"},
      {R"({"activation_checkpointing": {"contiguous_memory_optimization": true, "number_checkpoints": 4}})",
       R"("contiguous_memory_optimization" without "partition_activations")"},
      {R"({"activation_checkpointing": {"number_checkpoints": 0}})", R"("number_checkpoints" must be at least 1)"},
      {R"({"train_batch_size": "many"})", R"("train_batch_size" must be an integer, not "many")"},
      {R"([1])", "a DeepSpeed configuration must be an object"},
  };
  for (const auto& [text, expected] : cases) {
    INFO(text);
    const std::string said = refusal(text);
    INFO(said);
    CHECK(said.find(expected) != std::string::npos);
  }
}

TEST_CASE("deepspeed: several faults come together") {
  const std::string said = refusal(R"({"zero_optimization": {"stage": 7, "reduce_bucket_size": "x", "foo": 1}})");
  CHECK(std::count(said.begin(), said.end(), '^') == 3);
}

TEST_CASE("deepspeed: unknown keys at the top are reported with the nearest name") {
  const DeepSpeedInput input = read(R"({"zero_optimisation": {"stage": 2}, "foo": 1})");
  CHECK(noticed(input, Notice::Kind::Unknown,
                R"("zero_optimisation": DeepSpeed ignores it; did you mean "zero_optimization"?)"));
  CHECK(noticed(input, Notice::Kind::Unknown, R"(unknown key "foo": DeepSpeed ignores it)"));
  CHECK(!input.zero.present);
}

TEST_CASE("deepspeed: old names mean what they mean to DeepSpeed") {
  CHECK(read(R"({"zero_optimization": true})").zero.stage.value == 1);
  CHECK(read(R"({"zero_optimization": false})").zero.stage.value == 0);
  const DeepSpeedInput offloaded = read(R"({"zero_optimization": {"cpu_offload": true, "cpu_offload_param": "yes"}})");
  CHECK(offloaded.zero.offload_optimizer.device.value == OffloadDevice::Cpu);
  CHECK(offloaded.zero.offload_param.device.value == OffloadDevice::Cpu);
  CHECK(noticed(offloaded, Notice::Kind::Warning, "\"cpu_offload\" is deprecated"));
  CHECK(read(R"({"zero_optimization": {"stage3_gather_fp16_weights_on_model_save": true}})")
            .zero.gather_16bit_weights_on_model_save.value == true);
  CHECK(read(R"({"bfloat16": {"enabled": true}})").bf16_enabled.value == true);
  CHECK(read(R"({"bfloat16": {"enabled": true}, "bf16": {"enabled": false}})").bf16_enabled.value == false);
  // Pydantic takes a field's own name beside its alias.
  CHECK(read(R"({"zero_optimization": {"prefetch_bucket_size": 7}})").zero.prefetch_bucket_size.value == 7);
}

TEST_CASE("deepspeed: lax values as pydantic takes them") {
  const DeepSpeedInput input = read(R"({"train_batch_size": 32.0, "zero_optimization": {"stage": "2",
      "overlap_comm": "True", "reduce_scatter": 0, "reduce_bucket_size": "5000"}, "gradient_clipping": "auto"})");
  CHECK(input.train_batch_size.value == 32);
  CHECK(input.zero.stage.value == 2);
  CHECK(input.zero.overlap_comm.value == true);
  CHECK(input.zero.reduce_scatter.value == false);
  CHECK(input.zero.reduce_bucket_size.value == 5000);
  CHECK(input.gradient_clipping.is_auto);
}
