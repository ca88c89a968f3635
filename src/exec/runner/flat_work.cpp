#include "exec/runner/flat_work.h"

#include <algorithm>

#include "core/error.h"
#include "exec/runner/data.h"
#include "exec/runner/parallel.h"

namespace dsplan::exec {
namespace {

// Bytes whose dtype nobody states (a pool's, a slot's) are copied as they are.
bool is_raw(const Piece& piece) { return piece.dtype == DType::UInt8; }
Piece as_bytes(const Piece& piece) {
  return {piece.data, DType::UInt8, piece.elements * bytes_per_element(piece.dtype), piece.space};
}

}  // namespace

void FlatWork::run(const Task& task) {
  switch (task.body) {
    case Body::Nothing: return;
    case Body::LoadParameter: return load_parameters(task);
    case Body::LoadBuffer: return load_buffer(task);
    case Body::Copy: return copy(task);
    case Body::Add: return add(task);
    case Body::FileRead:
    case Body::FileWrite: return move_file(task);
    case Body::Quantize:
    case Body::Dequantize:
      return launcher_.launch(task.body, launcher_.pieces(task.reads), launcher_.pieces(task.writes));
    default: break;
  }
  for (const Piece& piece : launcher_.pieces(task.writes)) launcher_.launch(Body::Clear, {}, {&piece, 1});
}

void FlatWork::load_parameters(const Task& task) {
  for (const ByteRange& range : plan_.program.range(task.writes)) {
    const Buffer& buffer = plan_.schedule.buffers[range.buffer];
    DSPLAN_CHECK(buffer.parameter != kNone, "a parameter is loaded into a buffer of none");
    const Initial kind = initial_of(plan_.model, buffer.parameter);
    const std::int64_t integer = static_cast<std::int64_t>(kind);
    const double deviation = plan_.model.dims.initial_deviation;
    dsplan_random random{};
    random.key = random_key(settings_.seed, DrawnFor::Parameter, static_cast<std::uint64_t>(buffer.parameter), 0);
    random.samples = 1;
    const Piece whole = launcher_.piece(range);
    const Parameter& parameter = plan_.model.parameter_at(buffer.parameter);
    if (const auto rows = plan_.program.range(task.reads); !rows.empty()) {
      random.first_sample = rows.front().offset.value() / bytes_per_element(buffer.dtype);
      launcher_.launch(Body::LoadParameter, {}, {&whole, 1}, {{&integer, 1}, {&deviation, 1}, random});
      continue;
    }
    std::int64_t done = 0;
    for (const Cut& cut : part_of(plan_.model, parameter, plan_.schedule.tp, plan_.tensor_rank)) {
      random.first_sample = cut.first;
      const Piece target = whole.part(done, cut.count);
      launcher_.launch(Body::LoadParameter, {}, {&target, 1}, {{&integer, 1}, {&deviation, 1}, random});
      done += cut.count;
    }
    DSPLAN_CHECK(done == whole.elements, "a parameter is loaded into a buffer of another size");
  }
}

void FlatWork::load_buffer(const Task& task) {
  const ByteRange& range = plan_.program.range(task.writes).front();
  const std::vector<BufferId>& buffers = plan_.program.module_buffers;
  const auto found = std::find(buffers.begin(), buffers.end(), range.buffer);
  DSPLAN_CHECK(found != buffers.end(), "a buffer that is none of the model's");
  const auto index = static_cast<std::size_t>(found - buffers.begin());
  const DType dtype = plan_.schedule.buffers[range.buffer].dtype;
  const std::vector<std::byte> bytes = encoded(values_of(plan_.model, plan_.model.buffers[index]), dtype);
  const Piece piece{memory_.pointer(range.buffer), dtype, 0, Space::Device};
  launcher_.write(piece, bytes.data(), static_cast<std::int64_t>(bytes.size()));
}

void FlatWork::copy(const Task& task) {
  std::vector<Piece> targets = launcher_.pieces(task.writes);
  std::vector<Piece> sources = launcher_.pieces(task.reads, targets.front().dtype);
  if (std::any_of(targets.begin(), targets.end(), is_raw) || std::any_of(sources.begin(), sources.end(), is_raw)) {
    for (std::vector<Piece>* list : {&targets, &sources}) {
      for (Piece& piece : *list) piece = as_bytes(piece);
    }
  }
  side_by_side(sources, targets, [&](const Piece& from, const Piece& to) {
    if (same_stretch(from, to)) return;
    if (from.data == nullptr) return launcher_.launch(Body::Clear, {}, {&to, 1});
    if (from.dtype == to.dtype) return launcher_.copy(from, to);
    launcher_.launch(Body::Copy, {&from, 1}, {&to, 1});
  });
}

// What is written is among what is read; the rest is added to it.
void FlatWork::add(const Task& task) {
  const std::vector<Piece> targets = launcher_.pieces(task.writes);
  std::vector<Piece> addends = launcher_.pieces(task.reads, targets.front().dtype);
  std::erase_if(addends, [&](const Piece& piece) { return is_among(piece, targets); });
  side_by_side(addends, targets, [&](const Piece& from, const Piece& to) {
    if (from.data != nullptr) launcher_.launch(Body::Add, {&from, 1}, {&to, 1});
  });
}

// Aligned stretches: what lies behind a tensor's end in its buffer goes along.
void FlatWork::move_file(const Task& task) {
  const bool reads = task.body == Body::FileRead;
  const ByteRange& file = plan_.program.range(reads ? task.reads : task.writes).front();
  const ByteRange& memory = plan_.program.range(reads ? task.writes : task.reads).front();
  DSPLAN_CHECK(memory.offset + file.bytes <= memory_.at(memory.buffer).bytes, "a file reaches beyond its buffer");
  std::byte* at = memory_.pointer(memory.buffer) + memory.offset.value();
  device_.synchronize();
  if (reads) {
    device_.files().read(memory_.at(file.buffer).file, file.offset, at, file.bytes);
  } else {
    device_.files().write(memory_.at(file.buffer).file, file.offset, at, file.bytes);
  }
}

}  // namespace dsplan::exec
