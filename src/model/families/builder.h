// Registers modules, parameters and buffers in the order in which a framework's __init__ does, and writes down the
// order in which a forward calls them, so that a family's file reads like the model's class in brief.
//
// A forward is written as text: names of children separated by blanks, `a.b` for a grandchild called without its
// parent, `name(...)` for a module whose children are called inside it, `name*` for every layer of a module list, each
// with the text that it was registered with. "model(embed_tokens layers* norm) lm_head" is a whole decoder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/model.h"
#include "model/config/config_reader.h"

namespace dsplan {

// How Megatron cuts a linear layer (core/model.h, Split, says what that means for its weight and bias).
enum class Cut : std::uint8_t { Whole, Column, Row, KeyValue, QueryKeyValue, Vocabulary, Unknown };

// How many dimensions of each head the rotary positions turn; transformers rounds down.
[[nodiscard]] inline std::int64_t rotated(const Dimensions& dims) {
  return static_cast<std::int64_t>(static_cast<double>(dims.head_dim) * dims.rotary_fraction);
}

class ModelBuilder {
 public:
  // `config` must outlive the builder; refusals point into it.
  explicit ModelBuilder(const ConfigReader& config, std::string_view root_type);
  // The same weights as another program writes them: a reader has checked the sizes of `model`.
  ModelBuilder(const ModelSpec& model, std::string_view root_type);

  // An open module: what is registered until its end belongs to it.
  class Scope {
   public:
    Scope(ModelBuilder& builder, ModuleId id) : builder_(&builder), id_(id) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { builder_->close(); }
    [[nodiscard]] ModuleId id() const { return id_; }

   private:
    ModelBuilder* builder_;
    ModuleId id_;
  };
  [[nodiscard]] Scope module(std::string_view name, std::string_view type);
  // The next checkpointable layer, child `index` of the open module list; `forward` is what its forward calls and must
  // stay alive until `finish`.
  [[nodiscard]] Scope layer(std::int64_t index, std::string_view type, std::string_view forward);
  // A module without children or parameters: dropout, activation.
  void leaf(std::string_view name, std::string_view type);

  ParameterId parameter(std::string_view leaf, const Shape& shape, Split split, std::uint8_t split_dim = 0);
  void buffer(std::string_view leaf, const Shape& shape, DType dtype, bool follows_model_dtype, bool converted = false);
  // What is registered so far, for whoever has more to say of the latest: its dtype, that it is counted or not trained.
  [[nodiscard]] ModelSpec& so_far() { return spec_; }

  // torch.nn.Linear: weight [out, in], bias [out]. Returns the weight.
  ParameterId linear(std::string_view name, std::int64_t out, std::int64_t in, bool bias, Cut cut,
                     std::string_view type = "Linear");
  // transformers' Conv1D: weight [in, out], bias [out].
  void conv1d(std::string_view name, std::int64_t out, std::int64_t in, Cut cut);
  ParameterId embedding(std::string_view name, std::int64_t rows, std::int64_t width, Split split,
                        std::string_view type = "Embedding");
  void rms_norm(std::string_view name, std::int64_t size, std::string_view type);
  // `affine` false: neither weight nor bias.
  void layer_norm(std::string_view name, std::int64_t size, bool affine = true);
  void activation(std::string_view name, std::string_view function);
  // The rotary module of transformers: the inverse frequencies of `rotated` dimensions and an untouched copy, both
  // always float32.
  // `kinds` of layers, where each has tables of its own; `first_rotated`: of the first, where that is another.
  void rotary(std::string_view name, std::string_view type, std::int64_t rotated,
              const std::vector<std::string>& kinds = {""}, std::int64_t first_rotated = 0);
  // `parameter` shares the storage of `source`.
  void tie(ParameterId parameter, ParameterId source);

  // Products of sizes; refused with a place where they leave 63 bits.
  [[nodiscard]] std::int64_t times(std::int64_t a, std::int64_t b) const { return config_->times(a, b); }
  [[nodiscard]] std::int64_t plus(std::int64_t a, std::int64_t b) const { return config_->plus(a, b); }

  // Writes the calls of one forward of the root and gives the model away.
  [[nodiscard]] ModelSpec finish(std::string_view forward);

 private:
  struct Layer {
    ModuleId module;
    ModuleId list;
    ModuleId end;  // One past the last module inside.
    std::string_view forward;
  };
  // The calls of a layer, with modules counted from the layer's own. Layers with the same text and as many modules
  // are built alike, so this is worked out once.
  struct Recorded {
    std::string_view forward;
    ModuleId modules;
    std::vector<ModuleCall> calls;
  };

  ModuleId open(std::string_view name, std::string_view type);
  void close();
  void expect_more_layers();
  [[nodiscard]] std::string path_of(std::string_view leaf) const;
  void call_layers(ModuleId list);
  void run(ModuleId self, std::string_view& text);

  const ConfigReader* config_ = nullptr;  // nullptr: sizes have been checked.
  ModelSpec spec_;
  ModuleId current_ = 0;
  std::vector<Layer> layers_;
  std::size_t before_layers_ = 0;  // Parameters registered ahead of the first layer.
  std::vector<Recorded> recorded_;
  std::int64_t elements_ = 0;
};

}  // namespace dsplan
