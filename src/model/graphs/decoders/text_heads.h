// Heads over the classes of a text or of its tokens, behind any decoder's last norm.
#pragma once

#include <functional>
#include <vector>

#include "model/graphs/builder.h"
#include "model/parts.h"

namespace dsplan {

// logits[arange(B), last], where `last` is the rightmost token that is no padding; without padding the last of all.
// `held`: takes what the model's forward holds until it returns.
[[nodiscard]] TensorId text_logits(GraphBuilder& g, const DecoderParts& parts, TensorId ids, TensorId hidden,
                                   std::vector<TensorId>& held);
// Classes of each token, likewise.
[[nodiscard]] TensorId token_logits(GraphBuilder& g, const DecoderParts& parts, TensorId hidden,
                                    std::vector<TensorId>& held);

// What a batch brings beside its tokens: a class for each text or each token, or a number for each text.
[[nodiscard]] TensorId class_labels(GraphBuilder& g, const DecoderParts& parts, TensorId ids);
// Head, loss and the end of the model's forward; lets go of `hidden` and of what is held. `widens`: the loss of tokens
// is in fp32.
[[nodiscard]] TensorId classes_loss(GraphBuilder& g, const DecoderParts& parts, TensorId ids, TensorId hidden,
                                    TensorId labels, std::vector<TensorId> held, bool widens,
                                    const std::vector<TensorId>& cache = {});

}  // namespace dsplan
