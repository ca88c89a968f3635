// Runtime, versions and dtypes.
#include "planner/resolve/resolver.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/document.h"
#include "core/format.h"
#include "core/text/split.h"
#include "model/quantized.h"

namespace dsplan {
namespace {

// From where on a program's behaviour is known. An older release would be answered as if it were this one; a newer one
// than was measured is, and said so.
struct Modelled {
  Version least;
  Version newest;
  const char* why;
  const char* closed = nullptr;  // Why a newer one is refused as well.
  Version measured{};            // The oldest that was; those before it are answered as it is.
};
constexpr Modelled kModelledTorch{
    {2, 5, 0}, kWitnessTorch, "measured were 2.6 to 2.11; older ones save other tensors", nullptr, {2, 6, 0}};
constexpr Modelled kModelledTransformers{{4, 0, 0}, kWitnessTransformers, "measured were 4.53, 4.57 and 5.17"};
constexpr Modelled kModelledDeepSpeed{
    {0, 12, 0}, {0, 19, 8}, "measured was 0.19.8; DeepSpeed's source was read back to 0.12"};
// Its temporaries have changed four times between these two.
constexpr Modelled kModelledLiger{
    {0, 5, 10}, kWitnessLiger, "older ones do not load beside transformers 5", "measured were 0.5.10 to 0.8.5"};

constexpr Modelled kModelledTorchtitan{{0, 1, 0},
                                       kWitnessTorchtitan,
                                       "measured were 0.2.0 to 0.2.2; 0.1.0 was read",
                                       "its configurations are Python since 0.3.0"};

// Refused: what is no version, is older than what is known, or begins a line that nobody has seen.
Version version_of(Resolver& resolver, std::string_view what, const Setting<std::string>& setting, const char* released,
                   const Modelled& modelled) {
  const std::optional<Version> version = Version::parse(setting.value_or(released));
  if (!version) {
    resolver.fault(setting.place, formatted("\"{}\" is no version", *setting), "write it like 2.11.0, 2.11 or 2");
    return modelled.newest;
  }
  if (*version < modelled.least) {
    resolver.fault(setting.place,
                   formatted("{} {} is not modelled; the oldest is {}", what, version->text(), modelled.least.text()),
                   modelled.why);
  } else if (version->major > modelled.newest.major) {
    resolver.fault(setting.place,
                   formatted("{} {} is not modelled; the newest that was measured is {}", what, version->text(),
                             modelled.newest.text()),
                   formatted("{}.x may do anything else; a newer {}.x is answered, with a note", version->major,
                             modelled.newest.major));
  }
  return *version;
}

// Where nothing of the program runs.
void note_unused(Resolver& resolver, std::string_view what, const Setting<std::string>& setting, const char* released,
                 const Modelled& modelled, std::string why) {
  if (!setting.given()) return;
  (void)version_of(resolver, what, setting, released, modelled);
  resolver.notice(Notice::Kind::Inert, setting.place, std::move(why));
}

Version resolve_version(Resolver& resolver, std::string_view what, const Setting<std::string>& setting,
                        const char* released, const Modelled& modelled) {
  const std::string option = formatted("--{}-version", what);
  const Version version = version_of(resolver, what, setting, released, modelled);
  if (version < modelled.measured && !(version < modelled.least)) {
    resolver.announce(setting.place, formatted("{} {} is older than {}, the oldest that was measured", what,
                                               version.text(), modelled.measured.text()));
  }
  if (modelled.newest < version && modelled.closed != nullptr) {
    resolver.fault(setting.place,
                   formatted("{} {} is not modelled; the newest is {}", what, version.text(), modelled.newest.text()),
                   modelled.closed);
  } else if (modelled.newest < version && version.major == modelled.newest.major) {
    resolver.announce(
        setting.place,
        formatted("{} {} is newer than {}, the newest that was measured; what has changed since is not known here",
                  what, version.text(), modelled.newest.text()));
  }
  const std::string name = formatted("{} version", what);
  if (setting.given()) {
    resolver.given(name, version.text(), setting.place, option);
  } else {
    resolver.assumed(name, version.text(), "the version behind the witness data", option);
  }
  return version;
}

// A bare "4" is the line in its most general form; a release is asked for by its minor number.
void say_what_transformers_does(Resolver& resolver) {
  const Version& version = resolver.job.training.transformers;
  const Place& place = resolver.request.transformers_version.place;
  if (resolver.model.code == ModelCode::Torchtitan) {
    if (!resolver.request.transformers_version.given()) return;
    return resolver.notice(Notice::Kind::Inert, place,
                           "transformers' version has no effect: the model's code is torchtitan's");
  }
  if (version >= Version{5, 0, 0}) return;
  std::string form = "keys and values are expanded to all heads before attention";
  if (version >= Version{4, 54, 0}) {
    form = "keys and values keep their own heads";
  } else if (version >= Version{4, 48, 0}) {
    form += ", and the queries are copied";
  }
  if (batch_has_mask(version)) form += "; the batch brings a mask of ones, as the collators make it";
  resolver.notice(Notice::Kind::Announcement, place, formatted("transformers {}: {}", version.text(), form));
  if (version >= Version{4, 53, 0}) return;
  resolver.notice(Notice::Kind::Warning, place,
                  formatted("transformers {} was not compared: 4.53 and 4.57 were. Taken are labels shifted by padding "
                            "and no search for packed sequences",
                            version.text()));
}

void resolve_stage(Resolver& resolver) {
  const Setting<std::int64_t>& wished = resolver.request.zero_stage;
  const Setting<std::int64_t> written = resolver.ds != nullptr ? resolver.ds->zero.stage : Setting<std::int64_t>();
  const Setting<std::int64_t>& stage = wished.given() ? wished : written;
  if (!stage.given()) {
    resolver.derived("ZeRO stage", "0", "DeepSpeed's default", "--zero-stage");
    return;
  }
  if (*stage < 0 || *stage > 3) {
    resolver.fault(stage.place, formatted("ZeRO stage {} does not exist", *stage), "DeepSpeed has stages 0 to 3");
    return;
  }
  resolver.training().zero.stage = static_cast<int>(*stage);
  resolver.given("ZeRO stage", std::to_string(*stage), stage.place, "--zero-stage");
  if (wished.given() && written.given() && *wished != *written) {
    resolver.announce(written.place, formatted("stage {} of the DeepSpeed JSON gives way to {} of {}", *written,
                                               *wished, wished.place.text()));
  }
}

// What the DeepSpeed JSON says without "auto": bf16, fp16, or (both blocks absent or disabled) nothing.
const Setting<bool>* enabled_precision(const DeepSpeedInput* ds) {
  if (ds == nullptr) return nullptr;
  if (ds->bf16_enabled.value_or(false)) return &ds->bf16_enabled;
  if (ds->fp16_enabled.value_or(false)) return &ds->fp16_enabled;
  return nullptr;
}

DType precision_of(const Setting<bool>* enabled, const DeepSpeedInput& ds) {
  if (enabled == nullptr) return DType::Float32;
  return enabled == &ds.bf16_enabled ? DType::BFloat16 : DType::Float16;
}

void dtype_by_request(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.dtype;
  const std::optional<DType> dtype = floating_type(*wished);
  if (!dtype) {
    return resolver.fault(wished.place, formatted("dtype \"{}\" is none of bf16, fp16, fp32", *wished));
  }
  resolver.training().dtype = *dtype;
  resolver.given("dtype", std::string(name(*dtype)), wished.place, "--dtype");
  const Setting<bool>* enabled = enabled_precision(resolver.ds);
  if (enabled != nullptr && precision_of(enabled, *resolver.ds) != *dtype) {
    resolver.announce(enabled->place,
                      formatted("{} of the DeepSpeed JSON gives way to {} of {}",
                                name(precision_of(enabled, *resolver.ds)), name(*dtype), wished.place.text()));
  }
}

// accelerate fills in "auto", and a missing block too, from TrainingArguments. Explicit contradictions are judged by
// check_training_arguments.
void dtype_by_trainer(Resolver& resolver, const TrainingArguments& arguments) {
  const bool bf16 = arguments.bf16.value_or(false);
  const bool fp16 = arguments.fp16.value_or(false);
  if (bf16 && fp16)
    return resolver.fault(arguments.fp16.place, "bf16 and fp16 are both true", "transformers allows one");
  const Setting<bool>& chosen = bf16 ? arguments.bf16 : arguments.fp16;
  const DType dtype = bf16 ? DType::BFloat16 : (fp16 ? DType::Float16 : DType::Float32);
  resolver.training().dtype = dtype;
  if (bf16 || fp16) {
    resolver.given("dtype", std::string(name(dtype)), chosen.place, "--dtype");
  } else {
    resolver.derived("dtype", "fp32", "TrainingArguments without bf16 and fp16", "--dtype");
  }
}

// accelerate's mixed precision and the Trainer's are torch.autocast around the model's forward, unless DeepSpeed casts
// the weights. Null: none.
const Setting<std::string>* mixed_precision(const Resolver& resolver) {
  const Request& request = resolver.request;
  return !resolver.deepspeed() && request.mixed_precision.given() ? &request.mixed_precision : nullptr;
}

const Setting<bool>* trainer_precision(const Resolver& resolver) {
  const std::optional<TrainingArguments>& arguments = resolver.request.training_arguments;
  if (resolver.deepspeed() || !arguments) return nullptr;
  if (arguments->bf16.value_or(false)) return &arguments->bf16;
  return arguments->fp16.value_or(false) ? &arguments->fp16 : nullptr;
}

bool autocasts(const Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.autocast;
  return wished.given() ? *wished != "none" : mixed_precision(resolver) != nullptr || trainer_precision(resolver);
}

// Whether weights whose dtype nothing names come from transformers: a script on a launch line, and whoever reads
// TrainingArguments. A plain torch.autocast around a script of one's own is used with fp32 weights.
bool loaded_by_transformers(const Resolver& resolver) {
  const Request& request = resolver.request;
  if (resolver.deepspeed()) return false;
  if (mixed_precision(resolver) != nullptr || trainer_precision(resolver) != nullptr) return true;
  return !autocasts(resolver) &&
         (request.has_launch_line || request.training_arguments || request.mixed_precision.given());
}

// transformers 5 loads a model in the checkpoint's own dtype, as "auto" does in 4, which loads fp32 unless it is told
// (PreTrainedModel.from_pretrained, `dtype`). A config.json that names none is of weights in fp32.
void from_pretrained(Resolver& resolver) {
  Training& training = resolver.training();
  const bool automatic = resolver.request.torch_dtype.value_or({}) == "auto";
  const bool own = automatic || training.transformers >= Version{5, 0, 0};
  const std::optional<DType> stored = resolver.model.stored_dtype;
  training.dtype = own ? stored.value_or(DType::Float32) : DType::Float32;
  constexpr std::string_view kOwn = "from_pretrained loads a checkpoint in its own dtype";
  const std::string why = !own     ? "from_pretrained loads fp32"
                          : stored ? std::string(kOwn)
                                   : formatted("{}, and the config.json names none: fp32", kOwn);
  resolver.assumed("dtype", std::string(name(training.dtype)), why, "--dtype");
}

// Without DeepSpeed, the weights keep the dtype in which the script loads them.
void loaded_dtype(Resolver& resolver) {
  const Setting<std::string>& loaded = resolver.request.torch_dtype;
  const std::optional<DType> dtype = loaded.given() ? floating_type(*loaded) : std::nullopt;
  if (dtype) {
    resolver.training().dtype = *dtype;
    return resolver.given("dtype", std::string(name(*dtype)), loaded.place, "--dtype");
  }
  if (loaded_by_transformers(resolver)) return from_pretrained(resolver);
  if (autocasts(resolver)) {
    resolver.training().dtype = DType::Float32;
    return resolver.derived("dtype", "fp32", "autocast, whose use is with fp32 weights", "--dtype");
  }
  resolver.assumed("dtype", "bf16", "no DeepSpeed JSON", "--dtype");
}

// accelerate enables its mixed precision in a JSON that has no block for it, and refuses the opposite block.
void dtype_by_accelerate(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.mixed_precision;
  if (!resolver.deepspeed()) return loaded_dtype(resolver);
  const DType dtype = floating_type(*wished).value_or(DType::BFloat16);
  resolver.training().dtype = dtype;
  resolver.given("dtype", std::string(name(dtype)), wished.place, "--dtype");
  const Setting<bool>* enabled = enabled_precision(resolver.ds);
  if (enabled == nullptr || precision_of(enabled, *resolver.ds) == dtype) return;
  resolver.fault(enabled->place,
                 formatted("the DeepSpeed JSON enables {}, and the launch line {}",
                           name(precision_of(enabled, *resolver.ds)), *wished),
                 "accelerate refuses the mismatch");
}

void dtype_by_json(Resolver& resolver) {
  const DeepSpeedInput& ds = *resolver.ds;
  const Setting<bool>* enabled = enabled_precision(&ds);
  const DType dtype = precision_of(enabled, ds);
  resolver.training().dtype = dtype;
  if (enabled != nullptr) return resolver.given("dtype", std::string(name(dtype)), enabled->place, "--dtype");
  const Setting<bool>* automatic = ds.bf16_enabled.is_auto ? &ds.bf16_enabled : nullptr;
  if (automatic == nullptr && ds.fp16_enabled.is_auto) automatic = &ds.fp16_enabled;
  if (automatic == nullptr) {
    return resolver.derived("dtype", "fp32", "the DeepSpeed JSON enables neither bf16 nor fp16", "--dtype");
  }
  if (resolver.request.hugging_face_rules()) {
    return resolver.assumed("dtype", "fp32", "\"auto\", and nothing says bf16 or fp16", "--dtype");
  }
  resolver.derived("dtype", "fp32", "DeepSpeed drops \"auto\", and its default is off", "--dtype");
  const Elements all = total_elements(resolver.model);
  resolver.announce(automatic->place,
                    "\"auto\" without a training file or launch line: DeepSpeed's default, fp32, instead of 16 bits "
                    "for the weights",
                    storage(all, DType::Float32) - storage(all, DType::BFloat16));
}

void resolve_dtype(Resolver& resolver) {
  const std::optional<TrainingArguments>& arguments = resolver.request.training_arguments;
  if (resolver.request.dtype.given()) return dtype_by_request(resolver);
  if (resolver.request.mixed_precision.given()) return dtype_by_accelerate(resolver);
  if (!resolver.deepspeed() && arguments) return loaded_dtype(resolver);
  if (enabled_precision(resolver.ds) != nullptr) return dtype_by_json(resolver);
  if (resolver.deepspeed() && arguments) return dtype_by_trainer(resolver, *arguments);
  if (resolver.ds != nullptr) return dtype_by_json(resolver);
  loaded_dtype(resolver);
}

void say_of_blocks(Resolver& resolver, const Quantization& packing) {
  constexpr std::string_view kUsual = "as given, else BitsAndBytesConfig's default";
  resolver.derived("double_quant", packing.nested ? "true" : "false", std::string(kUsual), "--double-quant");
  resolver.derived("quant_compute_dtype", std::string(name(packing.compute)), std::string(kUsual),
                   "--quant-compute-dtype");
  resolver.derived("quant_storage", std::string(name(packing.storage)), std::string(kUsual), "--quant-storage");
}

// Which columns are multiplied apart depends on values.
void say_of_int8(Resolver& resolver) {
  resolver.announce(resolver.request.quantization.place,
                    "no activation is taken to reach llm_int8_threshold, 6.0: of each column that does, LLM.int8 keeps "
                    "another copy for backward");
}

// FlatParamHandle._validate_tensors_to_flatten.
void flattens_packed(Resolver& resolver, const Quantization& packing) {
  const Request& request = resolver.request;
  constexpr const char* kRule = "\"Cannot flatten integer dtype tensors\", PyTorch says";
  if (packing.eight_bits()) {
    resolver.fault(request.quantization.place, formatted("int8 weights under FSDP1: {}", kRule));
  } else if (packing.storage == DType::UInt8) {
    const Place& place = request.quant_storage.given() ? request.quant_storage.place : request.quantization.place;
    resolver.fault(place, formatted("4-bit weights kept in uint8 under FSDP1: {}", kRule),
                   "quant_storage in the dtype of what they are flattened with, as peft's guide to FSDP says");
  }
}

// nn.Parameter, as which fully_shard keeps what it has gathered, refuses whole numbers (_fsdp_param.py,
// init_unsharded_param); accelerate 1.15 leaves such weights out (utils/fsdp_utils.py, fsdp2_prepare_model).
void shards_packed(Resolver& resolver, const Quantization& packing) {
  const Request& request = resolver.request;
  const Setting<std::string> set = set_of(resolver, "fsdp.ignored");
  const Setting<std::string>& ignored = set.given() ? set : request.fsdp.ignored;
  const std::string text = ignored.value_or({});
  const std::vector<std::string_view> words = ignored_words(text);
  const bool out = std::find(words.begin(), words.end(), kPackedParameters) != words.end();
  constexpr const char* kRule = "\"only Tensors of floating point dtype can require gradients\", PyTorch says";
  if (resolver.training().runtime == Runtime::Fsdp1) return flattens_packed(resolver, packing);
  if (packing.eight_bits()) {
    return resolver.fault(request.quantization.place, formatted("int8 weights under fully_shard: {}", kRule));
  }
  if (packing.storage == DType::UInt8 && !out) {
    const Place& place = request.quant_storage.given() ? request.quant_storage.place : request.quantization.place;
    resolver.fault(
        place, formatted("4-bit weights kept in uint8 under fully_shard: {}", kRule),
        "quant_storage bf16 shards them; fsdp.ignored=packed leaves them whole on each rank, as accelerate does");
  }
}

// prepare_model_for_kbit_training casts what is not packed to fp32 (peft 0.21, utils/other.py). A program that does not
// call it leaves that as it was loaded.
void resolve_packed(Resolver& resolver) {
  const std::optional<Quantization> packing = packing_of(resolver.model);
  if (!packing) return;
  const Place& place = resolver.request.quantization.place;
  resolver.given("quantization", packing->kind, place, "--quantization");
  if (packing->eight_bits()) {
    say_of_int8(resolver);
  } else {
    say_of_blocks(resolver, *packing);
  }
  if (resolver.deepspeed()) return;  // DeepSpeed casts what is not packed.
  resolver.training().dtype = packing->others();
  resolver.derived("dtype of what is not packed", std::string(name(packing->others())),
                   packing->prepared ? "prepare_model_for_kbit_training casts it" : "as it was loaded",
                   "--kbit-prepare");
  if (is_fsdp(resolver.training().runtime)) shards_packed(resolver, *packing);
}

// What both mean to fully_shard, which has a policy instead: the dtype, and where it stands.
Setting<DType> sharding_precision(const Resolver& resolver) {
  if (const Setting<std::string>* launched = mixed_precision(resolver)) {
    return {floating_type(**launched).value_or(DType::BFloat16), launched->place};
  }
  const Setting<bool>* const trained = trainer_precision(resolver);
  if (trained == nullptr) return {};
  return {trained == &resolver.request.training_arguments->bf16 ? DType::BFloat16 : DType::Float16, trained->place};
}

// Weights whose dtype nobody said are what the model's own configuration says.
void refuse_other_weights(Resolver& resolver, const Place& place, bool derived) {
  const Training& training = resolver.job.training;
  resolver.fault(place,
                 formatted("autocast in {} over weights in {} is not modelled yet", name(*training.autocast),
                           name(training.dtype)),
                 derived && !resolver.request.dtype.given() ? "say --dtype fp32 if the script loads the model so" : "");
}

// Around the forward: an option's plain torch.autocast, or accelerate's, which makes the outputs fp32 as well.
void resolve_autocast(Resolver& resolver) {
  Training& training = resolver.training();
  const bool shards = training.runtime == Runtime::Fsdp2;  // Around FullyShardedDataParallel's forward it is both.
  const Setting<std::string>& wished = resolver.request.autocast;
  const Setting<std::string>* launched = shards ? nullptr : mixed_precision(resolver);
  const Setting<bool>* trained = shards ? nullptr : trainer_precision(resolver);
  if (wished.given() && resolver.deepspeed() && *wished != "none") {
    return resolver.not_modelled(wished.place, "autocast under DeepSpeed (its torch_autocast block)");
  }
  if (wished.given()) {
    const std::optional<DType> dtype = floating_type(*wished);
    if (*wished != "none" && (!dtype || *dtype == DType::Float32)) {
      return resolver.fault(wished.place, formatted("autocast \"{}\" is none of bf16, fp16, none", *wished));
    }
    training.autocast = dtype;
    resolver.given("autocast", *wished, wished.place, "--autocast");
  } else if (launched != nullptr) {
    training.autocast = floating_type(**launched).value_or(DType::BFloat16);
    resolver.given("autocast", std::string(name(*training.autocast)), launched->place, "--autocast");
  } else if (trained != nullptr) {
    const bool bf16 = trained == &resolver.request.training_arguments->bf16;
    if (bf16 && resolver.request.training_arguments->fp16.value_or(false)) {
      resolver.fault(resolver.request.training_arguments->fp16.place, "bf16 and fp16 are both true",
                     "transformers allows one");
    }
    training.autocast = bf16 ? DType::BFloat16 : DType::Float16;
    resolver.given("autocast", std::string(name(*training.autocast)), trained->place, "--autocast");
  }
  training.outputs_to_fp32 = training.autocast && !wished.given();
  if (training.autocast && training.dtype != DType::Float32 && training.dtype != *training.autocast) {
    refuse_other_weights(resolver,
                         wished.given() ? wished.place : (launched != nullptr ? launched->place : trained->place),
                         !wished.given());
  }
}

// Model dtype for every stage since 0.17.6; before that fp32 for bf16 without ZeRO (deepspeed-zero.md, section 1).
void resolve_accumulation(Resolver& resolver) {
  Training& training = resolver.training();
  training.grad_accum_dtype = training.dtype;
  if (!resolver.deepspeed()) return;
  const bool old_default =
      training.deepspeed < Version{0, 17, 6} && training.dtype == DType::BFloat16 && training.zero.stage == 0;
  if (old_default) training.grad_accum_dtype = DType::Float32;
  if (resolver.ds == nullptr) return;
  const Setting<DType>& wished = resolver.ds->grad_accum_dtype;
  if (wished.given()) training.grad_accum_dtype = *wished;
  if (training.zero.stage == 0 && wished.given() && *wished != training.dtype) {
    resolver.fault(wished.place,
                   formatted("accumulation in {} with weights in {} needs ZeRO", name(*wished), name(training.dtype)),
                   "DeepSpeed raises for this mix at stage 0");
  }
  const Setting<DType>& parameters = resolver.ds->param_dtype;
  if (parameters.given() && *parameters != training.dtype) {
    resolver.fault(parameters.place,
                   formatted("\"param_dtype\" is {}, but the weights are {}", name(*parameters), name(training.dtype)),
                   "DeepSpeed wants it equal to the enabled precision");
  }
}

void resolve_deepspeed_version(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.deepspeed_version;
  Version& version = resolver.training().deepspeed;
  if (resolver.deepspeed()) {
    version = resolve_version(resolver, "deepspeed", wished, kDeepSpeedVersion, kModelledDeepSpeed);
    return;
  }
  version = Version::parse(kDeepSpeedVersion).value_or(Version{});
  note_unused(resolver, "deepspeed", wished, kDeepSpeedVersion, kModelledDeepSpeed,
              "DeepSpeed's version has no effect: the runtime is not DeepSpeed's");
}

}  // namespace

void resolve_runtime(Resolver& resolver) {
  const Request& request = resolver.request;
  Training& training = resolver.training();
  const bool staged = request.zero_stage.given();
  training.runtime = resolver.ds != nullptr || staged ? Runtime::DeepSpeed : Runtime::PyTorch;
  const Setting<std::string>& wished = request.runtime;
  if (wished.given()) {
    const bool shards = *wished == "fsdp2" || *wished == "hsdp";
    const bool flattens = *wished == "fsdp1";
    if (*wished == "fsdp") {
      resolver.fault(wished.place, "runtime \"fsdp\" is one of two",
                     "fsdp1 is FullyShardedDataParallel, fsdp2 is fully_shard");
    } else if (*wished != "pytorch" && *wished != "ddp" && *wished != "deepspeed" && !shards && !flattens) {
      resolver.fault(wished.place,
                     formatted("runtime \"{}\" is none of pytorch, ddp, deepspeed, fsdp1, fsdp2 and hsdp", *wished));
    } else if (*wished != "deepspeed" && resolver.deepspeed()) {
      resolver.fault(wished.place,
                     formatted("runtime {} contradicts {}", *wished, staged ? "the ZeRO stage" : "the DeepSpeed JSON"));
    } else if (shards) {
      training.runtime = Runtime::Fsdp2;
    } else if (flattens) {
      training.runtime = Runtime::Fsdp1;
    } else if (*wished == "deepspeed") {
      training.runtime = Runtime::DeepSpeed;
    }
    resolver.given("runtime", std::string(name(training.runtime)), wished.place, "--runtime");
  } else {
    resolver.derived("runtime", std::string(name(training.runtime)),
                     resolver.ds != nullptr ? "a DeepSpeed JSON is given"
                                            : (staged ? "a ZeRO stage is given" : "no DeepSpeed JSON and no stage"),
                     "--runtime");
  }
  if (resolver.deepspeed()) resolve_stage(resolver);
  training.torch = resolve_version(resolver, "torch", request.torch_version, kTorchVersion, kModelledTorch);
  training.transformers = resolve_version(resolver, "transformers", request.transformers_version, kTransformersVersion,
                                          kModelledTransformers);
  say_what_transformers_does(resolver);
  resolve_deepspeed_version(resolver);
}

namespace {

template <class Kernels>
using KernelWords = std::array<std::pair<std::string_view, bool Kernels::*>, 3>;

// "all", "none", or some of three words.
template <class Kernels>
bool resolve_kernels(Resolver& resolver, const Setting<std::string>& wished, std::string_view whose,
                     const KernelWords<Kernels>& words, Kernels& kernels) {
  if (*wished == "none") return true;
  if (*wished == "all") {
    for (const auto& word : words) kernels.*word.second = true;
    return true;
  }
  for (const std::string_view word : split(*wished, ',')) {
    const auto found = std::find_if(words.begin(), words.end(), [&](const auto& one) { return one.first == word; });
    if (found == words.end()) {
      const std::string_view meant = nearest(word, {"all", "none", words[0].first, words[1].first, words[2].first});
      const std::string all =
          formatted("they are {}, {} and {}, or all", words[0].first, words[1].first, words[2].first);
      resolver.fault(wished.place, formatted("\"{}\" is none of {} kernels", word, whose),
                     meant.empty() ? all : did_you_mean(meant));
      return false;
    }
    kernels.*found->second = true;
  }
  return true;
}

void resolve_liger_kernels(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.liger_kernels;
  if (!wished.given()) return;
  const KernelWords<LigerKernels> words{
      {{"rope", &LigerKernels::rotary}, {"rms_norm", &LigerKernels::norms}, {"swiglu", &LigerKernels::swiglu}}};
  if (!resolve_kernels(resolver, wished, "Liger's", words, resolver.training().liger_kernels)) return;
  resolver.given("liger kernels", *wished, wished.place, "--liger-kernels");
}

// For every mistral3 axolotl patches mistral's class of attention (get_attention_cls_from_config): that of ministral3
// stays as it is, and peft's modules in it.
bool keeps_attention(const ModelSpec& model) {
  return model.family == "mistral3" && std::none_of(model.modules.begin(), model.modules.end(),
                                                    [](const Module& one) { return one.type == "MistralAttention"; });
}

// Where adapters are, and in the model that has them.
void resolve_adapter_kernels(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.lora_kernels;
  if (!wished.given()) return;
  AdapterKernels& kernels = resolver.training().lora_kernels;
  const KernelWords<AdapterKernels> words{
      {{"qkv", &AdapterKernels::qkv}, {"o", &AdapterKernels::o}, {"mlp", &AdapterKernels::mlp}}};
  if (!resolve_kernels(resolver, wished, "axolotl's adapter", words, kernels)) return;
  resolver.given("lora kernels", *wished, wished.place, "--lora-kernels");
  if (resolver.model.causal != 0 && (kernels.qkv || kernels.o) && keeps_attention(resolver.model)) {
    kernels.qkv = kernels.o = false;
    resolver.notice(Notice::Kind::Inert, wished.place,
                    "axolotl's kernels of attention have no effect: it patches MistralAttention, and this model has "
                    "another class");
  }
  if (!kernels.any() || resolver.model.causal != 0) return;
  kernels = {};
  resolver.notice(Notice::Kind::Inert, wished.place, "axolotl's kernels have no effect: there are no adapters");
}

}  // namespace

void resolve_liger(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.liger_version;
  Training& training = resolver.training();
  resolve_liger_kernels(resolver);
  resolve_adapter_kernels(resolver);
  if (training.loss == Loss::Liger || training.liger_kernels.any()) {
    training.liger = resolve_version(resolver, "liger", wished, kLigerVersion, kModelledLiger);
  } else {
    note_unused(resolver, "liger", wished, kLigerVersion, kModelledLiger,
                "Liger's version has no effect: neither the loss nor any kernel is Liger's");
  }
}

void resolve_torchtitan(Resolver& resolver) {
  const Setting<std::string>& wished = resolver.request.torchtitan_version;
  Training& training = resolver.training();
  if (training.model_code == ModelCode::Torchtitan) {
    training.torchtitan = resolve_version(resolver, "torchtitan", wished, kTorchtitanVersion, kModelledTorchtitan);
  } else {
    note_unused(resolver, "torchtitan", wished, kTorchtitanVersion, kModelledTorchtitan,
                "torchtitan's version has no effect: the model's code is transformers'");
  }
}

// accelerate and the Trainer scale the loss under autocast in fp16 (accelerate 1.x, Accelerator.__init__). torch's
// GradScaler then raises where a gradient is in fp16 itself, when it unscales: before clipping, and before the step of
// an optimizer that does not do it by itself (torch 2.11, amp/grad_scaler.py, _unscale_grads_ and step).
void check_loss_scaling(Resolver& resolver) {
  Training& training = resolver.training();
  const Setting<std::string>* launched = mixed_precision(resolver);
  const Setting<bool>* trained = trainer_precision(resolver);
  const bool flat = training.runtime == Runtime::Fsdp1;
  if ((training.runtime != Runtime::PyTorch && !flat) || training.autocast != DType::Float16) return;
  if (resolver.request.autocast.given() || (launched == nullptr && trained == nullptr)) return;
  training.grad_scaler = true;
  if (flat) return;  // ShardedGradScaler takes them, and shards are in fp32.
  const Optimizer& optimizer = training.optimizer;
  const bool adam_or_sgd = optimizer.kind == OptimizerKind::Adam || optimizer.kind == OptimizerKind::AdamW ||
                           optimizer.kind == OptimizerKind::Sgd;
  const bool unscales = optimizer.implementation == Implementation::Fused && adam_or_sgd;
  if (unscales && training.gradient_clipping <= 0) return;
  const std::vector<Parameter>& all = resolver.model.parameters;
  const bool any = std::any_of(all.begin(), all.end(), [&](const Parameter& parameter) {
    return parameter.trainable && training.dtype_of(parameter) == DType::Float16;
  });
  if (!any) return;
  resolver.fault(launched != nullptr ? launched->place : trained->place,
                 "fp16 over weights that are trained in fp16 fails: GradScaler refuses to unscale their gradients",
                 "load them in fp32 (--dtype fp32), or say bf16");
}

void resolve_precision(Resolver& resolver) {
  resolve_dtype(resolver);
  resolve_packed(resolver);
  resolve_autocast(resolver);
  resolve_accumulation(resolver);
  Training& training = resolver.training();
  training.communication_dtype = training.dtype;
  training.master_dtype = DType::Float32;
  training.check_grad_overflow = false;
  if (is_fsdp(training.runtime)) resolve_fsdp_dtypes(resolver, sharding_precision(resolver));
  if (!resolver.deepspeed()) return;
  const DeepSpeedInput* ds = resolver.ds;
  if (ds != nullptr) training.communication_dtype = ds->communication_dtype.value_or(training.dtype);
  // Default true since 0.19.3 (deepspeed-zero.md, section 1).
  const bool usual = training.deepspeed >= Version{0, 19, 3};
  const bool scans = ds != nullptr ? ds->bf16_check_grad_overflow.value_or(usual) : usual;
  training.check_grad_overflow = training.dtype == DType::BFloat16 && scans;
  const Setting<std::string>& loaded = resolver.request.torch_dtype;
  if (!loaded.given()) return;
  const std::optional<DType> as = floating_type(*loaded);
  if (training.dtype == DType::Float32 && as && *as != DType::Float32) {
    resolver.not_modelled(loaded.place, "16-bit weights under DeepSpeed without bf16 or fp16");
  } else {
    resolver.notice(Notice::Kind::Inert, loaded.place,
                    "the dtype in which the script loads the model has no effect here: DeepSpeed casts the weights");
  }
}

}  // namespace dsplan
