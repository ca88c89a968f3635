#include "time_rows.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>

#include "core/format.h"
#include "io/machine_files.h"
#include "io/text.h"
#include "model/families.h"
#include "planner/lower/lower.h"
#include "planner/time/estimate.h"

namespace time_rows {
namespace {

using namespace dsplan;

std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> result(1);
  for (const char c : line) {
    if (c == ',') {
      result.emplace_back();
    } else {
      result.back() += c;
    }
  }
  return result;
}

Row row_of(const std::map<std::string, std::string>& cell) {
  const auto whole = [&](const char* key) { return std::stoll(cell.at(key)); };
  Row row;
  row.train = cell.at("part") == "train";
  for (auto [into, key] : {std::pair{&row.source, "source"},
                           {&row.id, "id"},
                           {&row.model, "model"},
                           {&row.family, "family"},
                           {&row.hardware, "hardware"},
                           {&row.runtime, "runtime"},
                           {&row.checkpoint, "checkpoint"},
                           {&row.attention, "attention"},
                           {&row.loss, "loss"},
                           {&row.dtype, "dtype"},
                           {&row.sent, "sent"},
                           {&row.offload, "offload"}}) {
    *into = cell.at(key);
  }
  for (auto [into, key] : {std::pair{&row.layers, "layers"},
                           {&row.hidden, "hidden"},
                           {&row.ffn, "ffn"},
                           {&row.heads, "heads"},
                           {&row.kv_heads, "kv_heads"},
                           {&row.vocab, "vocab"},
                           {&row.seq, "seq"},
                           {&row.gpus, "gpus"},
                           {&row.gpus_per_node, "gpus_per_node"},
                           {&row.tp, "tp"},
                           {&row.micro_batch, "micro_batch"},
                           {&row.grad_accum, "grad_accum"}}) {
    *into = whole(key);
  }
  row.network = std::stod(cell.at("network"));
  row.compiled = cell.at("compiled") == "1";
  row.seconds = std::stod(cell.at("seconds"));
  return row;
}

// One GELU and LayerNorms that are kernels of their own: what MPT and Megatron's GPT run.
ModelSpec model_of(const Row& row) {
  const std::string config =
      row.family == "gpt"
          ? dsplan::formatted(R"({{"model_type": "gpt2", "n_embd": {}, "n_layer": {}, "n_head": {}, "n_inner": {},
              "vocab_size": {}, "n_positions": {}, "activation_function": "gelu", "attn_pdrop": 0.0,
              "resid_pdrop": 0.0, "embd_pdrop": 0.0}})",
                              row.hidden, row.layers, row.heads, row.ffn, row.vocab, row.seq)
          : dsplan::formatted(R"({{"model_type": "llama", "hidden_size": {}, "num_hidden_layers": {},
              "num_attention_heads": {}, "num_key_value_heads": {}, "intermediate_size": {}, "vocab_size": {},
              "max_position_embeddings": {}, "tie_word_embeddings": false}})",
                              row.hidden, row.layers, row.heads, row.kv_heads, row.ffn, row.vocab, row.seq);
  return build_model(parse_json(row.id, config), row.id);
}

DType dtype_of(const std::string& text) {
  return text == "fp32" ? DType::Float32 : text == "fp16" ? DType::Float16 : DType::BFloat16;
}

Elements layer_of(const ModelSpec& model, std::int64_t tp) {
  Elements sum;
  for (const Parameter& p : model.parameters) {
    if (model.module_at(p.module).layer == 0) sum += local_shape(model, p, tp).elements();
  }
  return sum;
}

// "none", "full", "nth:K".
Checkpointing checkpoints_of(const Row& row) {
  Checkpointing checkpoint;
  checkpoint.text = row.checkpoint;
  if (row.checkpoint == "none") return checkpoint;
  const auto every = row.checkpoint == "full" ? 1 : std::stoi(row.checkpoint.substr(4));
  for (std::int32_t at = 0; at < row.layers; at += every) checkpoint.groups.push_back({at, at});
  return checkpoint;
}

void set_zero(const Row& row, const ModelSpec& model, Training& t) {
  Zero& zero = t.zero;
  t.runtime = row.runtime == "ddp" && row.tp == 1 ? Runtime::PyTorch : Runtime::DeepSpeed;
  if (row.runtime == "ddp") return;
  zero.stage = row.runtime == "zero1" ? 1 : row.runtime == "zero2" ? 2 : 3;
  zero.overlap_comm = true;
  if (row.offload != "none") {
    zero.offload_optimizer.device = OffloadDevice::Cpu;
    if (row.offload == "both") zero.offload_param.device = OffloadDevice::Cpu;
  }
  if (zero.stage < 3 || row.source == "DS" || row.source == "LFDS" || row.source == "QWEN") return;
  // FSDP: a layer is gathered and reduced at once; forward keeps nothing unless it is told to.
  const Elements layer = layer_of(model, row.tp);
  zero.prefetch_bucket_size = zero.reduce_bucket_size = layer;
  zero.param_persistence_threshold = Elements(0);
  zero.max_reuse_distance = row.runtime == "zero3_kept" ? Elements(INT64_MAX / 4) : layer;
  if (row.runtime == "zero3_kept") zero.max_live_parameters = zero.max_reuse_distance;
}

}  // namespace

std::vector<Row> read(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::string line;
  std::getline(file, line);
  const std::vector<std::string> names = cells(line);
  std::vector<Row> rows;
  while (std::getline(file, line)) {
    const std::vector<std::string> values = cells(line);
    if (values.size() != names.size()) throw std::runtime_error("cells of " + line);
    std::map<std::string, std::string> cell;
    for (std::size_t i = 0; i < names.size(); ++i) cell[names[i]] = values[i];
    rows.push_back(row_of(cell));
  }
  return rows;
}

Case make(const Row& row) {
  Case one;
  one.row = row;
  one.model = model_of(row);
  Job& job = one.job;
  Training& t = job.training;
  t.deepspeed = *Version::parse(kDeepSpeedVersion);
  t.dtype = t.grad_accum_dtype = dtype_of(row.dtype);
  t.communication_dtype = dtype_of(row.sent);
  t.seq = row.seq;
  t.micro_batch = row.micro_batch;
  t.grad_accum = row.grad_accum;
  t.attention = row.attention == "eager" ? Attention::Eager : Attention::Flash;
  t.loss = row.loss == "hf" ? Loss::HuggingFace : row.loss == "liger" ? Loss::Liger : Loss::Native;
  set_zero(row, one.model, t);
  t.checkpoint = checkpoints_of(row);
  job.parallelism = {row.gpus, row.gpus_per_node, (row.gpus + row.gpus_per_node - 1) / row.gpus_per_node, row.tp, 1,
                     1,        row.gpus / row.tp};
  job.hardware = load_hardware(row.hardware);
  job.cluster = Cluster{};
  job.cluster->hardware = row.hardware;
  job.cluster->gpus_per_node = row.gpus_per_node;
  job.cluster->nodes = job.parallelism.nodes;
  job.cluster->node_network_gb_per_s = row.network;
  Shapes shapes = build_shapes(one.model, job);
  one.graph = std::move(shapes.graphs.front());
  return one;
}

Nuisance nuisance(const std::string& architecture) {
  if (architecture == "sm_80") return {0.66};
  if (architecture == "sm_90") return {0.46};
  return {};
}

StepTime estimated(const Case& one, const TimeConstants& constants, const Nuisance& nuisance) {
  TimeConstants used = constants;
  if (one.row.compiled) {
    used.elementwise *= one.row.family == "gpt" ? kFusedGpt : kFusedLlama;
    used.launch *= kFusedLaunch;
  }
  if (one.row.attention == "flash1") {
    used.attention *= nuisance.old_flash;
    used.attention_backward *= nuisance.old_flash;
  }
  const Rates rates = Rates::of(one.job, used);
  return estimate(one.model, one.job, one.graph, graph_times(one.graph, one.job.training, rates), rates);
}

StepTime estimated(const Case& one) {
  const std::string& architecture = one.job.hardware->architecture;
  return estimated(one, time_constants(architecture), nuisance(architecture));
}

}  // namespace time_rows
