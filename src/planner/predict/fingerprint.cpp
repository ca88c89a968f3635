// One hash of everything that determines bytes. Which fields of a job those are says the table in core/settings.h; here
// stand the lines of the canonical text. A new input gets a line of its own, which is there only where it differs from
// its default: older fingerprints stay comparable.
#include <algorithm>
#include <array>
#include <variant>

#include "core/format.h"
#include "core/kernel_scratch.h"
#include "core/settings.h"
#include "core/sha256.h"
#include "model/parts.h"
#include "planner/libraries/library_memory.h"
#include "planner/predict/predict.h"

namespace dsplan {
namespace {

// What parameters do not say of a tower and of who reads it.
void add_tower(const TowerParts& tower, std::string& text) {
  const Dimensions& d = tower.dims;
  append_formatted(text, "tower {} {} {} {} {} {} {}", d.image, tower.patch, d.heads, d.layers, d.attention_dropout,
                   d.activation, tower.pools);
  append_formatted(text, " read {} {} {} {}\n", tower.read_layers, tower.drops_first, tower.tokens,
                   tower.projector_activation);
  if (tower.end_token >= 0) append_formatted(text, "end {}\n", tower.end_token);
  for (const std::array<std::int64_t, 2>& cut : tower.cuts) append_formatted(text, "cut {} {}\n", cut[0], cut[1]);
}

// Which layers keep a part of their gates, and whether what they give is scaled.
void add_altup(const AltupParts& altup, std::string& text) {
  append_formatted(text, "altup {} {} ", altup.active, altup.scales);
  for (const bool sparse : altup.sparse) text += sparse ? '1' : '0';
  text += '\n';
}

void add_model(const ModelSpec& model, std::string& text) {
  append_formatted(text, "family {}\nclass {}\n", model.family, model.graph_class);
  const Dimensions& d = model.dims;
  append_formatted(text, "dims {} {} {} {} {} {} {} {} {} {} {}\n", d.layers, d.hidden, d.heads, d.kv_heads, d.head_dim,
                   d.ffn, d.vocab, d.max_positions, d.experts, d.experts_per_token, d.sliding_window);
  append_formatted(text, "execution {} {} {} {} {} {} {}\n", d.rotary_fraction, d.attention_dropout, d.residual_dropout,
                   d.embedding_dropout, d.attention_softcap, d.final_softcap, d.activation);
  if (d.adapter_dropout > 0) append_formatted(text, "adapter dropout {}\n", d.adapter_dropout);
  if (model.parts != nullptr && model.parts->tower != nullptr) add_tower(*model.parts->tower, text);
  if (model.parts != nullptr && model.parts->altup.inputs > 0) add_altup(model.parts->altup, text);
  if (model.parts != nullptr && model.parts->rotary.scaling == RotaryScaling::LongRope)
    append_formatted(text, "longrope {}\n", model.parts->rotary.short_rows);
  for (const Parameter& p : model.parameters) {
    text += p.name;
    for (std::uint8_t i = 0; i < p.shape.rank; ++i) append_formatted(text, " {}", p.shape.dims[i]);
    if (p.tied_to != kNone) append_formatted(text, " = {}", p.tied_to);
    if (p.dtype) append_formatted(text, " {}", name(*p.dtype));
    text += p.trainable ? "\n" : " frozen\n";
  }
  for (const ModelBuffer& b : model.buffers) {
    append_formatted(text, "buffer {} {} {}{}\n", b.name, b.shape.elements().value(), name(b.dtype),
                     b.converted ? " converted" : "");
  }
}

// Weight decay moves bytes only where it is added to a gradient.
bool adds_decay(const Training& t) {
  const OptimizerKind kind = t.optimizer.kind;
  const bool adding = kind == OptimizerKind::Adam || kind == OptimizerKind::Sgd || kind == OptimizerKind::Adagrad ||
                      kind == OptimizerKind::RmsProp;
  return adding && t.optimizer.weight_decay != 0 && t.optimizer.implementation != Implementation::Fused &&
         t.runtime == Runtime::PyTorch;
}

// "0-3 deepspeed true false false 0 without rng keeps aten::mm".
void add_checkpointing(const Job& job, std::string& text) {
  const Checkpointing& c = job.training.checkpoint;
  text += "checkpoint";
  for (const CheckpointGroup& group : c.groups) {
    const auto& [first, last, kind, preserve_rng_state, kept, alternate] =
        group;  // A field more does not compile: say it here.
    append_formatted(text, " {}-{}", first, last);
    if (kind == CheckpointKind::Reentrant) text += " reentrant";
    if (kind == CheckpointKind::DeepSpeed) {
      const DeepSpeedCheckpointing& d = c.deepspeed;
      append_formatted(text, " deepspeed {} {} {} {}", d.partition, d.cpu, d.contiguous, d.number_checkpoints);
    }
    if (!preserve_rng_state) text += " without rng";
    for (const Op op : kept) append_formatted(text, " keeps {}", name(op));
    if (alternate) text += " every second product";
  }
  for (const std::string& module : c.modules) {
    append_formatted(text, " {} {} {}", module, name(c.kind), c.preserve_rng_state);
  }
  if (!c.stops_early && (!c.groups.empty() || !c.modules.empty())) text += " to the end";
  text += "\n";
}

void add_autocast(const Job& job, std::string& text) {
  const Training& t = job.training;
  append_formatted(text, "autocast {}{}\n", name(*t.autocast), t.outputs_to_fp32 ? " outputs" : "");
}

void add_frozen(const Job& job, std::string& text) {
  for (const std::string& glob : job.training.freeze) append_formatted(text, "freeze {}\n", glob);
}

void add_workspaces(const Job& job, std::string& text) {
  const auto sizes = library_workspaces(job);
  const DeviceThreads threads = device_threads(*job.hardware);
  append_formatted(text, "workspaces {} {} {} threads {} {}", sizes->cublas.value(), sizes->cublaslt.value(),
                   sizes->lt_per_call, threads.multiprocessors, threads.per_multiprocessor);
  // Whose kernels are others on other devices.
  const Attention attention = job.training.attention;
  if (attention != Attention::Eager && attention != Attention::Math && attention != Attention::Flash) {
    append_formatted(text, " capability {}", threads.capability);
  }
  if (is_torchao(job.training.optimizer.kind) && job.hardware->l2) {
    append_formatted(text, " l2 {}", job.hardware->l2->value());
  }
  text += "\n";
}

// How a line is written: its word and then its fields in the order of their places; the words alone, where the line
// being there says it all; or as `own` does.
struct CanonicalLine {
  using Own = void (*)(const Job&, std::string&);
  Line line;
  std::string_view words = {};
  bool (*there)(const Job&) = [](const Job&) { return true; };
  bool alone = false;
  Own own = nullptr;
};

// The text is older than the table of settings, and stays: fingerprints in plans and receipts are compared with
// today's. So lines stand in the order in which they came, several fields share one, and what came later has a line
// that is there only where it differs from its default.
constexpr CanonicalLine kLines[] = {
    {Line::Runtime, "runtime"},
    {Line::Dtypes, "dtypes"},
    {Line::Lengths, "lengths", [](const Job& j) { return !j.training.seq_list.empty(); }},
    {.line = Line::Autocast,
     .there = [](const Job& j) { return j.training.autocast.has_value(); },
     .own = add_autocast},
    {Line::Optimizer, "optimizer"},
    {Line::Batch, "batch"},
    {Line::Images, "images", [](const Job& j) { return j.training.images > 0; }},
    {Line::ImageSize, "image size", [](const Job& j) { return !j.training.image_size.empty(); }},
    {Line::Clipping, "clipping"},
    {Line::Immediate, "immediate", [](const Job& j) { return j.training.immediate_grad_update; }, true},
    {.line = Line::Checkpoint, .own = add_checkpointing},
    {Line::Attention, "attention"},
    {Line::Loss, "loss"},
    {Line::Loop, "loop"},
    {Line::Liger, "liger", [](const Job& j) { return j.training.liger != kWitnessLiger; }},
    {Line::LossChunks, "loss chunks", [](const Job& j) { return j.training.loss_chunks > 0; }},
    {Line::Level, "level dispatch", [](const Job& j) { return j.training.level == Level::Dispatch; }, true},
    {.line = Line::Freeze, .own = add_frozen},
    {Line::Versions, "versions"},
    {Line::Zero, "zero"},
    {Line::OffloadParam, "offload"},
    {Line::OffloadOptimizer, "offload"},
    {.line = Line::OffloadRatio,
     .there = [](const Job& j) { return j.training.zero.offload_optimizer.ratio < 1; },
     .own =
         [](const Job& j, std::string& text) {
           append_formatted(text, "offload ratio {}\n", j.training.zero.offload_optimizer.ratio);
         }},
    {Line::Aio, "aio"},
    {Line::Fetch, "fetch", [](const Job& j) { return j.training.zero.stage >= 3; }},
    {Line::WeightDecay, "weight_decay 1", [](const Job& j) { return adds_decay(j.training); }, true},
    {Line::Embeddings32bit, "embeddings_32bit 1", [](const Job& j) { return j.training.optimizer.embeddings_32bit; },
     true},
    {Line::PagedStates, "paged 1", [](const Job& j) { return j.training.optimizer.paged; }, true},
    {Line::ParamGroups, "param_groups", [](const Job& j) { return j.training.param_groups != ParamGroups::Single; }},
    {Line::ModelInit, "model_init",
     [](const Job& j) {
       const Training& t = j.training;
       const bool whole = t.runtime == Runtime::DeepSpeed && t.zero.stage == 3 && !t.under_zero_init();
       return whole || t.model_init == ModelInit::Host || is_fsdp(t.runtime);
     }},
    {Line::ZeroGrad, "zero_grad_to_none 0", [](const Job& j) { return !j.training.zero_grad_to_none; }, true},
    {Line::GradScaler, "grad_scaler 1", [](const Job& j) { return j.training.grad_scaler; }, true},
    {Line::Ranks, "ranks"},
    {.line = Line::Allocator,
     .there = [](const Job& j) { return j.allocator != AllocatorConfig{}; },
     .own = [](const Job& j, std::string& text) { text += "allocator " + canonical(j.allocator) + "\n"; }},
    {Line::Frees, "frees", [](const Job& j) { return j.stream_frees != StreamFrees::AtSync; }},
    {Line::Placement, "placement planned", [](const Job& j) { return j.placement == PlacementKind::Planned; }, true},
    {.line = Line::Workspaces,
     .there = [](const Job& j) { return library_workspaces(j).has_value(); },
     .own = add_workspaces},
    {Line::Fsdp, "fsdp", [](const Job& j) { return is_fsdp(j.training.runtime); }},
    {Line::TargetSeq, "target_seq", [](const Job& j) { return j.training.target_seq != 0; }},
    {Line::Ddp, "ddp",
     [](const Job& j) {
       const Ddp& ddp = j.training.ddp;
       return ddp.find_unused_parameters || !ddp.broadcast_buffers || ddp.bucket_cap_mb != 0;
     }},
    {Line::FsdpOutputs, "fsdp outputs cast", [](const Job& j) { return j.training.fsdp.casts_outputs; }, true},
    {Line::DdpReduction, "ddp reduction",
     [](const Job& j) {
       const Ddp& ddp = j.training.ddp;
       return ddp.gradient_as_bucket_view || ddp.static_graph || ddp.comm_hook;
     }},
    {Line::FsdpOffload, "fsdp on the host", [](const Job& j) { return j.training.fsdp.cpu_offload; }, true},
    {Line::FsdpPrefetch, "fsdp prefetch",
     [](const Job& j) { return j.training.fsdp.forward_prefetch != 0 || j.training.fsdp.backward_prefetch != 0; }},
    {Line::LigerKernels, "liger kernels", [](const Job& j) { return j.training.liger_kernels.any(); }},
    {Line::FsdpIgnored, "fsdp ignored", [](const Job& j) { return !j.training.fsdp.ignored.empty(); }},
    {Line::FsdpStateDict, "fsdp state dict", [](const Job& j) { return j.training.fsdp.saves_whole(); }},
    {Line::FsdpTail, "fsdp tail resharded", [](const Job& j) { return j.training.fsdp.reshard_tail; }, true},
    {Line::FsdpLast, "fsdp last layer kept", [](const Job& j) { return !j.training.fsdp.reshard_last; }, true},
    {Line::DdpOptimizer, "zero redundancy", [](const Job& j) { return j.training.ddp.zero_redundancy; }, true},
    {Line::AdapterKernels, "adapter kernels", [](const Job& j) { return j.training.lora_kernels.any(); }},
    {Line::FsdpFlat, "fsdp flat", [](const Job& j) { return j.training.runtime == Runtime::Fsdp1; }},
    {Line::Experts, "experts", [](const Job& j) { return j.training.experts != ExpertsImplementation::GroupedMm; }},
    {Line::Routing, "routing", [](const Job& j) { return j.training.experts == ExpertsImplementation::Loop; }},
    {Line::ModelCode, "model code", [](const Job& j) { return j.training.model_code != ModelCode::Transformers; }},
    {Line::UseCache, "use_cache 1", [](const Job& j) { return j.training.use_cache; }, true},
    {Line::LabelsAreIds, "labels_are_ids 1", [](const Job& j) { return j.training.labels_are_ids; }, true},
    {Line::CastModel, "cast_model 1", [](const Job& j) { return j.training.cast_model; }, true},
    {Line::Torchtitan, "torchtitan", [](const Job& j) { return j.training.torchtitan != kWitnessTorchtitan; }},
    {Line::InputRequireGrads, "input_require_grads 1", [](const Job& j) { return j.training.input_require_grads; },
     true},
    {Line::WindowsInKernel, "windows_in_kernel 1", [](const Job& j) { return j.training.windows_in_kernel; }, true},
    {Line::LayersRequireGrads, "layers_require_grads 1", [](const Job& j) { return j.training.layers_require_grads; },
     true},
    {Line::ActivationOffloading, "activation offloading",
     [](const Job& j) { return j.training.activation_offloading != ActivationOffloading::None; }},
};

// A field as one word of its line.
struct AddWord {
  std::string& text;

  void operator()(const bool* field) const { append_formatted(text, " {}", *field); }
  void operator()(const int* field) const { append_formatted(text, " {}", *field); }
  void operator()(const std::int64_t* field) const { append_formatted(text, " {}", *field); }
  // Of a momentum and of a clipping norm only whether there is one moves bytes.
  void operator()(const double* field) const { append_formatted(text, " {}", *field > 0); }
  void operator()(const std::string* field) const { append_formatted(text, " {}", *field); }
  void operator()(const Elements* field) const { append_formatted(text, " {}", field->value()); }
  void operator()(const Version* field) const { append_formatted(text, " {}", field->text()); }
  void operator()(const std::vector<std::string>* field) const { append_formatted(text, " {}", joined(*field, ",")); }
  void operator()(const std::vector<std::int64_t>* field) const { append_formatted(text, " {}", joined(*field, " ")); }
  void operator()(const std::optional<DType>* field) const {
    append_formatted(text, " {}", *field ? name(**field) : "none");
  }
  void operator()(const Loss* field) const { append_formatted(text, " {}", static_cast<int>(*field)); }
  void operator()(const LoopKind* field) const { append_formatted(text, " {}", static_cast<int>(*field)); }
  template <class Named>
  void operator()(const Named* field) const {
    if constexpr (requires { std::string_view(name(*field)); }) {
      append_formatted(text, " {}", name(*field));
    } else {
      DSPLAN_CHECK(false, "a field of this type has no word on a line of several");
    }
  }
};

using RowsOfLines = std::array<std::vector<const JobColumn*>, static_cast<std::size_t>(Line::Count)>;

// The fields of each line, in the order of their places.
const RowsOfLines& rows_of_lines() {
  static const RowsOfLines kRows = [] {
    RowsOfLines rows;
    for (const SettingRow& row : settings()) {
      if (row.job.line != Line::None) rows[static_cast<std::size_t>(row.job.line)].push_back(&row.job);
    }
    for (auto& line : rows) {
      std::sort(line.begin(), line.end(), [](const JobColumn* a, const JobColumn* b) { return a->at < b->at; });
    }
    return rows;
  }();
  return kRows;
}

void add_job(const Job& job, std::string& text) {
  for (const CanonicalLine& line : kLines) {
    if (!line.there(job)) continue;
    if (line.own != nullptr) {
      line.own(job, text);
      continue;
    }
    text += line.words;
    if (!line.alone) {
      for (const JobColumn* row : rows_of_lines()[static_cast<std::size_t>(line.line)]) {
        std::visit(AddWord{text}, row->field.of(job));
      }
    }
    text += "\n";
  }
}

}  // namespace

std::string fingerprint(const ModelSpec& model, const Job& job) {
  std::string text = "dsplan fingerprint 1\n";
  text.reserve(model.parameters.size() * 72 + 4096);
  add_model(model, text);
  add_job(job, text);
  return "sha256:" + sha256(text);
}

}  // namespace dsplan
