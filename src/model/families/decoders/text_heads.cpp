#include "model/families/decoders/text_heads.h"

#include <memory>

#include "core/format.h"

namespace dsplan {
namespace {

std::string_view kind_of(TextHead head) {
  switch (head) {
    case TextHead::LanguageModel: return "ForCausalLM";
    case TextHead::Text: return "ForSequenceClassification";
    case TextHead::Token: return "ForTokenClassification";
  }
  return {};
}

}  // namespace

std::string class_with_head(std::string_view prefix, TextHead head, std::string_view causal) {
  if (head == TextHead::LanguageModel && !causal.empty()) return std::string(causal);
  return formatted("{}{}", prefix, kind_of(head));
}

void read_text_head(ConfigReader& config, std::string_view prefix, const HeadDefaults& defaults, DecoderParts& parts,
                    Dimensions& dims) {
  const Value* classes = config.find("architectures");
  if (classes == nullptr || !classes->is(Value::Kind::Array) || classes->items.empty()) return;
  for (const TextHead head : {TextHead::Text, TextHead::Token}) {
    if (head == TextHead::Token && !defaults.tokens) continue;
    if (classes->items.front().string == class_with_head(prefix, head)) parts.head = head;
  }
  if (parts.head == TextHead::LanguageModel) return;
  dims.labels = read_label_count(config);
  const Value* id = config.find("pad_token_id");
  parts.pads = is_present(config, "pad_token_id") ? id != nullptr : defaults.padding.has_value();
  if (parts.head == TextHead::Token) {
    dims.classifier_dropout = config.maybe_number("classifier_dropout").value_or(defaults.dropout);
    return;
  }
  read_problem_type(config, dims.labels);
}

std::string register_text_head(ModelBuilder& b, const DecoderParts& parts, const Dimensions& dims,
                               const WordsHead& words) {
  const std::int64_t width = words.width > 0 ? words.width : dims.hidden;
  if (parts.head == TextHead::LanguageModel) {
    const ParameterId head = b.linear("lm_head", dims.vocab, width, words.bias, Cut::Vocabulary);
    if (words.table != kNone) b.tie(head, words.table);
    return "lm_head";
  }
  const bool token = parts.head == TextHead::Token;
  const std::string_view module = token ? parts.token_classes : "score";
  if (token) b.leaf("dropout", "Dropout");
  b.linear(module, dims.labels, width, token, Cut::Whole);
  return formatted("{}{}", token ? "dropout " : "", module);
}

ModelSpec finish_with_text_head(ModelBuilder& b, const DecoderParts& parts, const Dimensions& dims,
                                const WordsHead& words, std::string_view body) {
  const std::string head = register_text_head(b, parts, dims, words);
  ModelSpec spec = b.finish(formatted("{} {}", body, head));
  spec.dims = dims;
  if (parts.head != TextHead::LanguageModel) spec.parts = std::make_shared<const DecoderParts>(parts);
  return spec;
}

}  // namespace dsplan
