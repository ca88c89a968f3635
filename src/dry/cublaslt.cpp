// cuBLASLt: descriptors, and a heuristic that always finds one algorithm, which wants no workspace.
#include <cstdint>
#include <cstring>

#include "dry/cudart.h"
#include "dry/kernels.h"
#include "dry/ledger.h"

using namespace dsplan::dry;

namespace {

enum Status : int { kDone = 0 };

// A descriptor is memory of the caller's view: as large as the largest that any release has.
struct Descriptor {
  std::uint64_t words[32] = {};
};
struct Found {
  std::uint64_t algorithm[8];
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

Status make(Descriptor** descriptor) {
  *descriptor = new Descriptor;
  return kDone;
}
Status drop(Descriptor* descriptor) {
  delete descriptor;
  return kDone;
}

}  // namespace

DSPLAN_DRY_CALL Status cublasLtCreate(Descriptor** handle) { return make(handle); }
DSPLAN_DRY_CALL Status cublasLtDestroy(Descriptor* handle) { return drop(handle); }
DSPLAN_DRY_CALL std::size_t cublasLtGetVersion() { return DSPLAN_DRY_CUDA == 12 ? 120804 : 130100; }
DSPLAN_DRY_CALL std::size_t cublasLtGetCudartVersion() { return DSPLAN_DRY_CUDA == 12 ? 12080 : 13000; }

DSPLAN_DRY_CALL Status cublasLtMatmulAlgoGetHeuristic(Descriptor*, Descriptor*, Descriptor*, Descriptor*, Descriptor*,
                                                      Descriptor*, Descriptor*, int asked, Found out[], int* given) {
  DSPLAN_DRY_GUESS("cublasLtMatmulAlgoGetHeuristic", "one algorithm, which wants no workspace");
  *given = asked > 0 ? 1 : 0;
  if (asked <= 0) return kDone;
  std::memset(out, 0, sizeof *out);
  out->workspace = setting("DSPLAN_DRY_LT_WORKSPACE", 0);
  out->waves = 1;
  return kDone;
}
DSPLAN_DRY_CALL Status cublasLtMatmulDescCreate(Descriptor** made, int, int) { return make(made); }
DSPLAN_DRY_CALL Status cublasLtMatmulDescDestroy(Descriptor* made) { return drop(made); }
DSPLAN_DRY_CALL Status cublasLtMatrixLayoutCreate(Descriptor** made, int, std::uint64_t, std::uint64_t, std::int64_t) {
  return make(made);
}
DSPLAN_DRY_CALL Status cublasLtMatrixLayoutDestroy(Descriptor* made) { return drop(made); }
DSPLAN_DRY_CALL Status cublasLtMatmulPreferenceCreate(Descriptor** made) { return make(made); }
DSPLAN_DRY_CALL Status cublasLtMatmulPreferenceDestroy(Descriptor* made) { return drop(made); }
// What a descriptor says decides how fast a product is, and nothing here.
DSPLAN_DRY_CALL Status cublasLtMatmulDescSetAttribute(Descriptor*, int, const void*, std::size_t) { return kDone; }
DSPLAN_DRY_CALL Status cublasLtMatrixLayoutSetAttribute(Descriptor*, int, const void*, std::size_t) { return kDone; }
DSPLAN_DRY_CALL Status cublasLtMatmulPreferenceSetAttribute(Descriptor*, int, const void*, std::size_t) {
  return kDone;
}
DSPLAN_DRY_CALL Status cublasLtMatmul(Descriptor*, Descriptor*, const void*, const void*, Descriptor*, const void*,
                                      Descriptor*, const void*, const void*, Descriptor*, void*, Descriptor*,
                                      const void*, void*, std::size_t, void* stream) {
  streams().launch(stream_of(stream), 20000);
  return kDone;
}
DSPLAN_DRY_CALL Status cublasLtMatrixTransformDescCreate(Descriptor** made, int) { return make(made); }
DSPLAN_DRY_CALL Status cublasLtMatrixTransformDescDestroy(Descriptor* made) { return drop(made); }
