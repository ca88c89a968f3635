// transformers 5.17.0, models/gpt2/modeling_gpt2.py.
#include "eager/model.h"

namespace eager {
namespace {

// view(B, S, -1, D).transpose(1, 2)
Tensor by_head(const Tensor& part, std::int64_t dimension) {
  return transpose(view(part, {part->size(0), part->size(1), part->size(2) / dimension, dimension}), 1, 2);
}

}  // namespace

Tensor Net::gpt2_attention(const std::string& path, const Tensor& hidden) {
  const bool cut = settings_.tp > 1;
  Tensors parts = split_last(conv1d(path + ".c_attn", cut ? copy_to_region(hidden) : hidden), d_.heads * d_.head_dim);
  Tensor key = std::move(parts[1]);
  Tensor value = std::move(parts[2]);
  Tensor query = std::move(parts[0]);
  key = by_head(key, d_.head_dim);
  value = by_head(value, d_.head_dim);
  query = by_head(query, d_.head_dim);
  Tensor output = attend(query, key, value);
  output = transpose(output, 1, 2);
  output = view(output, {output->size(0), output->size(1), d_.heads * d_.head_dim});
  output = cut ? row(path + ".c_proj", output) : conv1d(path + ".c_proj", output);
  output = call(path + ".resid_dropout", output, [&](const Tensor& x) { return dropout(x, d_.residual_dropout); });
  return output;
}

Tensor Net::gpt2_mlp(const std::string& path, const Tensor& argument) {
  return call(path, argument, [&](const Tensor& in) {
    const bool cut = settings_.tp > 1;
    Tensor hidden = conv1d(path + ".c_fc", cut ? copy_to_region(in) : in);
    hidden = call(path + ".act", hidden, [](const Tensor& x) { return gelu_new(x); });
    hidden = cut ? row(path + ".c_proj", hidden) : conv1d(path + ".c_proj", hidden);
    hidden = call(path + ".dropout", hidden, [&](const Tensor& x) { return dropout(x, d_.residual_dropout); });
    return hidden;
  });
}

Tensor Net::gpt2_block(const std::string& path, const Tensor& argument) {
  const auto norm_of = [&](const std::string& name, const Tensor& x) {
    return call(name, x, [&](const Tensor& in) {
      return layer_norm(in, parameter(name + ".weight"), parameter(name + ".bias"));
    });
  };
  return call(path, argument, [&](const Tensor& in) {
    Tensor residual = in;
    Tensor hidden = norm_of(path + ".ln_1", in);
    const Tensor attended =
        call(path + ".attn", hidden, [&](const Tensor& x) { return gpt2_attention(path + ".attn", x); });
    hidden = add(attended, residual);
    residual = hidden;
    hidden = norm_of(path + ".ln_2", hidden);
    const Tensor fed = gpt2_mlp(path + ".mlp", hidden);
    hidden = add(residual, fed);
    return hidden;
  });
}

Tensor Net::gpt2(const Tensor& ids) {
  const Tensor words = table("transformer.wte", ids);
  const Tensor position_ids = positions();
  const Tensor places = table("transformer.wpe", position_ids);
  Tensor hidden = add(words, places);
  look_for_packed_sequences(position_ids, settings_.batch);
  hidden = call("transformer.drop", hidden, [&](const Tensor& x) { return dropout(x, d_.embedding_dropout); });
  hidden = layers(std::move(hidden),
                  [this](int at, const Tensor& x) { return gpt2_block("transformer.h." + std::to_string(at), x); },
                  {position_ids});
  hidden = call("transformer.ln_f", hidden, [&](const Tensor& in) {
    return layer_norm(in, parameter("transformer.ln_f.weight"), parameter("transformer.ln_f.bias"));
  });
  return view(hidden, hidden->sizes);
}

}  // namespace eager
