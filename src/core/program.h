// What an executor needs beside the schedule: which body each piece of work is, and on which tensors it works. Made by
// planner/lower on request, together with the schedule and in the same order; read by exec alone.
//
// A program says *what* is computed, never how large anything is: an executor's own operators size what they make from
// what they are given, so that the schedule's sizes can be held against them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/graph.h"
#include "core/kernel_scratch.h"
#include "core/schedule.h"

namespace dsplan {

// One tensor, made once. Its shape, strides and dtype follow from the operator that makes it; those of a placed one
// (a parameter, a buffer of the model, the batch) are the graph's, contiguous.
using ValueId = std::uint32_t;
inline constexpr ValueId kNoValue = 0;

struct TensorValue {
  BufferId buffer = kNoBuffer;  // kNoBuffer: a view, made by a task from other values.
  Bytes offset;                 // Of its first element, if it is placed.
  TensorId tensor = kNone;      // Of the graph `graph`, if it is placed.
  std::uint8_t graph = 0;
};

// What an operator makes beside its outputs is told apart by kind and index.
enum class SlotKind : std::uint8_t {
  Output,     // Forward: output `index`.
  Extra,      // Forward: a by-product that exists only for backward (mean, mask, log-sum-exp).
  Gradient,   // Backward: the gradient of input `index`.
  Temporary,  // Dies inside the operator; `index` counts those of one call.
};

struct MadeValue {
  ValueId value = kNoValue;
  SlotKind kind = SlotKind::Output;
  std::uint8_t index = 0;
};

// A stretch of a buffer, in the buffer's own dtype. Among what is read, kNoBuffer: zeros, in the dtype of what is
// written.
struct ByteRange {
  BufferId buffer = kNone;
  Bytes offset;
  Bytes bytes;
};

// The closed list of things that can be carried out. The first group works on values, the second on ranges: `reads` and
// `writes` are flat sequences of elements, in the order in which they stand, whatever buffers they lie in.
enum class Body : std::uint8_t {
  // in: the node's inputs. made: everything that this call has made so far. Part k runs the k-th kernel.
  Forward,
  // in: the gradients of the node's outputs (kNoValue: none came), then what it saved, in the order of saving.
  Backward,
  ForwardView,   // in: the node's inputs. made: its outputs, which share their storage. Takes no event.
  BackwardView,  // in: the gradient of output 0. made: the gradient of input `part`, sharing its storage. No event.
  AddGradients,  // in: two gradients. made: their sum; where it lies in the first one's buffer, in place.
  CloneGradient,
  LossSeed,       // in: the loss. made: the gradient that backward starts from.
  MakeBatch,      // made: a tensor of the batch; `part` says which, in the order of Graph::batch.
  GradientReady,  // in: the gradient of parameter `parameter`, which the runtime takes over. Takes no event.

  Nothing,        // Takes time on a real machine, and changes no number: "read the outputs".
  // writes: the initial values of each buffer's parameter; of a part of it, where `reads` is one range without a buffer
  // that says which.
  LoadParameter,
  LoadBuffer,     // writes: a buffer of the model, all of it.
  Clear,          // writes = 0.
  Copy,           // writes = reads, element by element, converted where dtypes differ. Missing reads are zeros.
  Add,            // writes += reads: the reads that follow the target itself.
  Scale,          // writes *= the runtime's factor (`number`).
  // A Communicate: reads and writes as its kind says. `part` 1: the largest instead of the sum.
  Collective,
  // One optimizer step over flat ranges. writes: targets, each with `part` states behind it; reads: the same, and the
  // gradients in the order of the targets.
  Update,
  SquareSum,  // The squares of what is read join this rank's part of the squared norm.
  // reads: their squares join as above. writes: this rank's part, by `part` where each of so many data-parallel ranks
  // has all of it; control all-reduces make it the whole.
  Norm,
  OverflowScan,  // Whether what is read is finite. writes: a flag of one byte, or nothing that anybody reads.
  Clip,          // writes *= what keeps the global norm below the threshold, 1 if it is.
  Unscale,       // reads are looked at as OverflowScan does; writes /= the loss scale.
  FileRead,      // reads: a file. writes: memory, which is filled from there on, to the file's end.
  FileWrite,     // reads: memory. writes: a file, all of it, with what lies from there on.
  // reads: floats. writes: as many int8, then the fp32 scales of equal groups of them; and back (DeepSpeed,
  // csrc/quantization, symmetric).
  Quantize,
  Dequantize,
  RandomState,
};
inline constexpr std::size_t kBodies = static_cast<std::size_t>(Body::RandomState) + 1;
[[nodiscard]] const char* name(Body body);
[[nodiscard]] constexpr bool works_on_values(Body body) { return body <= Body::GradientReady; }

struct Task {
  std::uint32_t event = 0;  // The Compute or Communicate that it is; a view: the event before which it happens.
  Body body = Body::Nothing;
  std::uint8_t graph = 0;
  std::uint8_t part = 0;
  NodeId node = kNone;
  ParameterId parameter = kNone;
  std::int32_t root = 0;  // Of a broadcast or a reduction to one: a rank of the group.
  Span in;                // Of `inputs`.
  Span made;              // Of `made`.
  Span reads;             // Of `ranges`.
  Span writes;            // Likewise.
};

// The mean loss of a micro-batch, from this event on.
struct LossValue {
  std::uint32_t event = 0;
  ValueId value = kNoValue;
};

struct Program {
  std::vector<TensorValue> values = std::vector<TensorValue>(1);  // Indexed by ValueId; the first is kNoValue.
  std::vector<ValueId> inputs;                                    // Pools for the spans.
  std::vector<MadeValue> made;
  std::vector<ByteRange> ranges;
  std::vector<Task> tasks;                // By event; views come before the event whose index they carry.
  std::vector<LossValue> losses;          // Of every micro-batch, in order.
  std::vector<BufferId> module_buffers;   // Loaded, by index into ModelSpec::buffers; kNoBuffer where there is none.
  DeviceThreads device;                   // By which a GPU's kernels are launched, where one is named.
  std::vector<const char*> unknown_work;  // Labels of work that has no body yet, each once: such a program cannot run.

  [[nodiscard]] std::span<const ValueId> in(const Task& task) const {
    return {inputs.data() + task.in.begin, static_cast<std::size_t>(task.in.end - task.in.begin)};
  }
  [[nodiscard]] std::span<const MadeValue> made_by(const Task& task) const {
    return {made.data() + task.made.begin, static_cast<std::size_t>(task.made.end - task.made.begin)};
  }
  [[nodiscard]] std::span<const ByteRange> range(Span span) const {
    return {ranges.data() + span.begin, static_cast<std::size_t>(span.end - span.begin)};
  }
};

}  // namespace dsplan
