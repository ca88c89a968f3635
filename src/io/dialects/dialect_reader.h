// How a dialect's reader is put together. Not for use outside io's readers.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dialects/dialects.h"
#include "core/document.h"
#include "core/inputs.h"

namespace dsplan::detail {

// One value where it stands: in a document, or behind an argument of a command line.
struct Spoken {
  const DialectKey& key;
  std::string_view written;  // The whole path, as messages say it.
  const Value& value;
  Place place;
  bool text = false;               // Digits and words in quotes count as numbers and flags.
  const Document* file = nullptr;  // Of the value.
};

// Reads values into what is said; faults are collected.
class DialectValues {
 public:
  // `launcher`: the table is accelerate's own.
  DialectValues(Said& said, bool launcher, Diagnostics& faults)
      : said_(said), request_(said.request), foreign_(said.foreign), launcher_(launcher), faults_(faults) {}

  void honour(const Spoken& said);
  // Remembers what is not modelled, unless the value asks for nothing.
  void refuse(const Spoken& said);
  void inert(const Spoken& said);
  // What several keys say together.
  void finish();

 private:
  void plain(const Spoken& said);
  void switch_on(const Spoken& said);
  void checkpointing(const Spoken& said, bool on);
  void deepspeed(const Spoken& said);
  void targets(const Spoken& said);
  void method(const Spoken& said);
  void bits(const Spoken& said, std::int64_t count);
  void environment(const Spoken& said);
  void distribution(const Spoken& said);
  void attention(const Spoken& said);
  void not_modelled(const Spoken& said, std::string feature);

  Said& said_;
  Request& request_;
  ForeignInput& foreign_;
  bool launcher_;
  Diagnostics& faults_;
  std::optional<Place> packs_;                  // adapter: qlora
  std::optional<Place> older_;                  // A key that transformers 4 alone has.
  std::optional<Place> length_, older_length_;  // TRL's max_length, and what it was called.
  // accelerate's DeepSpeedPlugin, which becomes a configuration where no file is named.
  std::optional<DeepSpeedInput> plugin_;
  Place plugin_place_;  // Of its first key.
};

// A key of accelerate's deepspeed_config (accelerate/utils/dataclasses.py, DeepSpeedPlugin).
void take_plugin_key(const Spoken& said, DeepSpeedInput& plugin, Request& request, Diagnostics& faults);
// Where no file is named, accelerate writes a configuration with "auto" for the batch.
void finish_plugin(DeepSpeedInput plugin, Request& request);

// torchtitan names a model in two words: they become ForeignInput::model, or what is not modelled.
void name_torchtitan_model(ForeignInput& foreign, Request& request);

// A fault where a value is not of its key's type.
void judge_type(const Spoken& said, Diagnostics& faults);

// What the readers of values share: the value as a person would write it, "a|b" as a list, and a fault.
[[nodiscard]] std::string text_of(const Value& value);
[[nodiscard]] std::vector<std::string_view> listed(std::string_view choices);
[[nodiscard]] bool one_of(std::string_view text, std::string_view choices);
void wrong(const Spoken& said, std::string_view wanted, Diagnostics& faults);

// "${NAME}", "${NAME:-other}" and "${oc.env:NAME,other}" in the texts of a document give way to the environment's
// values; a text that becomes a number, true or false is one then. Faults: variables that are not set, other words in
// braces.
void take_environment(Document& document, Diagnostics& faults);

}  // namespace dsplan::detail
