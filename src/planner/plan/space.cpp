#include "planner/plan/space.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/text/whole_numbers.h"
#include "model/traits.h"

namespace dsplan {
namespace {

constexpr const char* kAsGiven = "as given";
constexpr std::int64_t kMostGpus = 4096;
constexpr std::int64_t kMostTokens = 1 << 19;  // Of a micro-batch: there dsplan's own list ends.

std::vector<std::string> powers_of_two(std::int64_t most) {
  std::vector<std::string> values;
  for (std::int64_t value = 1; value <= most; value *= 2) values.push_back(std::to_string(value));
  return values;
}

std::int64_t per_node_of(const SearchInputs& inputs) {
  if (inputs.request.gpus_per_node.given()) return *inputs.request.gpus_per_node;
  return inputs.cluster != nullptr ? inputs.cluster->gpus_per_node : 8;
}

std::optional<std::int64_t> gpus_of(const SearchInputs& inputs) {
  if (inputs.request.gpus.given()) return *inputs.request.gpus;
  const std::int64_t nodes =
      inputs.request.nodes.value_or(inputs.cluster != nullptr ? inputs.cluster->nodes : std::int64_t{0});
  if (nodes > 0) return nodes * per_node_of(inputs);
  return std::nullopt;
}

// Powers of two within a node, then of nodes: what schedulers hand out.
std::vector<std::string> gpu_counts(const SearchInputs& inputs) {
  const std::int64_t most = gpus_of(inputs).value_or(kMostGpus);
  const std::int64_t per_node = per_node_of(inputs);
  std::vector<std::string> values;
  for (std::int64_t gpus = 1; gpus < per_node && gpus <= most; gpus *= 2) values.push_back(std::to_string(gpus));
  for (std::int64_t gpus = per_node; gpus <= most; gpus *= 2) values.push_back(std::to_string(gpus));
  return values;
}

std::int64_t most_rows(const SearchInputs& inputs) {
  const std::int64_t seq = inputs.request.seq.value_or(2048);
  return std::max<std::int64_t>(1, kMostTokens / std::max<std::int64_t>(1, seq));
}

// What a configuration of the user's own says of an axis: a value, and where it stands.
struct Pin {
  std::string value;
  std::string where;
};

template <class T>
std::optional<Pin> pin_of(const Setting<T>& setting, std::string value) {
  if (!setting.mentioned()) return std::nullopt;
  return Pin{std::move(value), setting.place.text()};
}

std::optional<Pin> gpus_pin(const SearchInputs& inputs, Objective objective) {
  if (objective == Objective::Gpus) return std::nullopt;
  const Request& request = inputs.request;
  if (request.gpus.given()) return Pin{std::to_string(*request.gpus), request.gpus.place.text()};
  if (const auto gpus = gpus_of(inputs)) {
    return Pin{std::to_string(*gpus), inputs.cluster != nullptr ? inputs.cluster->name : "the launch line"};
  }
  return std::nullopt;
}

std::optional<Pin> stage_pin(const SearchInputs& inputs) {
  const Request& request = inputs.request;
  if (request.zero_stage.given()) return pin_of(request.zero_stage, std::to_string(*request.zero_stage));
  if (request.runtime.given() && *request.runtime == "fsdp1") {
    throw Refusal(request.runtime.place.text(),
                  "fsdp1 is not searched, as fully_shard is what took its place (say fsdp2); simulate answers for it");
  }
  if (request.runtime.given() && *request.runtime != "deepspeed") {
    const bool plain = *request.runtime == "ddp";  // What plain PyTorch is on several ranks.
    return Pin{plain ? "pytorch" : *request.runtime, request.runtime.place.text()};
  }
  if (inputs.deepspeed == nullptr || !inputs.deepspeed->zero.stage.given()) return std::nullopt;
  return pin_of(inputs.deepspeed->zero.stage, std::to_string(*inputs.deepspeed->zero.stage));
}

bool shards_fully(std::string_view stage) { return stage == "fsdp2" || stage == "hsdp"; }

// Neither DeepSpeed nor fully_shard takes packed weights or torch.autocast.
bool trains_plainly(const Request& request) {
  return request.quantization.value_or("none") != "none" || request.autocast.value_or("none") != "none";
}

// Offload and buckets are DeepSpeed's.
bool without_zero(const SearchInputs& inputs) {
  const std::optional<Pin> stage = stage_pin(inputs);
  return stage ? !whole_number(stage->value) : trains_plainly(inputs.request);
}

std::optional<Pin> offload_pin(const SearchInputs& inputs) {
  if (inputs.deepspeed == nullptr) return std::nullopt;
  const ZeroInput& zero = inputs.deepspeed->zero;
  if (zero.offload_optimizer.present) return Pin{kAsGiven, zero.offload_optimizer.place.text()};
  if (zero.offload_param.present) return Pin{kAsGiven, zero.offload_param.place.text()};
  return std::nullopt;
}

std::optional<Pin> micro_batch_pin(const SearchInputs& inputs) {
  const Request& request = inputs.request;
  if (request.micro_batch.given()) return pin_of(request.micro_batch, std::to_string(*request.micro_batch));
  if (inputs.deepspeed != nullptr && inputs.deepspeed->micro_batch.given()) {
    return pin_of(inputs.deepspeed->micro_batch, std::to_string(*inputs.deepspeed->micro_batch));
  }
  if (request.training_arguments && request.training_arguments->per_device_train_batch_size.given()) {
    const Setting<std::int64_t>& rows = request.training_arguments->per_device_train_batch_size;
    return pin_of(rows, std::to_string(*rows));
  }
  return std::nullopt;
}

bool brings_loss(const Request& request) { return request.model_code.value_or("") == "torchtitan"; }

std::optional<Pin> pin(Axis axis, const SearchInputs& inputs, Objective objective) {
  const Request& request = inputs.request;
  switch (axis) {
    case Axis::Gpus: return gpus_pin(inputs, objective);
    case Axis::ZeroStage: return stage_pin(inputs);
    case Axis::Offload: return offload_pin(inputs);
    case Axis::TensorParallel:
      return request.tp.given() ? pin_of(request.tp, std::to_string(*request.tp)) : std::nullopt;
    case Axis::Loss:
      if (brings_loss(request)) return Pin{kAsGiven, request.model_code.place.text()};
      return request.loss.given() ? pin_of(request.loss, *request.loss) : std::nullopt;
    case Axis::ReduceBucket:
      if (inputs.deepspeed == nullptr) return std::nullopt;
      return pin_of(inputs.deepspeed->zero.reduce_bucket_size, kAsGiven);
    case Axis::MicroBatch: return objective == Objective::MicroBatch ? std::nullopt : micro_batch_pin(inputs);
    case Axis::Checkpoint:
      if (!request.checkpoint.given() || *request.checkpoint == "auto") return std::nullopt;
      return pin_of(request.checkpoint, kAsGiven);
  }
  return std::nullopt;
}

bool takes(Axis axis, std::string_view value) {
  const auto is_one_of = [&](std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), value) != words.end();
  };
  switch (axis) {
    case Axis::ZeroStage: return is_one_of({"0", "1", "2", "3", "pytorch", "fsdp2", "hsdp"});
    case Axis::Offload: return is_one_of({"none", "optimizer", "parameters", "optimizer+parameters"});
    case Axis::Loss:
      return is_one_of({"hf", "native", "liger", "cut"}) ||
             (value.starts_with("chunked:") && whole_number(value.substr(8)).value_or(0) >= 1);
    case Axis::Checkpoint: return !value.empty();  // `resolve` knows them, with the model.
    default: return whole_number(value).value_or(0) >= 1;
  }
}

std::string_view what_it_takes(Axis axis) {
  switch (axis) {
    case Axis::ZeroStage: return "it is one of 0, 1, 2, 3, pytorch, fsdp2, hsdp";
    case Axis::Offload:
      return "it is one of none, optimizer, parameters, optimizer+parameters, all of them to the host's memory";
    case Axis::Loss: return "it is one of hf, native, chunked:N, liger, cut";
    default: return "it is a whole number, 1 or more";
  }
}

void take_list(const ListedAxis& listed, AxisValues& into, Diagnostics& faults) {
  if (into.pinned) {
    faults.add(listed.place.says(
        formatted("\"{}\" is listed, and {} already says {}", name(listed.axis), into.reason, into.values.front()),
        "leave one of the two out"));
    return;
  }
  into.values.clear();
  for (const Setting<std::string>& value : listed.values) {
    if (!takes(listed.axis, *value)) {
      faults.add(value.place.says(formatted("{} cannot be \"{}\"", name(listed.axis), *value),
                                  std::string(what_it_takes(listed.axis))));
    } else if (std::find(into.values.begin(), into.values.end(), *value) != into.values.end()) {
      faults.add(value.place.says(formatted("\"{}\" stands twice", *value)));
    } else {
      into.values.push_back(*value);
    }
  }
  if (listed.values.empty()) faults.add(listed.place.says(formatted("no value for {}", name(listed.axis))));
  into.origin = Origin::Given;
  into.reason = listed.place.text();
}

AxisValues unlisted(Axis axis, const SearchInputs& inputs, Objective objective) {
  if (const std::optional<Pin> said = pin(axis, inputs, objective)) {
    return {{said->value}, Origin::Given, said->where, true};
  }
  return {own_values(axis, inputs, objective), Origin::Assumed, "dsplan's own list", false};
}

// Accumulation is fixed, unless the batch of a whole step is: then it follows from the micro-batch.
void take_batch(const SearchInputs& inputs, const ListedSpace& listed, SearchSpace& space, Diagnostics& faults) {
  const Request& request = inputs.request;
  const DeepSpeedInput* ds = inputs.deepspeed;
  if (listed.global_batch.given()) {
    space.global_batch = *listed.global_batch;
    if (ds != nullptr && ds->train_batch_size.given() && *ds->train_batch_size != *listed.global_batch) {
      faults.add(listed.global_batch.place.says(formatted("a batch of {}, and {} says {}", *listed.global_batch,
                                                          ds->train_batch_size.place.text(), *ds->train_batch_size),
                                                "leave one of the two out"));
    }
    return;
  }
  if (ds != nullptr && ds->train_batch_size.given()) {
    space.global_batch = *ds->train_batch_size;
  } else if (request.grad_accum.given()) {
    space.grad_accum = *request.grad_accum;
  } else if (ds != nullptr && ds->grad_accum.given()) {
    space.grad_accum = *ds->grad_accum;
  } else if (request.training_arguments) {
    space.grad_accum = request.training_arguments->gradient_accumulation_steps.value_or(1);
  }
}

// Neither micro-batch nor accumulation can make up for rows that data-parallel ranks cannot share.
void refuse_batch_that_divides_nothing(const SearchInputs& inputs, const ListedSpace& listed, const SearchSpace& space,
                                       Diagnostics& faults) {
  if (!space.global_batch) return;
  const std::int64_t batch = *space.global_batch;
  std::vector<std::int64_t> shares;  // Of data-parallel ranks.
  for (const std::string& gpus : space[Axis::Gpus].values) {
    for (const std::string& tp : space[Axis::TensorParallel].values) {
      const std::int64_t ranks = whole_number(gpus).value_or(0);
      const std::int64_t sharing = whole_number(tp).value_or(1);
      if (ranks < 1 || sharing < 1 || ranks % sharing != 0) continue;
      if (batch % (ranks / sharing) == 0) return;
      shares.push_back(ranks / sharing);
    }
  }
  if (shares.empty()) return;
  std::sort(shares.begin(), shares.end());
  shares.erase(std::unique(shares.begin(), shares.end()), shares.end());
  const auto near = [batch](std::int64_t ranks) {
    const std::int64_t below = batch / ranks * ranks;
    return below > 0 ? formatted("{} or {}", below, below + ranks) : formatted("{}", ranks);
  };
  std::vector<std::string> texts(shares.size());
  std::transform(shares.begin(), shares.end(), texts.begin(), [](std::int64_t one) { return std::to_string(one); });
  const Place place =
      listed.global_batch.given() ? listed.global_batch.place : inputs.deepspeed->train_batch_size.place;
  faults.add(place.says(
      formatted("{} rows of a step cannot be divided among {} data-parallel ranks", batch, joined(texts, ", ")),
      shares.size() == 1 ? formatted("{} can", near(shares.front()))
                         : formatted("{} can be divided among {}, {} among {}", near(shares.front()), shares.front(),
                                     near(shares.back()), shares.back())));
}

// A card for one's own computer, of which most have one.
bool stands_alone(const Hardware* hardware) {
  return hardware != nullptr && (hardware->name.starts_with("rtx") || hardware->name.starts_with("titan"));
}

// fully_shard beside ZeRO, unless the user's own configuration is DeepSpeed's; replicas where there are several nodes;
// on one GPU also what `simulate` takes there, PyTorch alone, and on more of them its replicas where the others refuse
// a parameter (clip's scale).
std::vector<std::string> own_states(const SearchInputs& inputs, Objective objective) {
  std::vector<std::string> values = {"0", "1", "2", "3"};
  const Request& request = inputs.request;
  if (trains_plainly(request)) return {"pytorch"};
  const bool deepspeed = inputs.deepspeed != nullptr || request.inline_deepspeed || request.deepspeed.given() ||
                         request.runtime.given() || request.deepspeed_version.given();
  if (deepspeed) return values;
  values.emplace_back("fsdp2");
  const std::int64_t usual = objective != Objective::Gpus && stands_alone(inputs.hardware) ? 1 : kMostGpus;
  if (gpus_of(inputs).value_or(usual) == 1 || contrasts(inputs.model)) values.emplace_back("pytorch");
  if (gpus_of(inputs).value_or(kMostGpus) > per_node_of(inputs)) values.emplace_back("hsdp");
  return values;
}

}  // namespace

std::vector<std::string> own_values(Axis axis, const SearchInputs& inputs, Objective objective) {
  switch (axis) {
    case Axis::Gpus: return gpu_counts(inputs);
    case Axis::ZeroStage: return own_states(inputs, objective);
    case Axis::Offload:
      if (!without_zero(inputs)) return {"none", "optimizer", "optimizer+parameters"};
      if (!shards_fully(stage_pin(inputs)->value)) return {"none"};
      return {"none", "optimizer+parameters"};
    case Axis::TensorParallel: return powers_of_two(std::min<std::int64_t>(8, per_node_of(inputs)));
    case Axis::Loss: return {"hf"};
    case Axis::ReduceBucket:
      if (without_zero(inputs)) return {"500000000"};
      return {"500000000", "50000000"};
    case Axis::MicroBatch:
      return objective == Objective::MicroBatch ? std::vector<std::string>{"1"} : powers_of_two(most_rows(inputs));
    case Axis::Checkpoint: return {"none", "full", "auto"};
  }
  return {};
}

SearchSpace space_of(const SearchInputs& inputs, const ListedSpace& listed, Objective objective) {
  if (inputs.model.recording) {  // Bounds are made of layers, and the order of candidates of step times.
    throw Refusal(inputs.model.name,
                  "a search over a recorded module is not modelled yet: nobody knows how long its operators take, nor "
                  "what each of its layers keeps",
                  "simulate answers for each configuration, sweep for many");
  }
  Diagnostics faults;
  SearchSpace space;
  for (std::size_t i = 0; i < kAxes; ++i) space.axes[i] = unlisted(static_cast<Axis>(i), inputs, objective);
  std::array<bool, kAxes> seen{};
  for (const ListedAxis& axis : listed.axes) {
    bool& before = seen[static_cast<std::size_t>(axis.axis)];
    if (std::exchange(before, true)) {
      faults.add(axis.place.says(formatted("\"{}\" is listed twice", name(axis.axis))));
      continue;
    }
    take_list(axis, space[axis.axis], faults);
  }
  take_batch(inputs, listed, space, faults);
  const bool nodes_said = inputs.request.gpus_per_node.given() || inputs.cluster != nullptr;
  if (objective == Objective::Gpus && !nodes_said) space.assumed_per_node = per_node_of(inputs);
  refuse_batch_that_divides_nothing(inputs, listed, space, faults);
  AxisValues& gpus = space[Axis::Gpus];
  if (objective != Objective::Gpus && !gpus.pinned && gpus.origin == Origin::Assumed && stands_alone(inputs.hardware)) {
    gpus = {{"1"}, Origin::Assumed, formatted("the usual number of {}s", inputs.hardware->name), true};
  }
  if (space[Axis::Gpus].values.empty() ||
      (objective != Objective::Gpus && !space[Axis::Gpus].pinned && space[Axis::Gpus].origin == Origin::Assumed)) {
    faults.add({"--gpus",
                0,
                0,
                {},
                "a search needs the number of GPUs",
                "give --gpus, a cluster, or ask for the fewest with --minimize gpus"});
  }
  faults.throw_if_any();
  return space;
}

namespace {

const Place& chosen_here() {
  static const Place place{"the search", 0, 0, {}};
  return place;
}

template <class T>
Setting<T> chosen(T value) {
  return {std::move(value), chosen_here()};
}

void choose_offload(const std::string& value, DeepSpeedInput& ds) {
  if (value == kAsGiven) return;
  const auto block = [](bool wanted, OffloadInput& into) {
    into = {};
    if (!wanted) return;
    into.present = true;
    into.place = chosen_here();
    into.device = chosen(OffloadDevice::Cpu);
    into.pin_memory = chosen(true);
  };
  block(value.starts_with("optimizer"), ds.zero.offload_optimizer);
  block(value.ends_with("parameters"), ds.zero.offload_param);
}

void choose_checkpoint(const std::string& value, Request& request) {
  if (value == kAsGiven) return;
  request.checkpoint = chosen(value);
  request.checkpoint_groups = {};
}

}  // namespace

DeepSpeedInput own_deepspeed_file(const Request& request) {
  DeepSpeedInput ds;
  ds.path = "the search";
  ds.place = chosen_here();
  const std::string dtype = request.dtype.value_or("bf16");
  if (dtype == "bf16") ds.bf16_enabled = chosen(true);
  if (dtype == "fp16") ds.fp16_enabled = chosen(true);
  return ds;
}

namespace {

// Whether the user's own configuration says in which dtypes fully_shard computes and reduces.
bool says_policy(const Request& request) {
  const FsdpInput& said = request.fsdp;
  if (request.mixed_precision.given() || request.training_arguments) return true;
  if (said.param_dtype.given() || said.reduce_dtype.given() || said.output_dtype.given()) return true;
  if (!request.set.given()) return false;
  return std::any_of(request.set->begin(), request.set->end(), [](const std::string& pair) {
    return pair.starts_with("fsdp.") && pair.find("_dtype=") != std::string::npos;
  });
}

// What the user does not say is as a program makes it that can be given the plan: accelerate, which has no replicas, or
// torchtitan. Both keep shards in fp32; the first reduces in 16 bits, as DeepSpeed does.
void complete_sharding(const std::string& stage, Request& request) {
  const bool replicas = stage == "hsdp";
  FsdpInput& fsdp = request.fsdp;
  const auto usually = [](Setting<std::string>& setting, const char* value) {
    if (!setting.mentioned()) setting = chosen(std::string(value));
  };
  usually(fsdp.wrap, replicas ? "ends" : "layers+ends");
  if (replicas) usually(fsdp.gradient_sync, "every");
  usually(request.model_init, replicas ? "meta" : "rank0");
  if (says_policy(request)) return;
  const std::string dtype = request.dtype.value_or("bf16");
  if (dtype == "fp32") return;
  fsdp.param_dtype = chosen(dtype);
  fsdp.reduce_dtype = chosen(replicas ? std::string("fp32") : dtype);
  if (!replicas) fsdp.output_dtype = chosen(dtype);
  request.dtype = chosen(std::string("fp32"));
}

// fully_shard has none of ZeRO's buckets, so that one value of that axis stands for all, and CPUOffloadPolicy takes all
// states to the host.
void choose_fully_shard(const Settings& settings, const SearchSpace& space, Request& request) {
  const std::string& stage = settings[static_cast<std::size_t>(Axis::ZeroStage)];
  const std::string& bucket = settings[static_cast<std::size_t>(Axis::ReduceBucket)];
  const std::vector<std::string>& buckets = space[Axis::ReduceBucket].values;
  if (!buckets.empty() && bucket != buckets.front()) throw Refusal("--runtime", stage + " has no reduce bucket");
  const std::string& offload = settings[static_cast<std::size_t>(Axis::Offload)];
  if (offload != "none" && offload != kAsGiven) {
    if (offload != "optimizer+parameters") {
      throw Refusal("--runtime", "fully_shard takes parameters and optimizer to the host, or neither");
    }
    request.fsdp.cpu_offload = chosen(std::string("true"));
  }
  request.zero_stage = {};
  request.runtime = chosen(stage);
  complete_sharding(stage, request);
}

}  // namespace

CandidateInputs inputs_of(const SearchInputs& inputs, const Settings& settings, const SearchSpace& space) {
  const auto value = [&](Axis axis) -> const std::string& { return settings[static_cast<std::size_t>(axis)]; };
  CandidateInputs made;
  made.request = inputs.request;
  Request& request = made.request;
  // A count of GPUs alone says nothing of nodes.
  if (space.assumed_per_node) request.gpus_per_node = chosen(*space.assumed_per_node);
  const std::string& stage = value(Axis::ZeroStage);
  made.has_deepspeed = stage != "pytorch" && !shards_fully(stage);
  if (made.has_deepspeed) {
    const bool own = inputs.deepspeed == nullptr && !request.inline_deepspeed;
    made.deepspeed = inputs.deepspeed != nullptr ? *inputs.deepspeed
                     : own                       ? own_deepspeed_file(request)
                                                 : *request.inline_deepspeed;
    DeepSpeedInput& ds = made.deepspeed;
    request.zero_stage = chosen(whole_number(stage).value_or(0));
    ds.zero.present = true;
    ds.zero.stage = {};
    choose_offload(value(Axis::Offload), ds);
    if (const auto bucket = whole_number(value(Axis::ReduceBucket))) ds.zero.reduce_bucket_size = chosen(*bucket);
    ds.train_batch_size = {};
    ds.micro_batch = {};
    ds.grad_accum = {};
  } else if (shards_fully(stage)) {
    choose_fully_shard(settings, space, request);
  } else {
    request.zero_stage = {};
  }
  if (const auto gpus = whole_number(value(Axis::Gpus))) request.gpus = chosen(*gpus);
  request.tp = chosen(whole_number(value(Axis::TensorParallel)).value_or(1));
  const bool said = inputs.request.loss.given() || (value(Axis::Loss) != "hf" && value(Axis::Loss) != kAsGiven);
  if (said) request.loss = chosen(value(Axis::Loss));
  const std::int64_t rows = whole_number(value(Axis::MicroBatch)).value_or(1);
  request.micro_batch = chosen(rows);
  std::int64_t accumulation = space.grad_accum;
  if (space.global_batch) {
    const std::int64_t dp = std::max<std::int64_t>(1, request.gpus.value_or(1) / *request.tp);
    accumulation = std::max<std::int64_t>(1, *space.global_batch / (rows * dp));
  }
  request.grad_accum = chosen(accumulation);
  choose_checkpoint(value(Axis::Checkpoint), request);
  return made;
}

}  // namespace dsplan
