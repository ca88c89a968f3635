// The operator catalogue: for every operator what it allocates in forward and backward, in order, and what it saves.
//
// A recipe is a little program over slots. `Make` allocates a slot, `Kernel` runs everything made since the last
// kernel, `Drop` frees a temporary early; temporaries still alive at the end die with the operator. It follows
// PyTorch's eager semantics; the source of each row is stated beside its rule (rules.h).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/graph.h"
#include "core/kernel_scratch.h"
#include "core/program.h"
#include "core/schedule.h"
#include "core/training.h"
#include "core/units.h"

namespace dsplan {

// Where a figure was seen: by the dispatcher (any device sees it) or inside a kernel (only a GPU does).
enum class Visibility : std::uint8_t { Dispatch, Kernel };

// The version whose rows hold where none is asked for: kTorchVersion, in numbers.
inline constexpr Version kCatalogueTorch{2, 11, 0};

// Who has confirmed a row.
enum class Witness : std::uint8_t { Read, Fake, Cuda };
[[nodiscard]] std::string_view name(Witness witness);

struct Slot {
  SlotKind kind = SlotKind::Temporary;
  Visibility visibility = Visibility::Dispatch;
  DType dtype = DType::Float32;
  std::uint8_t index = 0;
  Bytes bytes;
  bool for_backward = false;  // Under no_grad nobody makes it.
};

// In place of a slot: input 0 in forward, the gradient of output 0 in backward.
inline constexpr std::uint8_t kGivenSlot = 255;

struct RecipeStep {
  // Return, in backward: the operator's function is over, and what follows (sums over what was broadcast) is the
  // engine's. Tensors that a recomputation brought back die here.
  // AllReduce: the slot is summed (or its maximum taken) over the tensor-parallel ranks, in place.
  enum class Kind : std::uint8_t { Make, Kernel, Drop, Return, AllReduce };
  Kind kind = Kind::Make;
  std::uint8_t slot = 0;  // Index into Recipe::slots.
};

struct Saved {
  enum class Kind : std::uint8_t { Input, Output, Extra };
  Kind kind = Kind::Input;
  std::uint8_t index = 0;
  const char* name = "";  // PyTorch's: "_saved_self", "_saved_other", "_saved_result".
};

struct Recipe {
  std::vector<Slot> slots;
  std::vector<RecipeStep> forward;
  std::vector<RecipeStep> backward;
  std::vector<Saved> saved;  // In the order in which the autograd node packs them.
  // Saves happen before the kernel runs (inputs) or after it (outputs and extras): decides where early stop cuts.
  bool saves_after_kernel = false;
  // Inputs whose gradient is the incoming gradient itself (a view, or the same tensor): bit i for input i.
  std::uint64_t passes = 0;
  // What passes is a part or an expansion of the incoming gradient, not all of its storage: nobody adds to it in
  // place, and a leaf clones it.
  bool passes_part = false;
  // Inputs whose gradient comes back through a view that keeps the tensor it was taken from (bit i): a leaf may steal
  // it, but nobody adds to it in place.
  std::uint64_t seen_through_view = 0;
  bool passes_own = false;  // Input i passes the gradient of output i, where it is not that of output 0.
  // Inputs whose gradient is a saved tensor as backward leaves it: bit i: by-product or output i.
  std::uint64_t hands_out = 0;
  // Inputs in whose own storage, which was saved, backward writes their gradient (bit i).
  std::uint64_t overwrites = 0;
  // Inputs that the node has in an attribute of its context (bit i): no hook sees them and no checkpoint brings them
  // back. They go with the graph, behind backward, and backward itself does not read them.
  std::uint64_t holds = 0;
  // Inputs without elements whose gradient is a tensor of its own: it comes, and holds nothing (bit i).
  std::uint64_t comes_empty = 0;
  // Of what was recorded. Gradients that do not fill their storage (bit i: input i), and outputs that lie in a storage
  // which was there before (bit i: output i).
  std::uint64_t not_whole = 0;
  std::uint64_t shared_outputs = 0;
  bool leaves_reversed = false;  // Parameters among the inputs become ready last one first.
  // They are ready before the gradient of input 0 is handed on: the view that it comes back through is older.
  bool leaves_first = false;
  bool in_place = false;  // The output is input 0's storage, written anew.
  bool alias = false;     // Nothing runs: the outputs share storages that are there.
  // What the operator takes beside this and nobody can say beforehand; null: nothing. Ends in `not_modelled`.
  const char* unknown = nullptr;

  void clear();
};

// What rows depend on beside the operator itself.
struct CatalogueOptions {
  Version torch = kCatalogueTorch;
  DeviceThreads device = {};
  bool fake = false;  // As FakeTensorMode has it, which puts on the device what a GPU's operators leave on the host.
  Version liger = kWitnessLiger;
  friend bool operator==(const CatalogueOptions&, const CatalogueOptions&) = default;
};

// The recipe of `node` in `graph`. `recipe` is cleared and reused, so that a walk over a graph does not allocate.
// Refuses an operator that the version of torch does not have.
void recipe_of(const Graph& graph, const Node& node, Recipe& recipe, const CatalogueOptions& options = {});

// Floating-point operations of the forward, 2 per multiply-add; backward is twice that for products, once otherwise.
[[nodiscard]] std::int64_t forward_flops(const Graph& graph, const Node& node);
// The same in words: "out" is the elements of the first output, "in" of the first input, "k" the summed dimension.
[[nodiscard]] std::string_view flops_rule(Op op);
// Bytes that the forward reads and writes: every input and output once; 0 for what only makes views.
[[nodiscard]] Bytes forward_bytes(const Graph& graph, const Node& node);

// A row is Fake when tests/witnesses/operators.json agrees with it at dispatch level in every case (a test compares);
// its kernel slots stay read all the same.
[[nodiscard]] Witness witness_of(Op op);
// Batched products go by bytes: the tensors that they touch do not tell how many they are.
[[nodiscard]] Cost cost_of(Op op);
// A product over an int8 weight, which bitsandbytes multiplies forward with a library of its own.
[[nodiscard]] bool is_int8_product(const Node& node);
// The files and functions of PyTorch that say what the row says.
[[nodiscard]] std::string_view source_of(Op op);
// The first torch that has the operator; 0.0.0: all that are modelled.
[[nodiscard]] Version since(Op op);

// What has a name but no row: graph builders write its parts.
struct Composite {
  const char* name;
  const char* parts;
};
[[nodiscard]] std::span<const Composite> composites();

}  // namespace dsplan
