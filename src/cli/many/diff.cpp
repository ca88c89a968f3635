// `dsplan diff A B`: which input differs between two configurations, and what it moves.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "cli/assemble.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/screen/first_screen.h"
#include "cli/screen/table.h"
#include "cli/wrap.h"
#include "core/format.h"
#include "io/fields.h"
#include "io/json_text.h"
#include "io/text.h"
#include "planner/predict/predict.h"
#include "report/baseline.h"
#include "report/cells.h"
#include "report/plan_file.h"
#include "report/prediction_file.h"

namespace dsplan {
namespace {

constexpr std::size_t kMostAlone = 24;

constexpr const char* kDiffFooter =
    "dsplan diff A B [MODEL] [options]: A and B are each a command line of simulate\n"
    "in quotes, a plan, a DeepSpeed JSON, or what `simulate --format json` wrote.\n"
    "Two DeepSpeed files need MODEL after them; options that follow are both sides'.\n"
    "Example: dsplan diff \"gpt2 --gpus 8 --zero-stage 2\" \"gpt2 --gpus 8\"\n"
    "Example: dsplan diff old.json new.json llama-3-8b --gpus 8\n"
    "Exit codes: 0 done, 2 refused.";

struct DiffSide {
  std::string name;
  bool only_read = false;  // A prediction from a file: nothing is known of its inputs but what it assumes.
  Words words;
  SimulateWords said;
  Sources sources;
  std::vector<ResolvedInput> inputs;
  Prediction prediction;
};

// One input that differs, and what it moves alone.
struct Difference {
  std::string name;
  std::string before;
  std::string after;
  std::string place;                  // Of a file's key; empty: an option.
  std::optional<std::int64_t> moves;  // Bytes of the process, of A with this one as B has it.
  std::string refused;                // Why it cannot be alone.
};

bool is_file(const std::string& text) {
  std::error_code failed;
  return text == "-" || std::filesystem::is_regular_file(text, failed);
}

bool is_prediction(const Document& document) {
  const Value* schema = document.root.find("schema");
  return schema != nullptr && schema->is(Value::Kind::String) && schema->string.starts_with("dsplan.prediction");
}

bool is_model(const Document& document) {
  for (const char* key : {"model_type", "architectures", "dsplan"}) {
    if (document.root.find(key) != nullptr) return true;
  }
  return false;
}

DiffSide predicted(std::string name, Words words) {
  DiffSide side;
  side.name = std::move(name);
  side.words = std::move(words);
  side.said = parse_simulate("diff", side.words);
  side.sources = read_sources(side.words, side.said, {});
  const Inputs inputs = gather(side.sources, side.said);
  Job job = resolve(inputs);
  if (job.rank == "all") job.rank = "worst";
  side.inputs = job.inputs;
  side.prediction = std::move(predict_asked(inputs.model, job).front());
  return side;
}

DiffSide from_prediction(const std::string& path, const Document& document) {
  DiffSide side;
  side.name = path;
  side.only_read = true;
  std::vector<SavedPrediction> all = read_saved_predictions(document);
  side.prediction = std::move(all.front().prediction);
  side.inputs = std::move(all.front().assumptions);
  return side;
}

// `common` are the words after A and B: MODEL where a file needs one, and options of both.
DiffSide side_of(const std::string& argument, const Words& common, const char* which) {
  const bool model_follows = !common.empty() && !common.front().starts_with("-");
  Words options(common.begin() + (model_follows ? 1 : 0), common.end());
  if (argument.find_first_of(" \t") != std::string::npos && !is_file(argument)) {
    Words words = shell_words(argument, which);
    while (!words.empty() && (words.front() == "dsplan" || words.front() == "simulate")) words.erase(words.begin());
    // Before a launch line, which ends the words.
    words.insert(std::find(words.begin(), words.end(), "--"), options.begin(), options.end());
    return predicted(argument, std::move(words));
  }
  Words words = {argument};
  if (is_file(argument) && !argument.ends_with(".yaml") && !argument.ends_with(".yml")) {
    const Document document = parse_hjson(argument, read_file(argument));
    if (is_prediction(document)) return from_prediction(argument, document);
    if (!is_model(document)) {
      if (!model_follows) {
        throw Refusal(argument, "is read as a DeepSpeed JSON, and no model is named",
                      formatted("dsplan diff A B MODEL [options]"));
      }
      words = {common.front(), "--deepspeed", argument};
    }
  }
  words.insert(words.end(), options.begin(), options.end());
  return predicted(argument, std::move(words));
}

// The words with one option as it is on the other side; "" takes it away.
Words with_option(const Words& words, const std::string& name, const std::string& value) {
  Words changed;
  const auto end = std::find(words.begin(), words.end(), "--");
  for (auto at = words.begin(); at != end; ++at) {
    if (*at == name && std::next(at) != end) {
      ++at;
    } else if (!at->starts_with(name + "=")) {
      changed.push_back(*at);
    }
  }
  if (!value.empty()) changed.insert(changed.end(), {name, value});
  changed.insert(changed.end(), end, words.end());
  return changed;
}

// The value at "a.b.c"; nullptr where there is none.
const Value* value_at(const Value& root, const std::string& path) {
  const Value* at = &root;
  for (std::size_t from = 0; at != nullptr && from <= path.size();) {
    const std::size_t dot = std::min(path.find('.', from), path.size());
    at = at->find(path.substr(from, dot - from));
    from = dot + 1;
  }
  return at;
}

// `root` with the value at a path replaced, added or (null) taken away.
void put_at(Value& root, const std::string& path, const Value* value) {
  Value* at = &root;
  for (std::size_t from = 0; from <= path.size();) {
    const std::size_t dot = std::min(path.find('.', from), path.size());
    const std::string key = path.substr(from, dot - from);
    const bool last = dot == path.size();
    auto member =
        std::find_if(at->members.begin(), at->members.end(), [&](const Member& one) { return one.key == key; });
    if (last && value == nullptr) {
      if (member != at->members.end()) at->members.erase(member);
      return;
    }
    if (member == at->members.end()) {
      at->members.push_back({key, 0, {}});
      member = std::prev(at->members.end());
      member->value.kind = Value::Kind::Object;
    }
    if (last) member->value = *value;
    at = &member->value;
    from = dot + 1;
  }
}

// What an input moves alone: the process of A with it, less that of A.
void predict_alone(const DiffSide& a, Sources sources, const SimulateWords& said, Difference& into) {
  try {
    const Inputs inputs = gather(sources, said);
    Job job = resolve(inputs);
    if (job.rank == "all") job.rank = "worst";
    const Prediction p = std::move(predict_asked(inputs.model, job).front());
    const Prediction& was = a.prediction;
    if (p.peak && p.peak->process && was.peak && was.peak->process) {
      into.moves = (*p.peak->process - *was.peak->process).value();
    }
  } catch (const Refusal& refusal) {
    into.refused = refusal.diagnostics().front().message;
  }
}

bool option_names_it(SourceKind kind) {
  return kind != SourceKind::Model && kind != SourceKind::DeepSpeed && kind != SourceKind::Training;
}

void add_file(SourceKind kind, const DiffSide& a, const DiffSide& b, std::vector<Difference>& into) {
  const auto& was = a.sources[kind];
  const auto& is = b.sources[kind];
  if ((!was && !is) || option_names_it(kind)) return;
  const auto swapped = [&](Difference& one) {
    Sources mixed = a.sources;
    mixed[kind] = is;
    predict_alone(a, std::move(mixed), a.said, one);
  };
  if (!was || !is || kind == SourceKind::Model) {
    const bool same = was && is && changes_of(was->content, is->content).empty();
    if (same) return;
    Difference one{std::string(name(kind)), was ? was->name : "", is ? is->name : "", {}, {}, {}};
    // Without its option on A's side the file would not be read.
    if (was && is) swapped(one);
    into.push_back(std::move(one));
    return;
  }
  for (const KeyChange& key : changes_of(was->content, is->content)) {
    Difference one{key.key, key.before, key.after, key.place.text(), {}, {}};
    if (into.size() < kMostAlone) {
      Document patched = was->content;
      put_at(patched.root, key.key, value_at(is->content.root, key.key));
      patched.text = json_text(patched.root, 2);
      Sources mixed = a.sources;
      mixed[kind]->content = kind == SourceKind::DeepSpeed ? parse_hjson(was->content.path, patched.text)
                                                           : parse_json(was->content.path, patched.text);
      predict_alone(a, std::move(mixed), a.said, one);
    }
    into.push_back(std::move(one));
  }
}

void add_options(const DiffSide& a, const DiffSide& b, std::vector<Difference>& into) {
  const auto was = options_in(a.said);
  const auto is = options_in(b.said);
  const auto add = [&](const std::string& option, const std::string& before, const std::string& after) {
    if (option == "--deepspeed" || option == "--training") return;  // Their files are compared key by key.
    Difference one{option, before, after, {}, {}, {}};
    if (into.size() < kMostAlone && option.starts_with("--")) {
      try {
        const Words words = with_option(a.words, option, after);
        const SimulateWords said = parse_simulate("diff", words);
        predict_alone(a, read_sources(words, said, {}), said, one);
      } catch (const Refusal& refusal) {
        one.refused = refusal.diagnostics().front().message;
      }
    }
    into.push_back(std::move(one));
  };
  for (const auto& [option, value] : is) {
    const std::string old = value_in(was, option);
    if (old != value) add(option, old, value);
  }
  for (const auto& [option, value] : was) {
    if (value_in(is, option).empty()) add(option, value, {});
  }
}

std::vector<Difference> differences_of(const DiffSide& a, const DiffSide& b) {
  std::vector<Difference> all;
  if (a.only_read || b.only_read) return all;
  for (std::size_t i = 0; i < kSourceFiles; ++i) add_file(static_cast<SourceKind>(i), a, b, all);
  add_options(a, b, all);
  // One alone moves everything.
  return all;
}

struct DiffRow {
  std::string what;
  std::optional<std::int64_t> a;
  std::optional<std::int64_t> b;
  bool bytes = true;
};

std::optional<Bytes> wire_of(const Prediction& p) {
  if (!p.communication) return std::nullopt;
  Bytes sum;
  for (const TrafficRow& row : *p.communication) {
    if (row.phase != Pass::Setup && row.phase != Pass::Save) sum += row.wire;
  }
  return sum;
}

std::vector<DiffRow> rows_of(const Prediction& a, const Prediction& b) {
  std::vector<DiffRow> rows;
  const auto add = [&](std::string what, const auto& from, const auto& to, bool bytes = true) {
    const auto number = [](const auto& value) { return value ? std::optional(value->value()) : std::nullopt; };
    rows.push_back({std::move(what), number(from), number(to), bytes});
  };
  const auto some = [](auto value) { return std::optional(value); };
  add("trained parameters", some(a.parameters_trainable), some(b.parameters_trainable), false);
  add("persistent", some(a.persistent.by_role.total()), some(b.persistent.by_role.total()));
  if (a.peak && b.peak) {
    for (std::size_t i = 0; i < kRoles; ++i) {
      std::string what(name(static_cast<Role>(i)));
      std::replace(what.begin(), what.end(), '_', ' ');
      add("  " + what + " at the peak", some(a.peak->by_role.bytes[i]), some(b.peak->by_role.bytes[i]));
    }
    add("requested", some(a.peak->requested), some(b.peak->requested));
    add("allocated", some(a.peak->allocated), some(b.peak->allocated));
    add("reserved", a.peak->reserved, b.peak->reserved);
  }
  add("CUDA context", a.context, b.context);
  add("communicators", a.communicators, b.communicators);
  const auto process = [](const Prediction& p) { return p.peak ? p.peak->process : std::nullopt; };
  add("process", process(a), process(b));
  add("needed", a.needed, b.needed);
  add("host, per node", a.host.per_node, b.host.per_node);
  add("sent per step", wire_of(a), wire_of(b));
  std::erase_if(rows, [](const DiffRow& row) { return row.a.value_or(0) == 0 && row.b.value_or(0) == 0; });
  return rows;
}

std::string sentence(const DiffSide& a, const DiffSide& b) {
  const auto process = [](const Prediction& p) {
    return p.peak && p.peak->process ? *p.peak->process : p.persistent.by_role.total();
  };
  const Bytes first = process(a.prediction);
  const Bytes second = process(b.prediction);
  std::string text;
  if (first == second) {
    text = formatted("Both take {} per GPU", glued(human(first)));
  } else {
    const bool less = second < first;
    text = formatted("B takes {} {} per GPU than A: {} instead of {}",
                     glued(human(less ? first - second : second - first)), less ? "less" : "more", glued(human(second)),
                     glued(human(first)));
  }
  const auto words = [](const Prediction& p) {
    std::string verdict(name(p.verdict));
    std::replace(verdict.begin(), verdict.end(), '_', ' ');
    if (p.verdict == Verdict::DoesNotFit && p.shortfall && *p.shortfall > Bytes(0)) {
      verdict += formatted(" ({} short)", glued(human(*p.shortfall)));
    }
    return verdict;
  };
  text += formatted("; A: {}, B: {}", words(a.prediction), words(b.prediction));
  if (a.prediction.time && b.prediction.time && a.prediction.time->tokens_per_second > 0) {
    const double ratio = b.prediction.time->tokens_per_second / a.prediction.time->tokens_per_second;
    text += formatted("; B makes {:+.1f} % tokens per second", 100 * (ratio - 1));
  }
  return text + ".";
}

std::string or_none(const std::string& text) { return text.empty() ? "(none)" : text; }

std::string figures(const Prediction& a, const Prediction& b) {
  using Align = Table::Align;
  Table rows({"rank " + std::to_string(a.rank), "A", "B", "B - A"},
             {Align::Left, Align::Right, Align::Right, Align::Right});
  for (const DiffRow& row : rows_of(a, b)) {
    const auto shown = [&row](const std::optional<std::int64_t>& value) {
      if (!value) return std::string("-");
      return row.bytes ? human(Bytes(*value)) : grouped(*value);
    };
    std::string by = "-";
    if (row.a && row.b)
      by = row.bytes ? (*row.a == *row.b ? "0" : detail::signed_size(*row.b - *row.a))
                     : detail::signed_number(*row.b - *row.a);
    rows.row({row.what, shown(row.a), shown(row.b), by});
  }
  return rows.text();
}

std::string table_of(const DiffSide& a, const DiffSide& b, const std::vector<Difference>& differences,
                     const std::vector<InputChange>& inputs, bool colour) {
  using Align = Table::Align;
  std::string head = wrapped("", sentence(a, b), 2);
  head.pop_back();
  std::string text =
      painted(head, Paint::Strong, colour) + "\n" + one_line("  A: " + a.name) + one_line("  B: " + b.name);
  Table given({"what differs", "A", "B", "alone it moves", ""},
              {Align::Left, Align::Left, Align::Left, Align::Right, Align::Left});
  for (const Difference& one : differences) {
    given.row({one.name, or_none(one.before), or_none(one.after), one.moves ? detail::signed_size(*one.moves) : "-",
               one.refused.empty() ? one.place : one.refused});
  }
  if (!given.empty()) text += "\n" + given.text();
  Table resolved({"resolved otherwise", "A", "B", "because"}, {Align::Left, Align::Left, Align::Left, Align::Left});
  for (const InputChange& one : inputs) {
    resolved.row({one.name, or_none(one.before), or_none(one.after), one.reason});
  }
  if (!resolved.empty()) text += "\n" + resolved.text();
  if (given.empty() && resolved.empty()) text += "\n  no input differs\n";
  return text + "\n" + figures(a.prediction, b.prediction);
}

constexpr const char* kDiffSchema = "dsplan.diff/1";

struct Diff {
  DiffSide a;
  DiffSide b;
  std::string sentence;
  std::vector<Difference> differences;
  std::vector<InputChange> inputs;
  std::vector<DiffRow> rows;
};

void describe_side(Fields& fields, const char* key, DiffSide& side) {
  fields.object(key, {"a side"}, [&] {
    Prediction& of = side.prediction;
    fields("name", side.name);
    fields("fingerprint", of.fingerprint);
    fields.named("verdict", of.verdict, all_up_to(Verdict::Unknown));
    fields("shortfall_bytes", of.shortfall);
    fields.derived("tokens_per_second", of.time ? std::optional(of.time->tokens_per_second) : std::nullopt);
  });
}

void describe_row(Fields& fields, DiffRow& row) {
  const bool both = row.a && row.b;
  fields.derived("row", row.what.substr(std::min(row.what.find_first_not_of(' '), row.what.size())));
  fields("a", row.a);
  fields("b", row.b);
  fields.derived("difference", both ? std::optional(*row.b - *row.a) : std::nullopt, INT64_MIN);
}

void describe(Fields& fields, Diff& diff) {
  fields.constant("schema", kDiffSchema);
  describe_side(fields, "a", diff.a);
  describe_side(fields, "b", diff.b);
  fields("sentence", diff.sentence);
  fields.list("differs", diff.differences, {"a difference"}, [&](Difference& one) {
    fields("what", one.name);
    fields("a", one.before);
    fields("b", one.after);
    fields("place", one.place);
    fields("process_alone_bytes", one.moves, INT64_MIN);
    fields("refused_alone", one.refused);
  });
  fields.list("resolved", diff.inputs, {"an input"}, [&](InputChange& one) {
    fields("name", one.name);
    fields("a", one.before);
    fields("b", one.after);
    fields("reason", one.reason);
  });
  fields.list("rows", diff.rows, {"a row"}, [&](DiffRow& row) { describe_row(fields, row); });
}

std::string json_of(const DiffSide& a, const DiffSide& b, const std::vector<Difference>& differences,
                    const std::vector<InputChange>& inputs) {
  Diff diff{a, b, sentence(a, b), differences, inputs, rows_of(a.prediction, b.prediction)};
  std::replace(diff.sentence.begin(), diff.sentence.end(), '\x1f', ' ');
  return written([&](Fields& fields) { describe(fields, diff); });
}

}  // namespace

std::string diff_schema() {
  return schema_of(kDiffSchema, "What `dsplan diff A B --format json` prints. Rows count bytes but for parameters.",
                   [](Fields& fields) {
                     Diff any;
                     describe(fields, any);
                   });
}

int diff_command(const Words& words) {
  const bool asks_help = std::find(words.begin(), words.end(), "--help") != words.end();
  CommandExtras extras;
  extras.description = "Says which input differs between two configurations, and what it moves.";
  extras.footer = kDiffFooter;
  extras.model_needed = false;
  extras.without = {"--explain", "--verbose"};
  if (asks_help) {
    std::optional<std::string> a, b;
    extras.before_model = [&](CommandLine& line) {
      line.positional("A", "Options in quotes, a plan, a DeepSpeed file, a prediction", a);
      line.positional("B", "The other one", b);
    };
    (void)parse_simulate("diff", {"--help"}, extras);
  }
  if (words.size() < 2 || words[0].starts_with("--") || words[1].starts_with("--")) {
    throw Refusal("dsplan diff", "A and B are missing",
                  "two command lines in quotes, plans, DeepSpeed files or predictions");
  }
  const Words common(words.begin() + 2, words.end());
  Words options = common;
  if (!options.empty() && !options.front().starts_with("-")) options.erase(options.begin());
  options.insert(options.begin(), "A");
  const SimulateWords said = parse_simulate("diff", options, extras);
  const std::string format = said.options.format.value_or("table");
  if (format != "table" && format != "json") {
    throw Refusal("--format", formatted("no format \"{}\" of diff", format), "formats are table, json");
  }
  Output output(said.options.out.value_or(""));
  const DiffSide a = side_of(words[0], common, "A");
  const DiffSide b = side_of(words[1], common, "B");
  const std::vector<Difference> differences = differences_of(a, b);
  const std::vector<InputChange> inputs = changes_of(a.inputs, b.inputs);
  output.add(format == "json" ? json_of(a, b, differences, inputs)
                              : table_of(a, b, differences, inputs, output.colour(said.color)));
  output.finish();
  return kDone;
}

}  // namespace dsplan
