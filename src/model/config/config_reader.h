// Typed access to a config.json with the defaults of a config class. Faults are collected with their places; a faulty
// key reads as its fallback, so that one pass finds them all, and rules between keys are judged only where every key
// involved is sound.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/document.h"
#include "core/units.h"

namespace dsplan {

struct ConfigGap {
  const Value* value;
  std::string key;
  std::string what;
  bool by_chance = false;  // The graph is that of the steps that take most: told, and predicted.
};

struct UnknownKey {
  const Member* member;
  std::string_view nearest;  // Among the keys that somebody knows; may be empty.
};

class ConfigReader {
 public:
  // `config.root` must be an object; `config` must outlive the reader.
  explicit ConfigReader(const Document& config);

  // A size of at least 1. `alias` is another name that the config class accepts for the same attribute; two values
  // that contradict each other are a fault. null is a fault: the config class has no meaning for it.
  [[nodiscard]] std::int64_t size(std::string_view key, std::int64_t fallback, std::string_view alias = {});
  // Like size, for attributes that may be None: nullopt where the key is null (or absent without a fallback).
  [[nodiscard]] std::optional<std::int64_t> maybe_size(std::string_view key, std::optional<std::int64_t> fallback = {});
  // A count that may be 0; `alias` as in size.
  [[nodiscard]] std::int64_t count(std::string_view key, std::int64_t fallback, std::string_view alias = {});
  [[nodiscard]] bool flag(std::string_view key, bool fallback);
  // A dropout rate: from 0 to 1.
  [[nodiscard]] double probability(std::string_view key, double fallback);
  [[nodiscard]] std::optional<double> maybe_number(std::string_view key, std::optional<double> fallback = {});
  [[nodiscard]] std::optional<std::string> maybe_string(std::string_view key);
  // The name of an activation function; unknown ones are faults with the nearest known one, those with parameters of
  // their own are refused by name.
  [[nodiscard]] std::string activation(std::string_view key, std::string_view fallback);
  // The entries of an array of layer indices (mlp_only_layers), each within [0, layers).
  [[nodiscard]] std::vector<std::int64_t> indices(std::string_view key, std::int64_t layers);
  // Layer count: from 1 to kMostLayers.
  [[nodiscard]] std::int64_t layer_count(std::string_view key, std::int64_t fallback, std::string_view alias = {});
  // `dtype`, else `torch_dtype`; nullopt where neither says.
  [[nodiscard]] std::optional<DType> dtype();
  // The rotated share of each head: rope_parameters, else rope_scaling, else the top level, else `fallback`.
  [[nodiscard]] double rotary_share(std::string_view key, double fallback);
  // The base of the rotary frequencies: likewise.
  [[nodiscard]] double rotary_base(double fallback);
  // The raw value; nullptr where absent or null.
  [[nodiscard]] const Value* find(std::string_view key) { return object.find(key); }

  // null is a fault; for keys that are then read as maybe_...
  void refuse_null(std::string_view key, std::string_view wanted);

  // `whole` must be a multiple of `part`; the fault stands at `part_key`. No fault where either key is faulty.
  void require_divides(std::string_view part_key, std::int64_t part, std::string_view whole_key, std::int64_t whole);

  // `part` must not exceed `whole`; the fault stands at `part_key`.
  void require_at_most(std::string_view part_key, std::int64_t part, std::string_view whole_key, std::int64_t whole);
  // Products and sums of sizes; refused at the largest size read where they leave 63 bits.
  [[nodiscard]] std::int64_t times(std::int64_t a, std::int64_t b) const;
  [[nodiscard]] std::int64_t plus(std::int64_t a, std::int64_t b) const;

  void fault(std::string_view key, std::string message, std::string hint = {});
  void fault(const Value& value, std::string message, std::string hint = {});
  [[nodiscard]] bool sound(std::string_view key) const;
  // All faults together, in the order of the file.
  void throw_if_any() const;
  // Faults of an object inside become the whole's, to be thrown with them. Says whether there were any.
  friend bool take_faults(ConfigReader& inner, ConfigReader& whole);
  // A refusal at the value of `key` (at the object where it is absent).
  [[noreturn]] void refuse(std::string_view key, std::string message, std::string hint = {}) const;
  // A refusal of something that grew too large, at the largest size that was read.
  [[noreturn]] void refuse_largest(std::string message) const;
  // Refuses more than kMostTensors tensors, at the layer count.
  void check_tensors(std::int64_t tensors) const;
  [[nodiscard]] std::int64_t layers() const { return layers_; }  // As read last by layer_count.

  [[nodiscard]] const Value& root() const { return config_->root; }
  [[nodiscard]] const Document& config() const { return *config_; }

  // Values for which activations differ from what any graph models; the states do not.
  std::vector<ConfigGap> gaps;
  std::vector<UnknownKey> unknown_inside;  // Keys of parts that nobody knows.
  std::list<Document> parts;               // Objects inside that are configs of their own.
  // Remembers which keys were asked for.
  ObjectReader object;

 private:
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key, std::int64_t least, std::int64_t most);
  // The key under which a value stands: `key`, else `alias` where only that one is there.
  [[nodiscard]] std::string_view spelled(std::string_view key, std::string_view alias);
  [[nodiscard]] bool is_null(std::string_view key) const;

  const Document* config_;
  Diagnostics diagnostics_;
  std::vector<std::string> faulty_;
  const Value* largest_ = nullptr;
  const Value* layers_value_ = nullptr;
  std::int64_t layers_ = 0;
};

// The key is there, be it null.
[[nodiscard]] inline bool is_present(const ConfigReader& config, std::string_view key) {
  return config.root().find(key) != nullptr;
}
// How many classes a head tells apart: id2label, else num_labels, else 2.
[[nodiscard]] std::int64_t read_label_count(ConfigReader& config);
// Whether `architectures` names the class of pictures with a classifier, "ViTForImageClassification"; false: its body,
// "ViTModel". Another class is a fault; without the key it is the classifier. `prefix`: "ViT".
[[nodiscard]] bool read_picture_classifier(ConfigReader& config, std::string_view prefix);
// `problem_type` of a text's class. A gap where the loss is neither that of one class among `labels` nor that of one
// number.
std::optional<std::string> read_problem_type(ConfigReader& config, std::int64_t labels);

// The torch.nn or transformers class behind an activation's name (ACT2CLS of transformers 5.17.0); empty where there
// is none, or where it has parameters of its own.
[[nodiscard]] std::string_view activation_class(std::string_view name);

}  // namespace dsplan
