#include "exec/runner/launcher.h"

#include <array>

namespace dsplan::exec {
namespace {

std::vector<dsplan_tensor> tensors_of(std::span<const Piece> pieces) {
  std::vector<dsplan_tensor> result;
  result.reserve(pieces.size());
  for (const Piece& piece : pieces) result.push_back(tensor_of(piece));
  return result;
}

}  // namespace

dsplan_launch launch_of(Body body, std::span<const dsplan_tensor> in, std::span<const dsplan_tensor> made,
                        const Parameters& parameters) {
  dsplan_launch what{};
  what.size = sizeof what;
  what.body = static_cast<std::uint32_t>(body);
  what.inputs = in.data();
  what.input_count = static_cast<std::uint32_t>(in.size());
  what.made = made.data();
  what.made_count = static_cast<std::uint32_t>(made.size());
  what.integers = parameters.integers.data();
  what.integer_count = static_cast<std::uint32_t>(parameters.integers.size());
  what.numbers = parameters.numbers.data();
  what.number_count = static_cast<std::uint32_t>(parameters.numbers.size());
  what.random = parameters.random;
  return what;
}

Piece Launcher::piece(const ByteRange& range) const {
  const Buffer& buffer = plan_.schedule.buffers[range.buffer];
  return {memory_.pointer(range.buffer) + range.offset.value(), buffer.dtype,
          range.bytes.value() / bytes_per_element(buffer.dtype), buffer.space};
}

std::vector<Piece> Launcher::pieces(Span ranges, DType zeros) const {
  std::vector<Piece> result;
  for (const ByteRange& range : plan_.program.range(ranges)) {
    if (range.bytes == Bytes(0)) continue;
    if (range.buffer == kNoBuffer) {
      result.push_back({nullptr, zeros, range.bytes.value() / bytes_per_element(zeros)});
    } else {
      result.push_back(piece(range));
    }
  }
  return result;
}

void Launcher::launch(Body body, std::span<const Piece> in, std::span<const Piece> made, const Parameters& parameters) {
  const std::vector<dsplan_tensor> inputs = tensors_of(in);
  const std::vector<dsplan_tensor> targets = tensors_of(made);
  device_.launch(launch_of(body, inputs, targets, parameters));
}

void Launcher::copy(const Piece& from, const Piece& to) {
  device_.copy(to.data, to.space, from.data, from.space, storage(Elements(to.elements), to.dtype));
}

void Launcher::write(const Piece& target, const void* values, std::int64_t bytes) {
  device_.copy(target.data, target.space, values, Space::Pageable, Bytes(bytes));
  device_.synchronize();
}

void Launcher::read(const Piece& source, void* values, std::int64_t bytes) {
  device_.copy(values, Space::Pageable, source.data, source.space, Bytes(bytes));
  device_.synchronize();
}

double Launcher::number_at(const Piece& piece) {
  std::array<std::byte, 8> bytes{};
  read(piece, bytes.data(), bytes_per_element(piece.dtype));
  return decode_float(bytes.data(), piece.dtype);
}

void Launcher::put_number(double value, const Piece& piece) {
  std::array<std::byte, 8> bytes{};
  encode_float(value, piece.dtype, bytes.data());
  write(piece, bytes.data(), bytes_per_element(piece.dtype));
}

}  // namespace dsplan::exec
