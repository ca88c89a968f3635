#include "io/launch_line.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "core/format.h"
#include "core/text/letters.h"
#include "core/text/whole_numbers.h"
#include "io/dialects/dialect_file.h"
#include "io/hub/hub.h"
#include "io/own_file.h"
#include "io/text.h"

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
  LineReader(const std::vector<std::string>& words, const ReadNamed& read, LaunchedOn machine)
      : words_(words), read_(read), machine_(machine) {}
  Said read();

 private:
  [[nodiscard]] bool done() const { return at_ == words_.size(); }
  [[nodiscard]] Launcher launcher();
  void variable(const std::string& word);
  void launcher_options(Launcher kind);
  Word option_word(Launcher kind);
  void take(Launcher kind, const Word& word);
  void take_deepspeed(const Word& word);
  void take_torchrun(const Word& word);
  void take_accelerate(const Word& word);
  void take_mpi(const Word& word);
  void take_slurm(const Word& word);
  void program();
  void accelerate();
  void finish();
  void count(const Word& word, std::optional<std::int64_t>& into);
  void include(const Word& word);
  void notice(Notice::Kind kind, const std::string& where, std::string message);

  const std::vector<std::string>& words_;
  const ReadNamed& read_;
  const LaunchedOn machine_;
  std::size_t at_ = 0;
  Said said_;
  Request& request_ = said_.request;
  Diagnostics diagnostics_;
  std::optional<std::int64_t> ranks_;  // All.
  std::optional<std::int64_t> nodes_;
  std::optional<std::int64_t> per_node_;
  bool plain_ = false;                            // No launcher that counts: one rank.
  bool all_of_a_node_ = false;                    // torchrun --nproc-per-node gpu.
  std::vector<std::int64_t> slots_;               // Of each host in deepspeed's file of them.
  std::optional<std::int64_t> visible_;           // Devices in CUDA_VISIBLE_DEVICES.
  bool takes_visible_ = false;                    // The launcher counts them.
  std::map<std::string, std::string> variables_;  // Those that only some programs read.
  bool accelerates_ = false;                      // `accelerate launch` starts it.
  std::optional<std::string> accelerate_file_;
  std::vector<DialectArgument> accelerate_;  // Its options, by the names of its configuration.
};

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

Place where(const std::string& word) { return word_place(word); }

// What `accelerate config` leaves (accelerate 1.15.0, commands/config/config_args.py).
std::optional<std::string> usual_accelerate_file(const std::map<std::string, std::string>& variables) {
  const auto own = variables.find("HF_HOME");
  const std::string path =
      formatted("{}/accelerate/default_config.yaml", own == variables.end() ? hub_home() : own->second);
  return ::access(path.c_str(), F_OK) == 0 ? std::optional(path) : std::nullopt;
}

bool is_assignment(const std::string& word) {
  const std::size_t equals = word.find('=');
  return equals != std::string::npos && equals > 0 &&
         std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals), is_word_character);
}

std::size_t past_python_options(const std::vector<std::string>& words, std::size_t at) {
  while (at < words.size() && words[at].starts_with("-") && words[at] != "-m") {
    at += words[at] == "-X" || words[at] == "-W" ? 2U : 1U;
  }
  return std::min(at, words.size());
}

Launcher launcher_called(const std::string& name) {
  if (name == "deepspeed" || name == "ds") return Launcher::DeepSpeed;
  if (name == "torchrun") return Launcher::TorchRun;
  if (name == "mpirun" || name == "mpiexec") return Launcher::Mpi;
  if (name == "srun") return Launcher::Slurm;
  return name == "accelerate-launch" ? Launcher::Accelerate : Launcher::None;
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

// Of each host: "worker-0 slots=8", a line for each (deepspeed 0.19.8, launcher/runner.py, _parse_hostfile).
std::vector<std::int64_t> slots_in(const std::string& path, Diagnostics& faults) {
  std::vector<std::int64_t> hosts;
  std::istringstream lines(read_file(path));
  std::string line;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    std::istringstream parts(line);
    std::string host, slots;
    if (!(parts >> host) || host.starts_with('#')) continue;
    parts >> slots;
    constexpr std::string_view kSlots = "slots=";
    const std::optional<std::int64_t> many =
        slots.starts_with(kSlots) ? whole_number(std::string_view(slots).substr(kSlots.size())) : std::nullopt;
    if (many.value_or(0) < 1) {
      faults.add({path, number, 1, line, "is no host's line", "HOST slots=8"});
      return {};
    }
    hosts.push_back(*many);
  }
  if (hosts.empty()) faults.add({path, 0, 0, {}, "names no host", {}});
  return hosts;
}

// --num_nodes takes the first hosts of the file, --num_gpus as many of each.
void take_hosts(std::vector<std::int64_t> slots, std::optional<std::int64_t>& ranks, std::optional<std::int64_t>& nodes,
                std::optional<std::int64_t>& per_node) {
  if (slots.empty() || ranks) return;
  if (nodes && *nodes < std::ssize(slots)) slots.resize(static_cast<std::size_t>(*nodes));
  if (per_node) std::fill(slots.begin(), slots.end(), *per_node);
  nodes = std::ssize(slots);
  ranks = std::accumulate(slots.begin(), slots.end(), std::int64_t{0});
  per_node = *std::max_element(slots.begin(), slots.end());
}

void LineReader::variable(const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  // Of the allocator's two names the older goes first (c10/cuda/CUDAAllocatorConfig.h).
  const bool first = name == "PYTORCH_CUDA_ALLOC_CONF";
  if (first || (name == "PYTORCH_ALLOC_CONF" && !request_.alloc_conf.given())) {
    request_.alloc_conf = {word, where(name)};
    return;
  }
  const std::string value = word.substr(name.size() + 1);
  if (name == "CUDA_VISIBLE_DEVICES" && !value.empty()) {
    visible_ = 1 + std::count(value.begin(), value.end(), ',');
    return;
  }
  variables_[name] = value;
}

bool is_on(const std::map<std::string, std::string>& variables, const char* name, bool usually) {
  const auto at = variables.find(name);
  if (at == variables.end()) return usually;
  return at->second == "1" || at->second == "true" || at->second == "y" || at->second == "Y" || at->second == "True";
}

// llamafactory-cli starts torchrun where there are several devices, with segments that expand, whatever the environment
// says of the allocator (llamafactory 0.9.5, launcher.py).
void read_factory_environment(std::map<std::string, std::string>& variables, Request& request, ForeignInput& foreign) {
  const bool forced = is_on(variables, "FORCE_TORCHRUN", false) || is_on(variables, "USE_MCA", false);
  if (is_on(variables, "USE_RAY", false)) {
    request.not_modelled.push_back({where("USE_RAY"), When::Always, "USE_RAY", "ranks that Ray starts"});
  } else if (is_on(variables, "OPTIM_TORCH", true)) {
    foreign.segments = {forced ? "always" : "several", where("llamafactory-cli")};
  }
  for (const char* read :
       {"USE_V1", "FORCE_TORCHRUN", "USE_MCA", "USE_RAY", "OPTIM_TORCH", "NPROC_PER_NODE", "NNODES", "MAX_NNODES"}) {
    variables.erase(read);
  }
}

// USE_V1 (llamafactory 0.9.6, cli.py): then `train` is v1's `sft`.
void choose_factory(const std::map<std::string, std::string>& variables, std::vector<std::string>& words) {
  if (!is_on(variables, "USE_V1", false)) return;
  const std::size_t at = !words.empty() && words[0] == "-m" ? 1 : 0;
  if (words.size() < at + 2) return;
  const std::string name = base_name(words[at]);
  const bool theirs = name == "llamafactory-cli" || name == "lmf" || name == "llamafactory.cli";
  if (theirs && words[at + 1] == "train") words[at + 1] = "sft";
}

Launcher LineReader::launcher() {
  while (!done() && is_assignment(words_[at_])) variable(words_[at_++]);
  if (done()) return Launcher::None;
  const std::string name = base_name(words_[at_]);
  if (name == "env" || name == "nohup" || name == "time" || name == "exec") {
    ++at_;
    return launcher();
  }
  const bool runs = name == "uv" || name == "poetry" || name == "pipenv" || name == "pixi";
  if (runs && at_ + 2 < words_.size() && words_[at_ + 1] == "run" && !words_[at_ + 2].starts_with("-")) {
    at_ += 2;
    return launcher();
  }
  if (const Launcher called = launcher_called(name); called != Launcher::None) return ++at_, called;
  if (name == "accelerate") {
    ++at_;
    if (!done() && words_[at_] == "launch") ++at_;
    return Launcher::Accelerate;
  }
  if (name.starts_with("python")) {
    ++at_;
    at_ = past_python_options(words_, at_);
    if (at_ + 1 < words_.size() && words_[at_] == "-m") {
      const Launcher inside = module_launcher(words_[at_ + 1]);
      if (inside != Launcher::None) return at_ += 2, inside;
    }
    return Launcher::Python;
  }
  return Launcher::None;
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
  word.name = argument_name(text);
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
  if (word.name == "H" || word.name == "hostfile") {
    // Without the file deepspeed goes on with the GPUs of its own machine.
    const bool there = word.value && ::access(word.value->c_str(), F_OK) == 0;
    if (there) slots_ = slots_in(*word.value, diagnostics_);
    if (there) return;
    return notice(Notice::Kind::Warning, word.written,
                  "host files are not read where they are not there: say --gpus and --gpus-per-node");
  }
  if (word.name == "e" || word.name == "exclude") {
    notice(Notice::Kind::Warning, word.written, "what is left out is not counted: say --gpus and --gpus-per-node");
  }
}

void LineReader::take_torchrun(const Word& word) {
  if (word.name == "nproc_per_node") {
    if (word.value && (*word.value == "gpu" || *word.value == "auto")) {
      all_of_a_node_ = true;
      if (visible_) return;
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

// Options say what the configuration says, some under the block that they are of (commands/launch.py).
std::string configuration_key(const std::string& option) {
  const DialectTable& table = dialect(Dialect::Accelerate);
  if (find_key(table, option) != nullptr) return option;
  for (const char* block : {"deepspeed_config", "fsdp_config", "megatron_lm_config", "dynamo_config", "mpirun_config",
                            "parallelism_config", "fp8_config"}) {
    const std::string_view name = block;
    const std::string prefix(name.substr(0, name.rfind("_config") + 1));
    if (option.starts_with(prefix)) return formatted("{}.{}", name, option);
  }
  const std::string plugin = "deepspeed_config." + option;
  return find_key(table, plugin) != nullptr ? plugin : option;
}

void LineReader::take_accelerate(const Word& word) {
  if (word.name == "num_processes" || word.name == "n") return count(word, ranks_);
  if (word.name == "num_machines") return count(word, nodes_);
  if (word.name == "m" || word.name == "q") return;
  if (word.name == "config_file" && word.value) {
    accelerate_file_ = *word.value;
    return;
  }
  Value value = word_value(word.value.value_or("true"));
  accelerate_.push_back({configuration_key(word.name), std::move(value), where(word.written)});
}

void LineReader::accelerate() {
  const bool unnamed = accelerates_ && !accelerate_file_;
  if (const auto usual = unnamed ? usual_accelerate_file(variables_) : std::nullopt) {
    const bool here = machine_ == LaunchedOn::ThisMachine;
    if (here) accelerate_file_ = usual;
    notice(here ? Notice::Kind::Announcement : Notice::Kind::Warning, "accelerate",
           formatted("{} is {}", *usual,
                     here ? "read: `accelerate launch` without --config_file takes what `accelerate config` left there"
                          : "not read, since other machines may have another: --config_file names one"));
  }
  if (accelerates_) variables_.erase("HF_HOME");
  if (!accelerate_file_ && accelerate_.empty()) return;
  try {
    std::optional<Document> file;
    if (accelerate_file_) file = launch_file_of_trl(*accelerate_file_);
    if (accelerate_file_ && !file) file = read_(*accelerate_file_);
    if (file) expect_object(*file, "accelerate's configuration");
    Said said = read_dialect(dialect(Dialect::Accelerate), {file ? &*file : nullptr, accelerate_});
    const bool alone = said.foreign.distribution.value_or("") == "NO";
    if (said.request.gpus.given() && (alone || !ranks_)) ranks_ = *said.request.gpus;
    if (!nodes_ && said.request.nodes.given()) nodes_ = *said.request.nodes;
    said.request.gpus = said.request.nodes = {};
    said_ = overlay(said_, said);
  } catch (const Refusal& refusal) {
    for (const Diagnostic& fault : refusal.diagnostics()) diagnostics_.add(fault);
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

// One process that sees several devices: transformers' Trainer wraps the model in nn.DataParallel, unless DeepSpeed
// counts one for each process (trainer.py, _wrap_model; training_args.py, _setup_devices).
void judge_one_process(std::int64_t devices, Said& said, Diagnostics& faults) {
  if (devices < 2) return;
  Request& request = said.request;
  const std::string program = said.foreign.program.value_or({});
  const bool trains = request.training_arguments || (!program.empty() && program != "torchtitan");
  const Place place = where("CUDA_VISIBLE_DEVICES");
  const std::string what = formatted("one process that sees {} devices: ", devices);
  const std::string hint = formatted(
      "start a process for each: CUDA_VISIBLE_DEVICES=... torchrun --nproc_per_node {} ...; or make one visible",
      devices);
  if (!trains) {
    request.notices.push_back({Notice::Kind::Warning, place, what + "one of them is predicted; " + hint, {}});
  } else if (!request.deepspeed.given() && !request.inline_deepspeed) {
    faults.add(place.says(what + "the Trainer puts the model into nn.DataParallel, which is not modelled", hint));
  }
}

// The launcher's own words are below the program's.
void LineReader::program() {
  try {
    std::vector<std::string> rest(words_.begin() + static_cast<std::ptrdiff_t>(at_), words_.end());
    choose_factory(variables_, rest);
    ProgramLine line = read_program_line(rest, read_);
    if (line.takes_all_devices) {
      plain_ = false;
      if (line.said.foreign.program.value_or("").starts_with("llama-factory")) {
        for (const auto& [name, into] : {std::pair("NPROC_PER_NODE", &per_node_), std::pair("NNODES", &nodes_),
                                         std::pair("MAX_NNODES", &nodes_)}) {
          const auto at = variables_.find(name);
          if (at != variables_.end()) count({name, name, at->second}, *into);
        }
        read_factory_environment(variables_, request_, line.said.foreign);
      }
      if (!per_node_) per_node_ = visible_;
    }
    if (!line.launcher.empty()) {
      const auto home = variables_.find("HF_HOME");
      if (home != variables_.end()) {
        line.launcher.insert(line.launcher.begin(), formatted("HF_HOME={}", home->second));
        variables_.erase(home);
      }
      const Said inside = LineReader(line.launcher, read_, machine_).read();
      if (inside.request.gpus.given()) ranks_ = *inside.request.gpus;
      if (inside.request.gpus_per_node.given()) per_node_ = *inside.request.gpus_per_node;
      said_ = overlay(said_, inside);
    }
    said_ = overlay(said_, line.said);
  } catch (const Refusal& refusal) {
    for (const Diagnostic& fault : refusal.diagnostics()) diagnostics_.add(fault);
  }
}

void LineReader::finish() {
  const Place line = option(kWhere);
  if (takes_visible_ && !ranks_ && !per_node_ && !nodes_) per_node_ = visible_;
  if (per_node_) request_.gpus_per_node = {*per_node_, line};
  if (nodes_) request_.nodes = {*nodes_, line};
  if (!ranks_ && per_node_) ranks_ = checked_mul(*per_node_, nodes_.value_or(1));
  if (!ranks_ && !nodes_ && plain_) ranks_ = 1;
  if (ranks_) request_.gpus = {*ranks_, line};
  if (ranks_ && nodes_ && !per_node_) request_.gpus_per_node = {1 + (*ranks_ - 1) / *nodes_, line};
}

Said LineReader::read() {
  request_.has_launch_line = true;
  bool counted = false;
  while (!done()) {
    const Launcher kind = launcher();
    if (kind == Launcher::None || kind == Launcher::Python) {
      plain_ = !counted;
      break;
    }
    accelerates_ = kind == Launcher::Accelerate;
    // A launcher inside another starts once per task of the outer one: its own counts are the job's.
    ranks_ = per_node_ = nodes_ = {};
    counted = true;
    launcher_options(kind);
    take_hosts(slots_, ranks_, nodes_, per_node_);
    // Told no number they start a process for each device that is visible (deepspeed 0.19.8, launcher/runner.py;
    // accelerate 1.x, commands/launch.py; torch 2.11, distributed/run.py, "gpu").
    takes_visible_ = kind == Launcher::DeepSpeed || kind == Launcher::Accelerate || all_of_a_node_;
    if (kind == Launcher::TorchRun && !per_node_ && !all_of_a_node_) per_node_ = 1;
    if (kind == Launcher::DeepSpeed || kind == Launcher::TorchRun || kind == Launcher::Accelerate) break;
  }
  accelerate();
  if (!done()) program();
  if (plain_) judge_one_process(visible_.value_or(1), said_, diagnostics_);
  for (const auto& [name, value] : variables_) {
    notice(Notice::Kind::Inert, name, "this environment variable is not read");
  }
  finish();
  diagnostics_.throw_if_any();
  return std::move(said_);
}

}  // namespace

Said read_launch(const std::vector<std::string>& words, const ReadNamed& read, LaunchedOn machine) {
  return LineReader(words, read, machine).read();
}

Request read_launch_line(const std::vector<std::string>& words) { return read_launch(words, read_document).request; }

}  // namespace dsplan
