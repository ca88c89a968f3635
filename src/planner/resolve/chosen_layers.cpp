#include "planner/resolve/chosen_layers.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "core/document.h"
#include "core/error.h"
#include "core/format.h"

namespace dsplan {
namespace {

constexpr std::string_view kWord = "auto:";

class Reader {
 public:
  Reader(const Setting<std::string>& wished, std::int64_t layers) : wished_(wished), layers_(layers) {}

  std::vector<CheckpointGroup> read() {
    std::string_view rest = std::string_view(*wished_).substr(kWord.size());
    while (true) {
      const std::size_t comma = rest.find(',');
      read_run(rest.substr(0, comma));
      if (comma == std::string_view::npos) return groups_;
      rest.remove_prefix(comma + 1);
    }
  }

 private:
  // "0-27/7 keep:linear"
  void read_run(std::string_view text) {
    const std::string_view whole = text;
    std::vector<Op> kept;
    if (const std::size_t keep = text.find(" keep:"); keep != std::string_view::npos) {
      kept = operators(text.substr(keep + 6));
      text = text.substr(0, keep);
    }
    std::int64_t size = 1;
    if (const std::size_t slash = text.find('/'); slash != std::string_view::npos) {
      size = number(text.substr(slash + 1), whole);
      text = text.substr(0, slash);
    }
    const std::size_t dash = text.find('-');
    const std::int64_t first = number(text.substr(0, dash), whole);
    const std::int64_t last = dash == std::string_view::npos ? first : number(text.substr(dash + 1), whole);
    if (last < first || size < 1) refuse(formatted("\"{}\" is no run of layers", whole));
    if (last >= layers_) {
      refuse(formatted("layer {} does not exist: the model has layers 0 to {}", last, layers_ - 1));
    }
    if (!groups_.empty() && first <= groups_.back().last) {
      refuse(formatted("layer {} is not above layer {} of the run before", first, groups_.back().last));
    }
    for (std::int64_t at = first; at <= last; at += size) {
      CheckpointGroup group;
      group.first = static_cast<std::int32_t>(at);
      group.last = static_cast<std::int32_t>(std::min(last, at + size - 1));
      group.kept = kept;
      groups_.push_back(std::move(group));
    }
  }

  std::vector<Op> operators(std::string_view text) {
    std::vector<std::string_view> names;
    for (std::size_t at = 0; at < kOps; ++at) names.emplace_back(name(static_cast<Op>(at)));
    std::vector<Op> found;
    while (true) {
      const std::size_t plus = text.find('+');
      const std::string_view word = text.substr(0, plus);
      const std::optional<Op> op = operator_named(word);
      if (!op) refuse(formatted("no operator \"{}\"", word), did_you_mean(nearest(word, names)));
      found.push_back(*op);
      if (plus == std::string_view::npos) return found;
      text.remove_prefix(plus + 1);
    }
  }

  std::int64_t number(std::string_view text, std::string_view whole) {
    std::int64_t value = 0;
    const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || at != text.data() + text.size() || value < 0) {
      refuse(formatted("\"{}\" is no run of layers", whole), "auto:0-27/7,28-31: layers 0 to 27 in checkpoints of 7");
    }
    return value;
  }

  [[noreturn]] void refuse(std::string message, std::string hint = {}) {
    throw Refusal({wished_.place.says(std::move(message), std::move(hint))});
  }

  const Setting<std::string>& wished_;
  std::int64_t layers_;
  std::vector<CheckpointGroup> groups_;
};

}  // namespace

std::optional<std::vector<CheckpointGroup>> chosen_layers(const Setting<std::string>& wished, std::int64_t layers) {
  if (!wished->starts_with(kWord)) return std::nullopt;
  return Reader(wished, layers).read();
}

}  // namespace dsplan
