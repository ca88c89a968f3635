// The parts of a prediction that need names: what is live, where, and when, in words.
#pragma once

#include <string>
#include <vector>

#include "core/model.h"
#include "core/prediction.h"
#include "core/schedule.h"

namespace dsplan {

// "model.layers.*.mlp.down_proj": what a module is called in every layer; empty for none.
[[nodiscard]] std::string in_every_layer(const ModelSpec& model, ModuleId module);

// Buffers alike (label, role, module's place in its layer, size) as one row each; largest sum first, at most 40 rows.
[[nodiscard]] std::vector<LiveBuffer> group_live(const Schedule& schedule, const ModelSpec& model,
                                                 const std::vector<BufferId>& live);

// The path of the module that a buffer belongs to; empty where it belongs to none.
[[nodiscard]] std::string module_path(const ModelSpec& model, const Buffer& buffer);

// These buffers by role and module, with the largest of them.
[[nodiscard]] HeldForBackward held_in(const Schedule& schedule, const ModelSpec& model,
                                      const std::vector<BufferId>& list);

// What the second step's last forward left for its backward beyond the persistent state.
[[nodiscard]] HeldForBackward held_for_backward(const Schedule& schedule, const ModelSpec& model);

// The largest total of what belongs to the logits and the loss, at its first event. Zero where there is no loss.
[[nodiscard]] LossSpike loss_spike(const Schedule& schedule, const ModelSpec& model);

}  // namespace dsplan
