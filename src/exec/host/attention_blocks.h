// What both directions of attention share: blocks of queries and keys, and their scores. For src/exec/host/*.cpp only.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "exec/bodies/philox.h"
#include "exec/host/args.h"
#include "exec/host/gemm.h"

namespace dsplan::exec::host {

inline constexpr std::int64_t kBlock = 64;
inline constexpr std::int64_t kMostWidth = 256;

template <class C>
struct Tile {
  alignas(64) std::array<C, kBlock * kMostWidth> at;
};
template <class C>
struct Square {
  alignas(64) std::array<C, kBlock * kBlock> at;
};

// One set for each thread.
template <class C>
struct Workspace {
  Tile<C> q, k, v, out, grad, part, sum, other;
  Square<C> scores, slopes;
};
template <class C>
Workspace<C>& workspace() {
  static thread_local const std::unique_ptr<Workspace<C>> of_thread = std::make_unique<Workspace<C>>();
  return *of_thread;  // On the heap: thread storage would be cleared at every start of the program.
}

template <class C>
constexpr DType tile_type() {
  return sizeof(C) == sizeof(double) ? DType::Float64 : DType::Float32;
}

template <class C>
Matrix matrix(C* data, std::int64_t rows, std::int64_t columns, std::int64_t width, bool turned = false) {
  auto* bytes = reinterpret_cast<unsigned char*>(data);
  if (turned) return {bytes, tile_type<C>(), columns, rows, 1, width};
  return {bytes, tile_type<C>(), rows, columns, width, 1};
}

struct Problem {
  std::int64_t batch, heads, kv_heads, queries, keys, width;
  std::int64_t values;  // The width of values.
  double scale;
  bool causal;
  double p;
  std::uint64_t key;
  std::int64_t first_sample, samples;
  std::optional<Strided> bias;  // Seen at [B, H, S, K], its rows perhaps longer.
  std::int64_t bias_columns = 0;
};

inline Problem problem_of(const Args& args, const dsplan_tensor& q, const dsplan_tensor& k, const dsplan_tensor& v,
                          const dsplan_tensor* bias) {
  expect(q.rank == 4 && k.rank == 4 && v.rank == 4, "attention takes four dimensions");
  expect_dims(v, std::array{k.dims[0], k.dims[1], k.dims[2], v.dims[3]}, "the values");
  Problem problem{q.dims[0], q.dims[1],     k.dims[1], q.dims[2], k.dims[2], q.dims[3], v.dims[3], 0,
                  true,      args.number(), 0,         0,         1,         {},        0};
  expect(problem.width <= kMostWidth && problem.values <= kMostWidth, "heads wider than 256");
  expect(problem.heads % problem.kv_heads == 0, "heads do not divide into groups");
  problem.scale = attention_scale(args, problem.width - args.integer(DSPLAN_PADDING));
  problem.causal = !args.flag(DSPLAN_FLAG_FULL_ATTENTION) && bias == nullptr;
  problem.key = args.random().key;
  problem.first_sample = args.random().first_sample;
  problem.samples = std::max<std::int64_t>(1, args.random().samples);
  if (bias != nullptr) {
    problem.bias_columns = last_of(*bias);
    expect(problem.bias_columns >= problem.keys, "the bias has fewer columns than keys");
    const std::array dims{problem.batch, problem.heads, problem.queries, problem.bias_columns};
    problem.bias = broadcast(*bias, dims);
  }
  return problem;
}

// Rows [begin, begin + rows) of one head.
template <class C>
void load_rows(const dsplan_tensor& tensor, std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t rows,
               Tile<C>& tile) {
  const std::int64_t width = tensor.dims[3];
  const std::int64_t bytes = bytes_per_element(dtype_of(tensor));
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t offset = b * tensor.strides[0] + h * tensor.strides[1] + (begin + i) * tensor.strides[2];
    load_run(static_cast<const unsigned char*>(tensor.data) + offset * bytes, dtype_of(tensor), tensor.strides[3],
             width, tile.at.data() + i * width);
  }
}

template <class C>
void store_rows(const dsplan_tensor& tensor, std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t rows,
                const C* from, std::int64_t width) {
  const std::int64_t bytes = bytes_per_element(dtype_of(tensor));
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t offset = b * tensor.strides[0] + h * tensor.strides[1] + (begin + i) * tensor.strides[2];
    store_run(static_cast<unsigned char*>(tensor.data) + offset * bytes, dtype_of(tensor), tensor.strides[3], width,
              from + i * width);
  }
}

// A block of scores: queries from `i`, keys from `j`.
struct Block {
  std::int64_t b, h, i, j, rows, columns;
};

template <class C>
void scores(const Problem& p, const Block& at, Workspace<C>& w) {
  multiply(matrix(w.q.at.data(), at.rows, p.width, p.width), matrix(w.k.at.data(), at.columns, p.width, p.width, true),
           matrix(w.scores.at.data(), at.rows, at.columns, kBlock));
  std::array<C, kBlock> bias;
  for (std::int64_t r = 0; r < at.rows; ++r) {
    C* const row = w.scores.at.data() + r * kBlock;
    if (p.bias) {
      const std::int64_t line = (at.b * p.heads + at.h) * p.queries + at.i + r;
      load(*p.bias, line * p.bias_columns + at.j, at.columns, bias.data());
    }
    for (std::int64_t c = 0; c < at.columns; ++c) {
      row[c] *= static_cast<C>(p.scale);
      if (p.bias) row[c] += bias[static_cast<std::size_t>(c)];
      if (p.causal && at.j + c > at.i + r) row[c] = -std::numeric_limits<C>::infinity();
    }
  }
}

// What dropout makes of weight (r, c): 0, or 1 / (1 - p).
inline double kept(const Problem& p, const Block& at, std::int64_t r, std::int64_t c) {
  const std::int64_t of_sample = p.batch * p.heads * p.queries * p.keys / p.samples;
  const std::int64_t element = ((at.b * p.heads + at.h) * p.queries + at.i + r) * p.keys + at.j + c;
  const auto sample = static_cast<std::uint64_t>(p.first_sample + element / of_sample);
  return bodies::kept(p.key, sample, static_cast<std::uint64_t>(element % of_sample), p.p) ? 1 / (1 - p.p) : 0;
}

inline bool beyond(const Problem& p, std::int64_t i, std::int64_t rows, std::int64_t j) {
  return p.causal && j > i + rows - 1;
}

inline bool is_flash(const Args& args) {
  return static_cast<AttentionKernel>(args.integer(DSPLAN_ATTENTION)) == AttentionKernel::Flash;
}

void attention_backward(const Args& args);  // attention_backward.cpp

}  // namespace dsplan::exec::host
