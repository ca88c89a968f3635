// Products of matrices. Through OpenBLAS where it is found when dsplan runs, else by loops of our own. Half precision,
// and matrices that lie as no library takes them, go through tiles of a fixed size, one set for each thread.
#pragma once

#include <cstdint>

#include "core/units.h"

namespace dsplan::exec::host {

// Element (i, j) lies at i * row + j * column elements from `data`.
struct Matrix {
  unsigned char* data = nullptr;
  DType dtype = DType::Float32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row = 0;
  std::int64_t column = 0;
};

// c = a b, or where there are several pairs, which lie `a_step` and `b_step` elements apart, the sum of their products.
// All three have the same dtype: fp64, fp32, or a half type, which is summed in fp32 and rounded once.
struct Pairs {
  std::int64_t count = 1;
  std::int64_t a_step = 0;
  std::int64_t b_step = 0;
};
void multiply(const Matrix& a, const Matrix& b, const Matrix& c, const Pairs& pairs = {});

// c = a b, `count` times, each the given number of elements further on.
struct MatrixProduct {
  Matrix a, b, c;
  std::int64_t count = 1;
  std::int64_t a_step = 0;
  std::int64_t b_step = 0;
  std::int64_t c_step = 0;
  Pairs pairs = {};
};

// "OpenBLAS 0.3.21 ...", or our own loops. Loads the library, once.
[[nodiscard]] const char* product_library();
// Our own loops alone, for comparing; for this thread.
void without_library(bool on);

}  // namespace dsplan::exec::host
