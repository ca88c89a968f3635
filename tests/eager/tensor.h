// Half of a miniature PyTorch that has no numbers in its tensors, only their memory: storages that log their birth and
// death, tensors that share them, and views that keep their base alive. It is a second derivation of what training
// allocates, from PyTorch's semantics alone, and must never include a schedule, a graph or the catalogue.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/units.h"

namespace eager {

using dsplan::DType;

struct Entry {
  std::int64_t bytes;  // Negative: freed.
  std::string doing;
};

// What the device's allocator has been asked to do. One at a time is current.
class Memory {
 public:
  Memory();
  ~Memory();
  static Memory& current();

  void count(std::int64_t bytes) { log.push_back({bytes, doing}); }

  std::vector<Entry> log;
  std::string doing;

 private:
  Memory* before_;
};

// Names what is going on, for the log, until the end of the scope.
class Doing {
 public:
  explicit Doing(const std::string& what) : before_(Memory::current().doing) { Memory::current().doing = what; }
  ~Doing() { Memory::current().doing = before_; }
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

 private:
  std::string before_;
};

class Storage {
 public:
  explicit Storage(std::int64_t bytes) : bytes_(bytes) {
    if (bytes_ > 0) Memory::current().count(bytes_);
  }
  ~Storage() {
    if (bytes_ > 0) Memory::current().count(-bytes_);
  }
  // resize_, for whoever holds it; it was of no size.
  void make(std::int64_t bytes) {
    bytes_ = bytes;
    if (bytes_ > 0) Memory::current().count(bytes_);
  }
  [[nodiscard]] bool is_there() const { return bytes_ > 0; }
  // resize_(0): whoever holds it.
  void free() {
    if (bytes_ > 0) Memory::current().count(-bytes_);
    bytes_ = 0;
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

 private:
  std::int64_t bytes_;
};

using Sizes = std::vector<std::int64_t>;
struct Node;
struct TensorImpl;
using Tensor = std::shared_ptr<TensorImpl>;

struct TensorImpl {
  std::shared_ptr<Storage> storage;
  Sizes sizes;
  Sizes strides;
  DType dtype = DType::Float32;
  Tensor base;  // A view keeps the tensor that it was taken from.
  bool requires_grad = false;
  std::shared_ptr<Node> grad_fn;
  std::uint32_t output = 0;
  // Leaves that are trained.
  std::weak_ptr<Node> accumulator;
  Tensor grad;
  bool hooked = false;  // On its AccumulateGrad itself: what that was given stays until the hooks have returned.
  int parameter = -1;   // Position in named_parameters(); -1: none.

  [[nodiscard]] std::int64_t elements() const;
  [[nodiscard]] std::int64_t size(int dimension) const;  // Negative: from the end.
};

[[nodiscard]] Sizes contiguous_strides(const Sizes& sizes);
[[nodiscard]] bool is_contiguous(const TensorImpl& x);
// No gaps, no overlaps, in any order of dimensions.
[[nodiscard]] bool is_dense(const TensorImpl& x);

// Memory is asked for; nothing for zero elements.
[[nodiscard]] Tensor empty(Sizes sizes, DType dtype);
// In the layout of `x` where that is dense, as elementwise kernels and empty_like choose it.
[[nodiscard]] Tensor empty_like(const Tensor& x, DType dtype);
[[nodiscard]] inline Tensor empty_like(const Tensor& x) { return empty_like(x, x->dtype); }

// Outside autograd.
[[nodiscard]] Tensor strided_view(const Tensor& x, Sizes sizes, Sizes strides);
[[nodiscard]] Tensor transposed(const Tensor& x, int a, int b);
// A view where the strides permit one, otherwise a contiguous copy.
[[nodiscard]] Tensor reshaped(const Tensor& x, const Sizes& sizes);
// The same memory without history.
[[nodiscard]] Tensor detached(const Tensor& x);

}  // namespace eager
