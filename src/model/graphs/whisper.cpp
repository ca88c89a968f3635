// whisper: transformers' WhisperForConditionalGeneration, module by module. The encoder's running tensor lies as the
// convolutions made it, channel by channel, all the way through: norms copy it. Queries, keys and values lie head by
// head. Its main input is no tokens, so that checkpointing asks no embedding for gradients
// (PreTrainedModel.gradient_checkpointing_enable).
#include "model/graphs/attention.h"
#include "model/graphs/by_family.h"
#include "model/graphs/encoders/sublayers.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/masks.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

class WhisperGraph final : Sublayers {
 public:
  WhisperGraph(const ModelSpec& model, const GraphOptions& options)
      : Sublayers(model, options, true), encoder_(g_.child(body_, "encoder")) {}

  Graph build() {
    const TensorId sound = g_.batch_input(spectrum(), options_.dtype);
    const TensorId labels = g_.batch_input(Shape{options_.micro_batch, options_.target_seq}, DType::Int64);
    g_.set_batch({sound, labels});
    g_.enter_model();
    const TensorId target_ids = shifted_right(g_, labels);
    g_.enter(body_);
    const TensorId encoded = encoder(sound);
    options_.seq = options_.target_seq;  // The decoder's rows are those of the target.
    const TensorId decoded = decoder(target_ids, encoded);
    g_.exit(body_);
    const TensorId logits = linear_module(g_, g_.child(g_.causal(), "proj_out"), decoded, d_.vocab);
    const TensorId loss = class_loss(g_, logits, labels);
    g_.drop({decoded, target_ids});
    const TensorId returned = end_model(g_, logits, loss, {encoded});
    return g_.finish(returned);
  }

 private:
  // The second convolution halves the frames.
  Shape spectrum() {
    const TensorId first = g_.parameter_of(g_.child(encoder_, "conv1"), "weight");
    return Shape{options_.micro_batch, g_.shape(first).dims[1], 2 * options_.seq};
  }

  // gelu(conv(x)), of `length` frames. The gradient of the second lies frame by frame, as the layers'.
  TensorId convolved(std::string_view name, TensorId x, std::int64_t length) {
    const ModuleId module = g_.child(encoder_, name);
    g_.enter(module);
    const bool turned = length == options_.seq && length > 1 && d_.hidden > 1;
    const TensorId made = convolution(g_, Shape{options_.micro_batch, d_.hidden, length}, x, turned);
    g_.exit(module);
    return rebound(g_, made, g_.unary(Op::Gelu, made));
  }

  // proj(x), times `scale` if there is one, head by head.
  TensorId heads_of(ModuleId attention, std::string_view name, TensorId x, bool by_head, bool scaled = false) {
    TensorId flat = linear_module(g_, g_.child(attention, name), x, d_.hidden);
    if (scaled) flat = rebound(g_, flat, g_.unary(Op::MulScalar, flat));
    const TensorId seen = by_heads(g_, flat, d_.heads, d_.head_dim, by_head);
    const bool several = d_.heads > 1 && g_.shape(x).dims[1] > 1;
    return several ? rebound(g_, seen, g_.copy(seen)) : seen;
  }

  // Gradients of the memory-efficient kernel lie token by token, those of the others as their operands do; a product's
  // of the turned keys is a view of the projection's, of one row a matrix.
  Attended attention(ModuleId module, TensorId hidden, TensorId source, TensorId mask, bool full) override {
    g_.enter(module);
    const bool composed = options_.eager_attention || options_.math_attention;
    const bool by_head = composed || options_.attention != AttentionKernel::MemoryEfficient;
    AttentionCall call;
    call.q = heads_of(module, "q_proj", hidden, by_head, true);
    call.k = heads_of(module, "k_proj", source, composed ? options_.micro_batch > 1 : by_head);
    call.v = heads_of(module, "v_proj", source, by_head);
    call.by_head = call.values_by_head = true;
    call.mask = mask;
    call.scale = 1;
    call.dropout = d_.attention_dropout;
    call.softmax = SoftmaxKind::Bare;
    call.full = full;
    const Attended attended = attend(g_, call);
    const TensorId out = linear_module(g_, g_.child(module, "out_proj"), attended.flat, d_.hidden);
    g_.drop({attended.flat, call.q, call.k, call.v});
    g_.exit(module);
    return {out, attended.weights};
  }

  // The encoder's running tensor lies channel by channel.
  TensorId norm(ModuleId layer, std::string_view name, TensorId x) override {
    const ModuleId module = g_.child(layer, name);
    g_.enter(module);
    const TensorId out = layer_norm(g_, x, g_.parameter("weight"), g_.parameter("bias"), encodes_);
    g_.exit(module);
    return out;
  }

  TensorId layers(ModuleId stack, TensorId hidden, TensorId encoded, TensorId mask) {
    const std::vector<ModuleId> modules = modules_of(g_.model(), g_.child(stack, "layers"));
    for (const ModuleId one : modules) {
      std::vector<TensorId> arguments{hidden, mask, encoded};
      std::erase(arguments, kNone);
      // The last layer's gradient comes row by row, and goes on as the tensor lies. Of one frame or one channel every
      // layout is the same.
      const bool strided = encodes_ && one == modules.back() && options_.seq > 1 && d_.hidden > 1;
      std::vector<TensorId> by_channel;
      if (strided) by_channel.push_back(hidden);
      const std::int32_t region = g_.begin_region({std::move(arguments), {}, {}, std::move(by_channel)});
      const TensorId out = layer(one, hidden, encoded, mask);
      g_.end_region(region);
      hidden = rebound(g_, hidden, out);
    }
    return rebound(g_, hidden, norm(stack, "layer_norm", hidden));
  }

  TensorId encoder(TensorId sound) {
    const ModuleId module = encoder_;
    g_.enter(module);
    encodes_ = true;
    const TensorId first = convolved("conv1", sound, 2 * options_.seq);
    const TensorId second = rebound(g_, first, convolved("conv2", first, options_.seq));
    const Shape by_frame{options_.micro_batch, options_.seq, d_.hidden};
    const TensorId frames = rebound(g_, second, g_.view(second, by_frame, {step_swap(1, 2)}));
    const TensorId numbers = arange(g_, options_.seq);
    const TensorId positions = table_module(g_, g_.child(module, "embed_positions"), numbers);
    const TensorId placed = g_.binary(Op::Add, frames, positions);
    g_.drop({positions});
    const TensorId hidden = rebound(g_, placed, g_.dropout(placed, d_.embedding_dropout));
    const TensorId out = layers(module, hidden, kNone, kNone);
    g_.drop({frames, numbers});
    g_.exit(module);
    return out;
  }

  TensorId decoder(TensorId ids, TensorId encoded) {
    const ModuleId module = g_.child(body_, "decoder");
    g_.enter(module);
    encodes_ = false;
    const TensorId embedded = table_module(g_, g_.child(module, "embed_tokens"), ids, g_.model().dims.padding);
    const TensorId position_ids = numbered_rows();
    const ModuleId table = g_.child(module, "embed_positions");
    g_.enter(table);
    const Shape shape = g_.shape(embedded);
    const TensorId weight = g_.parameter("weight");
    const TensorId positions = g_.make(Op::Index, shape, g_.dtype(weight), {weight, position_ids}, true);
    g_.exit(table);
    const TensorId placed = g_.binary(Op::Add, embedded, positions);
    const TensorId hidden = rebound(g_, placed, g_.dropout(placed, d_.embedding_dropout));
    const TensorId mask = attention_mask(g_, position_ids, kNone);
    const TensorId out = layers(module, hidden, encoded, mask);
    if (mask != kNone) g_.drop({mask});
    g_.drop({positions, position_ids, embedded});
    g_.exit(module);
    return out;
  }

  // (arange + 0).unsqueeze(0).repeat(B, 1).
  TensorId numbered_rows() {
    const Shape row{1, options_.seq};
    const TensorId first = g_.make(Op::Arange, row, DType::Int64, {});
    const TensorId numbers = g_.make(Op::AddScalar, row, DType::Int64, {first});
    g_.drop({first});
    const TensorId rows = g_.make(Op::Repeat, Shape{options_.micro_batch, options_.seq}, DType::Int64, {numbers});
    g_.drop({numbers});
    return rows;
  }

  ModuleId encoder_;
};

}  // namespace

Graph build_whisper_graph(const ModelSpec& model, const GraphOptions& options) {
  return WhisperGraph(model, options).build();
}

}  // namespace dsplan
