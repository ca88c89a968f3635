#include "planner/resolve/checkpointing.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <string_view>

#include "core/document.h"
#include "core/error.h"
#include "core/format.h"
#include "core/text/split.h"
#include "core/text/whole_numbers.h"
#include "model/traits.h"

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
    refuse(wished.place, formatted("\"{}\" needs a number of at least 1 after \"{}:\"", text, word));
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

// As runs(size, end), begun anew with each list of layers.
std::vector<CheckpointGroup> runs_in_lists(std::int64_t size, std::int64_t end, const ModelSpec& model) {
  const std::vector<ModuleId> lists = lists_of_layers(model);
  std::vector<CheckpointGroup> groups;
  for (std::int64_t first = 0; first < end;) {
    std::int64_t last = first;
    const auto list = [&](std::int64_t layer) { return lists[static_cast<std::size_t>(layer)]; };
    while (last + 1 < end && last + 1 - first < size && list(last + 1) == list(first)) ++last;
    groups.push_back(group(first, last));
    first = last + 1;
  }
  return groups;
}

// A checkpoint that would run the last layers of one list and the first of another.
void refuse_across_lists(const Setting<std::string>& wished, const Checkpointing& checkpoint, const ModelSpec& model) {
  const std::vector<ModuleId> lists = lists_of_layers(model);
  const auto list = [&](std::int32_t layer) { return lists[static_cast<std::size_t>(layer)]; };
  for (const CheckpointGroup& one : checkpoint.groups) {
    if (list(one.first) == list(one.last)) continue;
    const auto path = [&](std::int32_t layer) { return model.module_at(list(layer)).path; };
    refuse(wished.place,
           formatted("one checkpoint around layers {} to {}, of which the first stands in {} and the last in {}",
                     one.first, one.last, path(one.first), path(one.last)),
           "every:K begins anew with each list of layers; groups:0-3,4-7 names them");
  }
}

std::vector<CheckpointGroup> segments(const Setting<std::string>& wished, std::int64_t k, std::int64_t layers) {
  const std::int64_t size = layers / k;
  if (size == 0) {
    refuse(wished.place, formatted("{} segments of {} layers", k, layers),
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
      refuse(entry.place, formatted("layer {} does not exist: the model has layers 0 to {}", entry.last, layers - 1));
    }
    if (!entry.recompute) continue;
    groups.push_back(group(entry.first, entry.last));
    groups.back().kept = entry.kept;
  }
  return groups;
}

// The words of "WORD:a+b".
std::optional<std::vector<std::string>> words_after(const Setting<std::string>& wished, std::string_view word) {
  std::string_view text = *wished;
  if (!text.starts_with(word) || text.size() <= word.size() || text[word.size()] != ':') return std::nullopt;
  text.remove_prefix(word.size() + 1);
  std::vector<std::string> words;
  while (true) {
    const std::size_t plus = text.find('+');
    words.emplace_back(text.substr(0, plus));
    if (words.back().empty()) refuse(wished.place, formatted("\"{}\" has an empty name", *wished));
    if (plus == std::string_view::npos) return words;
    text.remove_prefix(plus + 1);
  }
}

// Into `group`. "linear/2": of products every second one, as torchtitan's selective_ac_option op keeps them.
void keep_operators(const Setting<std::string>& wished, const std::vector<std::string>& words, CheckpointGroup& group) {
  std::vector<std::string_view> names;
  for (std::size_t at = 0; at < kOps; ++at) names.emplace_back(name(static_cast<Op>(at)));
  for (const std::string& word : words) {
    group.alternate = group.alternate || word == "linear/2";
    const std::optional<Op> op = operator_named(word == "linear/2" ? "linear" : word);
    if (!op) refuse(wished.place, formatted("no operator \"{}\"", word), did_you_mean(nearest(word, names)));
    group.kept.push_back(*op);
  }
}

// One of "groups:0-3,4=reentrant,5-6=keep+linear".
CheckpointGroup run_of_layers(const Setting<std::string>& wished, std::string_view text, CheckpointKind kind,
                              std::int64_t layers) {
  const std::size_t equals = text.find('=');
  const std::string_view mode = equals == std::string_view::npos ? std::string_view() : text.substr(equals + 1);
  const std::vector<std::string_view> ends = split(text.substr(0, equals), '-');
  const std::optional<std::int64_t> first = whole_number(ends.front());
  const std::optional<std::int64_t> last = whole_number(ends.back());
  if (ends.size() > 2 || !first || !last || *first < 0 || *last < *first) {
    refuse(wished.place, formatted("\"{}\" is no run of layers", text), "write groups:0-3,4,5-7");
  }
  if (*last >= layers) {
    refuse(wished.place, formatted("layer {} does not exist: the model has layers 0 to {}", *last, layers - 1));
  }
  CheckpointGroup one = group(*first, *last);
  one.kind = kind;
  if (mode == "reentrant" || mode == "non_reentrant") {
    one.kind = mode == "reentrant" ? CheckpointKind::Reentrant : CheckpointKind::NonReentrant;
  } else if (mode.starts_with("keep+")) {
    std::vector<std::string> words;
    for (const std::string_view word : split(mode.substr(5), '+')) words.emplace_back(word);
    one.kind = CheckpointKind::NonReentrant;
    keep_operators(wished, words, one);
  } else if (equals != std::string_view::npos) {
    refuse(wished.place, formatted("no mode \"{}\" of a run of layers", mode),
           "modes are reentrant, non_reentrant, keep+OP+OP");
  }
  return one;
}

std::optional<std::vector<CheckpointGroup>> runs_of_layers(const Setting<std::string>& wished, CheckpointKind kind,
                                                           std::int64_t layers) {
  constexpr std::string_view kWord = "groups:";
  if (!wished->starts_with(kWord)) return std::nullopt;
  std::vector<CheckpointGroup> groups;
  for (const std::string_view text : split(std::string_view(*wished).substr(kWord.size()), ',')) {
    groups.push_back(run_of_layers(wished, text, kind, layers));
    if (groups.size() < 2 || groups.back().first > groups[groups.size() - 2].last) continue;
    refuse(wished.place, formatted("layer {} is not above layer {} of the run before", groups.back().first,
                                   groups[groups.size() - 2].last));
  }
  return groups;
}

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('.') + 1); }

// Megatron's recompute_modules in the names of transformers' modules.
struct Preset {
  std::string_view word;
  std::vector<std::string_view> modules;
};
const std::array<Preset, 3> kPresets = {{
    {"layernorm",
     {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm", "ln_1",
      "ln_2"}},
    {"mlp", {"mlp"}},
    {"moe", {"mlp", "block_sparse_moe"}},
}};

std::vector<std::string> modules_named(const Setting<std::string>& wished, const std::vector<std::string>& words,
                                       const ModelSpec& model) {
  std::vector<std::string_view> known;
  for (const Module& module : model.modules) {
    if (module.layer != kNone) known.push_back(last_part(module.path));
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  const auto has = [&](std::string_view part) { return std::binary_search(known.begin(), known.end(), part); };
  std::vector<std::string> found;
  for (const std::string& word : words) {
    const std::size_t before = found.size();
    if (word == "core_attn") found.push_back(word);  // Not a module: the attention operator.
    for (const Preset& preset : kPresets) {
      if (word != preset.word || (word == "moe" && model.dims.experts == 0)) continue;
      for (std::string_view part : preset.modules) {
        if (has(part)) found.emplace_back(part);
      }
    }
    if (found.size() == before && has(word)) found.push_back(word);
    if (found.size() > before) continue;
    known.insert(known.end(), {"core_attn", "layernorm", "mlp", "moe"});
    refuse(wished.place, formatted("no module \"{}\" in a layer of {}", word, model.name),
           did_you_mean(nearest(word, known)));
  }
  return found;
}

// Whose layers call attention by keyword, all else by position, and save nothing between the calls.
constexpr std::string_view kNestable[] = {"llama", "mistral", "qwen2",       "qwen3",
                                          "gemma", "gemma2",  "gemma3_text", "granite"};

void nest(const Setting<std::string>& wished, const ModelSpec& model, Checkpointing& result) {
  if (std::find(std::begin(kNestable), std::end(kNestable), model.family) == std::end(kNestable)) {
    refuse(wished.place, formatted("checkpoints within those of layers are not modelled yet for {}", model.family),
           formatted("they are for {}", joined(kNestable, ", ")));
  }
  result.groups = runs(1, model.dims.layers);
  for (const Module& module : model.modules) {
    if (module.layer == kNone) continue;
    const Module& parent = model.module_at(module.parent);
    const bool child = parent.layer != kNone && model.module_at(parent.parent).layer == kNone;
    const std::string name(last_part(module.path));
    const bool known = std::find(result.modules.begin(), result.modules.end(), name) != result.modules.end();
    if (child && !known) result.modules.push_back(name);
  }
}

Checkpointing of_layers(const Request& request, const ModelSpec& model, CheckpointKind kind) {
  const Setting<std::string>& wished = request.checkpoint;
  const std::int64_t layers = model.dims.layers;
  const std::string& text = *wished;
  Checkpointing result;
  result.text = text;
  if (text == "none") return result;
  if (text == "full") {
    result.groups = runs(1, layers);
  } else if (text == "nested") {
    nest(wished, model, result);
  } else if (const auto every = factor(wished, "every")) {
    result.groups = runs_in_lists(*every, layers, model);
  } else if (const auto cut = factor(wished, "segments")) {
    result.groups = segments(wished, *cut, layers);
  } else if (const auto step = factor(wished, "nth")) {
    result.groups = nth(*step, layers);
  } else if (auto listed_runs = runs_of_layers(wished, kind, layers)) {
    result.groups = std::move(*listed_runs);
  } else if (const auto kept = words_after(wished, "keep")) {
    result.groups = runs(1, layers);
    for (CheckpointGroup& one : result.groups) keep_operators(wished, *kept, one);
  } else if (const auto modules = words_after(wished, "modules")) {
    result.modules = modules_named(wished, *modules, model);
  } else if (auto chosen = chosen_layers(wished, layers)) {
    result.groups = std::move(*chosen);
  } else if (text == "auto") {
    return result;  // Chosen once everything else is known: planner/plan/choose_checkpoint.h.
  } else {
    refuse(wished.place, formatted("checkpointing \"{}\" is not known", text),
           "it is one of none, full, nested, every:K, segments:K, nth:K, groups:0-3,4, keep:OP+OP, modules:NAME+NAME, "
           "auto, or a file");
  }
  return result;
}

// Products of two dimensions within layers: one with a bias and one without.
struct Products {
  const Module* biased = nullptr;
  const Module* plain = nullptr;
};

Products products_of(const ModelSpec& model) {
  Products found;
  for (const Parameter& one : model.parameters) {
    const Module& module = model.module_at(one.module);
    if (module.layer == kNone || one.shape.rank != 2) continue;
    const bool biased = std::any_of(model.parameters.begin(), model.parameters.end(), [&](const Parameter& bias) {
      return bias.module == one.module && bias.name.ends_with(".bias");
    });
    (biased ? found.biased : found.plain) = &module;
  }
  return found;
}

// aten.mm is what a linear layer without a bias calls; with one it is addmm. Where a model has both, keeping mm keeps
// some of its linear layers.
void keep_products(const Request& request, const ModelSpec& model, std::vector<Op>& kept) {
  if (std::find(kept.begin(), kept.end(), Op::Mm) == kept.end()) return;
  const Products products = products_of(model);
  if (products.plain == nullptr) return;
  if (products.biased != nullptr) {
    refuse(request.checkpoint.place,
           formatted("keeping mm alone, where {} has a bias and calls addmm", products.biased->path),
           "keep:linear keeps both");
  }
  std::replace(kept.begin(), kept.end(), Op::Mm, Op::Linear);
}

}  // namespace

Checkpointing resolve_checkpointing(const Request& request, const ModelSpec& model, CheckpointKind kind) {
  if (!request.checkpoint.given()) return {};
  Checkpointing result;
  const bool preserve = request.preserve_rng_state.value_or(true);
  if (request.checkpoint_groups.given()) {
    result.text = *request.checkpoint;
    result.groups = listed(*request.checkpoint_groups, model.dims.layers);
  } else {
    result = of_layers(request, model, kind);
  }
  if (kind == CheckpointKind::DeepSpeed && !result.modules.empty()) {
    refuse(request.checkpoint.place, "DeepSpeed's checkpoints around modules are not modelled yet",
           "around layers they are: full, every:K, ...");
  }
  if (kind == CheckpointKind::DeepSpeed && result.text == "auto") {
    refuse(request.checkpoint.place, "choosing among DeepSpeed's own checkpoints is not modelled yet",
           "auto chooses among PyTorch's; name the layers: full, every:K, ...");
  }
  refuse_across_lists(request.checkpoint, result, model);
  const bool nested = !result.groups.empty() && !result.modules.empty();
  if (nested && kind != CheckpointKind::NonReentrant) {
    refuse(request.checkpoint.place, "checkpoints within reentrant ones are not modelled yet",
           "--checkpoint-impl non_reentrant");
  }
  result.kind = kind;
  result.preserve_rng_state = preserve && !nested;  // accelerate's own, within, have none.
  const bool own_kinds = result.text.starts_with("groups:");
  for (CheckpointGroup& one : result.groups) {
    keep_products(request, model, one.kept);
    if (!own_kinds) one.kind = kind;
    one.preserve_rng_state = preserve;
    if (request.checkpoint_groups.given()) continue;
    if (one.kind != CheckpointKind::NonReentrant && !one.kept.empty()) {
      refuse(request.checkpoint.place, "keeping results needs the non-reentrant form",
             "torch.utils.checkpoint takes context_fn with use_reentrant=False only");
    }
  }
  if (!request.checkpoint_groups.given()) return result;
  std::size_t at = 0;
  for (const CheckpointEntry& entry : *request.checkpoint_groups) {
    if (!entry.recompute) continue;
    result.groups[at++].kind = entry.kind.value_or(kind);  // What keeps results names the form that can.
  }
  return result;
}

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
