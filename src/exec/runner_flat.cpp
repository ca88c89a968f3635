// The runner's flat work: what runtimes do to buckets, partitions and states.
#include <array>
#include <chrono>
#include <cstring>

#include "core/error.h"
#include "core/format.h"
#include "exec/data.h"
#include "exec/parallel.h"
#include "exec/runner.h"
#include "exec/scalars.h"

namespace dsplan::exec {
namespace {

// A flag of one byte: any rank's counts.
bool task_is_flag(const Communicate& event) {
  return event.kind == TrafficKind::Control && event.collective == Collective::AllReduce && event.payload == Bytes(1);
}

// Bytes whose dtype nobody states (a pool's, a slot's) are copied as they are.
bool is_raw(const Piece& piece) { return piece.dtype == DType::UInt8; }
Piece as_bytes(const Piece& piece) {
  return {piece.data, DType::UInt8, piece.elements * bytes_per_element(piece.dtype), piece.space};
}

std::vector<std::byte> encoded(const std::vector<double>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(bytes_per_element(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    encode_float(values[i], dtype, bytes.data() + i * static_cast<std::size_t>(bytes_per_element(dtype)));
  }
  return bytes;
}

}  // namespace

// `zeros`: the dtype in which stretches of no buffer are counted.
std::vector<Piece> Runner::pieces(Span span, DType zeros) const {
  std::vector<Piece> result;
  for (const ByteRange& range : plan_.program.range(span)) {
    if (range.bytes == Bytes(0)) continue;
    if (range.buffer == kNoBuffer) {
      result.push_back({nullptr, zeros, range.bytes.value() / bytes_per_element(zeros)});
      continue;
    }
    const Buffer& buffer = plan_.schedule.buffers[range.buffer];
    result.push_back({memory_.pointer(range.buffer) + range.offset.value(), buffer.dtype,
                      range.bytes.value() / bytes_per_element(buffer.dtype), buffer.space});
  }
  return result;
}

void Runner::launch(Body body, std::span<const dsplan_tensor> in, std::span<const dsplan_tensor> made,
                    std::span<const std::int64_t> integers, std::span<const double> numbers, dsplan_random random) {
  dsplan_launch what{};
  what.size = sizeof what;
  what.body = static_cast<std::uint32_t>(body);
  what.inputs = in.data();
  what.input_count = static_cast<std::uint32_t>(in.size());
  what.made = made.data();
  what.made_count = static_cast<std::uint32_t>(made.size());
  what.integers = integers.data();
  what.integer_count = static_cast<std::uint32_t>(integers.size());
  what.numbers = numbers.data();
  what.number_count = static_cast<std::uint32_t>(numbers.size());
  what.random = random;
  device_.launch(what);
}

void Runner::run_flat(const Task& task) {
  switch (task.body) {
    case Body::LoadParameter: return load_parameters(task);
    case Body::LoadBuffer: return load_buffer(task);
    case Body::Copy: return copy(task);
    case Body::Add: return add(task);
    case Body::SquareSum: return square_sum(task);
    case Body::Norm: return put_norm(task);
    case Body::Clip: return scale(task, gradient_factor());
    case Body::Scale: return scale(task, 1 / scale_.now());
    case Body::OverflowScan: return scan_for_overflow(task);
    case Body::Unscale: return unscale(task);
    case Body::FileRead:
    case Body::FileWrite: return move_file(task);
    case Body::Update: return update(task);
    case Body::Quantize:
    case Body::Dequantize: return convert(task);
    default: break;
  }
  for (const Piece& piece : pieces(task.writes)) {
    const dsplan_tensor target = exec::tensor_of(piece);
    if (task.body != Body::Nothing) launch(Body::Clear, {}, {&target, 1});
  }
}

void Runner::convert(const Task& task) {
  std::vector<dsplan_tensor> from;
  std::vector<dsplan_tensor> to;
  for (const Piece& piece : pieces(task.reads)) from.push_back(exec::tensor_of(piece));
  for (const Piece& piece : pieces(task.writes)) to.push_back(exec::tensor_of(piece));
  launch(task.body, from, to);
}

void Runner::load_parameters(const Task& task) {
  for (const ByteRange& range : plan_.program.range(task.writes)) {
    const Buffer& buffer = plan_.schedule.buffers[range.buffer];
    DSPLAN_CHECK(buffer.parameter != kNone, "a parameter is loaded into a buffer of none");
    const Initial kind = initial_of(plan_.model, buffer.parameter);
    const std::int64_t integer = static_cast<std::int64_t>(kind);
    const double deviation = plan_.model.dims.initial_deviation;
    dsplan_random random{};
    random.key = random_key(settings_.seed, DrawnFor::Parameter, static_cast<std::uint64_t>(buffer.parameter), 0);
    random.samples = 1;
    const Piece whole{memory_.pointer(range.buffer) + range.offset.value(), buffer.dtype,
                      range.bytes.value() / bytes_per_element(buffer.dtype), buffer.space};
    const Parameter& parameter = plan_.model.parameters[static_cast<std::size_t>(buffer.parameter)];
    std::int64_t done = 0;
    for (const Cut& cut : part_of(plan_.model, parameter, plan_.schedule.tp, plan_.tensor_rank)) {
      random.first_sample = cut.first;
      const dsplan_tensor target = exec::tensor_of(whole.part(done, cut.count));
      launch(Body::LoadParameter, {}, {&target, 1}, {&integer, 1}, {&deviation, 1}, random);
      done += cut.count;
    }
    DSPLAN_CHECK(done == whole.elements, "a parameter is loaded into a buffer of another size");
  }
}

void Runner::load_buffer(const Task& task) {
  const ByteRange& range = plan_.program.range(task.writes).front();
  const std::vector<BufferId>& buffers = plan_.program.module_buffers;
  const auto found = std::find(buffers.begin(), buffers.end(), range.buffer);
  DSPLAN_CHECK(found != buffers.end(), "a buffer that is none of the model's");
  const auto index = static_cast<std::size_t>(found - buffers.begin());
  const DType dtype = plan_.schedule.buffers[range.buffer].dtype;
  const std::vector<std::byte> bytes = encoded(values_of(plan_.model, plan_.model.buffers[index]), dtype);
  const Piece piece{memory_.pointer(range.buffer), dtype, 0, Space::Device};
  to_device(piece, bytes.data(), static_cast<std::int64_t>(bytes.size()));
}

void Runner::copy(const Task& task) {
  std::vector<Piece> targets = pieces(task.writes);
  std::vector<Piece> sources = pieces(task.reads, targets.front().dtype);
  if (std::any_of(targets.begin(), targets.end(), is_raw) || std::any_of(sources.begin(), sources.end(), is_raw)) {
    for (std::vector<Piece>* list : {&targets, &sources}) {
      for (Piece& piece : *list) piece = as_bytes(piece);
    }
  }
  side_by_side(sources, targets, [&](const Piece& from, const Piece& to) {
    if (same_stretch(from, to)) return;
    const dsplan_tensor target = exec::tensor_of(to);
    if (from.data == nullptr) return launch(Body::Clear, {}, {&target, 1});
    if (from.dtype == to.dtype) {
      const Bytes bytes = storage(Elements(to.elements), to.dtype);
      return device_.copy(to.data, to.space, from.data, from.space, bytes);
    }
    const dsplan_tensor source = exec::tensor_of(from);
    launch(Body::Copy, {&source, 1}, {&target, 1});
  });
}

// What is written is among what is read; the rest is added to it.
void Runner::add(const Task& task) {
  const std::vector<Piece> targets = pieces(task.writes);
  std::vector<Piece> addends;
  for (const Piece& piece : pieces(task.reads, targets.front().dtype)) {
    const bool target =
        std::any_of(targets.begin(), targets.end(), [&](const Piece& t) { return same_stretch(t, piece); });
    if (!target) addends.push_back(piece);
  }
  side_by_side(addends, targets, [&](const Piece& from, const Piece& to) {
    if (from.data == nullptr) return;
    const dsplan_tensor source = exec::tensor_of(from);
    const dsplan_tensor target = exec::tensor_of(to);
    launch(Body::Add, {&source, 1}, {&target, 1});
  });
}

void Runner::scale(const Task& task, double factor) {
  if (factor == 1) return;
  for (const Piece& piece : pieces(task.writes)) {
    const dsplan_tensor target = exec::tensor_of(piece);
    launch(Body::Scale, {}, {&target, 1}, {}, {&factor, 1});
  }
}

void Runner::square_sum(const Task& task) {
  const Piece sum{registers_, DType::Float64, 1, Space::Device};
  const double zero = 0;
  to_device(sum, &zero, sizeof zero);
  const dsplan_tensor target = exec::tensor_of(sum);
  for (const Piece& piece : pieces(task.reads)) {
    if (piece.data == nullptr) continue;
    const dsplan_tensor source = exec::tensor_of(piece);
    launch(Body::SquareSum, {&source, 1}, {&target, 1});
  }
  pending_ += scalar_at(sum);
}

// This rank's part is written where the others can add theirs; where there are none, it is the whole.
void Runner::put_norm(const Task& task) {
  square_sum(task);
  const double part = std::exchange(pending_, 0) / std::max<double>(task.part, 1);
  const Piece value = pieces(task.writes).front();
  const std::vector<std::byte> bytes = encoded({part}, value.dtype);
  to_device(value, bytes.data(), static_cast<std::int64_t>(bytes.size()));
  norm_buffer_ = plan_.program.range(task.writes).front().buffer;
  squares_ += part;
  contributed_ = part;
}

void Runner::take_norm(const Task& task) {
  const ByteRange& range = plan_.program.range(task.writes).front();
  if (range.buffer != norm_buffer_) return;
  const double now = scalar_at(pieces(task.writes).front());
  squares_ += now - contributed_;
  contributed_ = now;  // The next group's sum contains it.
}

void Runner::to_device(const Piece& target, const void* values, std::int64_t bytes) {
  device_.copy(target.data, target.space, values, Space::Pageable, Bytes(bytes));
  device_.synchronize();
}

double Runner::scalar_at(const Piece& piece) {
  std::array<std::byte, 8> bytes{};
  device_.copy(bytes.data(), Space::Pageable, piece.data, piece.space, Bytes(bytes_per_element(piece.dtype)));
  device_.synchronize();
  return decode_float(bytes.data(), piece.dtype);
}

Piece Runner::joined(const std::vector<Piece>& parts, const Piece& place) {
  if (parts.size() == 1) return parts.front();
  side_by_side(parts, {&place, 1}, [&](const Piece& from, const Piece& to) {
    const Bytes bytes = storage(Elements(to.elements), to.dtype);
    if (from.data == nullptr) {
      device_.fill(to.data, to.space, 0, bytes);
    } else {
      device_.copy(to.data, to.space, from.data, from.space, bytes);
    }
  });
  return place;
}

void Runner::on(std::size_t at, const Communicate& event) {
  arrive(at);
  memory_.work(event.stream, plan_.schedule.range(event.reads), plan_.schedule.range(event.writes));
  device_.use(event.stream);
  const Task& task = task_at(at);
  Communicator& communicator = communicators_.of(event.group);
  const std::vector<Piece> reads = pieces(task.reads);
  const std::vector<Piece> writes = pieces(task.writes);
  DSPLAN_CHECK(writes.size() == 1, "a collective makes one stretch");
  CollectiveCall call;
  call.kind = event.collective;
  call.dtype = event.dtype;
  call.reduction = task_is_flag(event) || task.part == 1 ? DSPLAN_MAX : DSPLAN_SUM;
  call.elements = event.payload.value() / bytes_per_element(event.dtype);
  call.output = writes.front().data;
  call.root = task.root;
  call.stream = event.stream;
  call.event = at;
  if (event.collective == Collective::AllGather) {
    // The parts are put where they will lie, unless they lie there or are one piece.
    const std::int64_t own = call.elements / communicator.ranks();
    call.input = joined(reads, writes.front().part(own * communicator.rank(), own)).data;
  } else {
    DSPLAN_CHECK(reads.size() == 1, "a collective takes one stretch");
    call.input = reads.front().data;
  }
  CallRecord record = timed(communicator, call);
  record.group = event.group;
  sent_.push_back({at, record});
  take_norm(task);
  if (task_is_flag(event)) take_flag(task);
}

CallRecord Runner::timed(Communicator& communicator, const CollectiveCall& call) {
  if (!device_.synchronous()) {
    if (call.stream != kComputeStream) return communicator.run(call);
    clock_.begin(call.stream);
    CallRecord record = communicator.run(call);
    clock_.end(call.stream);
    return record;
  }
  const auto begin = std::chrono::steady_clock::now();
  CallRecord record = communicator.run(call);
  communicating_ +=
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count();
  return record;
}

}  // namespace dsplan::exec
