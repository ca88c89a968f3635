// What a small collective computes, for all of NCCL's types.
#pragma once

#include <cstddef>
#include <functional>

namespace dsplan::dry {

// ncclDataType_t and ncclRedOp_t.
[[nodiscard]] std::size_t bytes_of_type(int type);
[[nodiscard]] const char* name_of_type(int type);
enum Reduction : int { kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAverage = 4, kFirstScaledSum = 5 };

// out[i] of `count` elements from part(rank)[i] of all ranks. `scale` multiplies each element of a scaled sum.
void reduce(void* out, std::size_t count, int type, int reduction, double scale, int ranks,
            const std::function<const void*(int)>& part);

// One element as a double.
void widen(double* out, const void* element, int type);

}  // namespace dsplan::dry
