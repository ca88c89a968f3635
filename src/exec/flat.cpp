#include "exec/flat.h"

namespace dsplan::exec {

std::int64_t elements_of(std::span<const Piece> pieces) {
  std::int64_t sum = 0;
  for (const Piece& piece : pieces) sum += piece.elements;
  return sum;
}

std::vector<Piece> stretch(std::span<const Piece> pieces, std::int64_t from, std::int64_t length) {
  std::vector<Piece> result;
  for (const Piece& piece : pieces) {
    if (from >= piece.elements) {
      from -= piece.elements;
      continue;
    }
    const std::int64_t count = std::min(length, piece.elements - from);
    if (count > 0) result.push_back(piece.part(from, count));
    length -= count;
    from = 0;
  }
  return result;
}

dsplan_tensor tensor_of(const Piece& piece) {
  dsplan_tensor tensor{};
  tensor.data = piece.data;
  tensor.dtype = static_cast<std::int32_t>(piece.dtype);
  tensor.rank = 1;
  tensor.dims[0] = piece.elements;
  tensor.strides[0] = 1;
  return tensor;
}

}  // namespace dsplan::exec
