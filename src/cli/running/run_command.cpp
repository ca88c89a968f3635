// `dsplan run`: carries the plan out, and says how far prediction and measurement agree.

#include <algorithm>
#include <chrono>
#include <cmath>

#include "cli/assemble.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/running/machine.h"
#include "cli/running/run_receipt.h"
#include "cli/running/temporary_folder.h"
#include "core/format.h"
#include "exec/run.h"
#include "io/deepspeed.h"
#include "planner/libraries/library_memory.h"
#include "planner/predict/allocation.h"
#include "planner/predict/predict.h"
#include "planner/predict/schedules.h"
#include "report/compare.h"
#include "report/receipt.h"

namespace dsplan {
namespace {

constexpr std::int64_t kMostSteps = 10'000;
constexpr double kLongestTimeout = 7 * 24 * 3600.0;

// Ctrl-C: the run ends at the next mark of each rank, and its receipt says what there is. A second one ends dsplan.
constexpr std::int64_t kMostRanks = 64;

constexpr const char* kRunFooter =
    "Options of the configuration are those of `simulate`. The run ends with a\n"
    "comparison, row by row; --out takes the receipt.\n"
    "Example: dsplan run tiny-llama --gpus 2 --zero-stage 2 --steps 2\n"
    "Exit codes: 0 it agrees, 2 refused, 3 out of memory, 4 something differs,\n"
    "6 the device, its driver or a library is not there.";

struct RunWords {
  SimulateWords inputs;
  MachineWords machine;
  std::int64_t steps = 0;  // 0: as many as are predicted.
  std::uint64_t seed = 0;
  double learning_rate = 1e-3;
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

double positive(const char* name, const std::string& text, Diagnostics& faults) {
  try {
    std::size_t used = 0;
    const double value = std::stod(text, &used);
    if (used == text.size() && value > 0) return value;
  } catch (const std::exception&) {
  }
  faults.add({name, 0, 0, {}, formatted("\"{}\" is not a number above 0", text), {}});
  return 0;
}

RunWords parse_run(const Words& words) {
  RunWords said;
  std::optional<std::string> backend, ranks, transport, steps, seed, rate, timeout, blocks;
  CommandExtras extras;
  extras.description = "Executes one configuration and measures it.";
  extras.footer = kRunFooter;
  extras.add = [&](CommandLine& line) {
    line.option("--backend", "host|cuda", "What executes; host by default", backend);
    line.option("--ranks", "N", "All ranks, as --gpus", ranks);
    line.option("--transport", "KIND", "threads or tcp; virtual or nccl on GPUs", transport);
    line.option("--steps", "K", "Optimizer steps, 2 or more", steps);
    line.option("--seed", "N", "Of initial values and dropout", seed);
    line.option("--learning-rate", "X", "Of the optimizer; 0.001 by default", rate);
    line.option("--nccl-max-ctas", "N", "Blocks of a GPU for one call of NCCL", blocks);
    line.option("--timeout", "SECONDS", "For other processes; 600 by default", timeout);
  };
  extras.without = {"--explain", "--verbose", "--color", "--phase"};
  extras.refused = {"--quantization",  "--double-quant",  "--quant-compute-dtype",
                    "--quant-storage", "--kbit-prepare",  "--activation-offloading",
                    "--liger-kernels", "--liger-version", "--lora-kernels"};
  said.inputs = parse_simulate("run", words, extras);
  Diagnostics faults;
  const auto fault = [&](const char* name, std::string text, std::string hint = {}) {
    faults.add({name, 0, 0, {}, std::move(text), std::move(hint)});
  };
  said.machine = {backend.value_or("host"), transport};
  check_words(said.machine, faults);
  if (steps) said.steps = whole_number("--steps", *steps, faults).value_or(2);
  if (steps && (said.steps < 2 || said.steps > kMostSteps)) {
    fault("--steps", formatted("{} steps: from 2, the first and one in steady state, to {}", said.steps, kMostSteps));
  }
  if (seed) said.seed = static_cast<std::uint64_t>(whole_number("--seed", *seed, faults).value_or(0));
  if (rate) said.learning_rate = positive("--learning-rate", *rate, faults);
  if (blocks && transport != "nccl") fault("--nccl-max-ctas", "is of --transport nccl");
  if (blocks) said.machine.most_blocks = static_cast<int>(whole_number("--nccl-max-ctas", *blocks, faults).value_or(0));
  if (blocks && (said.machine.most_blocks < 1 || said.machine.most_blocks > 64)) {
    fault("--nccl-max-ctas", "from 1 to 64");  // NCCL's own limits of maxCTAs.
  }
  if (timeout && !said.machine.processes()) fault("--timeout", "nobody waits for other processes here");
  if (timeout) {
    const double seconds = std::min(positive("--timeout", *timeout, faults), kLongestTimeout);
    said.timeout = std::chrono::milliseconds(std::max<std::int64_t>(std::llround(seconds * 1000), 1));
  }
  if (ranks && said.inputs.options.gpus.given()) fault("--ranks", "says what --gpus says already");
  if (ranks && !said.inputs.options.gpus.given()) {
    if (const auto count = whole_number("--ranks", *ranks, faults))
      said.inputs.options.gpus = {*count, option("--ranks")};
  }
  faults.throw_if_any();
  return said;
}

LossScalingInput loss_scaling_of(const Job& job, const ReceiptInputs& inputs) {
  if (job.training.grad_scaler) return {{LossScaling::Kind::GradScaler, 65'536, 2000}, {}};
  if (job.training.dtype != DType::Float16 || job.training.runtime != Runtime::DeepSpeed) return {};
  Document nothing;
  nothing.root.kind = Value::Kind::Object;
  return read_loss_scaling(inputs.deepspeed ? *inputs.deepspeed : nothing, job.training.zero.stage > 0);
}

// Keys that change no byte, and yet what is computed: they have an effect here.
void leave_out(const std::vector<std::string>& keys, std::vector<Notice>& notices) {
  std::erase_if(notices, [&](const Notice& notice) {
    return notice.kind == Notice::Kind::Inert && std::find(keys.begin(), keys.end(), notice.key) != keys.end();
  });
}

// The allocator of the plan, under the plan's own limit.
std::vector<exec::MemoryOptions> memory_of(const Job& job, const std::vector<Executable>& ranks,
                                           const std::vector<Prediction>& predictions) {
  std::vector<exec::MemoryOptions> memory;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    exec::MemoryOptions& own = memory.emplace_back();
    const Prediction& p = predictions[rank];
    own.config = job.allocator;
    own.stream_frees = job.stream_frees;
    own.untold = ranks[rank].schedule.untold;
    if (const std::optional<VerdictLimit> limit = verdict_limit(device_room(p))) {
      own.limit = limit->limit;
      own.device = limit->device;
    }
    if (job.placement != PlacementKind::Planned) continue;
    // More steps than are predicted change no height: the arena is laid out for what runs.
    PlannedArena arena = plan_arena(ranks[rank].schedule, Bytes(0));
    own.kind = exec::AllocatorKind::Planned;
    own.height = arena.height;
    own.offsets = std::move(arena.offsets);
  }
  return memory;
}

// What only the host has kernels for.
void refuse_on_devices(const Job& job, const std::string& backend) {
  const auto refuse = [&](const char* what, std::string text) {
    throw Refusal(what, formatted("{} on backend {} is not modelled yet", text, backend), "the host runs it");
  };
  if (job.training.zero.stage == 3 && job.training.zero.quantized_weights) {
    refuse("zero_quantized_weights", "quantizing");
  }
  const OptimizerKind kind = job.training.optimizer.kind;
  if (kind == OptimizerKind::Lion || kind == OptimizerKind::Adagrad || kind == OptimizerKind::RmsProp) {
    refuse("--optimizer", formatted("the step of {}", name(kind)));
  }
}

// What is to be carried out; made alike in every process of a run.
struct Prepared {
  Inputs inputs;
  Job job;
  ExecutableRanks plan;
  std::vector<Prediction> predictions;
  LossScaling loss_scaling;
  std::int64_t steps = 2;
};

void check_ranks(const RunWords& said, const Job& job) {
  if (!said.machine.processes() && job.parallelism.world > kMostRanks) {
    throw Refusal("--ranks", formatted("{} ranks are more threads than the {} that one host takes",
                                       job.parallelism.world, kMostRanks));
  }
  if (said.machine.backend != "host") refuse_on_devices(job, said.machine.backend);
}

Prepared prepare(const RunWords& said, Inputs inputs, Processes* others) {
  Job job = resolve(inputs);
  const LossScalingInput loss_scaling = loss_scaling_of(job, run_inputs(said.inputs, inputs.request));
  leave_out(loss_scaling.keys, job.notices);
  if (others == nullptr || others->first()) say(render(job.notices));
  check_ranks(said, job);
  if (others != nullptr) others->expect(job.parallelism.world);
  const std::int64_t steps = said.steps > 0 ? said.steps : job.training.steps();
  if (steps < job.training.steps()) {
    throw Refusal("--steps", formatted("{} steps: the first that is settled is step {}", steps, job.training.steps()));
  }
  ExecutableRanks plan = executables_of(inputs.model, job, steps, "dsplan run");
  job.rank = "all";
  std::vector<Prediction> predictions = predict_asked(inputs.model, job);
  return {std::move(inputs), std::move(job), std::move(plan), std::move(predictions), loss_scaling.scaling, steps};
}

// What all processes of a run must have alike, in words.
std::vector<RunTerm> terms_of(const RunWords& said, const Prepared& what) {
  return {{"dsplan", DSPLAN_VERSION},
          {"--backend and --transport", said.machine.backend + " " + said.machine.transport.value_or("")},
          {"the plan's fingerprint", what.predictions.front().fingerprint},
          {"--nccl-max-ctas", std::to_string(said.machine.most_blocks)},
          {"--steps", std::to_string(what.steps)},
          {"--seed", std::to_string(said.seed)},
          {"--learning-rate", formatted("{}", said.learning_rate)}};
}

exec::RunResult carry_out(const RunWords& said, const Prepared& what, const Machine& machine, Processes* others) {
  exec::RunOptions options;
  options.settings = exec::settings_of(what.job);
  options.settings.learning_rate = said.learning_rate;
  options.settings.seed = said.seed;
  options.settings.loss_scaling = what.loss_scaling;
  options.backend = machine.backend;
  options.ordinal = machine.ordinal;
  const TemporaryFolder folder("run");
  options.directory = folder.path();
  options.memory = memory_of(what.job, what.plan.ranks, what.predictions);
  options.stop = &Interrupt::asked();
  const Interrupt interrupt(others != nullptr ? Interrupt::On::Terminations : Interrupt::On::Interrupts);
  std::vector<exec::RankPlan> plans;
  for (std::size_t at = 0; at < what.plan.ranks.size(); ++at) {
    const Executable& rank = what.plan.ranks[at];
    plans.push_back({what.inputs.model, what.plan.graphs(at), rank.schedule, rank.program, what.plan.tensor_rank(at)});
  }
  exec::RunResult result;
  if (others == nullptr) {
    result = exec::run(plans, options);
  } else {
    const auto own = static_cast<std::size_t>(others->rank());
    options.memory = {std::move(options.memory[own])};
    result = others->run(plans[own], options);
  }
  return result;
}

int code_of(const exec::RunResult& result, const ReceiptComparison* comparison) {
  if (result.interrupted) return kInterrupted;
  if (result.unavailable) return kUnavailable;
  if (result.parted) return kDiffers;
  if (result.outcome == Receipt::Outcome::OutOfMemory) return kDoesNotFit;
  if (result.outcome == Receipt::Outcome::Error) return kBug;
  return comparison != nullptr && differs(*comparison) ? kDiffers : kDone;
}

// By formula, of all groups that a rank is in; each is a communicator of its own.
std::optional<Bytes> communicators_of(const RunWords& said, const ExecutableRanks& plan) {
  if (said.machine.transport != "nccl") return std::nullopt;
  const Schedule& schedule = plan.ranks.front().schedule;
  const std::int64_t groups = (schedule.dp > 1 ? 1 : 0) + (schedule.tp > 1 ? 1 : 0) + (schedule.dp_inside > 1 ? 2 : 0);
  return nccl_tables(said.machine.most_blocks > 0 ? said.machine.most_blocks : kNcclChannels) * groups;
}

// The receipt, and what people read of it.
int conclude(const exec::RunResult& result, const RunWords& said, const Prepared& what, const Machine& machine,
             const std::string& format, Output& receipt_file) {
  const Receipt receipt = receipt_of(result, machine, said.inputs, what.inputs, what.job, what.predictions.front());
  receipt_file.add(receipt_json(receipt));
  receipt_file.finish();
  std::vector<PredictedRank> predicted;
  for (const Prediction& prediction : what.predictions) predicted.push_back(figures_of(prediction));
  const ReceiptComparison comparison = compare(receipt, predicted, {});
  Output output("");
  output.add(format == "json" ? receipt_json(receipt)
                              : report_run(result, receipt, comparison, communicators_of(said, what.plan)));
  output.finish();
  return code_of(result, &comparison);
}

}  // namespace

int run_command(const Words& words) {
  const RunWords said = parse_run(words);
  std::optional<Processes> processes;
  if (said.machine.processes()) processes.emplace(said.machine, said.timeout);
  Processes* others = processes ? &*processes : nullptr;
  const bool first = others == nullptr || others->first();
  Inputs inputs = gather(said.inputs);
  const std::string format = inputs.request.format.value_or("table");
  if (format != "table" && format != "json") {
    throw Refusal({inputs.request.format.place.says(formatted("no format \"{}\" of a run", format), "table or json")});
  }
  Output receipt_file(first ? inputs.request.out.value_or("/dev/null") : "/dev/null");
  const Prepared what = prepare(said, std::move(inputs), others);
  if (others == nullptr) {
    const Machine machine = find_machine(said.machine);
    return conclude(carry_out(said, what, machine, others), said, what, machine, format, receipt_file);
  }
  return others->together(terms_of(said, what), [&] {
    const Machine machine = find_machine(said.machine, others->local_rank());
    const exec::RunResult result = carry_out(said, what, machine, others);
    if (first) return conclude(result, said, what, machine, format, receipt_file);
    if (result.failed == others->rank()) say(result.message + "\n");
    return code_of(result, nullptr);
  });
}

}  // namespace dsplan
