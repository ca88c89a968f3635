// What the math libraries keep inside PyTorch's allocator. Sources: aten/src/ATen/cuda/CublasHandlePool.cpp and
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
#pragma once

#include <optional>

#include "core/job.h"

namespace dsplan {

struct LibraryWorkspaces {
  Bytes cublas;
  Bytes cublaslt;            // 0: cuBLAS's block serves.
  bool lt_per_call = false;  // cuBLASLt's is a temporary of each call.
};

// nullopt where no device is named, and for AMD devices, whose libraries are not modelled.
[[nodiscard]] std::optional<LibraryWorkspaces> library_workspaces(const Job& job);

}  // namespace dsplan
