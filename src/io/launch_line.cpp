#include "io/launch_line.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "core/format.h"
#include "io/training_arguments.h"

namespace dsplan {
namespace {

constexpr const char* kWhere = "launch line";

// One word "--name value", "--name=value" or "--name"; `name` has no dashes in front and underscores inside.
struct Word {
  std::string name;
  std::string written;  // "--num_gpus"
  std::optional<std::string> value;
};

enum class Launcher : std::uint8_t { None, DeepSpeed, TorchRun, Accelerate, Mpi, Slurm, Python };

class LineReader {
 public:
  explicit LineReader(const std::vector<std::string>& words) : words_(words) {}
  Request read();

 private:
  [[nodiscard]] bool done() const { return at_ == words_.size(); }
  [[nodiscard]] Launcher launcher();
  void launcher_options(Launcher kind);
  Word option_word(Launcher kind);
  void take(Launcher kind, const Word& word);
  void take_deepspeed(const Word& word);
  void take_torchrun(const Word& word);
  void take_accelerate(const Word& word);
  void take_mpi(const Word& word);
  void take_slurm(const Word& word);
  void python_options();
  void script_arguments();
  void finish();
  void count(const Word& word, std::optional<std::int64_t>& into);
  void include(const Word& word);
  void notice(Notice::Kind kind, const std::string& where, std::string message);
  void argument(std::string_view key, const Value& value, const Place& place);

  const std::vector<std::string>& words_;
  std::size_t at_ = 0;
  Request request_;
  Diagnostics diagnostics_;
  std::optional<std::int64_t> ranks_;  // All.
  std::optional<std::int64_t> nodes_;
  std::optional<std::int64_t> per_node_;
  bool plain_ = false;          // No launcher that counts: one rank.
  bool all_of_a_node_ = false;  // torchrun --nproc-per-node gpu.
};

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string underscored(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

Place where(const std::string& word) { return option(formatted("{}: {}", kWhere, word)); }

bool is_assignment(const std::string& word) {
  const std::size_t equals = word.find('=');
  return equals != std::string::npos && equals > 0 &&
         std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals), [](char c) {
           return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

Launcher module_launcher(const std::string& name) {
  if (name == "torch.distributed.run" || name == "torch.distributed.launch") return Launcher::TorchRun;
  if (name == "accelerate.commands.launch") return Launcher::Accelerate;
  if (name == "deepspeed.launcher.runner" || name == "deepspeed") return Launcher::DeepSpeed;
  return Launcher::None;
}

// Options of the launchers that stand alone. All others take one value, unless what follows is an option itself.
bool stands_alone(Launcher kind, const std::string& name) {
  static const std::set<std::string> kDeepSpeed = {"module",   "no_python",         "no_local_rank",
                                                   "no_ssh",   "no_ssh_check",      "force_multi",
                                                   "save_pid", "elastic_training",  "q",
                                                   "quiet",    "bind_cores_to_rank"};
  static const std::set<std::string> kTorchRun = {"m", "module", "no_python", "standalone", "run_path", "use_env"};
  static const std::set<std::string> kAccelerate = {
      "m", "module", "no_python",    "multi_gpu",       "use_deepspeed",  "use_fsdp", "cpu",           "quiet",
      "q", "debug",  "same_network", "use_megatron_lm", "use_mps_device", "tpu",      "no_tpu_cluster"};
  static const std::set<std::string> kMpi = {"allow_run_as_root", "oversubscribe",  "bind_to_none", "v", "q",
                                             "tag_output",        "report_bindings"};
  static const std::set<std::string> kSlurm = {"exclusive", "l", "label", "u", "unbuffered", "v", "verbose", "overlap"};
  switch (kind) {
    case Launcher::DeepSpeed: return kDeepSpeed.contains(name);
    case Launcher::TorchRun: return kTorchRun.contains(name);
    case Launcher::Accelerate: return kAccelerate.contains(name);
    case Launcher::Mpi: return kMpi.contains(name);
    case Launcher::Slurm: return kSlurm.contains(name);
    case Launcher::None:
    case Launcher::Python: return true;
  }
  return true;
}

// A word of a command line as the value that it stands for.
Value scalar(const std::string& text) {
  Value value;
  value.kind = Value::Kind::String;
  value.string = text;
  if (text == "None" || text == "null") value.kind = Value::Kind::Null;
  return value;
}

Value truth() {
  Value value;
  value.kind = Value::Kind::Bool;
  value.boolean = true;
  return value;
}

void LineReader::notice(Notice::Kind kind, const std::string& word, std::string message) {
  request_.notices.push_back({kind, where(word), std::move(message), {}});
}

void LineReader::count(const Word& word, std::optional<std::int64_t>& into) {
  const std::string& text = word.value.value_or("");
  std::int64_t read = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), read);
  if (error != std::errc() || end != text.data() + text.size() || read < 1) {
    diagnostics_.add(where(word.written).says(formatted("\"{}\" is not a positive number of ranks or nodes", text)));
    return;
  }
  into = read;
}

// "host1:0,1@host2:2,3" or "localhost:0,1"; a host without a list uses all its GPUs, which the line does not say.
void LineReader::include(const Word& word) {
  std::int64_t ranks = 0;
  std::int64_t nodes = 0;
  std::string_view rest = word.value ? std::string_view(*word.value) : std::string_view();
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('@'), rest.size());
    const std::string_view host = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const std::size_t colon = host.find(':');
    if (colon == std::string_view::npos) {
      notice(Notice::Kind::Warning, word.written, "a host without a list of GPUs: say --gpus");
      return;
    }
    ++nodes;
    ranks += 1 + std::count(host.begin() + static_cast<std::ptrdiff_t>(colon), host.end(), ',');
  }
  if (nodes == 0) return;
  nodes_ = nodes;
  ranks_ = ranks;
  per_node_ = 1 + (ranks - 1) / nodes;
}

Launcher LineReader::launcher() {
  while (!done() && is_assignment(words_[at_])) {
    const std::string variable = words_[at_].substr(0, words_[at_].find('='));
    // Of the allocator's two names the older goes first (c10/cuda/CUDAAllocatorConfig.h).
    const bool first = variable == "PYTORCH_CUDA_ALLOC_CONF";
    if (first || (variable == "PYTORCH_ALLOC_CONF" && !request_.alloc_conf.given())) {
      request_.alloc_conf = {words_[at_], where(variable)};
    } else {
      notice(Notice::Kind::Inert, variable, "this environment variable is not read");
    }
    ++at_;
  }
  if (done()) return Launcher::None;
  const std::string name = base_name(words_[at_]);
  if (name == "env") {
    ++at_;
    return launcher();
  }
  if (name == "deepspeed" || name == "ds") return ++at_, Launcher::DeepSpeed;
  if (name == "torchrun") return ++at_, Launcher::TorchRun;
  if (name == "mpirun" || name == "mpiexec") return ++at_, Launcher::Mpi;
  if (name == "srun") return ++at_, Launcher::Slurm;
  if (name == "accelerate") {
    ++at_;
    if (!done() && words_[at_] == "launch") ++at_;
    return Launcher::Accelerate;
  }
  if (name.starts_with("python")) {
    ++at_;
    python_options();
    if (at_ + 1 < words_.size() && words_[at_] == "-m") {
      const Launcher inside = module_launcher(words_[at_ + 1]);
      if (inside != Launcher::None) return at_ += 2, inside;
    }
    return Launcher::Python;
  }
  return Launcher::None;
}

void LineReader::python_options() {
  while (!done() && words_[at_].starts_with("-") && words_[at_] != "-m") {
    at_ += words_[at_] == "-X" || words_[at_] == "-W" ? 2U : 1U;
    at_ = std::min(at_, words_.size());
  }
}

Word LineReader::option_word(Launcher kind) {
  std::string text = words_[at_++];
  Word word;
  const std::size_t equals = text.find('=');
  if (equals != std::string::npos) {
    word.value = text.substr(equals + 1);
    text.resize(equals);
  }
  word.written = text;
  word.name = underscored(
      text.substr(text.find_first_not_of('-') == std::string::npos ? text.size() : text.find_first_not_of('-')));
  if (word.value || stands_alone(kind, word.name)) return word;
  if (done() || words_[at_].starts_with("-") || words_[at_].ends_with(".py")) return word;
  word.value = words_[at_++];
  // Open MPI's -mca takes a name and a value.
  if (kind == Launcher::Mpi && word.name == "mca" && !done()) ++at_;
  return word;
}

void LineReader::launcher_options(Launcher kind) {
  while (!done() && words_[at_].starts_with("-")) {
    if (words_[at_] == "--") {
      ++at_;
      return;
    }
    take(kind, option_word(kind));
  }
}

void LineReader::take(Launcher kind, const Word& word) {
  switch (kind) {
    case Launcher::DeepSpeed: return take_deepspeed(word);
    case Launcher::TorchRun: return take_torchrun(word);
    case Launcher::Accelerate: return take_accelerate(word);
    case Launcher::Mpi: return take_mpi(word);
    case Launcher::Slurm: return take_slurm(word);
    case Launcher::None:
    case Launcher::Python: return;
  }
}

void LineReader::take_deepspeed(const Word& word) {
  if (word.name == "num_gpus" || word.name == "num_accelerators") return count(word, per_node_);
  if (word.name == "num_nodes") return count(word, nodes_);
  if (word.name == "i" || word.name == "include") return include(word);
  if (word.name == "H" || word.name == "hostfile" || word.name == "e" || word.name == "exclude") {
    notice(Notice::Kind::Warning, word.written, "host files are not read: say --gpus and --gpus-per-node");
  }
}

void LineReader::take_torchrun(const Word& word) {
  if (word.name == "nproc_per_node") {
    if (word.value && (*word.value == "gpu" || *word.value == "auto")) {
      all_of_a_node_ = true;
      return notice(Notice::Kind::Warning, word.written, "the number of GPUs is the machine's: say --gpus");
    }
    return count(word, per_node_);
  }
  if (word.name != "nnodes") return;
  // "MIN:MAX" is elastic; the larger number is the full job.
  Word most = word;
  if (word.value && word.value->find(':') != std::string::npos) {
    most.value = word.value->substr(word.value->find(':') + 1);
    notice(Notice::Kind::Announcement, word.written, formatted("elastic: {} nodes are taken", *most.value));
  }
  count(most, nodes_);
}

void LineReader::take_accelerate(const Word& word) {
  if (word.name == "num_processes" || word.name == "n") return count(word, ranks_);
  if (word.name == "num_machines") return count(word, nodes_);
  const Value value = word.value ? scalar(*word.value) : truth();
  const Place place = where(word.written);
  if (word.name == "config_file") {
    return notice(Notice::Kind::Warning, word.written, "accelerate's configuration file is not read");
  }
  if (word.name == "deepspeed_config_file") return argument("deepspeed", value, place);
  if (word.name == "gradient_accumulation_steps") return argument("gradient_accumulation_steps", value, place);
  if (word.name == "mixed_precision" && word.value && (*word.value == "bf16" || *word.value == "fp16")) {
    request_.mixed_precision = {*word.value, place};
    return;
  }
  if (word.name == "mixed_precision" && word.value && *word.value != "no") {
    request_.not_modelled.push_back({place, When::Always, word.written, *word.value + " mixed precision"});
  }
  if (word.name == "zero_stage" && word.value) {
    std::int64_t stage = -1;
    const std::string& text = *word.value;
    std::from_chars(text.data(), text.data() + text.size(), stage);
    if (text.size() != 1 || stage < 0 || stage > 3) {
      diagnostics_.add(place.says(formatted("ZeRO stage \"{}\" does not exist", text), "DeepSpeed has stages 0 to 3"));
    } else {
      request_.zero_stage = {stage, place};
    }
  }
  const auto refuse = [&](std::string feature) {
    request_.not_modelled.push_back({place, When::Always, word.written, std::move(feature)});
  };
  if (word.name == "use_fsdp") refuse("FSDP");
  if (word.name == "use_megatron_lm") refuse("Megatron-LM under accelerate");
  if (word.name == "dynamo_backend" && word.value && *word.value != "no") refuse("torch.compile");
  if (word.name.starts_with("offload_") && word.value && *word.value != "none") {
    refuse("offload through accelerate's options");
  }
}

void LineReader::take_mpi(const Word& word) {
  if (word.name == "np" || word.name == "n" || word.name == "c") return count(word, ranks_);
  if (word.name == "N" || word.name == "npernode" || word.name == "ppn") return count(word, per_node_);
}

void LineReader::take_slurm(const Word& word) {
  if (word.name == "n" || word.name == "ntasks") return count(word, ranks_);
  if (word.name == "N" || word.name == "nodes") return count(word, nodes_);
  if (word.name == "ntasks_per_node") return count(word, per_node_);
}

void LineReader::argument(std::string_view key, const Value& value, const Place& place) {
  if (apply_training_argument(key, value, place, request_, diagnostics_)) return;
  const std::string_view meant = nearest_training_argument(key);
  std::string message = formatted("unknown argument \"{}\": without effect here", key);
  if (!meant.empty()) message += formatted("; did you mean \"{}\"?", meant);
  request_.notices.push_back({Notice::Kind::Unknown, place, std::move(message), {}});
}

void LineReader::script_arguments() {
  while (!done()) {
    const std::string& text = words_[at_];
    if (!text.starts_with("--") || text == "--") {
      if (text.ends_with(".json") || text.ends_with(".yaml") || text.ends_with(".yml")) {
        notice(Notice::Kind::Warning, text, "this file is not read: give TrainingArguments with --training");
      }
      ++at_;
      continue;
    }
    ++at_;
    const std::size_t equals = text.find('=');
    const std::string written = text.substr(0, equals);
    const std::string key = underscored(written.substr(2));
    const Place place = where(written);
    if (equals != std::string::npos) {
      argument(key, scalar(text.substr(equals + 1)), place);
    } else if (!done() && !words_[at_].starts_with("--")) {
      argument(key, scalar(words_[at_++]), place);
    } else {
      argument(key, truth(), place);
    }
  }
}

void LineReader::finish() {
  const Place line = option(kWhere);
  if (per_node_) request_.gpus_per_node = {*per_node_, line};
  if (nodes_) request_.nodes = {*nodes_, line};
  if (!ranks_ && per_node_) ranks_ = checked_mul(*per_node_, nodes_.value_or(1));
  if (!ranks_ && !nodes_ && plain_) ranks_ = 1;
  if (ranks_) request_.gpus = {*ranks_, line};
  if (ranks_ && nodes_ && !per_node_) request_.gpus_per_node = {1 + (*ranks_ - 1) / *nodes_, line};
}

Request LineReader::read() {
  request_.has_launch_line = true;
  bool counted = false;
  while (!done()) {
    const Launcher kind = launcher();
    if (kind == Launcher::None || kind == Launcher::Python) {
      plain_ = !counted;
      break;
    }
    // A launcher inside another starts once per task of the outer one: its own counts are the job's.
    ranks_ = per_node_ = nodes_ = {};
    counted = true;
    launcher_options(kind);
    if (kind == Launcher::TorchRun && !per_node_ && !all_of_a_node_) per_node_ = 1;
    if (kind == Launcher::DeepSpeed || kind == Launcher::TorchRun || kind == Launcher::Accelerate) break;
  }
  if (!done() && !words_[at_].starts_with("-")) ++at_;  // The script.
  script_arguments();
  finish();
  diagnostics_.throw_if_any();
  return std::move(request_);
}

}  // namespace

Request read_launch_line(const std::vector<std::string>& words) { return LineReader(words).read(); }

}  // namespace dsplan
