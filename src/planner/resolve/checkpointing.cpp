#include "planner/resolve/checkpointing.h"

#include <fmt/format.h>

#include <charconv>

namespace dsplan {
namespace {

[[noreturn]] void refuse(const Place& place, std::string message, std::string hint = {}) {
  throw Refusal({place.says(std::move(message), std::move(hint))});
}

CheckpointGroup group(std::int64_t first, std::int64_t last) {
  return {static_cast<std::int32_t>(first), static_cast<std::int32_t>(last)};
}

// The K of "every:K", if `text` begins with `word` and a colon.
std::optional<std::int64_t> factor(const Setting<std::string>& wished, std::string_view word) {
  const std::string_view text = *wished;
  if (!text.starts_with(word) || text.size() <= word.size() || text[word.size()] != ':') return std::nullopt;
  const char* const begin = text.data() + word.size() + 1;
  const char* const end = text.data() + text.size();
  std::int64_t k = 0;
  const auto [at, error] = std::from_chars(begin, end, k);
  if (error != std::errc() || at != end || k < 1) {
    refuse(wished.place, fmt::format("\"{}\" needs a number of at least 1 after \"{}:\"", text, word));
  }
  return k;
}

std::vector<CheckpointGroup> runs(std::int64_t size, std::int64_t end) {
  std::vector<CheckpointGroup> groups;
  for (std::int64_t first = 0; first < end; first += size) {
    groups.push_back(group(first, std::min(end - first, size) + first - 1));
  }
  return groups;
}

std::vector<CheckpointGroup> segments(const Setting<std::string>& wished, std::int64_t k, std::int64_t layers) {
  const std::int64_t size = layers / k;
  if (size == 0) {
    refuse(wished.place, fmt::format("{} segments of {} layers", k, layers),
           "checkpoint_sequential needs a layer for each segment");
  }
  return runs(size, size * (k - 1));
}

std::vector<CheckpointGroup> nth(std::int64_t k, std::int64_t layers) {
  std::vector<CheckpointGroup> groups;
  for (std::int64_t layer = 0; layer < layers; layer += std::min(k, layers)) groups.push_back(group(layer, layer));
  return groups;
}

std::vector<CheckpointGroup> listed(const std::vector<CheckpointEntry>& entries, std::int64_t layers) {
  std::vector<CheckpointGroup> groups;
  for (const CheckpointEntry& entry : entries) {
    if (entry.last >= layers) {
      refuse(entry.place, fmt::format("layer {} does not exist: the model has layers 0 to {}", entry.last, layers - 1));
    }
    if (entry.recompute) groups.push_back(group(entry.first, entry.last));
  }
  return groups;
}

}  // namespace

Checkpointing resolve_checkpointing(const Setting<std::string>& wished,
                                    const Setting<std::vector<CheckpointEntry>>& entries, std::int64_t layers) {
  if (!wished.given()) return {};
  if (entries.given()) return {*wished, listed(*entries, layers)};
  const std::string& text = *wished;
  if (text == "none") return {};
  if (text == "full") return {text, runs(1, layers)};
  if (const auto k = factor(wished, "every"))
    return {text, runs(std::min(*k, std::max(layers, std::int64_t{1})), layers)};
  if (const auto k = factor(wished, "segments")) return {text, segments(wished, *k, layers)};
  if (const auto k = factor(wished, "nth")) return {text, nth(*k, layers)};
  if (text == "auto") refuse(wished.place, "checkpointing \"auto\" is not modelled yet", "it needs the planner");
  refuse(wished.place, fmt::format("checkpointing \"{}\" is not known", text),
         "it is one of none, full, every:K, segments:K, nth:K, or a file");
}

}  // namespace dsplan
