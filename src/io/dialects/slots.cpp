#include "io/dialects/slots.h"

#include <algorithm>
#include <optional>

#include "core/dialects/dialects.h"
#include "core/format.h"
#include "core/settings.h"
#include "io/dialects/dialect_file.h"
#include "io/text.h"

namespace dsplan {
namespace {

struct Belongs {
  FileSlot slot;
  std::string what;
  std::string option;
};

bool has_any(const Value& root, std::initializer_list<const char*> keys) {
  return std::any_of(keys.begin(), keys.end(), [&root](const char* key) { return root.find(key) != nullptr; });
}

bool is_model(const Value& root) {
  const Value* const type = root.find("model_type");
  return type != nullptr && type->is(Value::Kind::String) &&
         has_any(root, {"architectures", "vocab_size", "hidden_size", "text_config"});
}

bool is_of_dialects(std::string_view key) {
  const std::span<const DialectTable> all = dialects();
  return std::any_of(all.begin(), all.end(), [key](const DialectTable& one) { return find_key(one, key) != nullptr; });
}

// Keys of DeepSpeed alone, and of dialects alone: "bf16" is of both.
struct Counts {
  std::size_t deepspeed = 0;
  std::size_t dialects = 0;
};

Counts count(const Value& root) {
  Counts counts;
  for (const Member& member : root.members) {
    if (member.key == "model_type") continue;  // axolotl's, and every model's.
    const bool deepspeed = find_deepspeed_key(member.key) != nullptr;
    const bool dialect = is_of_dialects(member.key);
    counts.deepspeed += deepspeed && !dialect ? 1 : 0;
    counts.dialects += dialect && !deepspeed ? 1 : 0;
  }
  return counts;
}

std::optional<Belongs> belongs(const Document& document) {
  const Value& root = document.root;
  if (!root.is(Value::Kind::Object) || root.find("dsplan") != nullptr) return std::nullopt;
  if (is_model(root)) return Belongs{FileSlot::Model, "a model's config.json", "simulate"};
  const Counts counts = count(root);
  if (counts.deepspeed > counts.dialects) return Belongs{FileSlot::DeepSpeed, "a DeepSpeed JSON", "--deepspeed"};
  if (counts.dialects == 0 || counts.deepspeed > 0) return std::nullopt;
  try {
    return Belongs{FileSlot::Training, std::string(recognise(document).what), "--training"};
  } catch (const Refusal&) {
    return std::nullopt;  // Of two dialects, or of a program that nobody reads.
  }
}

}  // namespace

void refuse_other_slot(const Document& document, FileSlot wanted) {
  const std::optional<Belongs> found = belongs(document);
  if (!found || found->slot == wanted) return;
  // A training file may be a DeepSpeed JSON.
  if (wanted == FileSlot::Training && found->slot == FileSlot::DeepSpeed) return;
  const std::string_view here = wanted == FileSlot::Model       ? "no model"
                                : wanted == FileSlot::DeepSpeed ? "no DeepSpeed JSON"
                                                                : "no training file";
  const std::string hint = found->slot == FileSlot::Model ? formatted("it is MODEL: dsplan simulate {}", document.path)
                                                          : formatted("say {} {}", found->option, document.path);
  throw Refusal({document.at(document.root.offset, formatted("this is {}, and {}", found->what, here), hint)});
}

void refuse_other_slot(const std::string& path, const std::string& text, FileSlot wanted) {
  std::optional<Document> document;
  try {
    document = parse_yaml(path, text);
  } catch (const Refusal&) {
    return;
  }
  refuse_other_slot(*document, wanted);
}

}  // namespace dsplan
