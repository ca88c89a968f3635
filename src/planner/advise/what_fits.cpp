#include "planner/advise/what_fits.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/machine/in_parallel.h"
#include "model/lora.h"
#include "planner/lower/shapes.h"
#include "planner/plan/choose_checkpoint.h"
#include "planner/predict/allocation.h"
#include "planner/predict/footprint.h"
#include "planner/predict/predict.h"
#include "planner/resolve/resolve.h"

namespace dsplan {
namespace {

struct Trial {
  std::string options;
  std::function<void(CandidateInputs&)> edit;
  std::string note = {};
  std::vector<Trial> larger = {};  // More of the same, each tried where nothing before it fits.
};

template <class T>
Setting<T> chosen(T value) {
  static const Place here{"a change", 0, 0, {}};
  return {std::move(value), here};
}

// `b` comes without what is larger than it.
Trial both(const Trial& a, const Trial& b) {
  Trial made{a.options + " " + b.options,
             [first = a.edit, second = b.edit](CandidateInputs& inputs) {
               first(inputs);
               second(inputs);
             },
             a.note.empty() ? b.note : a.note};
  for (const Trial& larger : a.larger) made.larger.push_back(both(larger, b));
  return made;
}

Trial with_conf(const Job& job) {
  const char* keys = "expandable_segments:True";
  const std::string conf = job.allocator_conf.empty() ? keys : job.allocator_conf + "," + keys;
  return {"--alloc-conf " + conf, [conf](CandidateInputs& inputs) { inputs.request.alloc_conf = chosen(conf); }};
}

Trial with_checkpoints() {
  return {"--checkpoint full", [](CandidateInputs& inputs) {
            inputs.request.checkpoint = chosen(std::string("full"));
            inputs.request.checkpoint_groups = {};
          }};
}

Trial with_stage(std::int64_t stage) {
  return {formatted("--zero-stage {}", stage), [stage](CandidateInputs& inputs) {
            inputs.request.zero_stage = chosen(stage);
            inputs.request.runtime = {};
            inputs.deepspeed.zero.present = true;
            inputs.deepspeed.zero.stage = {};
          }};
}

Trial with_rows(std::int64_t rows, std::int64_t steps) {
  return {formatted("--micro-batch {} --grad-accum {}", rows, steps), [rows, steps](CandidateInputs& inputs) {
            inputs.request.micro_batch = chosen(rows);
            inputs.request.grad_accum = chosen(steps);
            inputs.deepspeed.train_batch_size = {};
            inputs.deepspeed.micro_batch = {};
            inputs.deepspeed.grad_accum = {};
          }};
}

Trial with_gpus(std::int64_t gpus) {
  return {formatted("--gpus {}", gpus), [gpus](CandidateInputs& inputs) {
            inputs.request.gpus = chosen(gpus);
            inputs.request.nodes = {};
          }};
}

Trial with_optimizer(const char* name, const char* note) {
  return {formatted("--optimizer {}", name),
          [name](CandidateInputs& inputs) { inputs.request.optimizer = chosen(std::string(name)); }, note};
}

// Where peft has targets of its own for the family, those; what is said is what is tried.
Trial with_adapters_of(std::int64_t rank, std::string_view family) {
  const bool known = !usual_targets(family).empty();
  const std::string words = formatted("r={}{}", rank, known ? "" : ",targets=q_proj+k_proj+v_proj+o_proj");
  return {"--lora " + words, [words](CandidateInputs& inputs) { inputs.request.lora = chosen(std::string(words)); },
          "trains adapters alone"};
}

// Products in 16 bits, fp16 where the job is in it: BitsAndBytesConfig's default, fp32, takes ten times as long.
Trial with_packed_weights_and_adapters(std::string_view family, bool half) {
  const Trial adapters = with_adapters_of(16, family);
  const std::string dtype(name(half ? DType::Float16 : DType::BFloat16));
  return {formatted("--quantization nf4 --quant-compute-dtype {} {}", dtype, adapters.options),
          [adapt = adapters.edit, dtype](CandidateInputs& inputs) {
            inputs.request.quantization = chosen(std::string("nf4"));
            inputs.request.quant_compute_dtype = chosen(dtype);
            adapt(inputs);
          },
          "QLoRA: trains adapters alone"};
}

void send_to_host(OffloadInput& into) {
  into = {};
  into.present = true;
  into.place = Place{"a change", 0, 0, {}};
  into.device = chosen(OffloadDevice::Cpu);
  into.pin_memory = chosen(true);
}

// Of ZeRO's first two stages the optimizer alone; of the third the parameters, too, where `parameters`.
Trial with_offload(bool parameters) {
  const char* words =
      parameters ? "\"offload_optimizer\", \"offload_param\": cpu" : "\"offload_optimizer\": {\"device\": \"cpu\"}";
  return {words, [parameters](CandidateInputs& inputs) {
            if (!inputs.has_deepspeed) inputs.deepspeed = own_deepspeed_file(inputs.request);
            inputs.has_deepspeed = true;
            send_to_host(inputs.deepspeed.zero.offload_optimizer);
            if (parameters) send_to_host(inputs.deepspeed.zero.offload_param);
          }};
}

// No allocator gives more than the device has.
bool too_much_is_asked(const Job& job, const Prediction& now) {
  const std::optional<VerdictLimit> limit = verdict_limit(device_room(job));
  return limit && now.peak && now.peak->requested > limit->limit;
}

std::vector<Trial> single_trials(const Job& job, const Prediction& now) {
  std::vector<Trial> trials;
  const Training& t = job.training;
  const bool in_pieces = now.retries > 0 || (now.needed && now.capacity && *now.needed + now.reserve <= *now.capacity);
  const bool suffices = !too_much_is_asked(job, now);
  if (in_pieces && suffices && !job.allocator.expandable_segments) trials.push_back(with_conf(job));
  if (t.checkpoint.groups.empty()) trials.push_back(with_checkpoints());
  const std::int64_t stage = t.runtime == Runtime::DeepSpeed ? t.zero.stage : 0;
  for (std::int64_t next = std::max<std::int64_t>(stage + 1, 1); next <= 3 && job.parallelism.dp > 1; ++next) {
    trials.push_back(with_stage(next));
  }
  std::int64_t steps = t.grad_accum;
  for (std::int64_t rows = t.micro_batch; rows % 2 == 0;) {
    rows /= 2;
    steps = checked_mul(steps, 2);
    trials.push_back(with_rows(rows, steps));
  }
  return trials;
}

// Checkpoints, the highest stage and single rows, two or all of them.
std::vector<Trial> paired_trials(const std::vector<Trial>& singles) {
  std::vector<Trial> strongest;
  for (const char* kind : {"--checkpoint", "--zero-stage", "--micro-batch"}) {
    const auto last = std::find_if(singles.rbegin(), singles.rend(),
                                   [kind](const Trial& trial) { return trial.options.starts_with(kind); });
    if (last != singles.rend()) strongest.push_back(*last);
  }
  std::vector<Trial> trials;
  for (std::size_t a = 0; a < strongest.size(); ++a) {
    for (std::size_t b = a + 1; b < strongest.size(); ++b) trials.push_back(both(strongest[a], strongest[b]));
  }
  if (strongest.size() == 3) trials.push_back(both(both(strongest[0], strongest[1]), strongest[2]));
  return trials;
}

// Without its parameters, gradients and optimizer states the job would not fit either: no change of those helps alone.
bool states_are_the_least(const Job& job, const Prediction& now) {
  const std::optional<VerdictLimit> limit = verdict_limit(device_room(job));
  if (!limit || !now.peak) return false;
  const ByRole& held = now.peak->by_role;
  return now.peak->requested - held[Role::Parameters] - held[Role::Gradients] - held[Role::Optimizer] > limit->limit;
}

std::vector<Trial> far_trials(const Job& job, std::string_view family, const std::vector<Trial>& singles,
                              const Prediction& now) {
  const Training& t = job.training;
  std::vector<Trial> trials;
  const bool adam = t.optimizer.kind == OptimizerKind::AdamW || t.optimizer.kind == OptimizerKind::Adam;
  if (adam) trials.push_back(with_optimizer("adamw_8bit", "its states in 8 bits"));
  const bool staged = t.runtime == Runtime::DeepSpeed && t.zero.stage > 0;
  if (t.zero.offload_optimizer.device == OffloadDevice::None) {
    trials.push_back(staged ? with_offload(false) : both(with_stage(2), with_offload(false)));
    if (!staged || t.zero.stage < 3) trials.push_back(both(with_stage(3), with_offload(false)));
    trials.push_back(staged && t.zero.stage == 3 ? with_offload(true) : both(with_stage(3), with_offload(true)));
  }
  if (job.parallelism.world > 1) {
    const auto more = [&](std::int64_t times) {
      const Trial gpus = with_gpus(checked_mul(job.parallelism.world, times));
      return staged ? gpus : both(with_stage(3), gpus);
    };
    trials.push_back(more(2));
    trials.back().larger = {more(4), more(8)};
  }
  trials.push_back(with_adapters_of(16, family));
  trials.push_back(with_packed_weights_and_adapters(family, t.compute_dtype() == DType::Float16));
  std::vector<Trial> all = trials;
  if (states_are_the_least(job, now)) {
    std::erase_if(all, [](const Trial& trial) { return trial.options.find("--lora") == std::string::npos; });
  }
  const auto checkpoints = std::find_if(singles.begin(), singles.end(),
                                        [](const Trial& trial) { return trial.options == "--checkpoint full"; });
  if (checkpoints != singles.end()) {
    for (const Trial& trial : trials) all.push_back(both(trial, *checkpoints));
  }
  return all;
}

double speed_of(const Prediction& p) { return p.time ? p.time->tokens_per_second / static_cast<double>(p.world) : 0; }

// Whether the states alone are too much: then nothing has to be simulated.
bool hopeless(const ModelSpec& model, const Job& job) {
  if (!job.capacity) return false;
  const DeviceRoom room = device_room(job);
  return footprint(model, job).persistent.total() + room.beside() + room.reserve > *job.capacity;
}

class Judge {
 public:
  // `now`: null where every verdict is wanted.
  Judge(const SearchInputs& inputs, const Prediction* now) : inputs_(inputs), now_(now), shapes_(inputs.model) {}

  // None that lies behind as many as are `enough` in the list need be tried.
  [[nodiscard]] std::vector<FittingChange> judged(std::span<const Trial> trials, Detail detail,
                                                  std::size_t enough = kAllChanges) const {
    std::vector<std::optional<FittingChange>> found(trials.size());
    std::vector<std::atomic<bool>> well(trials.size());
    // Those that take longest come last in the list, and begin first where all are tried.
    in_parallel(trials.size(), [&](std::size_t begun) {
      const std::size_t at = enough == kAllChanges ? trials.size() - 1 - begun : begun;
      const auto before = well.begin() + static_cast<std::ptrdiff_t>(at);
      const auto fit = std::count_if(well.begin(), before, [](const std::atomic<bool>& one) { return one.load(); });
      if (static_cast<std::size_t>(fit) >= enough) return;
      found[at] = smallest(trials[at], detail);
      well[at] = found[at] && found[at]->verdict == Verdict::Fits;
    });
    std::vector<FittingChange> changes;
    for (std::optional<FittingChange>& one : found) {
      if (one) changes.push_back(std::move(*one));
    }
    return changes;
  }

 private:
  [[nodiscard]] std::optional<FittingChange> smallest(const Trial& trial, Detail detail) const {
    std::optional<FittingChange> found = judged(trial, detail);
    for (auto next = trial.larger.begin(); !found && next != trial.larger.end(); ++next) found = judged(*next, detail);
    return found;
  }

  // What resolving refuses, or what has no whole prediction, is no answer.
  [[nodiscard]] std::optional<FittingChange> judged(const Trial& trial, Detail detail) const {
    CandidateInputs made;
    made.request = inputs_.request;
    made.has_deepspeed = inputs_.deepspeed != nullptr || made.request.inline_deepspeed.has_value();
    if (made.has_deepspeed) {
      made.deepspeed = inputs_.deepspeed != nullptr ? *inputs_.deepspeed : *made.request.inline_deepspeed;
    }
    made.request.strict = {};
    try {
      trial.edit(made);
      const bool adapts = made.request.lora.given() && !inputs_.request.lora.given();
      const ModelSpec model = adapts ? model_of(inputs_.model, made.request) : ModelSpec{};
      return judged(trial, adapts ? model : inputs_.model, made, detail);
    } catch (const Refusal&) {
      return std::nullopt;
    }
  }

  [[nodiscard]] std::optional<FittingChange> judged(const Trial& trial, const ModelSpec& model,
                                                    const CandidateInputs& made, Detail detail) const {
    Job job = resolve(model, made.request, made.file(), inputs_.hardware, inputs_.cluster);
    if (now_ != nullptr && hopeless(model, job)) return std::nullopt;
    job.rank = "worst";
    (void)choose_checkpointing(model, job);
    const Wanted wanted = now_ != nullptr ? Wanted::IfFits : Wanted::Any;
    SharedShapes* const shapes = &model == &inputs_.model ? &shapes_ : nullptr;
    const std::optional<Prediction> made_whole = predict_wanted(model, job, detail, wanted, nullptr, shapes);
    if (!made_whole || !made_whole->peak) return std::nullopt;
    const Prediction& p = *made_whole;
    if (now_ != nullptr && (!fits(p.verdict) || p.verdict >= now_->verdict)) return std::nullopt;
    FittingChange change{trial.options, p.verdict, p.needed.value_or(Bytes(0)), p.retries_low == 0, {}, trial.note};
    if (fits(p.verdict) && p.retries == 0 && p.peak->process) change.process = *p.peak->process;
    if (p.time && now_ != nullptr && now_->time && speed_of(*now_) > 0) change.speed = speed_of(p) / speed_of(*now_);
    const Bytes host_now = now_ != nullptr ? now_->host.per_node.value_or(Bytes(0)) : Bytes(0);
    if (p.host.per_node && *p.host.per_node > host_now + Bytes(1LL << 30)) {
      change.note +=
          formatted("{}{} of each node's host memory", change.note.empty() ? "" : "; ", human(*p.host.per_node));
    }
    return change;
  }

  const SearchInputs& inputs_;
  const Prediction* now_;
  mutable SharedShapes shapes_;  // Of changes that leave the model as it is.
};

// As far as anybody reads them.
bool moves_as(const FittingChange& a, const FittingChange& b) {
  const double larger = static_cast<double>(std::max(a.process, b.process).value());
  const bool bytes = std::abs(static_cast<double>((a.process - b.process).value())) <= 0.001 * larger;
  return bytes && a.verdict == b.verdict && std::abs(a.speed.value_or(0) - b.speed.value_or(0)) <= 0.005;
}

// A change that only adds to another one and moves nothing: `--checkpoint full` where packed weights bring checkpoints.
void drop_what_adds_nothing(std::vector<FittingChange>& changes) {
  std::vector<FittingChange> kept;
  for (const FittingChange& one : changes) {
    const bool known = std::any_of(changes.begin(), changes.end(), [&one](const FittingChange& other) {
      return other.options.size() < one.options.size() && one.options.starts_with(other.options) &&
             moves_as(one, other);
    });
    if (!known) kept.push_back(one);
  }
  changes = std::move(kept);
}

// Nothing behind as many as are `enough` that fit with room to spare.
void cut_behind(std::vector<FittingChange>& changes, std::size_t enough) {
  std::size_t well = 0;
  const auto last = std::find_if(changes.begin(), changes.end(), [&well, enough](const FittingChange& one) {
    if (one.verdict == Verdict::Fits) ++well;
    return well >= enough;
  });
  if (last != changes.end()) changes.erase(last + 1, changes.end());
}

}  // namespace

std::vector<FittingChange> what_fits(const SearchInputs& inputs, const Job& job, const Prediction& now, Reach reach,
                                     std::size_t enough) {
  const Judge judge(inputs, &now);
  const std::vector<Trial> singles = single_trials(job, now);
  std::vector<FittingChange> changes = judge.judged(singles, Detail::ChangeEnds);
  const auto none_fits_well = [&changes] {
    return std::none_of(changes.begin(), changes.end(),
                        [](const FittingChange& one) { return one.verdict == Verdict::Fits; });
  };
  const auto add = [&changes](std::vector<FittingChange> more) {
    std::move(more.begin(), more.end(), std::back_inserter(changes));
  };
  if (none_fits_well()) add(judge.judged(paired_trials(singles), Detail::ChangeEnds));
  const bool one_may = std::any_of(changes.begin(), changes.end(), [](const FittingChange& one) {
    return one.verdict == Verdict::FitsWithRetries && one.at_best_clean;
  });
  const bool goes_on = none_fits_well() && (enough == kAllChanges || !one_may);
  if (goes_on && reach == Reach::Far) {
    add(judge.judged(far_trials(job, inputs.model.family, singles, now), Detail::Change, enough));
    cut_behind(changes, enough);
  }
  std::stable_sort(changes.begin(), changes.end(), [](const FittingChange& a, const FittingChange& b) {
    if (a.verdict != b.verdict) return a.verdict < b.verdict;
    return a.speed.value_or(0) > b.speed.value_or(0);
  });
  drop_what_adds_nothing(changes);
  return changes;
}

std::vector<FittingChange> other_ways(const SearchInputs& inputs, const SearchSpace& space) {
  const AxisValues& gpus = space[Axis::Gpus];
  Request request = inputs.request;
  if (gpus.origin == Origin::Assumed && gpus.values.size() == 1)
    request.gpus = chosen(std::int64_t{std::stoll(gpus.values.front())});
  SearchInputs asked{inputs.model, request, inputs.deepspeed, inputs.hardware, inputs.cluster};
  const Trial least = both(with_rows(1, 1), with_checkpoints());
  std::vector<Trial> trials = {least, both(with_optimizer("adamw_8bit", "its states in 8 bits"), least),
                               both(both(with_stage(2), with_offload(false)), least),
                               both(both(with_stage(3), with_offload(false)), least),
                               both(both(with_stage(3), with_offload(true)), least)};
  if (!request.lora.given()) {
    const Trial adapters = both(with_adapters_of(16, inputs.model.family), least);
    trials.push_back(adapters);
    if (request.gpus.value_or(1) > 1) trials.push_back(both(with_stage(3), adapters));
    const bool half = request.dtype.value_or({}) == "fp16";
    trials.push_back(both(with_packed_weights_and_adapters(inputs.model.family, half), least));
  }
  std::vector<FittingChange> ways = Judge(asked, nullptr).judged(trials, Detail::Change);
  std::stable_sort(ways.begin(), ways.end(), [](const FittingChange& a, const FittingChange& b) {
    return a.verdict != b.verdict ? a.verdict < b.verdict : a.process < b.process;
  });
  return ways;
}

}  // namespace dsplan
