#include "model/families/encoders/heads.h"

#include "core/format.h"

namespace dsplan {

EncoderHead read_encoder_head(ConfigReader& config, std::string_view prefix, bool answers) {
  const Value* classes = config.find("architectures");
  if (classes == nullptr || !classes->is(Value::Kind::Array) || classes->items.empty()) return EncoderHead::None;
  for (const EncoderHead head : {EncoderHead::MaskedLm, EncoderHead::Text, EncoderHead::Token, EncoderHead::Answer}) {
    if (head == EncoderHead::Answer && !answers) continue;
    if (classes->items.front().string == encoder_class(prefix, head)) return head;
  }
  return EncoderHead::None;
}

std::string encoder_class(std::string_view prefix, EncoderHead head) {
  switch (head) {
    case EncoderHead::None: return formatted("{}Model", prefix);
    case EncoderHead::MaskedLm: return formatted("{}ForMaskedLM", prefix);
    case EncoderHead::Text: return formatted("{}ForSequenceClassification", prefix);
    case EncoderHead::Token: return formatted("{}ForTokenClassification", prefix);
    case EncoderHead::Answer: return formatted("{}ForQuestionAnswering", prefix);
  }
  return {};
}

void register_output(ModelBuilder& b, const std::string& type, std::int64_t out, std::int64_t in, Cut cut) {
  const auto output = b.module("output", type);
  b.linear("dense", out, in, true, cut);
  b.layer_norm("LayerNorm", out);
  b.leaf("dropout", "Dropout");
}

std::string register_word_predictions(ModelBuilder& b, const Dimensions& d, std::string_view prefix,
                                      ParameterId words) {
  const auto head = b.module("cls", formatted("{}OnlyMLMHead", prefix));
  const auto predictions = b.module("predictions", formatted("{}LMPredictionHead", prefix));
  const ParameterId own = b.parameter("bias", {d.vocab}, Split::Vocabulary);
  {
    const auto transform = b.module("transform", formatted("{}PredictionHeadTransform", prefix));
    b.linear("dense", d.hidden, d.hidden, true, Cut::Whole);
    b.activation("transform_act_fn", d.activation);
    b.layer_norm("LayerNorm", d.hidden);
  }
  const ParameterId weight = b.linear("decoder", d.vocab, d.hidden, true, Cut::Vocabulary);
  if (words != kNone) {
    b.tie(weight, words);
    b.tie(weight + 1, own);
  }
  return "cls(predictions(transform(dense transform_act_fn LayerNorm) decoder))";
}

}  // namespace dsplan
