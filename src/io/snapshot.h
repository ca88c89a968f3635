// PyTorch memory snapshots as files: a pickled dict (reference: torch/csrc/cuda/Module.cpp, torch/cuda/memory.py).
#pragma once

#include <string>

#include "core/snapshot.h"

namespace dsplan {

// Reads what torch.cuda.memory._dump_snapshot wrote under pickle protocols 2 to 5, from PyTorch 2.1 on. Keys that
// dsplan does not need (external_annotations, compile_context, ...) are passed over.
//
// Refuses, with the byte offset: whatever io/pickle.h refuses; a missing key; a value of another type; sizes that are
// negative or absurd; addresses and sizes of blocks and segments that are no multiples of 512; blocks that do not tile
// their segment; segments that overlap; CUDA-graph and user memory pools, which are not modelled; allocator settings
// that PyTorch itself rejects.
[[nodiscard]] Snapshot read_snapshot(std::string path, std::string text);

// The file's bytes (pickle protocol 2). Refuses addresses of 2^53 and above, which the public viewer would misread.
[[nodiscard]] std::string write_snapshot(const Snapshot& snapshot);

}  // namespace dsplan
