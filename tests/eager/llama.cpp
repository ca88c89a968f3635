// transformers 5.17.0, models/llama/modeling_llama.py.
#include "eager/model.h"

namespace eager {
namespace {

Tensor rotate_half(const Tensor& x) {
  const std::int64_t half = x->size(-1) / 2;
  const Tensor first = slice_last(x, 0, half);
  const Tensor second = slice_last(x, half, half);
  return cat_last(neg(second), first);
}

// (x * cos) + (rotate_half(x) * sin). C++ leaves the order of a call's arguments open and keeps temporaries to the end
// of the whole expression; Python does neither.
Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const Tensor direct = mul(x, cos);
  const auto crossed = [&] { return mul(rotate_half(x), sin); };
  return add(direct, crossed());
}

}  // namespace

// Under no_grad. The buffer is fp32 already, unless zero.Init made it in the model's dtype; expanding it is a view.
std::pair<Tensor, Tensor> Net::rotary(const Tensor& position_ids) {
  const Doing doing("rotary embedding");
  const GradMode off(false);
  const std::int64_t seq = position_ids->size(-1);
  const std::int64_t half = d_.head_dim / 2;
  const bool narrow = buffers.front()->dtype != DType::Float32;  // inv_freq.float()
  const Tensor wide = narrow ? empty({half}, DType::Float32) : nullptr;
  const Tensor positions = empty({1, 1, seq}, DType::Float32);
  const Tensor frequencies = transposed(empty({1, half, seq}, DType::Float32), 1, 2);
  const Tensor both = cat_last(frequencies, frequencies);
  const Tensor cos = mul_scalar(empty_like(both));
  const Tensor sin = mul_scalar(empty_like(both));
  const Tensor narrow_cos = to(cos, settings_.dtype);
  return {narrow_cos, to(sin, settings_.dtype)};
}

Tensor Net::llama_attention(const std::string& path, const Tensor& hidden, const Tensor& cos, const Tensor& sin) {
  const bool cut = settings_.tp > 1;
  const Tensor whole = cut ? copy_to_region(hidden) : hidden;
  const auto heads = [&](const char* name) {
    const Tensor x = dense(path + name, whole);
    return transpose(view(x, {x->size(0), x->size(1), x->size(2) / d_.head_dim, d_.head_dim}), 1, 2);
  };
  Tensor query = heads(".q_proj");
  Tensor key = heads(".k_proj");
  const Tensor value = heads(".v_proj");
  {
    // apply_rotary_pos_emb holds its arguments until it returns both.
    const Tensor wide_cos = view(cos, {1, 1, cos->size(1), cos->size(2)});
    const Tensor wide_sin = view(sin, {1, 1, sin->size(1), sin->size(2)});
    const Tensor turned_query = rotate(query, wide_cos, wide_sin);
    const Tensor turned_key = rotate(key, wide_cos, wide_sin);
    query = turned_query;
    key = turned_key;
  }
  Tensor output = attend(query, key, value);
  output = transpose(output, 1, 2);
  output = view(output, {output->size(0), output->size(1), d_.heads * d_.head_dim});
  output = cut ? row(path + ".o_proj", output) : dense(path + ".o_proj", output);
  return output;
}

Tensor Net::llama_mlp(const std::string& path, const Tensor& hidden) {
  return call(path, hidden, [&](const Tensor& given) {
    const bool cut = settings_.tp > 1;
    const Tensor in = cut ? copy_to_region(given) : given;
    const auto product = [&] {
      const auto activated = [&] {
        return call(path + ".act_fn", dense(path + ".gate_proj", in), [](const Tensor& x) { return silu(x); });
      };
      const Tensor active = activated();
      return mul(active, dense(path + ".up_proj", in));
    };
    return cut ? row(path + ".down_proj", product()) : dense(path + ".down_proj", product());
  });
}

Tensor Net::llama_layer(const std::string& path, const Tensor& argument, const Tensor& cos, const Tensor& sin) {
  return call(path, argument, [&](const Tensor& in) {
    Tensor residual = in;
    Tensor hidden = norm(path + ".input_layernorm", in);
    hidden =
        call_by_keyword(path + ".self_attn", [&] { return llama_attention(path + ".self_attn", hidden, cos, sin); });
    hidden = add(residual, hidden);
    residual = hidden;
    hidden = norm(path + ".post_attention_layernorm", hidden);
    hidden = llama_mlp(path + ".mlp", hidden);
    hidden = add(residual, hidden);
    return hidden;
  });
}

Tensor Net::llama(const Tensor& ids) {
  const Tensor embedded = table("model.embed_tokens", ids);
  const Tensor position_ids = positions();
  look_for_packed_sequences(position_ids, settings_.batch);
  Tensor hidden = embedded;
  if (hooks != nullptr) hooks->pre_forward(modules_.at("model.rotary_emb"));
  const auto [cos, sin] = rotary(position_ids);
  if (hooks != nullptr) hooks->post_forward(modules_.at("model.rotary_emb"));
  const Layer layer = [this, cos = cos, sin = sin](int at, const Tensor& x) {
    return llama_layer("model.layers." + std::to_string(at), x, cos, sin);
  };
  hidden = layers(std::move(hidden), layer, {cos, sin, position_ids});
  return norm("model.norm", hidden);
}

}  // namespace eager
