#include "cli/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <variant>

#include "core/format.h"

namespace dsplan {
namespace {

using Text = Setting<std::string> Request::*;
using Number = Setting<std::int64_t> Request::*;
using Size = Setting<Bytes> Request::*;

struct OptionRow {
  const char* name;
  const char* type;
  std::variant<Text, Number, Size> field;
  const char* help;
};

// One row per option that takes one value. The order is that of --help.
constexpr std::array kOptions = {
    OptionRow{"--deepspeed", "FILE", &Request::deepspeed, "DeepSpeed JSON, or a bundled name"},
    OptionRow{"--training", "FILE", &Request::training, "Training file or TrainingArguments"},
    OptionRow{"--hardware", "NAME|FILE", &Request::hardware, "One device: `dsplan show hardware`"},
    OptionRow{"--cluster", "NAME|FILE", &Request::cluster, "Nodes and devices: `dsplan show clusters`"},
    OptionRow{"--calibration", "FILE", &Request::calibration, "Measured figures of the device"},
    OptionRow{"--gpus", "N", &Request::gpus, "All ranks"},
    OptionRow{"--gpus-per-node", "N", &Request::gpus_per_node, "Ranks per node"},
    OptionRow{"--tp", "N", &Request::tp, "Tensor-parallel ranks"},
    OptionRow{"--sp", "N", &Request::sp, "Sequence-parallel ranks"},
    OptionRow{"--ep", "N", &Request::ep, "Expert-parallel ranks"},
    OptionRow{"--zero-stage", "0|1|2|3", &Request::zero_stage, "ZeRO stage"},
    OptionRow{"--runtime", "NAME", &Request::runtime, "pytorch or deepspeed"},
    OptionRow{"--micro-batch", "N", &Request::micro_batch, "Rows per rank and forward"},
    OptionRow{"--grad-accum", "N", &Request::grad_accum, "Micro-batches per optimizer step"},
    OptionRow{"--seq", "N", &Request::seq, "Tokens per row"},
    OptionRow{"--seq-list", "LIST", &Request::seq_list, "Lengths that micro-batches take in turn"},
    OptionRow{"--dtype", "bf16|fp16|fp32", &Request::dtype, "Type of the working parameters"},
    OptionRow{"--autocast", "bf16|fp16", &Request::autocast, "torch.autocast around the forward, or none"},
    OptionRow{"--lora", "SPEC", &Request::lora, "r=8,targets=q_proj+v_proj,dtype=fp32"},
    OptionRow{"--checkpoint", "MODE|FILE", &Request::checkpoint, "none, full, every:K, keep:OP+OP, ..., FILE"},
    OptionRow{"--checkpoint-impl", "KIND", &Request::checkpoint_impl, "reentrant or non_reentrant"},
    OptionRow{"--attention", "KIND", &Request::attention, "eager, math, flash, mem-efficient or sdpa"},
    OptionRow{"--loss", "KIND", &Request::loss, "hf, native, chunked:N or liger"},
    OptionRow{"--optimizer", "NAME[:IMPL]", &Request::optimizer, "adamw:fused, sgd:foreach, lion, ..."},
    OptionRow{"--level", "kernel|dispatch", &Request::level, "dispatch: without temporaries inside kernels"},
    OptionRow{"--routing", "RULE", &Request::routing, "Tokens of experts: balanced or worst"},
    OptionRow{"--loop", "trainer|minimal", &Request::loop, "The training loop that holds batch and loss"},
    OptionRow{"--alloc-conf", "CONF", &Request::alloc_conf, "The keys of PYTORCH_CUDA_ALLOC_CONF"},
    OptionRow{"--stream-frees", "WHEN", &Request::stream_frees, "Waiting frees: at-sync or immediate"},
    OptionRow{"--placement", "KIND", &Request::placement, "caching or planned"},
    OptionRow{"--deepspeed-version", "V", &Request::deepspeed_version, "Version of DeepSpeed"},
    OptionRow{"--torch-version", "V", &Request::torch_version, "Version of PyTorch"},
    OptionRow{"--transformers-version", "V", &Request::transformers_version, "Version of transformers"},
    OptionRow{"--env", "FILE", &Request::env, "pip freeze (not modelled yet)"},
    OptionRow{"--host-memory", "SIZE", &Request::host_memory, "Host memory of one node, such as 512GiB"},
    OptionRow{"--nvme-memory", "SIZE", &Request::nvme_memory, "What files of one node may take, such as 8TB"},
    OptionRow{"--capacity", "SIZE", &Request::capacity, "Memory of one device, such as 80GiB"},
    OptionRow{"--reserve", "SIZE", &Request::reserve, "Kept free on each device, such as 1GiB"},
    OptionRow{"--rank", "R|all|worst", &Request::rank, "Which rank to report"},
    OptionRow{"--phase", "NAME", &Request::phase, "Peaks of init, steady, forward, record, ..."},
    OptionRow{"--sweep", "KEY=A:B", &Request::sweep, "Several values (not modelled yet)"},
    OptionRow{"--format", "table|json|csv|md", &Request::format, "How to print; csv: rank,path,value"},
    OptionRow{"--out", "FILE", &Request::out, "Print to a file, which appears when complete"},
};

constexpr const char* kFooter =
    "After \"--\" comes the command that starts the job (torchrun, ...).\n"
    "--explain peak lists the largest live buffers, --explain saved what each\n"
    "autograd node keeps, --explain traffic every collective, --explain\n"
    "fragmentation what lies between allocated and reserved, --explain advice\n"
    "which settings cost memory for nothing, by predicting without them.\n"
    "Exit codes: 0 it fits or nobody can say, 2 refused, 3 it does not fit.";

constexpr std::array<std::string_view, 5> kTopics = {"peak", "saved", "traffic", "fragmentation", "advice"};

// "--explain" may stand alone; then the next word is not its value.
Words with_topics(const Words& words, std::size_t end) {
  Words result;
  for (std::size_t i = 0; i < end; ++i) {
    if (words[i] != "--explain") {
      result.push_back(words[i]);
      continue;
    }
    const bool named = i + 1 < end && std::find(kTopics.begin(), kTopics.end(), words[i + 1]) != kTopics.end();
    result.push_back("--explain=" + (named ? words[++i] : "peak"));
  }
  return result;
}

void take(const OptionRow& row, const std::string& text, Request& request, Diagnostics& diagnostics) {
  if (const auto* field = std::get_if<Text>(&row.field)) {
    request.*(*field) = {text, option(row.name)};
  } else if (const auto* number = std::get_if<Number>(&row.field)) {
    if (const auto read = whole_number(row.name, text, diagnostics)) request.*(*number) = {*read, option(row.name)};
  } else if (const auto read = labelled_size(row.name, text, diagnostics)) {
    request.*std::get<Size>(row.field) = {*read, option(row.name)};
  }
}

void take_topics(const std::vector<std::string>& texts, SimulateWords& into, Diagnostics& diagnostics) {
  for (const std::string& text : texts) {
    const auto refuse = [&diagnostics](std::string message, std::string hint) {
      diagnostics.add({"--explain", 0, 0, {}, std::move(message), std::move(hint)});
    };
    if (text == "peak") {
      into.explain.push_back(Topic::Peak);
    } else if (text == "saved") {
      into.explain.push_back(Topic::Saved);
    } else if (text == "traffic") {
      into.explain.push_back(Topic::Traffic);
    } else if (text == "fragmentation") {
      into.explain.push_back(Topic::Fragmentation);
    } else if (text == "advice") {
      into.explain.push_back(Topic::Advice);
    } else {
      refuse(formatted("no topic \"{}\"", text), "topics are peak, saved, traffic, fragmentation, advice");
    }
  }
}

// What says what to report, or names a file that a receipt holds itself.
bool stays_behind(std::string_view name) {
  constexpr std::array<std::string_view, 7> kBehind = {"--deepspeed", "--training", "--rank", "--phase",
                                                       "--sweep",     "--format",   "--out"};
  return std::find(kBehind.begin(), kBehind.end(), name) != kBehind.end();
}

void put(const OptionRow& row, const Request& request, Words& words) {
  std::string text;
  if (const auto* field = std::get_if<Text>(&row.field)) {
    if (!(request.**field).given()) return;
    text = *(request.**field);
  } else if (const auto* number = std::get_if<Number>(&row.field)) {
    if (!(request.**number).given()) return;
    text = std::to_string(*(request.**number));
  } else {
    const auto& size = request.*std::get<Size>(row.field);
    if (!size.given()) return;
    text = formatted("{}B", (*size).value());
  }
  words.insert(words.end(), {row.name, std::move(text)});
}

}  // namespace

Words words_of(const SimulateWords& said) {
  Words words;
  for (const OptionRow& row : kOptions) {
    if (!stays_behind(row.name)) put(row, said.options, words);
  }
  const auto repeat = [&](const char* name, const Setting<std::vector<std::string>>& list) {
    if (!list.given()) return;
    for (const std::string& one : *list) words.insert(words.end(), {name, one});
  };
  repeat("--freeze", said.options.freeze);
  repeat("--set", said.options.set);
  if (!said.launch.empty()) words.push_back("--");
  words.insert(words.end(), said.launch.begin(), said.launch.end());
  return words;
}

std::optional<std::int64_t> whole_number(std::string_view option, std::string_view text, Diagnostics& diagnostics) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  const bool large = error == std::errc::result_out_of_range && end == text.data() + text.size();
  diagnostics.add(
      {std::string(option),
       0,
       0,
       {},
       large ? formatted("{} does not fit in 63 bits", text) : formatted("\"{}\" is not a whole number", text),
       {}});
  return std::nullopt;
}

std::optional<Bytes> labelled_size(std::string_view option, std::string_view text, Diagnostics& diagnostics) {
  const bool bare = text.find_first_not_of("0123456789.") == std::string_view::npos && !text.empty();
  if (!bare) {
    if (const std::optional<Bytes> read = parse_bytes(text)) return read;
  }
  diagnostics.add({std::string(option),
                   0,
                   0,
                   {},
                   bare ? formatted("\"{}\" is a size without a unit", text) : formatted("\"{}\" is not a size", text),
                   bare ? formatted("write {0}GiB (2^30), {0}GB (10^9) or {0}B", text)
                        : std::string("write 80GiB, 512MiB, 80GB or 1024B")});
  return std::nullopt;
}

SimulateWords parse_simulate(std::string_view command, const Words& words, const CommandExtras& extras) {
  const auto dashes = std::find(words.begin(), words.end(), "--");
  const auto end = static_cast<std::size_t>(dashes - words.begin());
  SimulateWords result;
  if (dashes != words.end()) result.launch.assign(dashes + 1, words.end());

  CommandLine line(formatted("dsplan {}", command), extras.description,
                   extras.footer.empty() ? std::string(kFooter) : extras.footer);
  std::optional<std::string> model;
  std::array<std::optional<std::string>, kOptions.size()> values;
  std::vector<std::string> freeze, set, topics;
  std::optional<std::string> diff;
  bool strict = false;
  line.positional("MODEL", "Bundled name, config.json, folder, cached id", model);
  if (extras.add) extras.add(line);
  for (std::size_t i = 0; i < kOptions.size(); ++i) {
    line.option(kOptions[i].name, kOptions[i].type, kOptions[i].help, values[i]);
  }
  line.list("--freeze", "GLOB", "Parameters without gradients; may be repeated", freeze);
  line.list("--set", "KEY=VALUE", "zero_grad_set_to_none or model_init", set);
  line.list("--explain", "TOPIC", "Adds to the table: peak, traffic, ...", topics);
  line.option("--diff", "OTHER", "What moved between two (not modelled yet)", diff);
  line.flag("--strict", "Refuse every assumed input", strict);
  line.parse(with_topics(words, end));

  Diagnostics diagnostics;
  if (!model)
    diagnostics.add(
        {formatted("dsplan {}", command), 0, 0, {}, "MODEL is missing", "`dsplan show models` lists the bundled ones"});
  for (std::size_t i = 0; i < kOptions.size(); ++i) {
    if (values[i]) take(kOptions[i], *values[i], result.options, diagnostics);
  }
  take_topics(topics, result, diagnostics);
  if (diff) diagnostics.add({"--diff", 0, 0, {}, "comparing two predictions is not modelled yet", {}});
  diagnostics.throw_if_any();
  if (!freeze.empty()) result.options.freeze = {std::move(freeze), option("--freeze")};
  if (!set.empty()) result.options.set = {std::move(set), option("--set")};
  if (strict) result.options.strict = {true, option("--strict")};
  result.model = std::move(*model);
  return result;
}

}  // namespace dsplan
