// The state that the parts of resolve share. Each part reads `request` and `ds`, writes fields of `job`, and records
// faults; it goes on after a fault with a harmless value, so that one run reports them all.
#pragma once

#include <string>
#include <string_view>

#include "core/inputs.h"
#include "core/job.h"
#include "core/model.h"
#include "core/settings.h"

namespace dsplan {

struct Resolver {
  const ModelSpec& model;
  const Request& request;
  const DeepSpeedInput* ds;  // Null: no DeepSpeed JSON.
  const Hardware* hardware;
  const Cluster* cluster;
  Job job;
  Diagnostics diagnostics;

  [[nodiscard]] Training& training() { return job.training; }
  [[nodiscard]] bool deepspeed() const { return job.training.runtime == Runtime::DeepSpeed; }
  [[nodiscard]] int stage() const { return job.training.zero.stage; }

  void given(std::string name, std::string value, const Place& place, std::string option);
  void derived(std::string name, std::string value, std::string reason, std::string option);
  void assumed(std::string name, std::string value, std::string reason, std::string option);
  void fault(const Place& place, std::string message, std::string hint = {});
  void not_modelled(const Place& place, std::string_view what);
  void notice(Notice::Kind kind, const Place& place, std::string message, std::optional<Bytes> bytes = {});
  void announce(const Place& place, std::string message, std::optional<Bytes> bytes = {}) {
    notice(Notice::Kind::Announcement, place, std::move(message), bytes);
  }
  // Whether something that matters only under a condition does so in this job. Valid once runtime, dtype, optimizer
  // and offloading are resolved.
  [[nodiscard]] bool applies(When when) const;
};

// What --set says of `key`; the last one counts.
[[nodiscard]] Setting<std::string> set_of(const Resolver& resolver, std::string_view key);
// The same of a truth value, else what the file says; a fault where it is neither true nor false.
[[nodiscard]] Setting<bool> truth_of(Resolver& resolver, const Setting<bool>& in_file, std::string_view key);

// In this order: each may rely on those before it.
void refuse_unmodelled_options(Resolver& resolver);
void resolve_runtime(Resolver& resolver);     // runtime, stage, versions
void resolve_precision(Resolver& resolver);   // dtypes, overflow check
void resolve_liger(Resolver& resolver);       // as part of the execution, when the loss is known
void resolve_torchtitan(Resolver& resolver);  // The release of torchtitan, where the model's code is its.
void resolve_experts(Resolver& resolver);     // likewise
// As part of it. `precision`: accelerate's, or the Trainer's.
void resolve_fsdp_dtypes(Resolver& resolver, const Setting<DType>& precision);
void resolve_ranks_and_batch(Resolver& resolver);
void resolve_fsdp(Resolver& resolver);
void resolve_zero(Resolver& resolver);
void resolve_optimizer(Resolver& resolver);  // and gradient clipping
void resolve_execution(Resolver& resolver);  // seq, attention, loss, loop, freeze, checkpointing
void resolve_ddp(Resolver& resolver);        // After the checkpoints.
void resolve_settings(Resolver& resolver);   // What --set takes: zero_grad, where the model is made
// The JSON's activation_checkpointing block, where the code uses it.
void configure_deepspeed_checkpointing(Resolver& resolver);
void resolve_machine(Resolver& resolver);
void resolve_allocator(Resolver& resolver);
void check_loss_scaling(Resolver& resolver);  // What torch's GradScaler raises at.
void check_training_arguments(Resolver& resolver);
void judge_conditional_keys(Resolver& resolver);
void judge_strict(const Resolver& resolver);

// True if both settings stand at the same place, that is, one was copied from the other.
template <class A, class B>
[[nodiscard]] bool same_place(const Setting<A>& a, const Setting<B>& b) {
  return a.mentioned() && b.mentioned() && a.place.text() == b.place.text();
}

}  // namespace dsplan
