// Products through cuBLASLt: for each form of product one algorithm, the first that its heuristic names, for as long as
// the device is open. Nothing is tried out, no reduction splits a sum among blocks, fp32 stays fp32: equal products
// give equal bits, wherever they are recomputed.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "cuda/plugin/device.h"
#include "cuda/products.h"

namespace dsplan::cuda {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const dsplan_status means = status == CUBLAS_STATUS_NOT_INITIALIZED ? DSPLAN_UNAVAILABLE : DSPLAN_DEVICE;
  throw CudaFailure(means, std::string(call) + ": " + cublasLtGetStatusName(status));
}

// A handle of the library with its end.
template <class Handle, cublasStatus_t (*kEnd)(Handle)>
struct Owned {
  Handle handle = nullptr;
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (handle != nullptr) (void)kEnd(handle);
  }
};
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using LayoutOf = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// A matrix as the library counts: by columns, each `leading` elements after the one before; perhaps transposed.
struct ByColumns {
  const unsigned char* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t leading = 0;
  bool transposed = false;  // The matrix that is meant is the transposed one.
};

// How the transposed matrix lies: what lies by rows is its own transpose by columns. nullopt: neither way is dense.
std::optional<ByColumns> transposed(const Matrix& m) {
  const bool by_rows = m.column == 1 || m.columns == 1;
  const std::int64_t row = m.rows == 1 ? std::max(m.row, m.columns) : m.row;
  if (by_rows && row >= m.columns) return ByColumns{m.data, m.columns, m.rows, row, false};
  const std::int64_t column = m.columns == 1 ? std::max(m.column, m.rows) : m.column;
  if ((m.row == 1 || m.rows == 1) && column >= m.rows) return ByColumns{m.data, m.rows, m.columns, column, true};
  return std::nullopt;
}

std::int64_t alignment_of(const void* data) {
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  return at % 16 == 0 ? 16 : static_cast<std::int64_t>(at & (~at + 1));
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::Float64: return CUDA_R_64F;
    case DType::Float16: return CUDA_R_16F;
    case DType::BFloat16: return CUDA_R_16BF;
    default: return CUDA_R_32F;
  }
}

// Everything that the choice of an algorithm may depend on.
using Form = std::array<std::int64_t, 18>;

class CublasProducts : public Products {
 public:
  CublasProducts() = default;
  ~CublasProducts() override {
    if (handle_ != nullptr) (void)cublasLtDestroy(handle_);
  }
  CublasProducts(const CublasProducts&) = delete;
  CublasProducts& operator=(const CublasProducts&) = delete;

  [[nodiscard]] bool multiply(const MatrixProduct& product, const Queue& queue) override;

 private:
  // c' = b' a' as columns, where c lies by rows.
  struct Call {
    ByColumns b, a, c;
    MatrixProduct what;
    double add = 0;  // What stands in c already counts.
  };
  // False: the library has no algorithm for it; nothing was enqueued.
  [[nodiscard]] bool run(const Call& call, const Queue& queue);
  [[nodiscard]] const std::optional<cublasLtMatmulAlgo_t>& algorithm(const Form& form, const Operation& operation,
                                                                     const LayoutOf& b, const LayoutOf& a,
                                                                     const LayoutOf& c, const Queue& queue);

  // Made with the first product, so that what it takes of the device can be told from what the context takes.
  cublasLtHandle_t handle_ = nullptr;
  std::map<Form, std::optional<cublasLtMatmulAlgo_t>> algorithms_;
};

void describe(const ByColumns& matrix, const MatrixProduct& product, std::int64_t step, LayoutOf& layout) {
  check(cublasLtMatrixLayoutCreate(&layout.handle, type_of(product.c.dtype), static_cast<std::uint64_t>(matrix.rows),
                                   static_cast<std::uint64_t>(matrix.columns), matrix.leading),
        "cublasLtMatrixLayoutCreate");
  if (product.count == 1) return;
  const auto count = static_cast<std::int32_t>(product.count);
  check(cublasLtMatrixLayoutSetAttribute(layout.handle, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
        "a batch");
  check(
      cublasLtMatrixLayoutSetAttribute(layout.handle, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step),
      "a batch");
}

void describe(const MatrixProduct& product, bool first_turned, bool second_turned, Operation& operation) {
  const bool wide = product.c.dtype == DType::Float64;
  check(cublasLtMatmulDescCreate(&operation.handle, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                 wide ? CUDA_R_64F : CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  const cublasOperation_t first = first_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = second_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
  check(cublasLtMatmulDescSetAttribute(operation.handle, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first), "a turn");
  check(cublasLtMatmulDescSetAttribute(operation.handle, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second),
        "a turn");
}

const std::optional<cublasLtMatmulAlgo_t>& CublasProducts::algorithm(const Form& form, const Operation& operation,
                                                                     const LayoutOf& b, const LayoutOf& a,
                                                                     const LayoutOf& c, const Queue& queue) {
  if (const auto found = algorithms_.find(form); found != algorithms_.end()) return found->second;
  Preference wants;
  check(cublasLtMatmulPreferenceCreate(&wants.handle), "cublasLtMatmulPreferenceCreate");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
    check(cublasLtMatmulPreferenceSetAttribute(wants.handle, what, &value, sizeof value), "a preference");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(queue.workspace_bytes));
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(form[13]));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(form[14]));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(form[15]));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(form[15]));
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, operation.handle, b.handle, a.handle, c.handle,
                                                               c.handle, wants.handle, 1, &best, &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "cublasLtMatmulAlgoGetHeuristic");
  const bool has = status == CUBLAS_STATUS_SUCCESS && found > 0;
  return algorithms_.emplace(form, has ? std::optional(best.algo) : std::nullopt).first->second;
}

bool CublasProducts::run(const Call& call, const Queue& queue) {
  const MatrixProduct& p = call.what;
  Operation operation;
  LayoutOf b;
  LayoutOf a;
  LayoutOf c;
  describe(p, call.b.transposed, call.a.transposed, operation);
  describe(call.b, p, p.b_step, b);
  describe(call.a, p, p.a_step, a);
  describe(call.c, p, p.c_step, c);
  const Form form{static_cast<std::int64_t>(p.c.dtype),
                  call.b.rows,
                  call.b.columns,
                  call.b.leading,
                  call.b.transposed ? 1 : 0,
                  call.a.rows,
                  call.a.columns,
                  call.a.leading,
                  call.a.transposed ? 1 : 0,
                  call.c.leading,
                  p.count,
                  p.a_step,
                  p.b_step,
                  alignment_of(call.b.data),
                  alignment_of(call.a.data),
                  alignment_of(call.c.data),
                  queue.workspace_bytes,
                  p.c_step};
  const std::optional<cublasLtMatmulAlgo_t>& algo = algorithm(form, operation, b, a, c, queue);
  if (!algo) return false;
  const bool wide = p.c.dtype == DType::Float64;
  const float one = 1;
  const double wide_one = 1;
  const auto beta = static_cast<float>(call.add);
  check(cublasLtMatmul(handle_, operation.handle, wide ? static_cast<const void*>(&wide_one) : &one, call.b.data,
                       b.handle, call.a.data, a.handle, wide ? static_cast<const void*>(&call.add) : &beta, call.c.data,
                       c.handle, const_cast<unsigned char*>(call.c.data), c.handle, &*algo, queue.workspace,
                       static_cast<std::size_t>(queue.workspace_bytes), static_cast<cudaStream_t>(queue.stream)),
        "cublasLtMatmul");
  return true;
}

bool CublasProducts::multiply(const MatrixProduct& product, const Queue& queue) {
  const bool half = product.c.dtype == DType::Float16 || product.c.dtype == DType::BFloat16;
  // A sum of several products is rounded once: where numbers are halves, that is for the slow kernel.
  if (product.pairs.count > 1 && half) return false;
  if (product.a.columns == 0 || product.c.rows == 0 || product.c.columns == 0) return false;
  MatrixProduct p = product;
  std::optional<ByColumns> c = transposed(p.c);
  if (c && c->transposed) {  // By columns: the transposed product, whose result lies by rows.
    const auto turned = [](Matrix m) {
      std::swap(m.rows, m.columns);
      std::swap(m.row, m.column);
      return m;
    };
    p.a = turned(product.b);
    p.b = turned(product.a);
    p.c = turned(product.c);
    std::swap(p.a_step, p.b_step);
    std::swap(p.pairs.a_step, p.pairs.b_step);
    c = transposed(p.c);
  }
  const std::optional<ByColumns> a = transposed(p.a);
  const std::optional<ByColumns> b = transposed(p.b);
  if (!a || !b || !c || c->transposed) return false;
  if (handle_ == nullptr) check(cublasLtCreate(&handle_), "cublasLtCreate");
  Call call{*b, *a, *c, p, 0};
  for (std::int64_t pair = 0; pair < p.pairs.count; ++pair) {
    if (!run(call, queue)) {
      if (pair == 0) return false;
      throw CudaFailure(DSPLAN_UNSUPPORTED, "cuBLASLt has an algorithm for the first of several products only");
    }
    call.a.data += p.pairs.a_step * bytes_per_element(p.a.dtype);
    call.b.data += p.pairs.b_step * bytes_per_element(p.b.dtype);
    call.add = 1;
  }
  return true;
}

}  // namespace

std::unique_ptr<Products> make_products() { return std::make_unique<CublasProducts>(); }

}  // namespace dsplan::cuda
