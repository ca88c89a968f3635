// Writes an operator graph the way the framework's Python code runs: one call per operator, `enter`/`exit` around a
// module's forward, and `drop` where a Python variable dies. A tensor is returned with one reference; `finish` checks
// that every one was dropped, so that a forgotten or doubled lifetime is caught when the graph is made.
#pragma once

#include <array>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/graph.h"
#include "core/model.h"
#include "core/training.h"
#include "model/graphs/adapted_parameters.h"

namespace dsplan {

// Elements of a head: wider ones neither flash nor cuDNN takes.
inline constexpr std::int64_t kWidestHeads = 256;

// What the graph depends on besides the model.
struct GraphOptions {
  std::int64_t micro_batch = 1;
  std::int64_t seq = 1;
  std::int64_t target_seq = 0;           // Of an encoder-decoder's target.
  std::int64_t images = 0;               // Pictures per row.
  std::vector<std::int64_t> image_size;  // Training::image_size.
  DType dtype = DType::BFloat16;
  bool one_dtype = false;  // DeepSpeed casts all parameters to it, those with a dtype of their own too.
  // torch.autocast around the forward, in this dtype; what accelerate does besides: floating-point outputs become fp32.
  std::optional<DType> autocast;
  bool outputs_to_fp32 = false;
  std::optional<DType> kept_dtype;  // Of buffers that follow the model's, where it computes in another (fully_shard).
  bool casts_buffers = false;       // FSDP1, or `.to(dtype)`, has cast all that float to `dtype`.
  // In which adapters' weights are seen from outside, where they are units of FSDP1 or groups of fully_shard.
  std::optional<DType> shown_adapters = std::nullopt;
  Version torchtitan = kWitnessTorchtitan;
  bool counts_on_device = false;  // Its number of tokens that count: one rank does not bring it to the host.
  bool copies_outputs = false;    // DistributedDataParallel's _DDPSink, which looks for unused parameters.
  AttentionKernel attention = AttentionKernel::Flash;
  bool eager_attention = false;    // Composed of products and softmax: `attention` plays no part.
  bool math_attention = false;     // PyTorch's math kernel: operators as well.
  bool windows_in_kernel = false;  // Training's.
  // Beside math: `attention` has t5's decoder read the encoder, and looks at mllama's pictures.
  bool fused_between_stacks = false;
  ExpertsImplementation experts = ExpertsImplementation::GroupedMm;
  Routing routing;
  Loss loss = Loss::HuggingFace;
  bool casts_inputs = false;  // fully_shard casts what the model is given to `dtype`,
  bool casts_tables = false;  // what a tower's layers are given, which have groups of their own,
  bool casts_given = false;   // what a decoder's are given, where those have groups,
  bool casts_loss = false;    // and the model's outputs, the loss among them.
  std::int64_t loss_chunks = 0;
  Version torch = kWitnessTorch;
  Version transformers = kWitnessTransformers;
  bool inputs_require_grad = false;  // transformers' enable_input_require_grads.
  bool layers_require_grad = false;  // Layers of which something is trained make what they are given a leaf.
  bool holds_outputs = false;        // The training loop has a variable for them.
  bool use_cache = false;            // Keys and values are outputs, too.
  bool labels_are_ids = false;       // One tensor of the batch is both.
  bool narrow_tables = false;        // zero.Init has made the model's own tables in its dtype.
  std::int64_t tp = 1;               // Ranks that share each layer; the graph is one rank's.
  std::int64_t tp_rank = 0;          // Whose. No byte depends on it: numbers of operators do.
  bool stage3_linear = false;        // nn.functional.linear is DeepSpeed's (Product::Function).
  // Checkpoints go around these modules instead of layers; see cut_module_regions.
  std::vector<std::string> checkpointed_modules;
  std::vector<bool> trainable;  // By ParameterId, ties resolved. Empty: all that the model itself trains.
  bool reference = false;       // GraphBuilder::Reference.
  bool unrecorded = false;      // GraphBuilder::Unrecorded.
  LigerKernels liger_kernels;
  AdapterKernels lora_kernels;
  friend bool operator==(const GraphOptions&, const GraphOptions&) = default;
};

// What TRL's head tells of each token.
enum class LogProbs : std::uint8_t { Alone, WithMean, WithLikeliest, WithBoth };

class GraphBuilder {
 public:
  GraphBuilder(const ModelSpec& model, const GraphOptions& options);

  [[nodiscard]] const ModelSpec& model() const { return model_; }
  [[nodiscard]] const GraphOptions& options() const { return *options_; }
  // Of the model, or of the tower that is being written.
  [[nodiscard]] const Dimensions& dims() const { return *dims_; }
  [[nodiscard]] const Shape& shape(TensorId id) const { return graph_.tensor(id).shape; }
  [[nodiscard]] DType dtype(TensorId id) const { return graph_.tensor(id).dtype; }
  [[nodiscard]] const Graph& graph() const { return graph_; }  // As far as it is written.

  // The transformers model, and the calls of what wraps it (peft).
  [[nodiscard]] ModuleId causal() const {
    return options_->reference && model_.reference != kNone ? model_.reference : model_.causal;
  }
  // `given`: of the batch what may float. Each becomes what the model sees of it.
  void enter_model(std::initializer_list<TensorId*> given = {});
  void exit_model();
  // Module boundaries; a wrapper of parameters stands for the module inside. `child` refuses (InternalError) a name
  // that the model does not have.
  [[nodiscard]] ModuleId child(ModuleId parent, std::string_view name) const;
  void enter(ModuleId module);
  void exit(ModuleId module);
  // The layer that gradient checkpointing would wrap, with the tensors that it is called with; returns its number.
  std::int32_t begin_region(Region region);
  void end_region(std::int32_t layer);

  // The parameter `leaf` of the current module, or kNone if it has none. Not to be dropped.
  [[nodiscard]] TensorId parameter(std::string_view leaf) { return parameter_of(stack_.back(), leaf); }
  // Of a module that is read without being called.
  [[nodiscard]] TensorId parameter_of(ModuleId module, std::string_view leaf);
  [[nodiscard]] DType dtype_of(const Parameter& parameter) const;
  // Of the current module, or of one that is not called for it.
  [[nodiscard]] TensorId buffer(std::string_view leaf, ModuleId module = kNone);
  [[nodiscard]] TensorId batch_input(Shape shape, DType dtype);

  // Python lets go of these, and has asked for the value of `read` before: `if tensor:`, `tensor.item()`.
  void drop(std::initializer_list<TensorId> tensors, TensorId read = kNone);
  // The autograd node that made it dies: nothing that leads to a loss holds it.
  void forget(TensorId made);
  // An output of the model that the training loop keeps, or drops at once.
  void give_to_loop(TensorId output);

  // Operators, in the framework's words. Inputs must be alive.
  TensorId unary(Op op, TensorId x, double number = 0, std::uint8_t bounds = Node::kBothBounds);
  TensorId safe_softmax(TensorId x);       // Rows of nothing but minus infinity give zeros.
  TensorId cast(TensorId x, DType dtype);  // The same tensor if nothing changes: then one more reference to it.
  // torch.autocast's two rules for an operand (ATen/autocast_mode.h): lower_precision, and fp32. One more reference, as
  // `cast`; where autocast is off, the same tensor.
  TensorId lowered(TensorId x);
  TensorId widened(TensorId x);
  TensorId binary(Op op, TensorId a, TensorId b);
  TensorId linear(TensorId x, TensorId weight, TensorId bias, std::int64_t features);
  // Of operands that autocast has seen; their references stay the caller's. `number`: how the weight is packed.
  TensorId product(Product kind, std::initializer_list<TensorId> operands, const Shape& made, DType dtype,
                   double number = 0);
  TensorId conv1d(TensorId x, TensorId weight, TensorId bias, std::int64_t features);  // Weight as [in, out].
  TensorId dropout(TensorId x, double p);                                              // p = 0: the same tensor.
  TensorId view(TensorId x, Shape shape, Op op = Op::View);                            // Or Op::Expand.
  // A view in steps, of which the last leaves `shape`.
  TensorId view(TensorId x, Shape shape, std::initializer_list<ViewStep> steps);
  // A view whose gradient has to be copied to become the input's shape again (Node::gradient_copied).
  TensorId view_copied_back(TensorId x, Shape shape, std::initializer_list<ViewStep> steps = {});
  TensorId copy(TensorId x);  // clone, contiguous, or a reshape that copies.
  // `length` elements of dimension `dim` from `start`, or of its pairs the element `start` each.
  TensorId slice(TensorId x, std::int8_t dim, std::int64_t start, std::int64_t length, bool of_pairs = false);
  // Op::Split or Unbind: parts of `x`, from one call.
  std::vector<TensorId> split(Op op, TensorId x, const std::vector<Shape>& parts, std::int8_t axis);
  // Op::Stack: element by element, flattened: a[0], b[0], a[1], b[1].
  TensorId cat(TensorId a, TensorId b, Op op = Op::Cat,
               std::int8_t axis = -1);  // Of the last, unless another is given.
  TensorId cat(const std::vector<TensorId>& parts, std::int8_t axis);
  TensorId matmul(TensorId a, TensorId b);
  // `bias` is added to the scores, or kNone. The options' kernel, but with a bias none that takes no bias.
  // The weights are dropped with probability `dropout` inside the kernel.
  // `heads`: how the operands lie (Node::by_head, padding).
  struct HeadsLie {
    bool by_head = false;
    std::int64_t padding = 0;
    bool full = false;  // Node::full_attention.
    double scale = 0;   // Node::scale.
  };
  TensorId attention(TensorId q, TensorId k, TensorId v, TensorId bias, double dropout, HeadsLie heads);
  TensorId make(Op op, Shape shape, DType dtype, std::initializer_list<TensorId> inputs, bool differentiable = false,
                double number = 0);
  // Every element is `number`.
  TensorId filled(Shape shape, DType dtype, double number);
  // Two outputs: values and int64 indices.
  std::pair<TensorId, TensorId> select(Op op, TensorId x, Shape values);
  std::pair<TensorId, TensorId> nll_loss(TensorId log_probabilities, TensorId target, Reduction reduction);
  TensorId in_place(Op op, TensorId x, TensorId other, std::int8_t axis = 0, std::int64_t start = 0,
                    TensorId third = kNone);
  [[nodiscard]] bool parallel() const { return options_->tp > 1; }
  TensorId keep(TensorId x);  // One more Python reference.

  // x.requires_grad_(True): a leaf of its own, unless it has a history already.
  void require_grad(TensorId x);
  // Where nothing is recorded, what ends a no_grad of its own turns nothing on.
  void set_grad_enabled(bool enabled) { grad_enabled_ = enabled && !options_->unrecorded; }
  // torch.autocast(enabled=False) within the forward.
  void set_autocast_enabled(bool enabled) { autocast_enabled_ = enabled; }
  // The outermost autocast region ends: its cache lets go of the weights' copies.
  void leave_autocast();
  // `taken`: of the batch, what forward takes out of the loop's dictionary.
  void set_batch(std::vector<TensorId> batch, std::vector<TensorId> taken = {}) {
    graph_.batch = std::move(batch);
    graph_.taken = std::move(taken);
  }

  // Checks that only `loss` and the batch still have references.
  [[nodiscard]] Graph finish(TensorId loss);

  // While it lives, layers have the widths of `dims`, and `rows` of `seq` places: those of a tower. Of two kernels it
  // has the fused one.
  class Within {
   public:
    Within(GraphBuilder& g, const Dimensions& dims, std::int64_t rows, std::int64_t seq)
        : g_(g), options_(*g.options_), outer_options_(g.options_), outer_dims_(g.dims_) {
      options_.micro_batch = rows;
      options_.seq = seq;
      options_.math_attention = options_.math_attention && !options_.fused_between_stacks;
      g_.options_ = &options_;
      g_.dims_ = &dims;
    }
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;
    ~Within() {
      g_.options_ = outer_options_;
      g_.dims_ = outer_dims_;
    }

   private:
    GraphBuilder& g_;
    GraphOptions options_;
    const GraphOptions* outer_options_;
    const Dimensions* outer_dims_;
  };

  // While it lives, the model is asked without gradients and checkpoints.
  class Unrecorded {
   public:
    explicit Unrecorded(GraphBuilder& g) : g_(g), options_(*g.options_), outer_(g.options_), before_(g.grad_enabled_) {
      options_.unrecorded = true;
      g_.options_ = &options_;
      g_.grad_enabled_ = false;
    }
    Unrecorded(const Unrecorded&) = delete;
    Unrecorded& operator=(const Unrecorded&) = delete;
    ~Unrecorded() {
      g_.options_ = outer_;
      g_.grad_enabled_ = before_;
    }

   protected:
    [[nodiscard]] GraphOptions& own_options() { return options_; }

   private:
    GraphBuilder& g_;
    GraphOptions options_;
    const GraphOptions* outer_;
    bool before_;
  };

  // And while this lives, it is the reference: ModelSpec::reference, or where there is none the model without its
  // adapters.
  class Reference : public Unrecorded {
   public:
    explicit Reference(GraphBuilder& g) : Unrecorded(g) { own_options().reference = true; }
  };

 private:
  friend TensorId embedding(GraphBuilder& g, TensorId weight, TensorId ids, bool turned, std::int64_t padding);
  friend TensorId counted(GraphBuilder& g, std::int64_t count, DType dtype, std::int64_t first, std::int64_t step);
  friend TensorId picked(GraphBuilder& g, TensorId x, TensorId index, std::int8_t axis);
  friend TensorId layer_norm(GraphBuilder& g, TensorId x, TensorId weight, TensorId bias, bool strided);
  friend TensorId convolution(GraphBuilder& g, const Shape& made, TensorId x, bool turned, bool by_place);
  friend TensorId average_pool(GraphBuilder& g, TensorId x, std::int64_t side, bool turned);
  friend void keep_for_next(GraphBuilder& g, TensorId tensor);
  friend void instruct(GraphBuilder& g, Instruction::Kind kind, TensorId about);
  friend TensorId copy_to_parallel(GraphBuilder& g, TensorId x);
  friend std::pair<TensorId, TensorId> parallel_cross_entropy(GraphBuilder& g, TensorId logits, TensorId target);
  friend std::array<TensorId, 2> turned_in_place(GraphBuilder& g, const std::array<TensorId, 4>& inputs, int by_head);
  friend std::vector<TensorId> adapted(GraphBuilder& g, Op op, std::span<const TensorId> inputs,
                                       std::span<const std::int64_t> features, double number);
  friend std::vector<TensorId> chunked_log_probs(GraphBuilder& g, const std::array<TensorId, 4>& inputs,
                                                 LogProbs outputs);

  TensorId add_tensor(Shape shape, DType dtype, StorageId storage, bool requires_grad, NodeId producer);
  TensorId add_output(Shape shape, DType dtype, NodeId node);
  TensorId output_of(NodeId node, TensorId out);
  NodeId add_node(Op op, std::span<const TensorId> inputs, bool differentiable);
  void run(NodeId node);
  const ModelSpec& model_;
  const GraphOptions* options_;
  const Dimensions* dims_;
  Graph graph_;
  Indexed<TensorId, std::int32_t> references_;  // Python references.
  std::vector<TensorId> parameter_tensors_;     // By ParameterId; kNone until asked for.
  std::vector<TensorId> buffer_tensors_;
  std::vector<TensorId> received_;  // What was cast on the way into the model.
  std::vector<ModuleId> stack_;
  AdaptedParameters adapted_parameters_;
  std::vector<TensorId> autocast_cache_;  // By ParameterId; kNone where there is no copy.
  bool grad_enabled_ = true;
  bool autocast_enabled_ = true;
};

[[nodiscard]] TensorId mean_last(GraphBuilder& g, TensorId x);
// `turned`: rows are seen in another layout, in which their gradient comes. `padding`: the row that takes none; -1: all
// do.
[[nodiscard]] TensorId embedding(GraphBuilder& g, TensorId weight, TensorId ids, bool turned = false,
                                 std::int64_t padding = -1);
// `strided`: x does not lie row by row.
[[nodiscard]] TensorId layer_norm(GraphBuilder& g, TensorId x, TensorId weight, TensorId bias, bool strided = false);
// Over the last dimension. `strided`: x does not lie row by row, and the kernel copies it.
[[nodiscard]] TensorId log_softmax(GraphBuilder& g, TensorId x, bool strided = false);
// torch.arange(first, ..., step).
[[nodiscard]] TensorId counted(GraphBuilder& g, std::int64_t count, DType dtype, std::int64_t first, std::int64_t step);
// x[:, .., index, :]: of dimension `axis`, what one line of indices picks.
[[nodiscard]] TensorId picked(GraphBuilder& g, TensorId x, TensorId index, std::int8_t axis);
// torch.arange(count).
[[nodiscard]] TensorId arange(GraphBuilder& g, std::int64_t count);
// An attribute of the model holds it until the next forward; the caller's reference is used up.
void keep_for_next(GraphBuilder& g, TensorId tensor);
// What happens to a tensor beside the operators, and takes no reference.
void instruct(GraphBuilder& g, Instruction::Kind kind, TensorId about);
// A module's buffer has another in its place.
inline void replace(GraphBuilder& g, TensorId buffer) { instruct(g, Instruction::Kind::Replaced, buffer); }
// A container that every layer is given takes the tensor, in the place of what it had of it.
inline void share(GraphBuilder& g, TensorId tensor) { instruct(g, Instruction::Kind::Share, tensor); }
// A convolution module's call, the current module's: weight and, where it has one, bias. `turned`: the gradient lies
// place by place. `by_place`: x does.
[[nodiscard]] TensorId convolution(GraphBuilder& g, const Shape& made, TensorId x, bool turned, bool by_place = false);
// Of pictures [B, C, H, W], to `side` by `side`. `turned`: the gradient lies place by place.
[[nodiscard]] TensorId average_pool(GraphBuilder& g, TensorId x, std::int64_t side, bool turned);
// Tensor parallelism; on one rank the tensor itself, with one more reference. Then the softmax over all words, in place
// of fp32 logits, and the loss of each token.
[[nodiscard]] TensorId copy_to_parallel(GraphBuilder& g, TensorId x);
[[nodiscard]] TensorId reduce_from_parallel(GraphBuilder& g, TensorId x);
// Op::LigerRotary of queries, keys, cosines and sines; `by_head` is its Node::number.
[[nodiscard]] std::array<TensorId, 2> turned_in_place(GraphBuilder& g, const std::array<TensorId, 4>& inputs,
                                                      int by_head);
// Op::AdaptedLinear or AdaptedGated: an output for each of `features`, its width.
[[nodiscard]] std::vector<TensorId> adapted(GraphBuilder& g, Op op, std::span<const TensorId> inputs,
                                            std::span<const std::int64_t> features, double number);
[[nodiscard]] std::pair<TensorId, TensorId> parallel_cross_entropy(GraphBuilder& g, TensorId logits, TensorId target);
// Op::ChunkedLogProb: log-probabilities and, where any is asked for, entropy, mean of logits, whether a word is the
// likeliest. Products run in autocast's dtype.
[[nodiscard]] std::vector<TensorId> chunked_log_probs(GraphBuilder& g, const std::array<TensorId, 4>& inputs,
                                                      LogProbs outputs);
// Consecutive slices of the last dimension, and every index of the first.
[[nodiscard]] std::vector<TensorId> split_last(GraphBuilder& g, TensorId x, const std::vector<std::int64_t>& widths);
[[nodiscard]] std::vector<TensorId> unbind(GraphBuilder& g, TensorId x);

// The first of the words that this rank has.
[[nodiscard]] inline double first_word(const GraphBuilder& g) {
  return static_cast<double>(g.options().tp_rank * g.model().dims.vocab);
}

// For split_last: as many equal parts of the last dimension.
[[nodiscard]] inline std::vector<std::int64_t> equal_widths(const GraphBuilder& g, TensorId x, std::int64_t parts) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(parts), g.shape(x).dims[g.shape(x).rank - 1U] / parts);
}

// The layer inside of the adapters that wrap it, or the module itself.
[[nodiscard]] inline ModuleId unwrapped(const GraphBuilder& g, ModuleId module) {
  const ModuleId base = g.model().child(module, "base_layer");
  return base == kNone ? module : base;
}
// So many features a linear layer with a bias gives, adapters around it and packed or not.
[[nodiscard]] inline std::int64_t biased_features(GraphBuilder& g, ModuleId module) {
  return g.shape(g.parameter_of(unwrapped(g, module), "bias")).dims[0];
}

// A parameter of a module that is not called for it: Instruction::Kind::Read of it tells the runtime. kNone where the
// module has none of that name. Adapters wrap the layer that the framework's own code asks.
[[nodiscard]] inline TensorId asked(GraphBuilder& g, ModuleId module, std::string_view leaf) {
  const TensorId parameter = g.parameter_of(unwrapped(g, module), leaf);
  g.drop({}, parameter);
  return parameter;
}

// A Python variable that is given another value lets go of the one before, when the new one is there.
[[nodiscard]] inline TensorId rebound(GraphBuilder& g, TensorId old, TensorId made) {
  g.drop({old});
  return made;
}
// The same; a variable that had none lets go of nothing.
inline void rebind(GraphBuilder& g, TensorId& variable, TensorId value) {
  if (variable != kNone) g.drop({variable});
  variable = value;
}

}  // namespace dsplan
