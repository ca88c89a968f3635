#include "exec/batch.h"

#include "core/error.h"

namespace dsplan::exec {
namespace {

// Written for this purpose: repetitive on purpose, so that a few steps of a tiny model learn something of it.
constexpr const char* kText =
    "A plan is a promise about memory. The parameters are there before the first batch, the gradients come and go, "
    "the moments come with the first step and stay. Between forward and backward the activations wait: each layer "
    "keeps what its backward will read, and lets go of it when it has read it. A checkpoint keeps less and computes "
    "more. A shard keeps its part and asks the others for theirs. A bucket fills, is reduced, is emptied, fills again. "
    "What is gathered is used and let go. What is used again soon is kept a little longer. Every byte has an owner, "
    "every owner has a reason, and every reason can be read. The planner says how much; the executor shows how much; "
    "where the two part, one of them is wrong, and the first event at which they part says which. ";

}  // namespace

Text::Text() : Text(kText) {}

Text::Text(std::string text) : text_(std::move(text)) {
  DSPLAN_CHECK(text_.size() >= 2, "a text of at least two bytes");
}

std::vector<std::int64_t> Text::tokens(std::int64_t sample, std::int64_t length, std::int64_t vocabulary) const {
  // A step that has no factor in common with most lengths: samples begin all over the text.
  constexpr std::int64_t kStep = 37;
  std::vector<std::int64_t> ids;
  const auto size = static_cast<std::int64_t>(text_.size());
  for (std::int64_t i = 0; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text_[static_cast<std::size_t>((sample * kStep + i) % size)]);
    ids.push_back(byte % vocabulary);
  }
  return ids;
}

}  // namespace dsplan::exec
