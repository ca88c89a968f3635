// What the groups of one model share: FSDPCommContext (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py).
#pragma once

#include <optional>
#include <vector>

#include "planner/lower/eager.h"

namespace dsplan {

class ParamGroup;

// Tensors of a collective, made on one stream and used on another, with the event behind which they may go.
struct HeldByEvent {
  Variable tensor;
  std::optional<ContentId> event;
};

struct CommContext {
  HeldByEvent gathered;  // all_gather_state: of the group before, whose copy-out may still run in forward.
  HeldByEvent reduced;   // reduce_scatter_state: the input of the latest reduce-scatter.
  std::vector<ParamGroup*> post_forward_order;
  const ParamGroup* forward_root = nullptr;  // iter_forward_root, of what runs again within backward.
};

}  // namespace dsplan
