// Every launch made twice, by the host's kernels and by the device's, and what they write compared: by the device's
// kernels compiled for the host, or by a backend that was loaded, through copies to its memory and back.
#pragma once

#include <doctest/doctest.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/format.h"
#include "core/program.h"
#include "cuda/launch.h"
#include "exec/device.h"
#include "exec/host/kernels.h"
#include "exec/host/strided.h"
#include "exec/plugin.h"

namespace twice {

using namespace dsplan;  // NOLINT: the nouns of launches.
namespace host = exec::host;

// What was launched so far, and where the two came out apart. Ranks are threads.
struct Findings {
  std::mutex mutex;
  std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>> kernels;  // Body, operator, part.
  std::vector<std::string> faults;
};
inline Findings& findings() {
  static Findings all;
  return all;
}

inline cuda::Queue queue() {
  static thread_local double scratch[cuda::kScratch];
  cuda::Queue made;
  made.scratch = scratch;
  return made;
}

// A tensor's bytes, from its first to its last element.
struct Stretch {
  unsigned char* begin = nullptr;
  std::vector<unsigned char> bytes;

  explicit Stretch(const dsplan_tensor& tensor) {
    if (tensor.data == nullptr || host::count_of(tensor) == 0) return;
    std::int64_t last = 0;
    for (std::int32_t d = 0; d < tensor.rank; ++d) last += (tensor.dims[d] - 1) * tensor.strides[d];
    begin = static_cast<unsigned char*>(tensor.data);
    bytes.assign(begin, begin + (last + 1) * bytes_per_element(host::dtype_of(tensor)));
  }
  void restore() const {
    if (begin != nullptr) std::memcpy(begin, bytes.data(), bytes.size());
  }
};

inline std::vector<Stretch> stretches(const std::vector<dsplan_tensor>& tensors) {
  std::vector<Stretch> all;
  for (const dsplan_tensor& tensor : tensors) all.emplace_back(tensor);
  return all;
}

inline std::vector<double> values_of(const dsplan_tensor& tensor) {
  if (tensor.data == nullptr) return {};
  std::vector<double> values(static_cast<std::size_t>(host::count_of(tensor)));
  host::load(host::strided(tensor), 0, host::count_of(tensor), values.data());
  return values;
}

// Rounded to the type once or twice in another order; relative to the tensor's largest element, for sums cancel.
inline double allowed(DType dtype) {
  switch (dtype) {
    case DType::Float64: return 1e-12;
    case DType::Float32: return 4e-6;
    case DType::BFloat16: return 0.016;
    case DType::Float16: return 0.002;
    default: return 0;
  }
}

inline std::string difference(const std::vector<double>& ours, const std::vector<double>& theirs, DType dtype) {
  double largest = 0;
  for (const double x : theirs) largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : largest;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const bool both_none = std::isnan(ours[i]) && std::isnan(theirs[i]);
    if (both_none || ours[i] == theirs[i] || std::abs(ours[i] - theirs[i]) <= allowed(dtype) * largest) continue;
    return dsplan::formatted("element {}: {} on the device, {} on the host", i, ours[i], theirs[i]);
  }
  return {};
}

inline void note(const dsplan_launch& call, const std::string& what) {
  const std::lock_guard lock(findings().mutex);
  findings().kernels.insert({call.body, call.op, call.part});
  if (what.empty() || findings().faults.size() > 20) return;
  findings().faults.push_back(dsplan::formatted("{} {} part {}: {}", name(static_cast<Op>(call.op)),
                                                name(static_cast<Body>(call.body)), call.part, what));
}

// On the device of a loaded backend: everything that a launch names is copied there and back.
class OnDevice {
 public:
  explicit OnDevice(const dsplan_backend& backend) : device_(backend, {}) {}

  void operator()(const dsplan_launch& call) {
    std::vector<dsplan_tensor> made(call.made, call.made + call.made_count);
    std::vector<dsplan_tensor> inputs(call.inputs, call.inputs + call.input_count);
    std::vector<Held> held = hold(made, inputs);
    for (std::vector<dsplan_tensor>* tensors : {&made, &inputs}) {
      for (dsplan_tensor& tensor : *tensors) tensor.data = moved(tensor.data, held);
    }
    dsplan_launch there = call;
    there.made = made.data();
    there.inputs = inputs.data();
    device_.launch(there);
    for (const Held& each : held) {
      device_.copy(each.begin, Space::Pageable, each.memory, Space::Device, Bytes(each.end - each.begin));
    }
    device_.synchronize();
    for (const Held& each : held) device_.memory().release(Space::Device, each.memory, Bytes(each.end - each.begin));
    device_.throw_if_noted();
  }

 private:
  // A stretch of the host's memory that tensors share, and where it is on the device.
  struct Held {
    unsigned char* begin = nullptr;
    unsigned char* end = nullptr;
    unsigned char* memory = nullptr;
  };

  std::vector<Held> hold(const std::vector<dsplan_tensor>& made, const std::vector<dsplan_tensor>& inputs) {
    std::vector<dsplan_tensor> all = made;
    all.insert(all.end(), inputs.begin(), inputs.end());
    std::vector<Held> held;
    for (const dsplan_tensor& tensor : all) {
      const Stretch stretch(tensor);
      if (stretch.begin != nullptr) held.push_back({stretch.begin, stretch.begin + stretch.bytes.size(), nullptr});
    }
    std::sort(held.begin(), held.end(), [](const Held& a, const Held& b) { return a.begin < b.begin; });
    std::vector<Held> joined;
    for (const Held& each : held) {
      if (!joined.empty() && each.begin < joined.back().end) {
        joined.back().end = std::max(joined.back().end, each.end);
      } else {
        joined.push_back(each);
      }
    }
    for (Held& each : joined) {
      const Bytes bytes(each.end - each.begin);
      each.memory = static_cast<unsigned char*>(device_.memory().allocate(Space::Device, bytes));
      device_.copy(each.memory, Space::Device, each.begin, Space::Pageable, bytes);
    }
    return joined;
  }

  static void* moved(void* data, const std::vector<Held>& held) {
    auto* at = static_cast<unsigned char*>(data);
    for (const Held& each : held) {
      if (data != nullptr && at >= each.begin && at < each.end) return each.memory + (at - each.begin);
    }
    return nullptr;
  }

  exec::Device device_;
};

// The backend whose kernels are compared; nullptr: the device's, compiled for the host.
inline const dsplan_backend*& backend() {
  static const dsplan_backend* given = nullptr;
  return given;
}

inline void launch_on_device(const dsplan_launch& call) {
  if (backend() == nullptr) return cuda::launch(call, queue());
  static thread_local std::unique_ptr<OnDevice> of_thread;  // Ranks are threads.
  if (of_thread == nullptr) of_thread = std::make_unique<OnDevice>(*backend());
  (*of_thread)(call);
}

// Both sets of kernels from the same state; what the host's made stays. 0, or 1 where the host's refuse.
inline int launch(const dsplan_launch& call) {
  std::vector<dsplan_tensor> tensors(call.made, call.made + call.made_count);
  tensors.insert(tensors.end(), call.inputs, call.inputs + call.input_count);  // What works in place.
  const std::vector<Stretch> before = stretches(tensors);
  std::string fault;
  std::vector<std::vector<double>> ours;
  try {
    launch_on_device(call);
    for (const dsplan_tensor& tensor : tensors) ours.push_back(values_of(tensor));
  } catch (const std::exception& refused) {
    fault = refused.what();
  }
  for (const Stretch& stretch : before) stretch.restore();
  const int code = host::launch(call);
  for (std::size_t i = 0; i < ours.size() && fault.empty(); ++i) {
    fault = difference(ours[i], values_of(tensors[i]), host::dtype_of(tensors[i]));
    if (!fault.empty()) fault = dsplan::formatted("tensor {}, {}", i, fault);
  }
  note(call, fault);
  return code;
}

inline void launch_or_throw(const dsplan_launch& call) {
  if (launch(call) != 0) throw std::runtime_error(host::launch_error());
}

inline void expect_no_faults() {
  for (const std::string& fault : findings().faults) FAIL_CHECK(fault);
  findings().faults.clear();
}

}  // namespace twice
