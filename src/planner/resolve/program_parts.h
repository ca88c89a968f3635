// Parts of what programs do by themselves (programs.h).
#pragma once

#include <string>

#include "core/dialects/dialects.h"
#include "core/inputs.h"
#include "core/model.h"

namespace dsplan {

// What adapters depend on.
struct AdapterWords {
  const ForeignInput& foreign;
  const ModelSpec& base;
  const std::string& program;
  bool stage3 = false;
};
// Adapters that a file describes become Request::lora.
void complete_adapters(const AdapterWords& words, Request& request, Diagnostics& faults);

// axolotl's unfrozen_parameters: what no pattern names is frozen.
void freeze_unnamed(const ForeignInput& foreign, const ModelSpec& base, Request& request, Diagnostics& faults);
// Its freeze_mm_modules: towers and what leads from them to the text.
void freeze_beside_language(const ForeignInput& foreign, const ModelSpec& base, Request& request);

// torchtitan 0.2.2 (config/job_config.py; models/llama3/infra/parallelize.py; distributed/activation_checkpoint.py;
// train.py): the mesh decides between FSDP2, HSDP, DDP and one device under autocast; checkpoints are every n-th
// layer's.
void complete_torchtitan(const ForeignInput& foreign, const ModelSpec& base, Request& request, Diagnostics& faults);

// LLaMA-Factory v1 (0.9.6.dev0, src/llamafactory/v1): core/model_engine.py, core/base_trainer.py,
// plugins/trainer_plugins/distributed/fsdp2.py. Without adapters the model is trained in fp32; FSDP2 alone reads bf16.
void complete_llama_factory_v1(const ForeignInput& foreign, const ModelSpec& base, Request& request,
                               Diagnostics& faults);

}  // namespace dsplan
