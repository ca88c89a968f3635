#include "cli/running/run_receipt.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "cli/report_comparison.h"
#include "core/format.h"
#include "io/deepspeed.h"
#include "io/locate.h"
#include "io/text.h"
#include "report/calibration.h"
#include "report/cells.h"
#include "report/plan_file.h"
#include "report/receipt.h"

namespace dsplan {
namespace {

// A receipt has no place for a device's file, only for its bundled name.
std::optional<std::string> bundled_device(const SavedPlan& plan) {
  if (!plan.hardware) return std::nullopt;
  for (const std::string& name : list_bundled(Bundled::Hardware)) {
    const Document own = read_document(locate_hardware(name));
    if (canonical_json(own.root) == canonical_json(plan.hardware->root)) return name;
  }
  return std::nullopt;
}

// In an arena that was laid out beforehand nobody counts the blocks and segments of a caching allocator; the arena's
// own height is what the process reserves.
void leave_out_blocks(RankFigures& figures) {
  const auto leave_out = [](Counters& counters, std::initializer_list<Counter> which) {
    for (const Counter counter : which) counters[counter].reset();
  };
  leave_out(figures.persistent, {Counter::Allocated});
  leave_out(figures.peak, {Counter::Allocated, Counter::Active});
  for (FigurePhase& phase : figures.phases) {
    for (FigureMark& mark : phase.marks) leave_out(mark.at, {Counter::Allocated, Counter::Active, Counter::Reserved});
    leave_out(phase.peak, {Counter::Allocated, Counter::Active, Counter::Reserved});
  }
  for (const char* what : {"memory.allocated", "memory.active", "memory.phases"}) {
    figures.absent.push_back({what, "a planned arena has no blocks of a caching allocator"});
  }
}

// The counts of parameters are the plan's: nothing measures them.
void add_rank(const exec::RankRun& run, const Job& job, const Prediction& prediction, Receipt& receipt) {
  const bool apart = receipt.level == Receipt::Level::Tcp || receipt.level == Receipt::Level::Nccl;
  RankFigures figures = run.figures;
  if (job.placement == PlacementKind::Planned) leave_out_blocks(figures);
  if (!receipt.complete) {
    figures.communication.reset();  // Of a step in steady state, which has not ended.
    figures.absent.push_back({"communication", "the run ended early"});
  }
  figures.parameters_total = prediction.parameters_total;
  figures.parameters_trainable = prediction.parameters_trainable;
  figures.absent.push_back(
      {"memory.process", apart ? "nobody asks for it yet" : "the executor's own process holds all ranks"});
  figures.absent.push_back({"memory.host.per_node", apart ? "each rank counts its own" : "all ranks share this host"});
  if (receipt.level == Receipt::Level::Nccl && receipt.complete) {
    figures.absent.push_back({"communication", "NCCL does not say what it sends: wire bytes stay predicted"});
  }
  if (is_fsdp(job.training.runtime) && job.training.model_init == ModelInit::Rank0) {
    figures.absent.push_back({"communication.send_recv", "each rank reads its rows off the whole weight"});
  }
  receipt.ranks.push_back(std::move(figures));
  for (const exec::PhaseTime& time : run.times) {
    if (time.step == 0) continue;
    receipt.samples.push_back(
        {std::string(name(time.stretch)), run.figures.rank, time.forward + time.backward + time.step});
  }
}

// One rank that is alone in its process, on a device that was calibrated: NVML's figure is its own.
void add_process(const Job& job, Receipt& receipt) {
  const ProcessMoment& end = receipt.process->moments.back();
  const bool alone = receipt.ranks.size() == 1 && receipt.device == Receipt::Device::Cuda && receipt.complete;
  if (!alone || !job.calibration || !end.process || end.name != "end") return;
  receipt.ranks.front().peak[Counter::Process] = *end.process;
}

}  // namespace

ReceiptInputs run_inputs(const SimulateWords& words, const Request& request) {
  ReceiptInputs inputs;
  std::optional<std::string> device;
  if (words.model.empty())
    throw Refusal("dsplan run", "MODEL is missing: a run keeps it under the name that it was given");
  inputs.model = locate_model(words.model).document;
  if (is_plan(*inputs.model)) {
    SavedPlan plan = read_plan(*inputs.model);
    inputs.model = std::move(plan.model);
    inputs.deepspeed = std::move(plan.deepspeed);
    inputs.training = std::move(plan.training);
    device = bundled_device(plan);
  }
  if (request.deepspeed.given()) {
    const std::string path = locate_bundled(Bundled::DeepSpeed, *request.deepspeed);
    inputs.deepspeed = read_deepspeed_document(path);
  }
  if (words.options.training.given()) {
    Document document = read_document(locate_bundled(Bundled::Training, *words.options.training));
    const bool own = document.root.find("dsplan") != nullptr;
    (own ? inputs.training : inputs.training_arguments) = std::move(document);
  }
  inputs.options = words_of(words);
  if (device && !request.hardware.given() && !request.cluster.given()) {
    inputs.options.insert(inputs.options.begin(), {"--hardware", *device});
  }
  return inputs;
}

Receipt receipt_of(const exec::RunResult& result, const Machine& machine, const SimulateWords& words,
                   const Inputs& inputs, const Job& job, const Prediction& prediction) {
  Receipt receipt;
  receipt.source = "dsplan run";
  receipt.name = formatted("{}-run", inputs.model.name);
  receipt.level = machine.level;
  receipt.device = machine.device;
  if (machine.device == Receipt::Device::Cuda) {
    receipt.environment.gpu = device_name(machine.info);
    receipt.environment.capacity = Bytes(machine.info.memory_bytes);
    receipt.environment.driver = formatted("{}", machine.info.driver);
    receipt.environment.cuda = formatted("{}", machine.info.runtime);
  }
  receipt.outcome = result.outcome;
  receipt.complete = result.outcome == Receipt::Outcome::Ran;
  if (!result.message.empty()) receipt.message = result.message;
  receipt.environment.allocator_conf = inputs.request.alloc_conf.given() ? *inputs.request.alloc_conf : "";
  receipt.environment.recorded = utc_now();
  receipt.inputs = run_inputs(words, inputs.request);
  receipt.inputs.fingerprint = prediction.fingerprint;
  receipt.world = job.parallelism.world;
  receipt.strangers = result.strangers;
  for (const exec::RankRun& run : result.ranks) add_rank(run, job, prediction, receipt);
  if (!result.process.empty()) {
    receipt.process = {result.process, {}};
    if (inputs.request.measured.given()) receipt.process->rows = calibrated_rows(inputs.request.measured->path);
    add_process(job, receipt);
  }
  return read_receipt(parse_json(receipt.name + ".json", receipt_json(receipt)));
}

namespace {

double seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; }

void add_times(const exec::RankRun& rank, std::string& text) {
  if (rank.times.empty()) return;
  const exec::PhaseTime& last = rank.times.back();
  append_formatted(text,
                   "last step of rank 0: forward {:.3f} s, backward {:.3f} s, optimizer {:.3f} s; of these {:.3f} s in "
                   "collectives\n",
                   seconds(last.forward), seconds(last.backward), seconds(last.step), seconds(last.communication));
}

void add_losses(const exec::RankRun& rank, std::string& text) {
  if (rank.losses.empty()) return;
  append_formatted(text, "loss of rank 0: {:.6f} in the first micro-batch, {:.6f} in the last of {}\n",
                   rank.losses.front(), rank.losses.back(), rank.losses.size());
}

void add_steps(const exec::RankRun& rank, std::string& text) {
  if (rank.steps.empty()) return;
  const auto skipped =
      std::count_if(rank.steps.begin(), rank.steps.end(), [](const auto& step) { return step.skipped; });
  append_formatted(text, "loss scale: {} in the first step, {} in the last of {}; {} left out\n",
                   rank.steps.front().loss_scale, rank.steps.back().loss_scale, rank.steps.size(), skipped);
}

void add_process(const ProcessBytes& process, std::string& text) {
  const ProcessMoment& end = process.moments.back();
  if (!end.process && !end.device_used) return;
  text += "process";
  if (end.process) text += formatted(": {} in all", human(*end.process));
  text += formatted("{} {} reserved", end.process ? "," : ":", human(end.reserved));
  for (const ProcessRow& row : process.rows) text += formatted(", {} {}", row.what, human(row.bytes));
  if (const auto left = process.unexplained()) text += formatted(", {} unexplained", detail::signed_size(*left));
  if (end.device_used) text += formatted("; of the device {} are used", human(*end.device_used));
  text += "\n";
}

// Beside the plan, and no row of it: connections come at the first calls, so that this is the smaller part.
void add_communicators(const exec::RankRun& rank, Bytes predicted, std::string& text) {
  append_formatted(text, "communicators of rank 0 as they were made: {} by formula, measured {}\n", human(predicted),
                   rank.communicators ? human(*rank.communicators) : "not at all");
}

}  // namespace

std::string report_run(const exec::RunResult& result, const Receipt& receipt, const ReceiptComparison& comparison,
                       std::optional<Bytes> communicators) {
  std::string text;
  if (!result.ranks.empty()) {
    if (!result.ranks.front().computed) text += "no losses and no times: on the dry device nothing is computed\n";
    add_losses(result.ranks.front(), text);
    add_steps(result.ranks.front(), text);
    add_times(result.ranks.front(), text);
    if (communicators) add_communicators(result.ranks.front(), *communicators, text);
  }
  if (result.resident_growth >= 0) {
    append_formatted(text, "resident set: grew by {}, all ranks and libraries together\n",
                     human(Bytes(result.resident_growth)));
  }
  if (receipt.process) add_process(*receipt.process, text);
  if (result.strangers.value_or(0) > 0) {
    append_formatted(text, "strangers: {} connection{} not of this run, and dropped\n", *result.strangers,
                     *result.strangers == 1 ? " was" : "s were");
  }
  if (!result.message.empty()) text += result.message + "\n";
  return text + report({comparison}, {});
}

}  // namespace dsplan
