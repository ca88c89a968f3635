// Megatron-LM's core/tensor_parallel/{mappings,layers,cross_entropy}.py around the layers of model.h. Collectives work
// in place and take nothing.
#include "eager/model.h"

namespace eager {
namespace {

// A Python function that returns what it was given: a view of it, whose gradient it hands on, contiguous.
Tensor identity(const char* name, const Tensor& x, bool contiguous_gradient) {
  const auto node = make_node(name, {x});
  Tensor out = strided_view(x, x->sizes, x->strides);
  if (node) {
    node->backward = [contiguous_gradient](Tensors& g, Tensors&) -> Tensors {
      if (!contiguous_gradient || is_contiguous(*g[0])) return {g[0]};
      return {empty(g[0]->sizes, g[0]->dtype)};
    };
  }
  set_history(out, node);
  return out;
}

// x[mask, :] = 0.0, which PyTorch turns into masked_fill_.
void zero_rows(const Tensor& x, const Tensor& mask) {
  const auto node = make_node("masked fill", {x});
  if (!node) return;
  node->saved.emplace_back(mask);
  node->backward = [](Tensors& g, Tensors&) -> Tensors { return {empty_like(g[0])}; };
  set_history(x, node);
}

struct LocalTargets {
  Tensor elsewhere;
  Tensor ids;
};

LocalTargets local_targets(const Tensor& ids) {
  const Doing doing("local ids");
  LocalTargets local;
  {
    const Tensor below = empty(ids->sizes, DType::Bool);
    const Tensor above = empty(ids->sizes, DType::Bool);
    local.elsewhere = empty(ids->sizes, DType::Bool);
  }
  const Tensor cloned = empty(ids->sizes, DType::Int64);
  local.ids = empty(ids->sizes, DType::Int64);
  return local;
}

// Of all elements; the gradient is expanded.
Tensor sum_of(const Tensor& x, DType dtype) {
  const Doing doing("sum");
  const auto node = make_node("sum", {x});
  Tensor out = empty({}, dtype);
  if (x->dtype == DType::Bool) const Tensor whole_numbers = empty(x->sizes, dtype);
  if (node) {
    const Sizes before = x->sizes;
    node->backward = [before](Tensors& g, Tensors&) -> Tensors {
      return {strided_view(g[0], before, Sizes(before.size(), 0))};
    };
  }
  set_history(out, node);
  return out;
}

Tensor divide(const Tensor& total, const Tensor& count) {
  const Doing doing("div");
  const auto node = make_node("div", {total, count});
  if (node) {
    node->saved.emplace_back(count);
    node->backward = [](Tensors& g, Tensors&) -> Tensors { return {empty_like(g[0]), nullptr}; };
  }
  Tensor out = empty({}, total->dtype);
  set_history(out, node);
  return out;
}

}  // namespace

Tensor copy_to_region(const Tensor& x) { return identity("copy to region", x, true); }
Tensor reduce_from_region(const Tensor& x) { return identity("reduce from region", x, false); }

Tensor vocabulary_table(const Tensor& weight, const Tensor& ids) {
  const LocalTargets local = local_targets(ids);
  const Tensor found = embedding(weight, local.ids);
  zero_rows(found, local.elsewhere);
  return reduce_from_region(found);
}

// fp32 logits are worked on in place; else on their cast. What they become is saved, and is the gradient in the end.
Tensor vocab_parallel_cross_entropy(const Tensor& logits, const Tensor& target) {
  const Doing doing("vocab parallel cross entropy");
  const auto node = make_node("vocab parallel cross entropy", {logits});
  const Sizes tokens = target->sizes;
  const DType before = logits->dtype;
  const Tensor softmax = before == DType::Float32 ? detached(logits) : empty(logits->sizes, DType::Float32);
  Tensor largest;
  {
    largest = empty(tokens, DType::Float32);
    const Tensor indices = empty(tokens, DType::Int64);
  }
  const LocalTargets local = local_targets(target);
  Tensor predicted;
  Tensor sum;
  {
    const Tensor range = empty(tokens, DType::Int64);
    predicted = empty(tokens, DType::Float32);
    predicted = empty(tokens, DType::Float32);
    sum = empty(tokens, DType::Float32);
  }
  Tensor loss;
  {
    const Tensor logarithm = empty(tokens, DType::Float32);
    loss = empty(tokens, DType::Float32);
  }
  if (node) {
    node->backward = [tokens, before](Tensors&, Tensors& saved) -> Tensors {
      {
        const Tensor range = empty(tokens, DType::Int64);
        Tensor update = empty(tokens, DType::Float32);
        update = empty(tokens, DType::Float32);
        const Tensor picked = empty(tokens, DType::Float32);
      }
      if (before == DType::Float32) return {saved[0]};
      return {empty(saved[0]->sizes, before)};  // The engine's cast.
    };
    for (const Tensor& x : {softmax, local.elsewhere, local.ids}) node->saved.emplace_back(x);
  }
  set_history(loss, node);
  return loss;
}

// (losses * counted).sum() / counted.sum().
Tensor parallel_causal_loss(const Tensor& logits, const Tensor& given) {
  const std::int64_t batch = given->size(0);
  const std::int64_t seq = given->size(1);
  const Tensor padded = empty({batch, seq + 1}, DType::Int64);
  Tensor labels = strided_view(padded, {batch, seq}, padded->strides);
  if (!is_contiguous(*labels)) labels = empty({batch, seq}, DType::Int64);
  const Tensor losses = vocab_parallel_cross_entropy(logits, labels);
  const Tensor counted = empty(labels->sizes, DType::Bool);
  const auto total = [&] { return sum_of(mul(losses, counted), DType::Float32); };
  const Tensor sum = total();
  return divide(sum, sum_of(counted, DType::Int64));
}

Tensor Net::row(const std::string& path, const Tensor& x) {
  return call(path, x, [&](const Tensor& in) {
    const Tensor weight = parameter(path + ".weight");
    Tensor part;
    const bool direct = spec_.family == "gpt2";
    if (direct) {
      Sizes out = in->sizes;
      out.back() = weight->size(1);
      part = view(mm(view(in, {in->elements() / in->size(-1), in->size(-1)}), weight), out);
    } else {
      part = settings_.stage3_linear ? linear_stage3(in, weight) : linear(in, weight);
    }
    const Tensor whole = reduce_from_region(part);
    return direct ? add(whole, parameter(path + ".bias")) : whole;
  });
}

}  // namespace eager
