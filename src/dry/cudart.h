// What the files of the CUDA runtime share.
#pragma once

#include "dry/cuda_abi.h"
#include "dry/streams.h"

namespace dsplan::dry {

// The runtime remembers a thread's last failure until it is asked for it.
[[nodiscard]] Result& last_failure();
inline Result say(Result result) {
  if (result != kSuccess) last_failure() = result;
  return result;
}
[[nodiscard]] const char* name_of(Result result);
[[nodiscard]] const char* text_of(Result result);

inline Stream* stream_of(void* handle) { return streams().of(handle, current_device()); }

// The runtime's and the driver's attributes have the same numbers.
[[nodiscard]] int attribute_of(const Device& device, int attribute);

}  // namespace dsplan::dry
