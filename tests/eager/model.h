// GPT-2 and Llama as transformers 5.17.0 runs them, statement by statement, so that C++ locals die where Python's do.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "core/model.h"
#include "eager/op.h"

namespace eager {

// What hangs on every module that is called.
struct ModuleHooks {
  virtual ~ModuleHooks() = default;
  virtual bool wraps_tensors(int /*module*/) const { return false; }  // Autograd functions around inputs and outputs.
  // Tensor hooks on outputs alone.
  virtual bool hooks_outputs(int module) const { return wraps_tensors(module); }
  // Of layers: it lies around their checkpoints, which run nothing of it again.
  virtual bool around_checkpoints() const { return false; }
  virtual void pre_forward(int /*module*/) {}
  virtual void post_forward(int /*module*/) {}
  virtual void pre_backward(int /*module*/) {}
  virtual void post_backward(int /*module*/) {}
  // A hook on what the module is given, behind the ones that are there.
  virtual bool hooks_inputs(int /*module*/) const { return false; }
  virtual void input_has_gradient(int /*module*/) {}
};

struct Settings {
  std::int64_t batch = 1;
  std::int64_t seq = 1;
  DType dtype = DType::BFloat16;
  bool memory_efficient = false;
  bool stage3_linear = false;
  std::vector<std::pair<int, int>> checkpoints;  // First and last layer of each.
  bool reentrant = false;
  std::int64_t tp = 1;            // The model given is one rank's part.
  std::vector<bool> frozen = {};  // By parameter; empty: none.
};

// The parameters are there, without memory: a runtime gives it to them.
class Net {
 public:
  Net(const dsplan::ModelSpec& spec, Settings settings);

  // By position in named_parameters(); ties resolved to the first.
  Tensors parameters;
  std::vector<int> module_of;  // The first module that owns it.
  ModuleHooks* hooks = nullptr;
  std::vector<Tensor> buffers;

  // `copied`: as DistributedDataParallel's _DDPSink hands on what the model returns, loss and logits.
  [[nodiscard]] Tensor loss(const Tensor& ids, const Tensor& labels, bool copied = false);
  [[nodiscard]] bool is_cut() const { return settings_.tp > 1; }

 private:
  using Body = std::function<Tensor(const Tensor& x)>;
  // Where hooks lie around a layer's checkpoint, its own call has none.
  struct Inside;
  // A module: hooks around its forward. What it is given by keyword has none.
  Tensor call(const std::string& path, const Tensor& x, const Body& forward);
  Tensor call_by_keyword(const std::string& path, const std::function<Tensor()>& forward);
  [[nodiscard]] Tensor parameter(const std::string& name) const;
  Tensor dense(const std::string& path, const Tensor& x);
  Tensor conv1d(const std::string& path, const Tensor& x);
  // Cut over the tensor-parallel ranks along its input.
  Tensor row(const std::string& path, const Tensor& x);
  Tensor norm(const std::string& path, const Tensor& x);
  Tensor table(const std::string& path, const Tensor& ids);
  [[nodiscard]] Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v) const;
  [[nodiscard]] Tensor positions() const;

  Tensor gpt2(const Tensor& ids);
  Tensor gpt2_block(const std::string& path, const Tensor& argument);
  Tensor gpt2_attention(const std::string& path, const Tensor& hidden);
  Tensor gpt2_mlp(const std::string& path, const Tensor& hidden);
  Tensor llama(const Tensor& ids);
  std::pair<Tensor, Tensor> rotary(const Tensor& position_ids);
  Tensor llama_layer(const std::string& path, const Tensor& argument, const Tensor& cos, const Tensor& sin);
  Tensor llama_attention(const std::string& path, const Tensor& hidden, const Tensor& cos, const Tensor& sin);
  Tensor llama_mlp(const std::string& path, const Tensor& hidden);

  // The layers, those that are grouped under a checkpoint together; `rest` is what else a layer is called with.
  using Layer = std::function<Tensor(int layer, const Tensor& hidden)>;
  Tensor layers(Tensor hidden, const Layer& layer, const Tensors& rest);

  const dsplan::ModelSpec& spec_;
  const dsplan::Dimensions& d_;
  Settings settings_;
  std::map<std::string, int> modules_;
  std::map<std::string, int> names_;
  int inside_ = -1;
};

// Shared by the two: transformers' masking_utils.py and loss/loss_utils.py.
void look_for_packed_sequences(const Tensor& position_ids, std::int64_t batch);
[[nodiscard]] Tensor causal_loss(Tensor logits, Tensor labels);
// Megatron-LM's; see parallel.cpp.
[[nodiscard]] Tensor copy_to_region(const Tensor& x);
[[nodiscard]] Tensor reduce_from_region(const Tensor& x);
[[nodiscard]] Tensor vocabulary_table(const Tensor& weight, const Tensor& ids);
[[nodiscard]] Tensor vocab_parallel_cross_entropy(const Tensor& logits, const Tensor& target);
[[nodiscard]] Tensor parallel_causal_loss(const Tensor& logits, const Tensor& labels);
[[nodiscard]] Tensor gelu_new(const Tensor& x);

}  // namespace eager
