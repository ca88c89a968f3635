// TrainingArguments against the DeepSpeed JSON, as transformers compares them: a key that is written as a value, not
// "auto", must equal what TrainingArguments say, their defaults included (integrations/deepspeed.py, fill_match).
#include "planner/resolve/resolver.h"

#include "core/format.h"

namespace dsplan {
namespace {

template <class T>
void must_match(Resolver& resolver, const Setting<T>& written, std::string_view key, const T& trainer,
                std::string_view argument) {
  if (!written.given() || *written == trainer) return;
  resolver.fault(written.place,
                 formatted("\"{}\" is {} here, but TrainingArguments have {} = {}", key, *written, argument, trainer),
                 "transformers refuses the mismatch; \"auto\" takes TrainingArguments' value");
}

void match_batch(Resolver& resolver, const TrainingArguments& arguments) {
  const DeepSpeedInput& ds = *resolver.ds;
  const std::int64_t micro = arguments.per_device_train_batch_size.value_or(8);
  const std::int64_t accum = arguments.gradient_accumulation_steps.value_or(1);
  must_match(resolver, ds.grad_accum, "gradient_accumulation_steps", accum, "gradient_accumulation_steps");
  if (arguments.auto_find_batch_size.value_or(false)) return;
  must_match(resolver, ds.micro_batch, "train_micro_batch_size_per_gpu", micro, "per_device_train_batch_size");
  const std::int64_t train = checked_mul(checked_mul(micro, accum), resolver.job.parallelism.dp);
  must_match(resolver, ds.train_batch_size, "train_batch_size", train, "ranks x micro-batch x accumulation");
}

void match_optimizer(Resolver& resolver, const TrainingArguments& arguments) {
  const OptimizerInput& optimizer = resolver.ds->optimizer;
  must_match(resolver, optimizer.learning_rate, "optimizer.params.lr", arguments.learning_rate.value_or(5e-5),
             "learning_rate");
  must_match(resolver, optimizer.epsilon, "optimizer.params.eps", arguments.adam_epsilon.value_or(1e-8),
             "adam_epsilon");
  must_match(resolver, optimizer.weight_decay, "optimizer.params.weight_decay", arguments.weight_decay.value_or(0.0),
             "weight_decay");
  const std::vector<double> betas = {arguments.adam_beta1.value_or(0.9), arguments.adam_beta2.value_or(0.999)};
  if (!optimizer.betas.given() || *optimizer.betas == betas) return;
  resolver.fault(optimizer.betas.place,
                 formatted("\"optimizer.params.betas\" is [{}] here, but TrainingArguments have [{}]",
                           joined(*optimizer.betas, ", "), joined(betas, ", ")),
                 "transformers refuses the mismatch; \"auto\" takes TrainingArguments' value");
}

}  // namespace

void check_training_arguments(Resolver& resolver) {
  if (resolver.ds == nullptr || !resolver.request.training_arguments) return;
  const TrainingArguments& arguments = *resolver.request.training_arguments;
  match_batch(resolver, arguments);
  must_match(resolver, resolver.ds->gradient_clipping, "gradient_clipping", arguments.max_grad_norm.value_or(1.0),
             "max_grad_norm");
  match_optimizer(resolver, arguments);
  must_match(resolver, resolver.ds->fp16_enabled, "fp16.enabled", arguments.fp16.value_or(false), "fp16");
  must_match(resolver, resolver.ds->bf16_enabled, "bf16.enabled", arguments.bf16.value_or(false), "bf16");
}

}  // namespace dsplan
