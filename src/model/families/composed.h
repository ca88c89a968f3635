// Models that are put together of others: a tower and a language model, each described by a config of its own within
// the config. Their modules move to other paths, their layers are numbered on.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/model.h"
#include "model/config/config_reader.h"
#include "model/parts.h"

namespace dsplan {

// The object at `key` as a config of its own, whose places are this file's; an empty one where the key is missing. It
// lives as long as the reader.
[[nodiscard]] const Document& part_of(ConfigReader& config, std::string_view key);

// The model of the config at `key`, of the family that its model_type names, or `usual`. `known` are the families that
// may stand there; another is refused by name. What nobody knows of its keys, and its gaps, become the reader's.
[[nodiscard]] ModelSpec build_part(ConfigReader& config, std::string_view key, std::string_view usual,
                                   const std::vector<std::string_view>& known);

// What was noticed of a part becomes the whole's: keys that nobody knows of the family, faults and gaps. Throws where
// the part had a fault before, which makes what was read of it worthless.
void take_remarks(ConfigReader& config, ConfigReader& inner, std::string_view family);

// clip.cpp: the tower of idefics3 or smolvlm, which no model_type names by itself.
[[nodiscard]] ModelSpec build_idefics3_tower(ConfigReader& config, bool smolvlm);

class Composition {
 public:
  explicit Composition(std::string_view root_type);

  // A module of the whole's own, or a leaf with parameters: the caller registers them in order.
  ModuleId module(ModuleId parent, std::string_view name, std::string_view type);
  ParameterId parameter(ModuleId module, std::string_view leaf, const Shape& shape);
  ModuleId linear(ModuleId parent, std::string_view name, std::int64_t out, std::int64_t in, bool bias);
  // The weights of two modules are one.
  void tie(ModuleId module, ModuleId source);

  // `from` of `part` with all inside becomes child `name` of `parent`. One module of a part at a time, in registration
  // order; returns a number for `call`.
  std::size_t take(const ModelSpec& part, ModuleId from, ModuleId parent, std::string_view name);

  // The order of calls of one forward: of modules of the whole's own, and of what was taken, as its part calls it.
  void enter(ModuleId module) { spec_.calls.push_back({module, true}); }
  void leave(ModuleId module) { spec_.calls.push_back({module, false}); }
  // `ones`: modules of the part that are called there alone, or that are not called there.
  enum class Calls : std::uint8_t { All, Only, AllBut };
  void call(std::size_t taken, const std::vector<ModuleId>& ones = {}, Calls which = Calls::All);
  // Where a module of the part is now.
  [[nodiscard]] ModuleId moved(std::size_t taken, ModuleId from) const {
    return taken_[taken].modules[static_cast<std::size_t>(from)];
  }

  [[nodiscard]] ModelSpec& spec() { return spec_; }

 private:
  struct Taken {
    const ModelSpec* part;
    ModuleId from;
    std::vector<ModuleId> modules;  // By the part's; kNone outside.
  };
  [[nodiscard]] std::string path_of(ModuleId parent, std::string_view name) const;

  ModelSpec spec_;
  std::vector<Taken> taken_;
  std::vector<std::pair<const ModelSpec*, std::vector<ParameterId>>> parameters_;  // By part: where each is now.
  std::int32_t layers_ = 0;
  const ModelSpec* numbered_ = nullptr;  // The part whose layers were numbered last.
  std::int32_t before_ = 0;              // Layers before that part's.
};

// Dimensions and parts of the whole: the text's, with the tower; layers are counted over both.
void describe_shown(ModelSpec& spec, const ModelSpec& text, TowerParts tower);

// A tower, a projector and a language model that is given the text's embedding with the pictures among it.
struct ShownModel {
  std::string_view root;  // Classes: "LlavaForConditionalGeneration", "LlavaModel", "LlavaMultiModalProjector".
  std::string_view body;
  std::string_view projector;     // Empty: the tower's own end.
  bool tied = false;              // The head is the embedding, whatever the language model's own config says.
  std::string_view newline = {};  // A parameter of the body's own, as wide as the text; empty: none.
};
// Registers what is inside the projector, and returns what its forward calls, in order; behind a module what is called
// inside it.
using Projector = std::function<std::vector<ModuleId>(Composition& whole, ModuleId projector)>;
[[nodiscard]] ModelSpec compose(const ShownModel& shown, const ModelSpec& vision, const ModelSpec& text,
                                TowerParts tower, const Projector& projector);

}  // namespace dsplan
