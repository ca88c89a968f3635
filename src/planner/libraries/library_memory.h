// What libraries take that no plan allocates: cuBLAS's workspaces inside PyTorch's allocator, and beside it the CUDA
// context and NCCL's own memory.
//
// The math libraries. Sources: aten/src/ATen/cuda/CublasHandlePool.cpp and
// CUDABlas.cpp; the figures were read in the machine code of the released 2.8.0, 2.9.1, 2.10.0 and 2.11.0, those of
// 2.12 in pull requests 175344 and 175879.
//
//   cuBLAS     one block for each thread that multiplies (each has its own handle) and stream, from its first product
//              on: 32 MiB for compute capability 9, since 2.12 also for 10 and 12; 8,519,680 bytes (:4096:2:16:8)
//              everywhere else
//   cuBLASLt   1 MiB for an addmm with a bias: for each call up to 2.8; one block for each thread and stream from 2.9
//              to 2.11; since 2.12 it uses cuBLAS's block. (2.11 sizes its block as if it were shared already, which
//              leaves it at 1 MiB.)
//
// A calibration's own figures replace these.
//
// CUBLAS_WORKSPACE_CONFIG, CUBLASLT_WORKSPACE_SIZE and TORCH_CUBLASLT_UNIFIED_WORKSPACE are taken as not set.
//
// NCCL: read in 2.28.9 (init.cc, channel.cc, transport/p2p.cc, with its default buffer sizes and the 2 MiB pages of its
// allocations); not yet measured.
#pragma once

#include <cstdint>
#include <optional>

#include "core/job.h"
#include "core/units.h"

namespace dsplan {

struct LibraryWorkspaces {
  Bytes cublas;
  Bytes cublaslt;            // 0: cuBLAS's block serves.
  bool lt_per_call = false;  // cuBLASLt's is a temporary of each call.
};

// nullopt where no device is named, and for AMD devices, whose libraries are not modelled.
[[nodiscard]] std::optional<LibraryWorkspaces> library_workspaces(const Job& job);

inline constexpr Bytes kNcclPage{2LL << 20};
// The most channels that NCCL uses within a node of NVLink; what bounds the blocks of a call bounds them.
inline constexpr std::int64_t kNcclChannels = 32;

// When a communicator is made, of one rank too: itself and a map of ranks, and for each channel a table of shared
// peers, one of own peers, and the order of its ring.
[[nodiscard]] constexpr Bytes nccl_tables(std::int64_t channels) { return kNcclPage * (2 + 3 * channels); }

// At the first call that goes around a ring, whatever the number of ranks above one: for each channel one connection to
// receive (buffers of the protocols LL, LL128 and Simple, rounded: 10 MiB) and one to send (2 MiB).
[[nodiscard]] constexpr Bytes nccl_ring(std::int64_t channels) { return kNcclPage * 6 * channels; }

// What a process takes beside its allocator: a CUDA context, uncalibrated where nothing is known, and NCCL's own
// memory, by formula where it was not measured: one communicator for each kind of group that has several ranks.
[[nodiscard]] Bytes context_of(const Job& job);
[[nodiscard]] Bytes communicators_of(const Job& job);
[[nodiscard]] std::int64_t communicator_count(const Job& job);

}  // namespace dsplan
