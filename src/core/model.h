// A model as data: its parameters in registration order, its modules, the order in which a training forward calls
// them, and the dimensions from which an operator graph is built. Made by `model/`, read by everyone else.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "core/units.h"

namespace dsplan {

// Up to six dimensions, outermost first, in elements.
struct Shape {
  static constexpr std::size_t kMostDims = 6;
  std::array<std::int64_t, kMostDims> dims{};
  std::uint8_t rank = 0;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> list);
  [[nodiscard]] Elements elements() const;  // Product; checked. 1 for rank 0.
  [[nodiscard]] std::string text() const;   // "[4096, 11008]"
  friend bool operator==(const Shape&, const Shape&) = default;
};

using ModuleId = std::int32_t;     // Index into ModelSpec::modules; 0 is the root.
using ParameterId = std::int32_t;  // Index into ModelSpec::parameters.

// Whose Python the model is: transformers' (or peft's around it), or torchtitan's own (model/torchtitan.h).
enum class ModelCode : std::uint8_t { Transformers, Torchtitan };
[[nodiscard]] std::string_view name(ModelCode code);  // "transformers", "torchtitan"

struct Module {
  std::string path;  // "model.layers.0.mlp.gate_proj"; "" for the root.
  std::string type;  // The framework's class: "LlamaDecoderLayer", "Linear".
  ModuleId parent = kNone;
  std::int32_t layer = kNone;  // Index among the checkpointable layers, inherited by everything inside.
};

// How Megatron's tensor parallelism cuts a parameter along `dim`.
enum class Split : std::uint8_t {
  Replicated,     // Norms, row-parallel biases, position tables, routers.
  Even,           // dims[dim] / tp: column-parallel outputs and row-parallel inputs; heads or ffn must divide.
  KeyValue,       // dims[dim] = kv_heads * head_dim; a rank keeps max(1, kv_heads / tp) heads (replicated beyond).
  QueryKeyValue,  // dims[dim] = (heads + 2 * kv_heads) * head_dim, cut as the two rules above say.
  Vocabulary,     // dims[dim] = vocabulary, padded to a multiple of tp * 128, then cut.
  Unknown,        // No rule yet: tp > 1 is refused by name for this family.
};

struct Parameter {
  std::string name;             // As `named_parameters()` prints it.
  Shape shape;                  // Unsharded.
  ModuleId module = 0;          // The module that owns it directly.
  ParameterId tied_to = kNone;  // The earlier parameter with which it shares storage.
  bool trainable = true;        // False where the framework itself registers it with requires_grad = False.
  Split split = Split::Unknown;
  std::uint8_t split_dim = 0;
  std::optional<DType> dtype = {};  // Of its own, whatever the model's: adapters.
  bool made_by_class = false;       // That dtype is what its class asks for: zero.Init casts it all the same.
  bool kept_as_made = false;        // Of an adapter over packed weights: peft casts it to fp32 at no time.
  ModuleId maker = kNone;           // Whose constructor made it, where that is not `module`'s: of a tied weight.
  std::int32_t behind = 0;          // Of a recording: so many of the maker's children are there before it.
};

struct ModelBuffer {
  std::string name;
  Shape shape;
  DType dtype = DType::Float32;
  ModuleId module = 0;
  // Floating-point buffers only: True where a model built in a dtype holds it in that dtype; false where it is built in
  // `dtype` whatever the model's (rotary tables). `.to(dtype)` and `.bfloat16()` afterwards convert both kinds.
  bool follows_model_dtype = false;
  // The model's published parameter count includes it: DeepSeek-V3's e_score_correction_bias, which transformers keeps
  // as a buffer and the checkpoint as a tensor among the others.
  bool counted = false;
  // Made of integers that the constructor itself converts to `dtype`, so that zero.Init, which converts what comes in
  // floating point, leaves it as it is: rotary tables that are scaled (transformers modeling_rope_utils.py).
  bool converted = false;
  double rotary_base = 0;             // Of a table of rotary frequencies, where it is not the model's.
  std::optional<double> filled = {};  // Each of its elements, where they are one number.
  std::int64_t turned = 0;            // Of such a table: so many frequencies are not zero. 0: all.
  std::int64_t window = 0;  // Of a table of who sees whom: so many tokens, its own among them. 0: all before it.
  bool by_length = false;   // Its first dimension is as long as the longest row of the job, whatever `shape` says.
};

struct ModuleCall {
  ModuleId module = 0;
  bool enter = true;  // False: the module's forward returns.
};

// The dimensions of the model, for operator graphs, tensor parallelism and "auto" rules. Fields that do not apply
// to a family are 0.
struct Dimensions {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  std::int64_t max_positions = 0;
  std::int64_t experts = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t sliding_window = 0;    // 0: none.
  std::int64_t labels = 0;            // Classes of a head that is no language model's.
  std::int64_t image = 0;             // Rows, and columns, of the pictures that a model of pictures is given.
  std::int64_t decoder_layers = 0;    // Of `layers`, the last ones, where there is an encoder before them.
  std::int64_t target_positions = 0;  // Of that decoder, where they are learned; 0: any number.
  bool scaled_output = false;         // t5: of that decoder, by the root of its width.
  double rotary_fraction = 1.0;       // phi, gpt_neox: part of each head that is rotated.
  double attention_dropout = 0;       // Probabilities, as in config.json. 0: the operator is not there.
  double residual_dropout = 0;
  double embedding_dropout = 0;
  double adapter_dropout = 0;
  double classifier_dropout = 0;
  double attention_softcap = 0;  // gemma2; 0: none.
  double final_softcap = 0;
  std::string activation;  // "silu", "gelu_new", "gelu_pytorch_tanh", ...
  // What only an executor needs. No byte depends on it.
  double norm_epsilon = 1e-5;
  double rotary_base = 10000;
  double adapter_scale = 1;         // LoRA's alpha / r.
  double initial_deviation = 0.02;  // Of normally distributed weights (initializer_range).
  std::int64_t padding = -1;        // pad_token_id, whose embedding takes no gradient in most families; -1: none.
  std::int64_t first_target = 0;    // decoder_start_token_id, where there is an encoder.
  std::int64_t farthest = 128;      // t5: relative_attention_max_distance.
};

// How the layers of a decoder are put together: model/parts.h.
struct DecoderParts;
// One forward and backward of any module as tools/export_graph.py recorded it: core/module_graph.h.
struct ModuleGraph;

struct ModelSpec {
  std::string name;         // Bundled name, or the file it came from.
  std::string family;       // "llama", "gpt2", ...: config.json's model_type.
  std::string source;       // Where the config is from.
  std::string graph_class;  // The framework's class, "LlamaForCausalLM".
  Dimensions dims;
  std::shared_ptr<const DecoderParts> parts;     // Null: no decoder made of parts.
  std::shared_ptr<const ModuleGraph> recording;  // Null: a family's model.
  std::vector<Module> modules;                   // Registration order, parents before children.
  std::vector<Parameter> parameters;             // Registration order; tied ones are listed again with `tied_to`.
  std::vector<ModelBuffer> buffers;
  std::vector<ModuleCall> calls;      // One training forward.
  std::optional<DType> stored_dtype;  // `dtype` / `torch_dtype` of config.json.
  // The root of a second model, frozen, that preference training asks beside the first; kNone: there is none.
  ModuleId reference = kNone;
  ModuleId causal = 0;     // The transformers model: not the root where peft has wrapped it.
  bool has_graph = false;  // Operator graphs exist for this family: activations can be predicted.
  ModelCode code = ModelCode::Transformers;

  [[nodiscard]] ModuleId child(ModuleId parent, std::string_view name) const;         // kNone where there is none.
  [[nodiscard]] ParameterId parameter(ModuleId module, std::string_view leaf) const;  // "weight", "bias"; or kNone.
  // Of an id that is there.
  [[nodiscard]] const Module& module_at(ModuleId id) const { return modules[static_cast<std::size_t>(id)]; }
  [[nodiscard]] Module& module_at(ModuleId id) { return modules[static_cast<std::size_t>(id)]; }
  [[nodiscard]] const Parameter& parameter_at(ParameterId id) const { return parameters[static_cast<std::size_t>(id)]; }
  [[nodiscard]] Parameter& parameter_at(ParameterId id) { return parameters[static_cast<std::size_t>(id)]; }
  // It is `outer` or inside of it.
  [[nodiscard]] bool lies_in(ModuleId module, ModuleId outer) const;
};

// Elements of the whole model as its publishers count them: tied parameters once, counted buffers included. Unsharded.
[[nodiscard]] Elements total_elements(const ModelSpec& model);

// The part of `parameter` that one tensor-parallel rank keeps. tp = 1 returns the shape itself.
// Refuses a degree that does not divide what must be divided, and Split::Unknown with tp > 1.
// Source: Megatron-LM's ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding (interface.md, last section).
[[nodiscard]] Shape local_shape(const ModelSpec& model, const Parameter& parameter, std::int64_t tp);

// The model as one tensor-parallel rank has it: every parameter in its local shape, and the dimensions that are cut
// (heads, kv_heads, ffn, vocab) likewise. Names, modules and calls stay. Refuses what local_shape refuses.
[[nodiscard]] ModelSpec tensor_parallel_part(const ModelSpec& model, std::int64_t tp);

// Whether several of its query heads share a key-value head. Refuses what no ranks can share.
[[nodiscard]] bool groups_heads(const ModelSpec& model, std::int64_t tp);

}  // namespace dsplan
