// The vocabulary in which runtimes are written: what a line of the framework's eager Python does to memory.
//
//   Variable cast = eager.cast(flat, DType::Float32, {Role::Temporaries, "gradient in master dtype", "stage3.py,
//   step"}); eager.all_gather(full, partition, Group::DataParallel); cast.reset(); // cast = None
//
// A `Variable` is a Python variable: it holds a reference to a buffer and lets go of it when it is reset, assigned or
// leaves its scope. Verbs carry what an executor does (Body) and a name for people; neither is derived from the other.
// Verbs enqueue on the emitter's current stream.
#pragma once

#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "planner/lower/emitter.h"

namespace dsplan {

// A stretch of a buffer; all of it where only the buffer is said. Bytes are in the buffer's own dtype.
struct Part {
  Part() = default;
  Part(BufferId all) : buffer(all) {}  // NOLINT(google-explicit-constructor): a buffer is its own whole.
  Part(BufferId of, Bytes from, Bytes count) : buffer(of), offset(from), bytes(count), whole(false) {}
  BufferId buffer = kNoBuffer;
  Bytes offset;
  Bytes bytes;
  bool whole = true;
};

// A variable of the framework's. Moves like a unique_ptr; `reason` is why it outlives its last reader where it does
// (core/schedule.h). A schedule is written to its end or thrown away, so that scopes may end by an exception too.
// Attributes of objects (`self.x`) are members: what they hold when the schedule is finished survives it, and that they
// let go of it afterwards is written nowhere.
class Variable {
 public:
  Variable() = default;  // None
  // Takes over one reference to `buffer`.
  Variable(Emitter& emitter, BufferId buffer, Reason reason = Reason::PythonFrame)
      : emitter_(&emitter), buffer_(buffer), reason_(reason) {}
  Variable(Variable&& other) noexcept
      : emitter_(other.emitter_), buffer_(std::exchange(other.buffer_, kNoBuffer)), reason_(other.reason_) {}
  // The variable gets another value: what it held goes after that is there, as in Python.
  Variable& operator=(Variable&& other) noexcept(false);  // Releasing may find a bug, which throws.
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() noexcept(false);

  void reset();               // = None
  void reset(Reason reason);  // The same, for another reason than the variable's own.
  [[nodiscard]] BufferId hand_over() { return std::exchange(buffer_, kNoBuffer); }  // Someone else holds it now.
  [[nodiscard]] Variable share() const;                                             // Another variable for the same.
  void mark_scratch() const { emitter_->mark_scratch(buffer_); }  // What is written there need not be read by anyone.

  [[nodiscard]] BufferId id() const { return buffer_; }
  [[nodiscard]] Emitter& emitter() const { return *emitter_; }  // Not of None.
  operator Part() const { return buffer_; }                     // NOLINT(google-explicit-constructor)
  explicit operator bool() const { return buffer_ != kNoBuffer; }

 private:
  friend class Variables;
  Emitter* emitter_ = nullptr;
  BufferId buffer_ = kNoBuffer;
  Reason reason_ = Reason::PythonFrame;
};

// A Python list of tensors: they go in the list's order, when the list is reset, assigned or leaves its scope.
class Variables {
 public:
  Variables() = default;
  Variables(Variables&& other) noexcept
      : emitter_(other.emitter_), buffers_(std::exchange(other.buffers_, {})), reason_(other.reason_) {}
  Variables& operator=(Variables&& other) noexcept(false);  // What it held goes when the new value is there.
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;
  ~Variables() noexcept(false);

  void append(Variable made);  // Its reason becomes the list's.
  void reset() { reset(reason_); }
  void reset(Reason reason);
  [[nodiscard]] std::vector<BufferId> hand_over() { return std::exchange(buffers_, {}); }

  [[nodiscard]] const std::vector<BufferId>& ids() const { return buffers_; }
  [[nodiscard]] bool empty() const { return buffers_.empty(); }
  [[nodiscard]] std::size_t size() const { return buffers_.size(); }
  operator std::span<const BufferId>() const { return buffers_; }  // NOLINT(google-explicit-constructor)

 private:
  Emitter* emitter_ = nullptr;
  std::vector<BufferId> buffers_;
  Reason reason_ = Reason::PythonFrame;
};

// A list of variables goes: one after another, in its order.
void let_go(std::vector<Variable>& list);
void let_go(std::vector<Variable>& list, Reason reason);

// A piece of work that no verb says: reads first, then writes, then `run`, `collective` or `control`.
class Work {
 public:
  explicit Work(Emitter& emitter) : emitter_(emitter) { emitter_.begin(); }
  Work& read(const Part& part);
  Work& read(std::span<const BufferId> whole);
  Work& read(std::span<const Part> parts);
  Work& read(std::span<const Variable> whole);
  Work& write(const Part& part);
  Work& write(std::span<const BufferId> whole);
  Work& write(std::span<const Variable> whole);
  // What an executor really reads or writes, where the schedule names more (core/program.h).
  Work& really_reads(std::vector<ByteRange> ranges);
  Work& really_writes(std::vector<ByteRange> ranges);
  // Of an update: how many states stand behind each target.
  Work& states(std::size_t count);
  // Of a reduction or a broadcast: the rank that it goes to or comes from.
  Work& root(std::int64_t rank);

  void run(Body body, Label work) { emitter_.compute(body, work); }
  // No executor can do it yet: a program that holds such work is refused by this name.
  void run_unexecutable(Label work) { emitter_.compute_unexecutable(work); }
  void collective(Collective kind, DType dtype, Bytes payload, Group group = Group::DataParallel) {
    emitter_.communicate(kind, dtype, payload, TrafficKind::Data, group);
  }
  void control(Collective kind, DType dtype, Bytes payload, Group group = Group::DataParallel) {
    emitter_.communicate(kind, dtype, payload, TrafficKind::Control, group);
  }

 private:
  Emitter& emitter_;
};

class Eager {
 public:
  explicit Eager(Emitter& emitter) : emitter_(emitter) {}

  // torch.empty. `module` and pass are the emitter's; `space` is where it lies.
  [[nodiscard]] Variable empty(Bytes bytes, DType dtype, What what, ParameterId parameter = kNone,
                               Space space = Space::Device);
  // The same for what need not be read by anyone: a kernel's scratch, a scalar that becomes the host's number.
  [[nodiscard]] Variable scratch(Bytes bytes, DType dtype, What what, Space space = Space::Device);
  // torch.empty on the host, pinned if asked: that makes it in pageable memory and copies it (DeepSpeed
  // accelerator/abstract_accelerator.py, pin_memory).
  [[nodiscard]] Variable empty_on_host(Bytes bytes, DType dtype, What what, bool pinned, ParameterId parameter = kNone);
  // torch.zeros: made and filled.
  [[nodiscard]] Variable zeros(Bytes bytes, DType dtype, What what, Label work, ParameterId parameter = kNone,
                               Space space = Space::Device);
  // `from` in another dtype or another place: `to(dtype)`, `to(device)`, `clone()`. Elements are those of `from`.
  [[nodiscard]] Variable cast(const Part& from, DType dtype, What what, Label work, ParameterId parameter = kNone);
  [[nodiscard]] Variable clone(const Part& from, What what, Label work, ParameterId parameter = kNone,
                               Space space = Space::Device);

  // to.copy_(from): element by element, converted where dtypes differ, across spaces where they lie in two.
  void copy(const Part& to, const Part& from, Label work);
  // The same where the host waits for it. Between host and device a copy that changes the dtype converts on the host,
  // through a tensor of its own (torch: aten/src/ATen/native/cuda/Copy.cu, copy_kernel_cuda).
  void copy_across(const Part& to, const Part& from, Label work);
  // torch.cat(parts, out=to); and back into several.
  void concatenate(const Part& to, std::span<const BufferId> parts, Label work);
  void split(std::span<const BufferId> parts, const Part& from, Label work);
  void zero(const Part& part, Label work);
  void zero(std::span<const BufferId> whole, Label work);  // By one launch.
  // to += from
  void add(const Part& to, const Part& from, Label work);

  // Collectives in PyTorch's words. A group of one rank has no traffic: all_gather and reduce_scatter are local copies
  // there, the others nothing at all. Payload is the full logical buffer, as in nccl-tests.
  void all_gather(const Part& to, const Part& from, std::int64_t ranks, Group group = Group::DataParallel);
  void all_gather(const Part& to, std::span<const Part> from, std::int64_t ranks, Group group = Group::DataParallel);
  void reduce_scatter(const Part& to, const Part& from, std::int64_t ranks, Group group = Group::DataParallel);
  void all_reduce(const Part& part, std::int64_t ranks, Group group = Group::DataParallel);
  void reduce(const Part& part, std::int64_t to_rank, std::int64_t ranks, Group group = Group::DataParallel);
  void broadcast(const Part& part, std::int64_t from_rank, std::int64_t ranks, Group group = Group::DataParallel);

  [[nodiscard]] Work work() { return Work(emitter_); }
  [[nodiscard]] Emitter& emitter() const { return emitter_; }
  [[nodiscard]] Bytes bytes_of(const Part& part) const;

 private:
  Emitter& emitter_;
};

}  // namespace dsplan
