// TRL's OffloadActivations (trl/models/activation_offloading.py of TRL 1.16, torchtune's class): hooks under which a
// node hands over what it saves, and asks for it back in backward. What is large enough and no parameter is copied to
// pinned memory; two streams work side by side, and by recorded events each keeps what the other still uses.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/graph.h"
#include "planner/lower/emitter.h"
#include "sim/placement.h"

namespace dsplan {

// One saved tensor, as the hook sees it.
struct HookedTensor {
  BufferId buffer = kNoBuffer;  // That it lies in; none: a parameter's, or the host's.
  Bytes bytes;                  // Of its own elements.
  DType dtype = DType::Float32;
  std::int64_t offset = 0;  // Of its first element in the buffer.
  bool contiguous = true;
  bool repeated = false;  // Seen through an expansion: its storage is copied.
};

class OffloadActivations {
 public:
  // `placed`: how the device's allocator goes along with what is written.
  OffloadActivations(Emitter& emitter, bool streams, const PlacementOptions& placed);

  // Around each micro-batch: __enter__ and __exit__.
  void enter();
  void exit();

  // pack_hook and unpack_hook. What comes back carries one reference, none for what has no buffer; `node` asks.
  [[nodiscard]] std::uint64_t pack(const HookedTensor& tensor);
  [[nodiscard]] BufferId unpack(std::uint64_t id, NodeId node);
  // The node under way has run, and let go of what it was handed: its post hooks.
  void node_returns();
  // The class has the node that asked last, and with it the graph from there on, until another asks: leaves and their
  // gradients, one reference of each.
  void hold_graph(std::vector<BufferId> leaves);
  // The callback at the end of the engine's run.
  void backward_ends();

 private:
  struct Tracked {
    BufferId buffer = kNoBuffer;  // As it was, or its copy on the host. One reference.
    bool on_host = false;
  };
  struct Leaving {
    BufferId buffer = kNoBuffer;  // One reference.
    std::optional<ContentId> copied;
  };
  struct Hook {
    std::uint64_t id = 0;
    bool brought_back = false;
    std::vector<std::uint64_t> before;  // Brought back for nodes before this one.
  };
  // What is under way to the host already is not sent again: it is known by where it lies, and so is what took the
  // place of one that is gone. An address in bytes plus an offset in elements, as the class has it; and a dtype.
  using Key = std::pair<std::int64_t, DType>;

  [[nodiscard]] BufferId source_of(const HookedTensor& tensor);
  void send(std::uint64_t id, BufferId source, Bytes bytes, DType dtype);
  void let_go_before(std::uint64_t oldest);
  [[nodiscard]] Key key_of(const HookedTensor& tensor);
  void track(const Key& key, std::uint64_t id);
  void untrack(std::uint64_t id);
  void run(const Hook& hook);
  void let_go_of(std::uint64_t brought);

  Emitter& emitter_;
  bool streams_;
  PlacedAlong placed_;
  std::uint64_t newest_ = 0;
  NodeId node_ = kNone;  // That asked last.
  std::vector<BufferId> graph_;
  std::map<std::uint64_t, Tracked> tracked_;
  std::map<std::uint64_t, Leaving> leaving_;                // fwd_stash
  std::map<std::uint64_t, BufferId> brought_;               // bwd_tensor_stash, one reference each.
  std::map<std::uint64_t, std::optional<ContentId>> used_;  // bwd_ev_stash
  std::map<Key, std::uint64_t> under_way_;
  std::map<std::uint64_t, Key> keys_;
  std::vector<Hook> hooks_;  // Of the node under way.
};

}  // namespace dsplan
