// Autocast and lists of lengths, from what the user gave to the job.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "io/deepspeed.h"
#include "io/dialects/dialect_file.h"
#include "io/text.h"
#include "lowered.h"
#include "planner/resolve/resolve.h"

using namespace dsplan;

namespace {

struct Given {
  std::string deepspeed = {};  // Empty: none.
  Request request = {};
  ModelSpec model = lowered::bundled("tiny-llama");
};

Job run(const Given& given) {
  if (given.deepspeed.empty()) return resolve(given.model, given.request, nullptr, nullptr, nullptr);
  const DeepSpeedInput input = read_deepspeed(parse_hjson("ds.json", given.deepspeed));
  return resolve(given.model, given.request, &input, nullptr, nullptr);
}

void says(const Given& given, const std::string& expected) {
  std::string said = "accepted";
  try {
    (void)run(given);
  } catch (const Refusal& refusal) {
    said = refusal.what();
  }
  CHECK_MESSAGE(said.find(expected) != std::string::npos, said);
}

template <class T>
void set(Setting<T>& setting, T value, const char* name) {
  setting = {std::move(value), option(name)};
}

Request trainer(const std::string& yaml) { return read_training_arguments(parse_yaml("args.yaml", yaml)); }

const ResolvedInput& input(const Job& job, std::string_view name) {
  const auto at =
      std::find_if(job.inputs.begin(), job.inputs.end(), [&](const ResolvedInput& one) { return one.name == name; });
  REQUIRE(at != job.inputs.end());
  return *at;
}

bool noticed(const Job& job, std::string_view text) {
  return std::any_of(job.notices.begin(), job.notices.end(),
                     [&](const Notice& one) { return one.message.find(text) != std::string::npos; });
}

}  // namespace

TEST_CASE("resolve: autocast, and the weights under it") {
  Given plain;
  set(plain.request.autocast, std::string("bf16"), "--autocast");
  const Job job = run(plain);
  CHECK(job.training.autocast == DType::BFloat16);
  CHECK(job.training.dtype == DType::Float32);
  CHECK(!job.training.outputs_to_fp32);
  CHECK(job.training.attention == Attention::Flash);  // By what the products run in.
  CHECK(input(job, "dtype").origin == Origin::Derived);
  // TrainingArguments without DeepSpeed are accelerate's autocast; the checkpoint's own dtype since transformers 5.
  Given trained{"", trainer("bf16: true")};
  CHECK(run(trained).training.autocast == DType::BFloat16);
  CHECK(run(trained).training.outputs_to_fp32);
  CHECK_FALSE(run(trained).training.grad_scaler);  // bf16 needs none.
  trained.model.stored_dtype = std::nullopt;
  CHECK(run(trained).training.dtype == DType::Float32);
  CHECK(input(run(trained), "dtype").origin == Origin::Assumed);
  trained.model.stored_dtype = DType::BFloat16;
  CHECK(run(trained).training.dtype == DType::BFloat16);
  set(trained.request.transformers_version, std::string("4.57"), "--transformers-version");
  CHECK(run(trained).training.dtype == DType::Float32);
  set(trained.request.autocast, std::string("none"), "--autocast");
  CHECK(!run(trained).training.autocast);
  says({"", trainer("bf16: true\nfp16: true")}, "bf16 and fp16 are both true");
  // GradScaler raises at gradients in fp16, but where it leaves them to a fused optimizer; with an option's own
  // autocast there is none.
  Given scaled{"", trainer("fp16: true")};
  set(scaled.request.dtype, std::string("fp16"), "--dtype");
  says(scaled, "GradScaler refuses to unscale their gradients; load them in fp32 (--dtype fp32), or say bf16");
  set(scaled.request.dtype, std::string("fp32"), "--dtype");
  CHECK(run(scaled).training.autocast == DType::Float16);
  CHECK(run(scaled).training.grad_scaler);
  Given left{"", trainer("fp16: true\nmax_grad_norm: 0\noptim: adamw_torch_fused")};
  set(left.request.dtype, std::string("fp16"), "--dtype");
  CHECK(run(left).training.dtype == DType::Float16);
  CHECK(run(left).training.grad_scaler);
  set(scaled.request.dtype, std::string("fp16"), "--dtype");
  set(scaled.request.autocast, std::string("fp16"), "--autocast");
  CHECK(run(scaled).training.dtype == DType::Float16);
  CHECK_FALSE(run(scaled).training.grad_scaler);
  // fp16 weights under a bf16 region.
  set(plain.request.dtype, std::string("fp16"), "--dtype");
  says(plain, "--autocast: error: autocast in bf16 over weights in fp16 is not modelled yet");
  Given wrong;
  set(wrong.request.autocast, std::string("fp32"), "--autocast");
  says(wrong, "--autocast: error: autocast \"fp32\" is none of bf16, fp16, none");
  Given under{"{}"};
  set(under.request.gpus, std::int64_t{1}, "--gpus");
  set(under.request.autocast, std::string("bf16"), "--autocast");
  says(under, "--autocast: error: autocast under DeepSpeed (its torch_autocast block) is not modelled yet");
}

TEST_CASE("resolve: weights that nobody names a dtype for are loaded as from_pretrained does") {
  Given trained{"", trainer("per_device_train_batch_size: 1")};
  trained.model.stored_dtype = DType::BFloat16;
  CHECK(run(trained).training.dtype == DType::BFloat16);
  CHECK(!run(trained).training.autocast);
  CHECK(input(run(trained), "dtype").reason == "from_pretrained loads a checkpoint in its own dtype");
  trained.model.stored_dtype = std::nullopt;
  CHECK(run(trained).training.dtype == DType::Float32);
  trained.model.stored_dtype = DType::BFloat16;
  set(trained.request.transformers_version, std::string("4.56.0"), "--transformers-version");
  CHECK(run(trained).training.dtype == DType::Float32);
  set(trained.request.torch_dtype, std::string("auto"), "--dtype");  // As the script says it.
  CHECK(run(trained).training.dtype == DType::BFloat16);
  set(trained.request.torch_dtype, std::string("float16"), "--dtype");
  CHECK(run(trained).training.dtype == DType::Float16);
  // A script on a launch line, and accelerate's configuration; options alone say nothing of who loads.
  Given launched;
  launched.model.stored_dtype = DType::Float32;
  CHECK(run(launched).training.dtype == DType::BFloat16);
  launched.request.has_launch_line = true;
  CHECK(run(launched).training.dtype == DType::Float32);
  launched.request.has_launch_line = false;
  set(launched.request.mixed_precision, std::string("no"), "mixed_precision");
  CHECK(run(launched).training.dtype == DType::Float32);
  // DeepSpeed casts the weights, whoever loads them.
  Given staged;
  staged.model.stored_dtype = DType::Float32;
  staged.request.has_launch_line = true;
  set(staged.request.gpus, std::int64_t{1}, "--gpus");
  set(staged.request.zero_stage, std::int64_t{2}, "--zero-stage");
  CHECK(run(staged).training.dtype == DType::BFloat16);
}

TEST_CASE("resolve: a list of lengths") {
  Given given;
  set(given.request.seq_list, std::string("128,256,64"), "--seq-list");
  set(given.request.grad_accum, std::int64_t{2}, "--grad-accum");
  const Training training = run(given).training;
  CHECK(training.seq == 256);
  CHECK(training.seq_list == std::vector<std::int64_t>{128, 256, 64});
  CHECK(training.seq_of(4) == 256);
  CHECK(training.steps() == 3);  // Two micro-batches a step: the first step, then two for three lengths.
  set(given.request.seq, std::int64_t{64}, "--seq");
  CHECK(noticed(run(given), "seq 64 gives way to --seq-list"));
  for (const char* text : {"", "512,", "0", "a", "512;1024"}) {
    Given wrong;
    set(wrong.request.seq_list, std::string(text), "--seq-list");
    says(wrong, "is no list of lengths");
  }
}
