#include "cli/predicted.h"

#include <cstdlib>

#include "cli/output.h"
#include "core/error.h"
#include "core/format.h"
#include "io/deepspeed.h"
#include "io/launch_line.h"
#include "io/locate.h"
#include "io/machine_files.h"
#include "io/text.h"
#include "io/training_file.h"
#include "model/families.h"
#include "planner/predict/allocation.h"
#include "planner/predict/predict.h"
#include "planner/predict/schedules.h"
#include "planner/time/clock.h"
#include "report/compare.h"
#include "report/receipt.h"
#include "sim/allocation_log.h"
#include "sim/allocator.h"

namespace dsplan {

AllocatorConfig allocator_config(const Job& job) { return job.allocator; }

namespace {

void take_schedule(Predicted& result, const std::string& what) {
  if (result.job.rank == "all") throw Refusal("--rank", what + " is of one rank", "name one, or take the worst");
  result.prediction = predict_asked(result.inputs.model, result.job).front();
  result.schedule = schedule_of(result.inputs.model, result.job, result.prediction.rank, what);
  result.config = allocator_config(result.job);
  const std::optional<VerdictLimit> limit = verdict_limit(device_room(result.prediction));
  result.limit = limit ? limit->limit : CachingAllocator::kUnlimited;
}

}  // namespace

Predicted predicted_schedule(const SimulateWords& words, const std::string& what) {
  Predicted result;
  result.inputs = gather(words);
  result.job = resolve(result.inputs);
  say(render(result.job.notices));
  take_schedule(result, what);
  return result;
}

Predicted predicted_schedule(Inputs inputs, const std::string& what) {
  Predicted result;
  result.inputs = std::move(inputs);
  result.job = resolve(result.inputs);
  take_schedule(result, what);
  return result;
}

Timeline timeline_of(const Predicted& predicted) {
  Timeline timeline =
      timeline_of(predicted.schedule, predicted.inputs.model, predicted.config, predicted.job.stream_frees);
  if (predicted.prediction.time) {
    timeline.clock = clock_of(predicted.schedule, predicted.inputs.model, predicted.job, *predicted.prediction.time);
  }
  return timeline;
}

namespace {

// "2.11.0+cu130" -> "2.11.0": the build does not name another version.
std::string released(const std::string& version) { return version.substr(0, version.find('+')); }

template <class T>
void lay(Setting<T>& into, T value, const char* key) {
  into = {std::move(value), option(formatted("the receipt's {}", key))};
}

// What dsplan itself ran on a GPU was run as its options say, whatever the device has.
bool of_framework_on_gpu(const Receipt& receipt) {
  return receipt.device == Receipt::Device::Cuda && receipt.level == Receipt::Level::Framework;
}

void take_environment(const Receipt& receipt, Request& request) {
  const ReceiptEnvironment& environment = receipt.environment;
  if (environment.torch) lay(request.torch_version, released(*environment.torch), "environment.torch");
  if (environment.transformers)
    lay(request.transformers_version, released(*environment.transformers), "environment.transformers");
  // Others import it as well, accelerate for one, and its version is then nobody's.
  const bool runs =
      receipt.inputs.deepspeed || request.zero_stage.given() || request.runtime.value_or("") == "deepspeed";
  if (environment.deepspeed && runs)
    lay(request.deepspeed_version, released(*environment.deepspeed), "environment.deepspeed");
  if (!environment.allocator_conf.empty() && !request.alloc_conf.given()) {
    lay(request.alloc_conf, environment.allocator_conf, "environment.allocator_conf");
  }
  if (!of_framework_on_gpu(receipt)) return;
  if (environment.capacity) lay(request.capacity, *environment.capacity, "environment.capacity_bytes");
}

// Of several bundled devices with that name, the one whose memory is nearest.
std::optional<Hardware> bundled_device(const ReceiptEnvironment& environment) {
  std::optional<Hardware> best;
  std::int64_t least = 0;
  for (const std::string& name : list_bundled(Bundled::Hardware)) {
    if (!environment.gpu || !same_device(*environment.gpu, name)) continue;
    Hardware hardware = load_hardware(name);
    const std::int64_t apart = environment.capacity ? std::abs((hardware.capacity - *environment.capacity).value()) : 0;
    if (best && apart >= least) continue;
    best = std::move(hardware);
    least = apart;
  }
  return best;
}

void take_device(const Receipt& receipt, Repredicted& into) {
  if (!of_framework_on_gpu(receipt) || into.inputs.hardware) return;
  into.inputs.hardware = bundled_device(receipt.environment);
  into.notes.push_back(
      into.inputs.hardware
          ? formatted("device: {}, by the name {}", into.inputs.hardware->name, *receipt.environment.gpu)
          : formatted("device: none of configs/hardware is called {}; the libraries' workspaces are "
                      "not predicted",
                      receipt.environment.gpu.value_or("like nothing")));
}

void take_level(const Receipt& receipt, const RepredictWords& words, Request& request) {
  if (!receipt.by_dispatcher()) {
    if (words.level) request.level = {*words.level, option("--level")};
    return;
  }
  if (words.level.value_or("dispatch") != "dispatch") {
    throw Refusal("--level",
                  formatted("\"{}\" was measured on {}: the dispatcher sees no kernel's own scratch", receipt.name,
                            name(receipt.device)),
                  "leave --level out");
  }
  lay(request.level, std::string("dispatch"), "device");
}

// Options of a receipt say what ran, not what to print.
void refuse_reporting(const Receipt& receipt, const SimulateWords& said) {
  Diagnostics faults;
  const Request nothing;
  const auto refuse = [&](const auto& setting, const char* why) {
    if (setting.given())
      faults.add({receipt.path, 0, 0, {}, formatted("inputs.options: {} {}", setting.place.text(), why), {}});
  };
  for (const auto* text : {&said.options.rank, &said.options.phase, &said.options.format, &said.options.out}) {
    refuse(*text, "says what to report, and has no place in a receipt");
  }
  refuse(said.options.strict, "says what to report, and has no place in a receipt");
  refuse(said.options.training, "names a file: the receipt holds \"training\" itself");
  refuse(said.options.deepspeed, "names a file: the receipt holds \"deepspeed\" itself");
  faults.throw_if_any();
}

SimulateWords options_of(const Receipt& receipt) {
  Words words{"MODEL"};  // The receipt holds it whole.
  words.insert(words.end(), receipt.inputs.options.begin(), receipt.inputs.options.end());
  try {
    SimulateWords said = parse_simulate("compare: inputs.options", words);
    refuse_reporting(receipt, said);
    return said;
  } catch (const HelpAsked&) {
    throw Refusal(receipt.path, "inputs.options: --help has no place in a receipt");
  }
}

// What the recorder saw of the job and could not say: a prediction without it would be of another job.
void refuse_unseen_inputs(const Receipt& receipt) {
  Diagnostics faults;
  for (const RankFigures& rank : receipt.ranks) {
    for (const Absence& absence : rank.absent) {
      if (!absence.what.starts_with("inputs.")) continue;
      faults.add({receipt.path, 0, 0, {}, formatted("the receipt has no \"{}\": {}", absence.what, absence.why), {}});
    }
  }
  faults.throw_if_any();
}

Inputs gather(const Receipt& receipt, const SimulateWords& said, const RepredictWords& words) {
  refuse_unseen_inputs(receipt);
  Inputs inputs;
  Diagnostics faults;
  const ReceiptInputs& given = receipt.inputs;
  attempt(faults, [&] { inputs.model = build_model(*given.model, receipt.name); });
  Said below;
  attempt(faults, [&] {
    if (given.training_arguments) below = read_training_document(*given.training_arguments);
  });
  attempt(faults, [&] {
    if (given.training) below.request = overlay(below.request, read_training_file(*given.training));
  });
  attempt(faults, [&] {
    if (said.launch.empty()) return;
    below = overlay(below, read_launch(said.launch, read_document, LaunchedOn::AnotherMachine));
  });
  attempt(faults, [&] {
    if (!given.deepspeed) return;
    inputs.deepspeed = read_deepspeed(*given.deepspeed);
    below.request.deepspeed = {};  // What the run was given stands above what its arguments name.
    below.request.inline_deepspeed.reset();
  });
  below.request = overlay(below.request, said.options);
  inputs.request = below.request;
  complete(below, inputs, faults);
  take_environment(receipt, inputs.request);
  take_level(receipt, words, inputs.request);
  if (words.calibration) inputs.request.calibration = {*words.calibration, option("--calibration")};
  read_what_it_names(inputs, faults);
  faults.throw_if_any();
  return inputs;
}

}  // namespace

Repredicted repredict(const Receipt& receipt, const RepredictWords& words) {
  Repredicted result;
  result.inputs = gather(receipt, options_of(receipt), words);
  take_device(receipt, result);
  result.job = resolve(result.inputs);
  Job& job = result.job;
  if (job.parallelism.world != receipt.world) {
    throw Refusal(receipt.path, formatted("\"world_size\" is {}, and its inputs are for {} ranks", receipt.world,
                                          job.parallelism.world));
  }
  if (receipt.ranks_are == Receipt::Ranks::FakeProcessGroup) job.communicators = Bytes(0);
  const std::string of_inputs = fingerprint(result.inputs.model, job);
  if (receipt.environment.limit && job.capacity) {
    job.allocator.memory_fraction =
        static_cast<double>(receipt.environment.limit->value()) / static_cast<double>(job.capacity->value());
  }
  result.ranks = predict_measured(result.inputs.model, job, receipt);
  if (result.ranks.empty()) result.ranks.push_back(figures_of(predict(result.inputs.model, job, 0)));
  if (receipt.inputs.fingerprint && *receipt.inputs.fingerprint != of_inputs) {
    result.notes.push_back(
        "the receipt's own fingerprint is another: it was predicted from other inputs, or by another "
        "dsplan");
  }
  return result;
}

std::vector<PredictedRank> predict_measured(const ModelSpec& model, const Job& job, const Receipt& receipt) {
  std::vector<PredictedRank> ranks;
  for (const RankFigures& measured : receipt.ranks) ranks.push_back(figures_of(predict(model, job, measured.rank)));
  return ranks;
}

void require_same_job(const Receipt& receipt, const std::string& receipt_file,
                      const std::vector<PredictedRank>& predicted, const std::string& predicted_file) {
  constexpr const char* kAnew = "`dsplan compare --re-predict RECEIPT` predicts from the receipt's own inputs";
  if (!receipt.inputs.fingerprint) {
    throw Refusal(receipt_file, "the receipt has no fingerprint: nobody knows whether it is of that prediction", kAnew);
  }
  for (const PredictedRank& rank : predicted) {
    if (rank.fingerprint == *receipt.inputs.fingerprint) continue;
    throw Refusal(
        predicted_file,
        formatted("the fingerprints differ: predicted {}, measured {}", rank.fingerprint, *receipt.inputs.fingerprint),
        kAnew);
  }
}

ReceiptComparison held_against(const std::string& receipt_file, const Predicted& predicted) {
  const Receipt receipt = read_receipt(read_document(receipt_file));
  require_same_job(receipt, receipt_file, {figures_of(predicted.prediction)}, receipt_file);
  return compare(receipt, predict_measured(predicted.inputs.model, predicted.job, receipt), {});
}

}  // namespace dsplan
