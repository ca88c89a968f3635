// cuBLAS: handles and their modes. Products are put on the stream and not computed.
#include <cstdint>

#include "dry/cudart.h"
#include "dry/kernels.h"
#include "dry/ledger.h"

using namespace dsplan::dry;

namespace {

enum Status : int { kDone = 0, kInvalid = 7 };

struct Handle {
  int math = 0;
  int pointers = 0;
  int atomics = 0;
  void* stream = nullptr;
};
constexpr int kVersionOf[] = {120804, 130100};

void product(const Handle* handle, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batches) {
  const auto flop = 2ULL * static_cast<std::uint64_t>(m) * static_cast<std::uint64_t>(n) *
                    static_cast<std::uint64_t>(k) * static_cast<std::uint64_t>(batches);
  streams().launch(stream_of(handle->stream), 4000 + flop / device().flop_per_ns);
}

}  // namespace

DSPLAN_DRY_CALL Status cublasCreate_v2(Handle** handle) {
  *handle = new Handle;
  return kDone;
}
DSPLAN_DRY_CALL Status cublasDestroy_v2(Handle* handle) {
  delete handle;
  return kDone;
}
DSPLAN_DRY_CALL Status cublasGetVersion_v2(Handle*, int* version) {
  *version = kVersionOf[DSPLAN_DRY_CUDA - 12];
  return kDone;
}
DSPLAN_DRY_CALL Status cublasSetStream_v2(Handle* handle, void* stream) {
  handle->stream = stream;
  return kDone;
}
DSPLAN_DRY_CALL Status cublasGetStream_v2(Handle* handle, void** stream) {
  *stream = handle->stream;
  return kDone;
}
DSPLAN_DRY_CALL Status cublasSetMathMode(Handle* handle, int mode) {
  handle->math = mode;
  return kDone;
}
DSPLAN_DRY_CALL Status cublasGetMathMode(Handle* handle, int* mode) {
  *mode = handle->math;
  return kDone;
}
DSPLAN_DRY_CALL Status cublasSetPointerMode_v2(Handle* handle, int mode) {
  handle->pointers = mode;
  return kDone;
}
DSPLAN_DRY_CALL Status cublasGetPointerMode_v2(Handle* handle, int* mode) {
  *mode = handle->pointers;
  return kDone;
}
DSPLAN_DRY_CALL Status cublasSetAtomicsMode(Handle* handle, int mode) {
  handle->atomics = mode;
  return kDone;
}
DSPLAN_DRY_CALL Status cublasGetAtomicsMode(Handle* handle, int* mode) {
  *mode = handle->atomics;
  return kDone;
}
DSPLAN_DRY_CALL Status cublasSetWorkspace_v2(Handle*, void*, std::size_t) { return kDone; }

DSPLAN_DRY_CALL Status cublasSgemm_v2(Handle* handle, int, int, int m, int n, int k, ...) {
  product(handle, m, n, k, 1);
  return kDone;
}
DSPLAN_DRY_CALL Status cublasGemmEx(Handle* handle, int, int, int m, int n, int k, ...) {
  product(handle, m, n, k, 1);
  return kDone;
}
DSPLAN_DRY_CALL Status cublasSgemmEx(Handle* handle, int, int, int m, int n, int k, ...) {
  product(handle, m, n, k, 1);
  return kDone;
}
// The number of products is beyond the arguments that are read.
DSPLAN_DRY_CALL Status cublasGemmStridedBatchedEx(Handle* handle, int, int, int m, int n, int k, ...) {
  product(handle, m, n, k, 1);
  return kDone;
}
DSPLAN_DRY_CALL Status cublasSgemmStridedBatched(Handle* handle, int, int, int m, int n, int k, ...) {
  product(handle, m, n, k, 1);
  return kDone;
}
