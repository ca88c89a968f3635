#include "exec/host/gemm.h"

#include <dlfcn.h>
#include <memory>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <string>
#include <string_view>
#include <type_traits>

#include "exec/host/strided.h"

namespace dsplan::exec::host {
namespace {

// CBLAS as OpenBLAS exports it. Found when the first product runs: a program that multiplies nothing starts without it.
constexpr int kRowMajor = 101;
constexpr int kPlain = 111;
constexpr int kTransposed = 112;
using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
using Dgemm = void (*)(int, int, int, int, int, int, double, const double*, int, const double*, int, double, double*,
                       int);

struct Library {
  Sgemm sgemm = nullptr;
  Dgemm dgemm = nullptr;
  std::string text = "loops of dsplan's own";
};

template <class F>
F symbol(void* library, const char* name) {
  return std::bit_cast<F>(dlsym(library, name));
}

// A processor that is younger than the library is taken for one of 2004 (openblas_get_corename: "Prescott"): products
// take several times as long, and round more often, for want of fused multiply-adds. Then it is told what this one can
// do.
void* open_library() {
  constexpr const char* kName = "libopenblas.so.0";
  void* const library = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
#if defined(__x86_64__)
  constexpr const char* kKind = "OPENBLAS_CORETYPE";
  if (library == nullptr || std::getenv(kKind) != nullptr || !__builtin_cpu_supports("fma")) return library;
  const auto core = symbol<char* (*)()>(library, "openblas_get_corename");
  if (core == nullptr || std::string_view(core()) != "Prescott") return library;
  setenv(kKind, "Haswell", 1);
  dlclose(library);
  return dlopen(kName, RTLD_NOW | RTLD_LOCAL);
#else
  return library;
#endif
}

// Ranks are threads already: one product is one thread's work.
Library load_library() {
  Library found;
  void* const library = open_library();
  if (library == nullptr) return found;
  const auto threads = symbol<void (*)(int)>(library, "openblas_set_num_threads");
  const auto config = symbol<char* (*)()>(library, "openblas_get_config");
  const auto sgemm = symbol<Sgemm>(library, "cblas_sgemm");
  const auto dgemm = symbol<Dgemm>(library, "cblas_dgemm");
  if (threads == nullptr || config == nullptr || sgemm == nullptr || dgemm == nullptr) return found;
  threads(1);
  return {sgemm, dgemm, config()};
}

const Library& library() {
  static const Library found = load_library();
  return found;
}

thread_local bool own_loops = false;

// Tiles: 128 x 256 of a, 256 x 256 of b, 128 x 256 of the sums.
constexpr std::int64_t kRows = 128;
constexpr std::int64_t kDepth = 256;
constexpr std::int64_t kColumns = 256;

template <class C>
struct Tiles {
  alignas(64) std::array<C, kRows * kDepth> a;
  alignas(64) std::array<C, kDepth * kColumns> b;
  alignas(64) std::array<C, kRows * kColumns> c;
};

template <class C>
Tiles<C>& tiles() {  // On the heap: thread storage would be cleared at every start of the program.
  static thread_local const std::unique_ptr<Tiles<C>> of_thread = std::make_unique<Tiles<C>>();
  return *of_thread;
}

// c += a b over row-major pieces; each element sums over the depth in order.
template <class C>
void own_product(std::int64_t m, std::int64_t n, std::int64_t k, const C* a, std::int64_t lda, const C* b,
                 std::int64_t ldb, C* c, std::int64_t ldc) {
  for (std::int64_t i = 0; i < m; ++i) {
    C* const row = c + i * ldc;
    for (std::int64_t p = 0; p < k; ++p) {
      const C factor = a[i * lda + p];
      const C* const other = b + p * ldb;
      for (std::int64_t j = 0; j < n; ++j) row[j] += factor * other[j];
    }
  }
}

struct Side {
  int form = kPlain;
  std::int64_t stride = 0;  // Between its rows, or where it is transposed its columns.
};

template <class C>
bool library_product(std::int64_t m, std::int64_t n, std::int64_t k, const C* a, Side sa, const C* b, Side sb, C beta,
                     C* c, std::int64_t ldc) {
  if (own_loops) return false;
  const auto narrow = [](std::int64_t value) { return static_cast<int>(value); };
  if constexpr (std::is_same_v<C, float>) {
    if (library().sgemm == nullptr) return false;
    library().sgemm(kRowMajor, sa.form, sb.form, narrow(m), narrow(n), narrow(k), 1, a, narrow(sa.stride), b,
                    narrow(sb.stride), beta, c, narrow(ldc));
  } else {
    if (library().dgemm == nullptr) return false;
    library().dgemm(kRowMajor, sa.form, sb.form, narrow(m), narrow(n), narrow(k), 1, a, narrow(sa.stride), b,
                    narrow(sb.stride), beta, c, narrow(ldc));
  }
  return true;
}

// How a library would take the matrix; false: not at all.
bool plain_side(const Matrix& x, Side& side) {
  const std::int64_t row = x.rows == 1 ? std::max<std::int64_t>(x.columns, 1) : x.row;
  const std::int64_t column = x.columns == 1 ? 1 : x.column;
  if (column == 1 && row >= x.columns) {
    side = {kPlain, row};
    return true;
  }
  const std::int64_t own_column = x.columns == 1 ? std::max<std::int64_t>(x.rows, 1) : x.column;
  if ((x.row == 1 || x.rows == 1) && own_column >= x.rows) {
    side = {kTransposed, own_column};
    return true;
  }
  return false;
}

template <class C>
bool direct(const Matrix& a, const Matrix& b, const Matrix& c, const Pairs& pairs) {
  Side sa;
  Side sb;
  Side sc;
  if (!plain_side(a, sa) || !plain_side(b, sb) || !plain_side(c, sc)) return false;
  const C* x = reinterpret_cast<const C*>(a.data);
  const C* y = reinterpret_cast<const C*>(b.data);
  C* const z = reinterpret_cast<C*>(c.data);
  for (std::int64_t i = 0; i < pairs.count; ++i) {
    const C beta = i == 0 ? C(0) : C(1);
    bool done = false;
    if (sc.form == kPlain) {
      done = library_product(a.rows, b.columns, a.columns, x, sa, y, sb, beta, z, sc.stride);
    } else {
      // The transpose of the product: factors change places and forms.
      const auto turned = [](Side side) { return Side{side.form == kPlain ? kTransposed : kPlain, side.stride}; };
      done = library_product(b.columns, a.rows, a.columns, y, turned(sb), x, turned(sa), beta, z, sc.stride);
    }
    if (!done) return false;
    x += pairs.a_step;
    y += pairs.b_step;
  }
  return true;
}

// A piece of a matrix, row by row, into a tile.
template <class C>
void fill(const Matrix& from, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns, C* tile,
          std::int64_t width) {
  const std::int64_t bytes = bytes_per_element(from.dtype);
  if (from.column == 1 || from.row != 1) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const unsigned char* data = from.data + ((row + i) * from.row + column * from.column) * bytes;
      load_run(data, from.dtype, from.column, columns, tile + i * width);
    }
    return;
  }
  std::array<C, kColumns> part;
  for (std::int64_t j = 0; j < columns; ++j) {
    const unsigned char* data = from.data + (row * from.row + (column + j) * from.column) * bytes;
    load_run(data, from.dtype, from.row, rows, part.data());
    for (std::int64_t i = 0; i < rows; ++i) tile[i * width + j] = part[static_cast<std::size_t>(i)];
  }
}

template <class C>
void tiled(const Matrix& a, const Matrix& b, const Matrix& c, const Pairs& pairs) {
  Tiles<C>& t = tiles<C>();
  const std::int64_t bytes = bytes_per_element(a.dtype);
  for (std::int64_t j = 0; j < c.columns; j += kColumns) {
    const std::int64_t n = std::min(kColumns, c.columns - j);
    for (std::int64_t i = 0; i < c.rows; i += kRows) {
      const std::int64_t m = std::min(kRows, c.rows - i);
      std::fill_n(t.c.begin(), m * kColumns, C(0));
      for (std::int64_t pair = 0; pair < pairs.count; ++pair) {
        Matrix x = a;
        Matrix y = b;
        x.data += pair * pairs.a_step * bytes;
        y.data += pair * pairs.b_step * bytes;
        for (std::int64_t p = 0; p < a.columns; p += kDepth) {
          const std::int64_t k = std::min(kDepth, a.columns - p);
          fill(x, i, m, p, k, t.a.data(), kDepth);
          fill(y, p, k, j, n, t.b.data(), kColumns);
          if (!library_product<C>(m, n, k, t.a.data(), {kPlain, kDepth}, t.b.data(), {kPlain, kColumns}, C(1),
                                  t.c.data(), kColumns)) {
            own_product(m, n, k, t.a.data(), kDepth, t.b.data(), kColumns, t.c.data(), kColumns);
          }
        }
      }
      for (std::int64_t r = 0; r < m; ++r) {
        unsigned char* data = c.data + ((i + r) * c.row + j * c.column) * bytes;
        store_run(data, c.dtype, c.column, n, t.c.data() + r * kColumns);
      }
    }
  }
}

constexpr std::int64_t kMostForLibrary = std::int64_t{1} << 31;

}  // namespace

void multiply(const Matrix& a, const Matrix& b, const Matrix& c, const Pairs& pairs) {
  expect(a.columns == b.rows && a.rows == c.rows && b.columns == c.columns, "matrices do not fit each other");
  expect(a.dtype == b.dtype && b.dtype == c.dtype, "matrices of different dtypes");
  const bool small =
      std::max({a.rows, a.columns, b.columns, a.row, a.column, b.row, b.column, c.row, c.column}) < kMostForLibrary;
  if (a.dtype == DType::Float32 && small && direct<float>(a, b, c, pairs)) return;
  if (a.dtype == DType::Float64 && small && direct<double>(a, b, c, pairs)) return;
  with_arithmetic(a.dtype, [&]<class C>(C) { tiled<C>(a, b, c, pairs); });
}

const char* product_library() { return library().text.c_str(); }
void without_library(bool on) { own_loops = on; }

}  // namespace dsplan::exec::host
