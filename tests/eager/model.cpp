#include "eager/model.h"

#include <string_view>
#include <utility>

namespace eager {
namespace {

constexpr const char* kPreBackward = "pre-backward";

// Hooks of a tensor run before its node, in the order in which they came: that of the module which has made it is a
// node of its own here.
void hook_input(ModuleHooks* hooks, int module, const Tensor& x) {
  if (hooks == nullptr || !hooks->hooks_inputs(module) || x->grad_fn == nullptr) return;
  const std::shared_ptr<Node>& node = x->grad_fn;
  const bool behind = std::string_view(node->name) == kPreBackward;
  node->backward = [hooks, module, behind, before = std::move(node->backward)](Tensors& g, Tensors& saved) {
    if (!behind) hooks->input_has_gradient(module);
    Tensors given = before(g, saved);
    if (behind) hooks->input_has_gradient(module);
    return given;
  };
}

}  // namespace

Net::Net(const dsplan::ModelSpec& spec, Settings settings)
    : spec_(spec), d_(spec.dims), settings_(std::move(settings)) {
  for (std::size_t at = 0; at < spec.modules.size(); ++at) modules_[spec.modules[at].path] = static_cast<int>(at);
  for (std::size_t at = 0; at < spec.parameters.size(); ++at) {
    const dsplan::Parameter& parameter = spec.parameters[at];
    names_[parameter.name] = static_cast<int>(at);
    module_of.push_back(parameter.module);
    if (parameter.tied_to != dsplan::kNone) {
      parameters.push_back(parameters[static_cast<std::size_t>(parameter.tied_to)]);
      continue;
    }
    auto made = std::make_shared<TensorImpl>();
    for (std::size_t k = 0; k < parameter.shape.rank; ++k) made->sizes.push_back(parameter.shape.dims[k]);
    made->strides = contiguous_strides(made->sizes);
    made->dtype = settings_.dtype;
    made->requires_grad = settings_.frozen.empty() || !settings_.frozen[at];
    made->parameter = static_cast<int>(at);
    parameters.push_back(std::move(made));
  }
}

Tensor Net::parameter(const std::string& name) const {
  // The tied head's weight is the table's.
  const auto found = names_.find(name);
  if (found != names_.end()) return parameters[static_cast<std::size_t>(found->second)];
  return parameters[static_cast<std::size_t>(
      names_.at(spec_.family == "gpt2" ? "transformer.wte.weight" : "model.embed_tokens.weight"))];
}

struct Net::Inside {
  Inside(Net& of, int module) : net(of), before(std::exchange(of.inside_, module)) {}
  ~Inside() { net.inside_ = before; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

  Net& net;
  int before;
};

Tensor Net::call(const std::string& path, const Tensor& x, const Body& forward) {
  if (hooks == nullptr || modules_.at(path) == inside_) return forward(x);
  const int module = modules_.at(path);
  hooks->pre_forward(module);
  hook_input(hooks, module, x);
  const bool wraps = hooks->wraps_tensors(module);
  Tensor out;
  if (wraps && x->requires_grad) {
    const Tensor wrapped = on_backward(x, "post-backward", [this, module] { hooks->post_backward(module); });
    out = forward(wrapped);
  } else {
    out = forward(x);
  }
  hooks->post_forward(module);
  if (!hooks->hooks_outputs(module) || !out->requires_grad) return out;
  return on_backward(out, kPreBackward, [this, module] { hooks->pre_backward(module); });
}

Tensor Net::call_by_keyword(const std::string& path, const std::function<Tensor()>& forward) {
  if (hooks == nullptr) return forward();
  const int module = modules_.at(path);
  hooks->pre_forward(module);
  Tensor out = forward();
  hooks->post_forward(module);
  if (!hooks->hooks_outputs(module) || !out->requires_grad) return out;
  return on_backward(out, kPreBackward, [this, module] { hooks->pre_backward(module); });
}

Tensor Net::dense(const std::string& path, const Tensor& x) {
  return call(path, x, [&](const Tensor& in) {
    const Tensor weight = parameter(path + ".weight");
    return settings_.stage3_linear ? linear_stage3(in, weight) : linear(in, weight);
  });
}

Tensor Net::conv1d(const std::string& path, const Tensor& x) {
  return call(path, x, [&](const Tensor& in) {
    const Tensor weight = parameter(path + ".weight");
    Sizes out = in->sizes;
    out.back() = weight->size(1);
    return view(addmm(parameter(path + ".bias"), view(in, {in->elements() / in->size(-1), in->size(-1)}), weight), out);
  });
}

// LlamaRMSNorm.forward: `hidden` is rebound, `input` is the caller's, `variance` is a local.
Tensor Net::norm(const std::string& path, const Tensor& x) {
  return call(path, x, [&](const Tensor& input) {
    Tensor hidden = to(input, DType::Float32);
    const Tensor variance = mean_last(pow_scalar(hidden));
    const auto scale = [&] {  // A temporary of the expression: each step drops the one before.
      Tensor factor = add_scalar(variance);
      factor = rsqrt(factor);
      return factor;
    };
    hidden = mul(hidden, scale());
    return mul(parameter(path + ".weight"), to(hidden, input->dtype));
  });
}

Tensor Net::table(const std::string& path, const Tensor& ids) {
  const Tensor weight = parameter(path + ".weight");
  const bool cut = settings_.tp > 1 && path != "transformer.wpe";
  return call(path, ids, [&](const Tensor& in) { return cut ? vocabulary_table(weight, in) : embedding(weight, in); });
}

Tensor Net::attend(const Tensor& q, const Tensor& k, const Tensor& v) const {
  return settings_.memory_efficient ? memory_efficient_attention(q, k, v)
                                    : flash_attention(q, k, v, d_.attention_dropout > 0);
}

// arange(seq) + 0, unsqueezed.
Tensor Net::positions() const {
  const Doing doing("positions");
  const Tensor shifted = add_scalar(empty({settings_.seq}, DType::Int64));
  return strided_view(shifted, {1, settings_.seq}, {settings_.seq, 1});
}

Tensor Net::layers(Tensor hidden, const Layer& layer, const Tensors& rest) {
  auto group = settings_.checkpoints.begin();
  for (int at = 0; at < d_.layers; ++at) {
    if (group == settings_.checkpoints.end() || group->first != at) {
      hidden = layer(at, hidden);
      continue;
    }
    const int last = group->second;
    if (hooks != nullptr && hooks->around_checkpoints()) {
      const std::string path = (spec_.family == "gpt2" ? "transformer.h." : "model.layers.") + std::to_string(at);
      const int module = modules_.at(path);
      const auto function = [this, layer, rest, at, module](const Tensor& argument) {
        const Inside inside(*this, module);
        return layer(at, argument);
      };
      const auto checkpointed = settings_.reentrant ? reentrant_checkpoint : checkpoint;
      hook_input(hooks, module, hidden);
      hidden = call_by_keyword(path, [&] { return checkpointed(function, hidden); });
      ++group;
      continue;
    }
    // `rest` is copied into the closure: a checkpoint holds its keyword arguments.
    hidden = (settings_.reentrant ? reentrant_checkpoint : checkpoint)(
        [layer, rest, at, last](const Tensor& argument) {
          Tensor inner = layer(at, argument);
          for (int next = at + 1; next <= last; ++next) inner = layer(next, inner);
          return inner;
        },
        hidden);
    at = last;
    ++group;
  }
  return hidden;
}

// `outputs` is what the caller's loop drops: the logits live until the whole model has returned.
Tensor Net::loss(const Tensor& ids, const Tensor& labels, bool copied) {
  Tensor returned;  // Beside the loss: who copies has both until all copies are made.
  const Tensor loss = call_by_keyword("", [&] {
    const bool gpt = spec_.family == "gpt2";
    const Tensor hidden = gpt ? call("transformer", ids, [&](const Tensor& x) { return gpt2(x); })
                              : call_by_keyword("model", [&] { return llama(ids); });
    if (settings_.tp > 1) return parallel_causal_loss(dense("lm_head", copy_to_region(hidden)), labels);
    const Tensor logits = dense("lm_head", hidden);
    if (copied) returned = logits;
    return causal_loss(logits, labels);
  });
  if (!copied) return loss;
  const Tensor made = clone(loss);
  const Tensor other = clone(returned);
  return made;
}

// A batch without mask is searched for several sequences in one row: find_packed_sequence_indices. The answer is no.
void look_for_packed_sequences(const Tensor& position_ids, std::int64_t batch) {
  const Doing doing("packed sequences");
  const std::int64_t seq = position_ids->size(-1);
  const Tensor first = empty({batch, 1}, DType::Int64);
  Tensor difference;
  {
    const Tensor joined = empty({batch, seq + 1}, DType::Int64);
    difference = empty({batch, seq}, DType::Int64);
  }
  Tensor index;
  {
    const Tensor differs = empty({batch, seq}, DType::Bool);
    index = empty({batch, seq}, DType::Int64);
    const Tensor widened = empty({batch, seq}, DType::Int64);  // cumsum casts its input to the result's dtype.
  }
  const Tensor none = empty({batch}, DType::Bool);
  const Tensor all = empty({}, DType::Bool);
}

// ForCausalLMLoss: `logits` and `labels` are rebound; the caller still holds its own.
Tensor causal_loss(Tensor logits, Tensor labels) {
  logits = to(logits, DType::Float32);
  const std::int64_t batch = labels->size(0);
  const std::int64_t seq = labels->size(1);
  {
    const Doing doing("shift labels");
    labels = empty({batch, seq + 1}, DType::Int64);
  }
  Tensor shifted = strided_view(labels, {batch, seq}, labels->strides);
  if (!is_contiguous(*shifted)) {
    const Doing doing("contiguous labels");
    shifted = empty({batch, seq}, DType::Int64);
  }
  logits = view(logits, {batch * seq, logits->size(-1)});
  return nll_loss(log_softmax(logits), shifted);
}

// 0.5 * x * (1.0 + tanh(c * (x + 0.044715 * pow(x, 3.0)))).
Tensor gelu_new(const Tensor& x) {
  const Tensor half = mul_scalar(x);
  Tensor y = pow_scalar(x);
  y = mul_scalar(y);
  y = add(x, y);
  y = mul_scalar(y);
  y = tanh(y);
  y = add_scalar(y);
  return mul(half, y);
}

}  // namespace eager
