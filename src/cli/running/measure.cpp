// `dsplan measure`: somebody's own training command on the dry device, or on a GPU, and what it took.
//
// The launcher (tools/dry/run, which is installed with the data) starts the command, puts the libraries in front of it
// and leaves nothing behind. Here is what surrounds it: options, the receipts that it wrote, and the answer.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/predicted.h"
#include "cli/running/machine.h"
#include "cli/wrap.h"
#include "core/format.h"
#include "core/text/whole_numbers.h"
#include "io/locate.h"
#include "io/text.h"
#include "report/compare.h"
#include "report/receipt.h"

namespace dsplan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMeasureFooter =
    "Runs COMMAND unchanged: python, torchrun, deepspeed, accelerate. It needs a\n"
    "CUDA build of PyTorch, and no GPU (docs/dry-device.md). Example:\n"
    "  dsplan measure --device h100-sxm -- torchrun --nproc-per-node 8 train.py\n"
    "Exit codes: 3 where it ran out of device memory; where it failed otherwise, its\n"
    "own; 2 where it never took an optimizer step.";

struct MeasureWords {
  std::optional<std::string> device, capacity, devices, events, world, rank, routing, cuda, format, out;
  bool snapshot = false;
  Words command;
};

// What the launcher would refuse as well, in the words of its own options.
void check_numbers(const MeasureWords& said, Diagnostics& faults) {
  const auto check = [&](const char* name, const std::optional<std::string>& value, std::int64_t least) {
    if (!value || whole_number(*value).value_or(least - 1) >= least) return;
    faults.add({name, 0, 0, {}, formatted("\"{}\" is no whole number from {} on", *value, least), {}});
  };
  check("--devices", said.devices, 1);
  check("--world", said.world, 1);
  check("--rank", said.rank, 0);
  const std::string events = said.events.value_or("done");
  if (events != "done" && events != "pending" && events != "timed" && whole_number(events).value_or(0) < 1) {
    faults.add({"--events",
                0,
                0,
                {},
                formatted("work is complete \"{}\"", events),
                "say done, pending, timed, or a number of launches from 1 on"});
  }
  const std::string routing = said.routing.value_or("balanced");
  if (routing != "balanced" && routing != "worst" && !routing.starts_with("capacity:") &&
      !routing.starts_with("counts:")) {
    faults.add({"--routing",
                0,
                0,
                {},
                formatted("routing \"{}\" is not known", routing),
                "say balanced, worst, capacity:F, or counts:N,N and so on"});
  }
  if (said.cuda && *said.cuda != "12" && *said.cuda != "13") {
    faults.add({"--cuda", 0, 0, {}, formatted("there is no stand-in for CUDA {}", *said.cuda), "there are 12 and 13"});
  }
  if (said.device == "cuda") {
    const auto of_the_dry = [&](const char* name, const std::optional<std::string>& value) {
      if (!value) return;
      faults.add({name, 0, 0, {}, "is the dry device's, and --device cuda is a real GPU", "leave one of them out"});
    };
    of_the_dry("--capacity", said.capacity);
    of_the_dry("--devices", said.devices);
    of_the_dry("--events", said.events);
    of_the_dry("--world", said.world);
    of_the_dry("--routing", said.routing);
    of_the_dry("--cuda", said.cuda);
  }
  const std::optional<std::int64_t> world = said.world ? whole_number(*said.world) : std::nullopt;
  const std::optional<std::int64_t> rank = said.rank ? whole_number(*said.rank) : std::nullopt;
  if (rank && !said.world) {
    faults.add({"--rank", 0, 0, {}, "a rank of how many?", "say --world W, or start W processes with torchrun"});
  } else if (world && rank && *rank >= *world) {
    faults.add({"--rank", 0, 0, {}, formatted("there is no rank {} of {}", *rank, *world), "ranks count from 0"});
  }
}

MeasureWords parse_measure(const Words& words) {
  MeasureWords said;
  const auto dashes = std::find(words.begin(), words.end(), "--");
  if (dashes != words.end()) said.command.assign(dashes + 1, words.end());
  CommandLine line("dsplan measure", "Runs a training command on the dry device and writes receipts.", kMeasureFooter);
  line.option("--device", "NAME", "Of configs/hardware, h100-sxm by default; cuda: a real GPU", said.device);
  line.option("--capacity", "SIZE", "Memory of the device instead of its own", said.capacity);
  line.option("--devices", "N", "Devices that each process sees", said.devices);
  line.option("--events", "WHEN", "Work is complete: done, pending, timed, or N launches later", said.events);
  line.option("--world", "W", "One process as one rank of W, whose peers mirror it", said.world);
  line.option("--rank", "R", "Which rank that is", said.rank);
  line.option("--routing", "RULE", "Tokens of experts in a loop: balanced, worst, capacity:F, counts:N,N",
              said.routing);
  line.option("--cuda", "12|13", "Instead of the CUDA that the command's PyTorch has", said.cuda);
  line.flag("--snapshot", "Each rank keeps PyTorch's memory snapshot", said.snapshot);
  line.option("--out", "FILE", "Receipt of rank 0, receipt.json by default; rank R: FILE.rankR.json", said.out);
  line.option("--format", "table|json", "How to print", said.format);
  // `dsplan measure python train.py`: the script's options would be taken for measure's own.
  const bool bare = dashes == words.end() && !words.empty() && !words.front().starts_with("-");
  if (!bare) line.parse(Words(words.begin(), dashes));
  Diagnostics faults;
  if (said.command.empty()) {
    faults.add(
        {"dsplan measure", 0, 0, {}, "COMMAND is missing", "write it after --: dsplan measure -- python train.py"});
  }
  if (said.format && *said.format != "table" && *said.format != "json") {
    faults.add(
        {"--format", 0, 0, {}, formatted("no format \"{}\" of measurements", *said.format), "formats are table, json"});
  }
  check_numbers(said, faults);
  faults.throw_if_any();
  return said;
}

// As `--hardware` takes it elsewhere: letter case and other names of a card do not matter; a file by its path.
std::string device_name(const std::string& device) {
  if (device == "cuda") return device;
  const fs::path file = locate_hardware(device);
  const std::string stem = file.stem().string();
  return is_bundled(Bundled::Hardware, stem) && locate_hardware(stem) == file.string() ? stem : file.string();
}

// The words after the launcher's own name.
Words launcher_words(const MeasureWords& said, const std::string& receipt) {
  Words words{"--receipt", receipt, "--quiet"};
  const auto pass = [&](const char* name, const std::optional<std::string>& value) {
    if (value) words.insert(words.end(), {name, *value});
  };
  if (said.device) pass("--device", device_name(*said.device));
  if (said.capacity) {
    Diagnostics faults;
    const std::optional<Bytes> bytes = labelled_size("--capacity", *said.capacity, faults);
    if (bytes == Bytes(0)) faults.add({"--capacity", 0, 0, {}, "a device without memory holds nothing", {}});
    faults.throw_if_any();
    words.insert(words.end(), {"--capacity", std::to_string(bytes->value())});
  }
  pass("--devices", said.devices);
  pass("--events", said.events);
  pass("--world", said.world);
  pass("--rank", said.rank);
  pass("--routing", said.routing);
  pass("--cuda", said.cuda);
  if (said.snapshot) words.emplace_back("--snapshot");
  words.emplace_back("--");
  words.insert(words.end(), said.command.begin(), said.command.end());
  return words;
}

// Beside the program in a build, under lib/ in an installation. Empty: the launcher looks for itself.
std::string dry_libraries() {
  std::error_code unknown;
  const fs::path program = fs::read_symlink("/proc/self/exe", unknown).parent_path();
  for (const fs::path& folder : {program / "dry", program.parent_path() / "lib" / "dsplan" / "dry"}) {
    if (fs::exists(folder / "libdsplan_dry.so", unknown)) return folder.string();
  }
  return {};
}

// The launcher dies with this process, whatever ends it, and takes with it what it started.
[[noreturn]] void become(const Words& words, const std::string& libraries, int tell) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!libraries.empty() && ::getenv("DSPLAN_DRY_LIBRARIES") == nullptr) {
    ::setenv("DSPLAN_DRY_LIBRARIES", libraries.c_str(), 1);
  }
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  const int why = errno;
  (void)!::write(tell, &why, sizeof why);
  ::_exit(127);
}

::pid_t g_launcher = 0;  // For the handler alone.

void hand_on(int signal) {
  if (g_launcher > 0) ::kill(g_launcher, signal);
}

// At a terminal the launcher takes each SIGINT for Ctrl-C, which the command has had as well. One that a process sent
// is for this one alone, and ends the command all the same.
void interrupted_at_terminal(int, siginfo_t* sender, void*) {
  if (sender->si_code == SI_USER && g_launcher > 0) ::kill(g_launcher, SIGTERM);
}

// Until the command has ended, signals are the command's. Ctrl-C reaches it through the terminal by itself.
class SignalsHandedOn {
 public:
  explicit SignalsHandedOn(::pid_t launcher) {
    g_launcher = launcher;
    const bool terminal = ::tcgetpgrp(0) == ::getpgrp();
    struct sigaction interrupt = {};
    interrupt.sa_flags = SA_RESTART;
    if (terminal) {
      interrupt.sa_flags |= SA_SIGINFO;
      interrupt.sa_sigaction = interrupted_at_terminal;
    } else {
      interrupt.sa_handler = hand_on;
    }
    ::sigaction(SIGINT, &interrupt, &interrupt_);
    terminate_ = std::signal(SIGTERM, hand_on);
    hang_up_ = std::signal(SIGHUP, hand_on);
  }
  ~SignalsHandedOn() {
    ::sigaction(SIGINT, &interrupt_, nullptr);
    std::signal(SIGTERM, terminate_);
    std::signal(SIGHUP, hang_up_);
    g_launcher = 0;
  }
  SignalsHandedOn(const SignalsHandedOn&) = delete;
  SignalsHandedOn& operator=(const SignalsHandedOn&) = delete;

 private:
  struct sigaction interrupt_ = {};
  void (*terminate_)(int);
  void (*hang_up_)(int);
};

// The exit code; 128 + N where signal N ended it.
int carry_out(const Words& words) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Unavailable(formatted("no pipe: {}\n", std::strerror(errno)));
  const std::string libraries = dry_libraries();
  const ::pid_t child = ::fork();
  if (child < 0) throw Unavailable(formatted("no process: {}\n", std::strerror(errno)));
  if (child == 0) become(words, libraries, ends[1]);
  const SignalsHandedOn handed(child);
  ::close(ends[1]);
  int why = 0;
  const bool failed = ::read(ends[0], &why, sizeof why) == sizeof why;
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (failed) {
    throw Unavailable(formatted("{}: {}; measure needs Python 3 on the PATH\n", words.front(), std::strerror(why)));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

using Written = std::vector<std::pair<std::string, fs::file_time_type>>;

// FILE.json, FILE.rank1.json, FILE.process2.json, ..., and when each was written.
Written files_beside(const std::string& path) {
  const fs::path first(path);
  const fs::path folder = first.has_parent_path() ? first.parent_path() : fs::path(".");
  const std::string stem = first.stem().string();
  Written found;
  std::error_code none;
  if (fs::exists(first, none)) found.emplace_back(first.string(), fs::last_write_time(first, none));
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    const bool other = (name.starts_with(stem + ".rank") || name.starts_with(stem + ".process")) &&
                       entry.path().extension() == first.extension();
    if (other && name.find(".dry.") == std::string::npos) {
      found.emplace_back(entry.path().string(), fs::last_write_time(entry.path(), none));
    }
  }
  return found;
}

// Those of this run: the launcher takes older ones away, but not where it refuses to start at all.
std::vector<Receipt> receipts_beside(const std::string& path, const Written& before) {
  std::vector<Receipt> found;
  for (const auto& written : files_beside(path)) {
    const bool old = std::find(before.begin(), before.end(), written) != before.end();
    if (!old) found.push_back(read_receipt(read_document(written.first)));
  }
  const auto rank = [](const Receipt& one) { return one.ranks.empty() ? 0 : one.ranks.front().rank; };
  std::sort(found.begin(), found.end(), [&](const Receipt& a, const Receipt& b) { return rank(a) < rank(b); });
  return found;
}

// What stands beside a receipt (dsplan.dry/1), as far as people are told of it.
struct DryRun {
  std::int64_t steps = 0;
  std::int64_t retries = 0;
  std::int64_t mallocs = 0;
  std::int64_t later_reserved = 0;  // The largest after the second step.
  std::vector<std::string> answered, stubs, guesses;
  std::vector<std::string> reads;  // "train.py:9 (item)"
};

std::int64_t whole(const Value& row, const char* key) {
  const Value* value = row.find(key);
  return value != nullptr && value->is(Value::Kind::Integer) ? value->integer : 0;
}

std::vector<std::string> calls_of(const Value* rows) {
  std::vector<std::string> calls;
  if (rows == nullptr) return calls;
  for (const Value& row : rows->items) {
    if (const Value* call = row.find("call")) calls.push_back(call->string);
  }
  return calls;
}

// Where Python read values that no kernel had computed.
std::vector<std::string> places_of(const Value* rows) {
  std::vector<std::string> places;
  if (rows == nullptr) return places;
  for (const Value& row : rows->items) {
    const Value* where = row.find("where");
    const Value* what = row.find("what");
    if (where == nullptr || what == nullptr) continue;
    places.push_back(formatted("{} ({})", fs::path(where->string).filename().string(), what->string));
  }
  return places;
}

fs::path beside(const Receipt& receipt) { return fs::path(receipt.path).replace_extension(".dry.json"); }

std::optional<DryRun> dry_run(const Receipt& receipt) {
  const fs::path path = beside(receipt);
  std::error_code none;
  if (!fs::exists(path, none)) return std::nullopt;
  const Document document = read_document(path.string());
  DryRun run;
  std::int64_t ended = 0;
  if (const Value* steps = document.root.find("steps")) {
    for (const Value& row : steps->items) {
      run.steps = std::max(run.steps, whole(row, "step"));
      const Value* at = row.find("at");
      const std::string mark = at == nullptr ? std::string() : at->string;
      if (mark == "after step") ended = std::max(ended, whole(row, "step"));
      if (mark == "end") ended = std::max(ended, whole(row, "step") - 1);  // Of what came before that step.
      run.retries = std::max(run.retries, whole(row, "retries"));
      run.mallocs = std::max(run.mallocs, whole(row, "mallocs"));
      if (whole(row, "step") > 2) run.later_reserved = std::max(run.later_reserved, whole(row, "peak_reserved"));
    }
  }
  // A step that something stopped on the way is none.
  if (receipt.outcome != Receipt::Outcome::Ran) run.steps = std::min(run.steps, ended);
  run.answered = calls_of(document.root.find("answered"));
  run.reads = places_of(document.root.find("reads"));
  if (const Value* libraries = document.root.find("libraries")) {
    run.stubs = calls_of(libraries->find("stubs"));
    run.guesses = calls_of(libraries->find("guesses"));
  }
  return run;
}

std::string bytes_cell(const std::optional<Bytes>& bytes) { return bytes ? grouped(bytes->value()) : "-"; }

std::string gib(const std::optional<Bytes>& bytes) { return bytes ? human(*bytes) : "not measured"; }

// The job trained elsewhere: a peak of nothing would read as if it fitted anywhere.
bool used_device(const RankFigures& rank) {
  const std::optional<Bytes> reserved = rank.peak[Counter::Reserved];
  return !reserved || reserved->value() > 0;
}

std::string headline(const Receipt& receipt, const RankFigures& rank, const std::optional<DryRun>& run) {
  std::optional<Bytes> reserved = rank.peak[Counter::Reserved];
  if (reserved && run && run->later_reserved > reserved->value()) reserved = Bytes(run->later_reserved);
  const std::string who = formatted("rank {} of {}", rank.rank, receipt.world);
  const std::string device = receipt.environment.gpu.value_or("no GPU");
  const std::string capacity = gib(receipt.environment.capacity);
  if (receipt.outcome == Receipt::Outcome::OutOfMemory) {
    return formatted("out of memory: {} was reserved of {} ({}, {})\n", gib(reserved), capacity, who, device);
  }
  if (receipt.outcome == Receipt::Outcome::Error) {
    return formatted("failed: {} ({}, {})\n", receipt.message.value_or("it gives no reason"), who, device);
  }
  if (!used_device(rank))
    return formatted("nothing to tell: the command trained without the device ({}, {})\n", who, device);
  return formatted("fits: peak {} reserved of {} ({}, {})\n", gib(reserved), capacity, who, device);
}

std::string phase_row(const std::string& name, const Counters& peak) {
  return formatted("  {:<16}{:>20}{:>20}{:>20}\n", name, bytes_cell(peak[Counter::Requested]),
                   bytes_cell(peak[Counter::Allocated]), bytes_cell(peak[Counter::Reserved]));
}

std::string phase_table(const RankFigures& rank) {
  std::string text = formatted("  {:<16}{:>20}{:>20}{:>20}\n", "peak bytes", "requested", "allocated", "reserved");
  for (const FigurePhase& phase : rank.phases) text += phase_row(phase.name, phase.peak);
  text += phase_row("peak", rank.peak);
  return text + phase_row("persistent", rank.persistent);
}

std::string dry_lines(const Receipt& receipt, const RankFigures& rank, const std::optional<DryRun>& run) {
  if (!run) return {};
  std::string text = formatted("  {} optimizer step{}, {} cudaMalloc calls, {} retries\n", run->steps,
                               run->steps == 1 ? "" : "s", run->mallocs, run->retries);
  const std::optional<Bytes> reserved = rank.peak[Counter::Reserved];
  if (reserved && run->later_reserved > reserved->value()) {
    text += formatted("  reserved grew after the second step, to {} bytes\n", grouped(run->later_reserved));
  }
  text += listed("  answered by name, as no kernel ran: ", run->answered, 4);
  text += listed("  answered by a guess: ", run->guesses, 4);
  constexpr std::size_t kShown = 3;
  const std::size_t more = run->reads.size() > kShown ? run->reads.size() - kShown : 0;
  std::vector<std::string> shown(run->reads.begin(), run->reads.end() - static_cast<std::ptrdiff_t>(more));
  if (more > 0) shown.push_back(formatted("{} more in {}", more, beside(receipt).filename().string()));
  text += listed("  read from the device, where nothing was computed: ", shown, 4);
  text += listed("  calls that nobody has written: ", run->stubs, 4);
  return text;
}

// What the recorder saw in the job that no prediction has: rows part by it.
std::string known_to_part(const Receipt& receipt) {
  std::string text;
  for (const Absence& one : receipt.ranks.front().absent) {
    const bool parts = one.what == "batch.labels" || one.what == "loop.loss" || one.what == "allocator.events";
    if (parts) text += wrapped("  ", "part by it: " + one.why, 2);
  }
  return text;
}

// The prediction from the receipt's own inputs, in a line.
std::string prediction_line(const Receipt& receipt) {
  if (!receipt.complete) return {};
  try {
    const Repredicted predicted = repredict(receipt, {});
    const ReceiptComparison comparison = compare(receipt, predicted.ranks, {});
    std::int64_t equal = 0, apart = 0;
    for (const ComparedRow& row : comparison.ranks.front().rows) {
      if (row.state == ComparedRow::State::Equal) ++equal;
      if (row.state == ComparedRow::State::Within || row.state == ComparedRow::State::Differs) ++apart;
    }
    const std::optional<Bytes> peak = predicted.ranks.front().figures.peak[Counter::Reserved];
    return wrapped("  ",
                   formatted("predicted from the same inputs: peak {} reserved; {} rows equal, {} not: `dsplan compare "
                             "{} --re-predict`",
                             gib(peak), equal, apart, receipt.path),
                   2) +
           (apart > 0 ? known_to_part(receipt) : std::string());
  } catch (const Refusal& refusal) {
    const std::string why = refusal.diagnostics().empty() ? refusal.what() : refusal.diagnostics().front().message;
    return wrapped("  ", formatted("not predicted from the same inputs: {}", why), 2);
  }
}

std::string answer(const std::vector<Receipt>& receipts) {
  std::string text;
  for (const Receipt& receipt : receipts) {
    const bool first = &receipt == &receipts.front();
    if (receipt.ranks.empty()) continue;
    const RankFigures& rank = receipt.ranks.front();
    const std::optional<DryRun> run = dry_run(receipt);
    text += headline(receipt, rank, run);
    if (!first) continue;  // One rank in full; the others' receipts lie beside its own.
    text += phase_table(rank) + dry_lines(receipt, rank, run) + prediction_line(receipt);
    text += wrapped("  ", formatted("receipt: {}", receipt.path), 4);
  }
  return text;
}

std::string answer_json(const std::vector<Receipt>& receipts) {
  if (receipts.size() == 1) return receipt_json(receipts.front());
  std::string text = "{\"schema\": \"dsplan.receipts/1\", \"receipts\": [\n";
  for (const Receipt& receipt : receipts) {
    if (&receipt != &receipts.front()) text += ",\n";
    text += receipt_json(receipt);
  }
  return text + "]}\n";
}

}  // namespace

int measure_command(const Words& words) {
  const MeasureWords said = parse_measure(words);
  const std::string path = said.out.value_or("receipt.json");
  Words line{"python3", data_dir() + "/tools/dry/run"};
  const Words rest = launcher_words(said, path);
  line.insert(line.end(), rest.begin(), rest.end());
  const Written before = files_beside(path);
  const int code = carry_out(line);
  const std::vector<Receipt> receipts = receipts_beside(path, before);
  if (receipts.empty()) return code == 0 ? kRefused : code;  // The launcher has said why.
  Output output("");
  output.add(said.format == "json" ? answer_json(receipts) : answer(receipts));
  output.finish();
  const bool full = std::any_of(receipts.begin(), receipts.end(),
                                [](const Receipt& one) { return one.outcome == Receipt::Outcome::OutOfMemory; });
  if (full) return kDoesNotFit;
  const bool idle = std::all_of(receipts.begin(), receipts.end(), [](const Receipt& one) {
    return one.ranks.empty() || (one.outcome == Receipt::Outcome::Ran && !used_device(one.ranks.front()));
  });
  return code == 0 && idle ? kRefused : code;
}

}  // namespace dsplan
