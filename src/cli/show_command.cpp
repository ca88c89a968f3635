// `dsplan show TOPIC ...`: reads the words and prints the text.
#include <algorithm>
#include <array>
#include <functional>
#include <map>

#include "cli/assemble.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/show.h"
#include "cli/wrap.h"
#include "core/format.h"
#include "io/deepspeed.h"
#include "io/locate.h"
#include "io/text.h"
#include "model/catalogue/describe.h"
#include "planner/predict/footprint.h"
#include "planner/resolve/resolve.h"
#include "report/operator_comparison.h"

namespace dsplan {
namespace {

// What a topic without options takes: nothing but --help.
void expect_nothing(const std::string& topic, const Words& words) {
  CommandLine line("dsplan show " + topic, "Prints a list.");
  line.parse(words);
}

std::string names_of(Bundled kind) {
  std::string text;
  for (const std::string& name : list_bundled(kind)) text += name + "\n";
  return text;
}

std::int64_t at_least_one(std::string_view option, const std::optional<std::string>& text, Diagnostics& diagnostics) {
  if (!text) return 1;
  const std::optional<std::int64_t> read = whole_number(option, *text, diagnostics);
  if (!read) return 1;
  if (*read < 1) {
    diagnostics.add({std::string(option), 0, 0, {}, formatted("must be at least 1, not {}", *read), {}});
    return 1;
  }
  return *read;
}

struct FormulaOption {
  const char* name;
  const char* type;
  const char* help;
};
constexpr std::array kFormulaOptions = {
    FormulaOption{"--params", "N", "Parameters of the model (required)"},
    FormulaOption{"--gpus", "N", "Data-parallel ranks"},
    FormulaOption{"--mp", "N", "Model-parallel ranks"},
    FormulaOption{"--budget", "SIZE", "Also the largest model that fits, such as 32GB"},
    FormulaOption{"--layers", "N", "With --hidden, --heads: ZeRO-Infinity's forms"},
    FormulaOption{"--hidden", "N", "Width of a layer"},
    FormulaOption{"--heads", "N", "Attention heads"},
    FormulaOption{"--batch", "N", "Rows per rank"},
    FormulaOption{"--seq", "N", "Tokens per row"},
    FormulaOption{"--interval", "N", "Layers between checkpoints"},
};

// What the options of `show formulas` said, by their names.
class FormulaWords {
 public:
  explicit FormulaWords(const Words& words) {
    CommandLine line("dsplan show formulas", "The papers' closed forms for one model size.");
    for (const FormulaOption& one : kFormulaOptions) line.option(one.name, one.type, one.help, said_[one.name]);
    line.parse(words);
  }
  [[nodiscard]] const std::optional<std::string>& of(std::string_view name) const { return said_.find(name)->second; }
  [[nodiscard]] bool has(std::string_view name) const { return of(name).has_value(); }
  [[nodiscard]] std::int64_t count(std::string_view name, Diagnostics& faults) const {
    return at_least_one(name, of(name), faults);
  }

 private:
  std::map<std::string, std::optional<std::string>, std::less<>> said_;
};

std::string formulas(const Words& words) {
  const FormulaWords said(words);
  Diagnostics diagnostics;
  if (!said.has("--params")) diagnostics.add({"--params", 0, 0, {}, "is missing: how many parameters?", {}});
  FormulaQuery query;
  query.parameters = Elements(said.count("--params", diagnostics));
  query.degree = said.count("--gpus", diagnostics);
  query.model_parallel = said.count("--mp", diagnostics);
  if (said.has("--budget")) query.budget = labelled_size("--budget", *said.of("--budget"), diagnostics);
  query.batch = said.count("--batch", diagnostics);
  query.seq = said.count("--seq", diagnostics);
  query.checkpoint_interval = said.count("--interval", diagnostics);
  const TransformerShape shape{said.count("--layers", diagnostics), said.count("--hidden", diagnostics),
                               said.count("--heads", diagnostics)};
  const int parts = (said.has("--layers") ? 1 : 0) + (said.has("--hidden") ? 1 : 0) + (said.has("--heads") ? 1 : 0);
  if (parts == 3) query.shape = shape;
  if (parts == 1 || parts == 2) {
    diagnostics.add({"--layers", 0, 0, {}, "a shape needs --layers, --hidden and --heads together", {}});
  }
  if (parts == 0 && (said.has("--batch") || said.has("--seq") || said.has("--interval"))) {
    diagnostics.add({"--seq", 0, 0, {}, "--batch, --seq and --interval need a shape", "give --layers too"});
  }
  diagnostics.throw_if_any();
  return show_formulas(query);
}

// The configuration that DeepSpeed's estimator has in mind.
std::string estimator_configuration(int stage, EstimatorOffload offload) {
  std::string zero = formatted("\"stage\": {}", stage);
  if (offload != EstimatorOffload::None) zero += R"(, "offload_optimizer": {"device": "cpu"})";
  if (offload == EstimatorOffload::OptimizerAndParameters) zero += R"(, "offload_param": {"device": "cpu"})";
  return formatted(R"({{"bf16": {{"enabled": true}}, "train_micro_batch_size_per_gpu": 1, )"
                   R"("optimizer": {{"type": "Adam"}}, "zero_optimization": {{{}}}}})",
                   zero);
}

std::string estimators(const Words& words) {
  std::optional<std::string> name, gpus, per_node, version;
  CommandLine line("dsplan show estimators", "DeepSpeed's own estimators beside dsplan's figure for the states.");
  line.positional("MODEL", "Bundled name, config.json, folder, cached id", name);
  line.option("--gpus", "N", "All ranks", gpus);
  line.option("--gpus-per-node", "N", "Ranks per node; else up to 8", per_node);
  line.option("--deepspeed-version", "V", "Whose row is marked", version);
  line.parse(words);
  Diagnostics diagnostics;
  if (!name) diagnostics.add({"dsplan show estimators", 0, 0, {}, "MODEL is missing", {}});
  const std::int64_t world = at_least_one("--gpus", gpus, diagnostics);
  const std::int64_t node =
      per_node ? at_least_one("--gpus-per-node", per_node, diagnostics) : std::min(world, std::int64_t{8});
  if (world % node != 0) {
    diagnostics.add({"--gpus", 0, 0, {}, formatted("{} GPUs are not whole nodes of {}", world, node), {}});
  }
  const std::optional<Version> deepspeed = Version::parse(version.value_or(kDeepSpeedVersion));
  if (!deepspeed) diagnostics.add({"--deepspeed-version", 0, 0, {}, formatted("\"{}\" is no version", *version), {}});
  diagnostics.throw_if_any();
  Request of_model;
  const ModelSpec model = load_model(*name, of_model);
  say(render(of_model.notices));
  const OurStates ours = [&](int stage, EstimatorOffload offload) -> std::optional<Bytes> {
    const Document document = parse_hjson("(estimator)", estimator_configuration(stage, offload));
    const DeepSpeedInput input = read_deepspeed(document);
    Request request;
    request.gpus = {world, option("--gpus")};
    request.gpus_per_node = {node, option("--gpus-per-node")};
    return footprint(model, resolve(model, request, &input, nullptr, nullptr)).states.total();
  };
  return show_estimators(model, {world / node, node, *deepspeed}, ours);
}

std::string assumptions(const Words& words) {
  const Inputs inputs = gather(parse_simulate("show assumptions", words));
  const Job job = resolve(inputs);
  say(render(job.notices));
  return show_assumptions(job.inputs);
}

std::string operators(const Words& words) {
  std::optional<std::string> format, version;
  CommandLine line("dsplan show operators", "The operator catalogue: saved tensors, temporaries, FLOPs, witnesses.");
  line.option("--format", "table|json|md", "How it is printed", format);
  line.option("--torch-version", "V", "Whose rows", version);
  line.parse(words);
  const std::string torch = version.value_or(kTorchVersion);
  const std::optional<Version> parsed = Version::parse(torch);
  if (!parsed) throw Refusal("--torch-version", formatted("\"{}\" is no version", torch));
  const std::vector<OperatorEntry> entries = describe_catalogue({*parsed});
  const std::string wished = format.value_or("table");
  if (wished == "json") return operators_json(entries, parsed->text());
  if (wished == "md") return operators_markdown(entries);
  if (wished == "table") return show_operators(entries);
  throw Refusal("--format", formatted("\"{}\" is no format of this list", wished),
                did_you_mean(wished, {"table", "json", "md"}));
}

struct TopicRow {
  std::string_view name;
  std::string (*text)(const Words& words);  // Null: takes no words; see list_of.
};

constexpr std::array kShowTopics = {
    TopicRow{"formulas", formulas}, TopicRow{"estimators", estimators}, TopicRow{"assumptions", assumptions},
    TopicRow{"models", nullptr},    TopicRow{"graphs", nullptr},        TopicRow{"hardware", nullptr},
    TopicRow{"clusters", nullptr},  TopicRow{"operators", operators},   TopicRow{"deepspeed", nullptr},
    TopicRow{"training", nullptr},  TopicRow{"schema", show_schema},
};

std::string list_of(const std::string& topic) {
  (void)data_dir();  // Where there is none it refuses: an empty list would be no answer.
  if (topic == "models") return show_models();
  if (topic == "graphs") return show_graphs();
  if (topic == "hardware") return show_hardware();
  if (topic == "clusters") return show_clusters();
  if (topic == "deepspeed") return names_of(Bundled::DeepSpeed);
  return names_of(Bundled::Training);
}

std::string topics_text() {
  std::string text;
  for (const TopicRow& row : kShowTopics) text += formatted("{}{}", text.empty() ? "" : ", ", row.name);
  return text;
}

}  // namespace

int show_command(const Words& words) {
  if (words.empty()) throw Refusal("dsplan show", "TOPIC is missing", "topics are " + topics_text());
  const std::string& topic = words.front();
  const Words rest(words.begin() + 1, words.end());
  if (topic == "--help" || topic == "-h")
    throw HelpAsked{"Usage: dsplan show TOPIC [options]\n\n" + wrapped("", topics_text(), 0) +
                    "\nExample: dsplan show models"};
  std::vector<std::string_view> names;
  for (const TopicRow& row : kShowTopics) {
    names.push_back(row.name);
    if (row.name != topic) continue;
    if (row.text == nullptr) expect_nothing(topic, rest);
    Output output("");
    output.add(row.text != nullptr ? row.text(rest) : list_of(topic));
    output.finish();
    return kDone;
  }
  std::string hint = did_you_mean(topic, names);
  throw Refusal("dsplan show", formatted("no topic \"{}\"", topic),
                hint.empty() ? "topics are " + topics_text() : std::move(hint));
}

}  // namespace dsplan
