#include "model/graphs/graphs.h"

#include <fmt/format.h>

#include "core/error.h"

namespace dsplan {

std::optional<std::string> graph_obstacle(const ModelSpec& model, const Training& training, std::int64_t tp) {
  if (!model.has_graph) return fmt::format("the {} family has no operator graph yet", model.family);
  if (tp > 1) return "activations under tensor parallelism";
  if (training.attention == Attention::Eager) return "eager attention";
  if (training.attention == Attention::Math) return "math attention";
  if (model.dims.sliding_window > 0 && training.seq > model.dims.sliding_window) {
    return fmt::format("sliding-window attention beyond its window of {} tokens", model.dims.sliding_window);
  }
  if (training.attention == Attention::MemoryEfficient && model.dims.kv_heads != model.dims.heads) {
    return "grouped-query attention outside the flash kernel, where the math kernel takes over";
  }
  if (training.compute_dtype() == DType::Float32 && training.attention == Attention::Flash) {
    return "the flash kernel takes no fp32";
  }
  if (model.dims.experts > 0 && training.autocast) return "a mixture's grouped product under autocast";
  return std::nullopt;
}

void look_for_packed_sequences(GraphBuilder& g, TensorId position_ids) {
  const std::int64_t batch = g.options().micro_batch;
  const std::int64_t seq = g.options().seq;
  const TensorId first = g.make(Op::AddScalar, Shape{batch, 1}, DType::Int64, {position_ids});
  const TensorId joined = g.make(Op::Cat, Shape{batch, seq + 1}, DType::Int64, {first, position_ids});
  const TensorId difference = g.make(Op::Sub, Shape{batch, seq}, DType::Int64, {joined});
  g.drop({joined});
  const TensorId differs = g.make(Op::NotEqual, Shape{batch, seq}, DType::Bool, {difference});
  const TensorId index = g.make(Op::CumSum, Shape{batch, seq}, DType::Int64, {differs});
  g.drop({differs});
  const TensorId none = g.make(Op::Equal, Shape{batch}, DType::Bool, {index});
  const TensorId all = g.make(Op::All, Shape{}, DType::Bool, {none});
  g.drop({none, all, first, difference, index});
}

TensorId causal_loss(GraphBuilder& g, TensorId logits, TensorId labels) {
  const Shape shape = g.shape(logits);
  const std::int64_t batch = shape.dims[0];
  const std::int64_t seq = shape.dims[1];
  const std::int64_t vocab = shape.dims[2];
  const TensorId upcast = g.cast(logits, DType::Float32);
  const TensorId padded = g.make(Op::Pad, Shape{batch, seq + 1}, DType::Int64, {labels});
  // A single row that starts one token later is contiguous already.
  const TensorId shifted = batch == 1 ? g.view(padded, Shape{batch, seq})
                                      : g.make(Op::Contiguous, Shape{batch, seq}, DType::Int64, {padded});
  const TensorId rows = g.view(upcast, Shape{batch * seq, vocab});
  g.drop({upcast});
  const TensorId targets = g.view(shifted, Shape{batch * seq});
  g.drop({shifted});
  const TensorId log_probabilities = g.unary(Op::LogSoftmax, rows);
  const TensorId loss = g.nll_loss(log_probabilities, targets).first;
  g.drop({log_probabilities, rows, padded, targets});
  return loss;
}

Graph finish_model(GraphBuilder& g, TensorId loss, TensorId logits) {
  if (g.options().outputs_to_fp32) {
    g.leave_autocast();
    const TensorId wide = g.cast(logits, DType::Float32);
    g.drop({logits, wide});
  } else {
    g.drop({logits});
    g.leave_autocast();
  }
  return g.finish(loss);
}

Graph build_graph(const ModelSpec& model, const GraphOptions& options) {
  DSPLAN_CHECK(model.has_graph, model.family);
  return model.family == "gpt2" ? build_gpt2_graph(model, options) : build_decoder_graph(model, options);
}

}  // namespace dsplan
