// BLOOM's gelu as Python computes it, step by step (transformers, models/bloom/modeling_bloom.py, bloom_gelu_forward
// and bloom_gelu_back): each statement's operators make a tensor of their own. For rules, the host's kernels and the
// device's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dsplan::exec::bodies {

struct GeluStep {
  enum class Does : std::uint8_t { Scale, Shift, OneLess, Product, Sum, Tanh };  // OneLess: one less what is read.
  Does does = Does::Scale;
  std::int8_t a = 0;  // What it reads: a step's number, or one of those below.
  std::int8_t b = 0;
  double number = 0;
};
inline constexpr std::int8_t kGeluInput = -1;
inline constexpr std::int8_t kGeluGradient = -2;

inline constexpr double kGeluSlope = 0.79788456;
inline constexpr double kGeluSteeper = 0.1070322243;

// The last step makes the output.
inline constexpr std::array kGeluForward{
    GeluStep{GeluStep::Does::Scale, kGeluInput, 0, 0.5},
    GeluStep{GeluStep::Does::Scale, kGeluInput, 0, kGeluSlope},
    GeluStep{GeluStep::Does::Scale, kGeluInput, 0, 0.044715},
    GeluStep{GeluStep::Does::Product, 2, kGeluInput, 0},
    GeluStep{GeluStep::Does::Shift, 3, 0, 1},
    GeluStep{GeluStep::Does::Product, 1, 4, 0},
    GeluStep{GeluStep::Does::Tanh, 5, 0, 0},
    GeluStep{GeluStep::Does::Shift, 6, 0, 1},
    GeluStep{GeluStep::Does::Product, 0, 7, 0},
};

// The last step makes the gradient.
inline constexpr std::array kGeluBackward{
    GeluStep{GeluStep::Does::Scale, kGeluInput, 0, kGeluSlope},
    GeluStep{GeluStep::Does::Scale, kGeluInput, 0, 0.044715},
    GeluStep{GeluStep::Does::Product, 1, kGeluInput, 0},
    GeluStep{GeluStep::Does::Shift, 2, 0, 1},
    GeluStep{GeluStep::Does::Product, 0, 3, 0},
    GeluStep{GeluStep::Does::Tanh, 4, 0, 0},
    GeluStep{GeluStep::Does::Scale, kGeluInput, 0, 0.5},
    GeluStep{GeluStep::Does::Product, 5, 5, 0},
    GeluStep{GeluStep::Does::OneLess, 7, 0, 0},
    GeluStep{GeluStep::Does::Scale, kGeluInput, 0, kGeluSteeper},
    GeluStep{GeluStep::Does::Product, 9, kGeluInput, 0},
    GeluStep{GeluStep::Does::Shift, 10, 0, kGeluSlope},
    GeluStep{GeluStep::Does::Product, 8, 11, 0},
    GeluStep{GeluStep::Does::Product, 6, 12, 0},
    GeluStep{GeluStep::Does::Shift, 5, 0, 1},
    GeluStep{GeluStep::Does::Scale, 14, 0, 0.5},
    GeluStep{GeluStep::Does::Sum, 13, 15, 0},
    GeluStep{GeluStep::Does::Product, 16, kGeluGradient, 0},
};

// Node::number of such a gelu.
inline constexpr double kGeluFunction = 2;

}  // namespace dsplan::exec::bodies
