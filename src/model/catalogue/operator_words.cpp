#include "model/catalogue/operator_words.h"

#include <algorithm>

namespace dsplan {
namespace {

// Collects words; frees wait for the next allocation, so that the last ones are left out.
class Line {
 public:
  explicit Line(RunLevel level) : level_(level) {}

  void free(Bytes bytes) { frees_.push_back(bytes.value()); }

  void make(const std::string& role, Bytes bytes) {
    made_.push_back("+" + role + ":" + std::to_string(bytes.value()));
    if (level_ == RunLevel::Kernel) close();
  }

  // A call ends.
  void close() {
    if (made_.empty()) return;
    std::sort(frees_.begin(), frees_.end());
    for (std::int64_t bytes : frees_) add("-t:" + std::to_string(bytes));
    frees_.clear();
    std::sort(made_.begin(), made_.end());
    std::string word;
    for (const std::string& one : made_) word += (word.empty() ? "" : ",") + one;
    add(word);
    made_.clear();
  }

  std::string take() {
    close();
    return std::move(text_);
  }

 private:
  void add(const std::string& word) { text_ += (text_.empty() ? "" : " ") + word; }

  RunLevel level_;
  std::vector<std::int64_t> frees_;
  std::vector<std::string> made_;
  std::string text_;
};

std::string role_of(const Recipe& recipe, const Slot& slot) {
  if (slot.kind == SlotKind::Output) return "out" + std::to_string(slot.index);
  if (slot.kind == SlotKind::Gradient) return "in" + std::to_string(slot.index);
  return is_kept(recipe, slot) ? "e" : "t";
}

bool is_seen(const Slot& slot, RunLevel level) {
  return slot.visibility == Visibility::Dispatch || level == RunLevel::Kernel;
}

// A storage is named by the first tensor that lies in it.
std::string place_of(const Graph& graph, const Node& node, StorageId storage) {
  for (std::size_t i = 0; i < graph.operands.size(); ++i) {
    if (graph.tensor(graph.operands[i]).storage != storage) continue;
    const bool in = i < node.input_count;
    return (in ? "in" : "out") + std::to_string(in ? i : i - node.input_count);
  }
  return {};
}

void add_saved(const Graph& graph, const Recipe& recipe, const Saved& saved, RunLevel level,
               std::vector<std::string>& texts) {
  const Node& node = graph.nodes.front();
  const std::string text = std::string(saved.name) + "=";
  if (saved.kind != Saved::Kind::Extra) {
    const TensorId tensor =
        saved.kind == Saved::Kind::Input ? graph.input(node, saved.index) : graph.output(node, saved.index);
    texts.push_back(text + place_of(graph, node, graph.tensor(tensor).storage));
    return;
  }
  for (const Slot& slot : recipe.slots) {
    if (slot.kind != SlotKind::Extra || slot.index != saved.index || !is_seen(slot, level)) continue;
    texts.push_back(text + "e:" + std::to_string(slot.bytes.value()));
  }
}

}  // namespace

bool is_kept(const Recipe& recipe, const Slot& slot) {
  return std::any_of(recipe.saved.begin(), recipe.saved.end(), [&](const Saved& saved) {
    return saved.kind == Saved::Kind::Extra && slot.kind == SlotKind::Extra && saved.index == slot.index;
  });
}

std::string words_of(const Recipe& recipe, const std::vector<RecipeStep>& steps, RunLevel level) {
  Line line(level);
  for (const RecipeStep& step : steps) {
    if (step.kind != RecipeStep::Kind::Make) line.close();
    if (step.kind != RecipeStep::Kind::Make && step.kind != RecipeStep::Kind::Drop) continue;
    const Slot& slot = recipe.slots[step.slot];
    if (!is_seen(slot, level) || slot.bytes == Bytes(0)) continue;
    if (step.kind == RecipeStep::Kind::Drop) {
      line.free(slot.bytes);
    } else {
      line.make(role_of(recipe, slot), slot.bytes);
    }
  }
  return line.take();
}

OperatorWords catalogue_words(const Graph& graph, RunLevel level, const CatalogueOptions& options) {
  const Node& node = graph.nodes.front();
  Recipe recipe;
  CatalogueOptions seen = options;
  seen.fake = level == RunLevel::Dispatch;
  recipe_of(graph, node, recipe, seen);
  OperatorWords words{words_of(recipe, recipe.forward, level), words_of(recipe, recipe.backward, level), {}, {}};
  for (const Saved& saved : recipe.saved) add_saved(graph, recipe, saved, level, words.saved);
  std::sort(words.saved.begin(), words.saved.end());
  for (std::size_t i = 0; i < node.input_count; ++i) {
    if ((recipe.passes >> i & 1U) != 0) words.passes.push_back("in" + std::to_string(i));
  }
  return words;
}

}  // namespace dsplan
