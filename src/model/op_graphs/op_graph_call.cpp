#include "model/op_graphs/op_graph_call.h"

#include <algorithm>
#include <array>

#include "core/format.h"

namespace dsplan {
namespace {

// The category decides before the width (torch/_prims_common, elementwise_dtypes).
int category(DType dtype) { return is_floating(dtype) ? 2 : dtype == DType::Bool ? 0 : 1; }

}  // namespace

DType promoted(const Tensor& a, const Tensor& b) {
  if (a.dtype == b.dtype) return a.dtype;
  const int left = category(a.dtype);
  const int right = category(b.dtype);
  if (left != right) return left > right ? a.dtype : b.dtype;
  if ((a.shape.rank == 0) != (b.shape.rank == 0)) return a.shape.rank == 0 ? b.dtype : a.dtype;
  const std::int64_t wide = bytes_per_element(a.dtype) - bytes_per_element(b.dtype);
  if (wide != 0) return wide > 0 ? a.dtype : b.dtype;
  return left == 2 ? DType::Float32 : DType::Int32;  // float16 with bfloat16; int8 with uint8 is refused before.
}

std::optional<Shape> broadcast(const Shape& a, const Shape& b) {
  Shape result = a.rank >= b.rank ? a : b;
  const Shape& other = a.rank >= b.rank ? b : a;
  for (std::size_t i = 1; i <= other.rank; ++i) {
    std::int64_t& dim = result.dims[result.rank - i];
    const std::int64_t with = other.dims[other.rank - i];
    if (dim != with && dim != 1 && with != 1) return std::nullopt;
    dim = std::max(dim, with);
  }
  return result;
}

void OpCall::refuse_at(std::size_t offset, std::string message, std::string hint) {
  diagnostics_.add(document_.at(offset, std::move(message), std::move(hint)));
  throw OpFault{};
}

void OpCall::give_up_if(std::size_t faults_before) {
  if (diagnostics_.count() != faults_before) throw OpFault{};
}

void OpCall::floating(std::size_t i) {
  if (is_floating(dtype(i))) return;
  refuse_input(i, formatted("{} needs a floating-point tensor, and \"{}\" is {}", op.op.text, op.inputs[i].text,
                            name(dtype(i))));
}

void OpCall::integer(std::size_t i) {
  if (dtype(i) == DType::Int64 || dtype(i) == DType::Int32) return;
  refuse_input(i, formatted("{} takes indices of int64 or int32, and \"{}\" is {}", op.op.text, op.inputs[i].text,
                            name(dtype(i))));
}

void OpCall::same_dtype(std::size_t a, std::size_t b) {
  if (dtype(a) == dtype(b)) return;
  refuse_input(b, formatted("{} takes tensors of one dtype, and \"{}\" is {}, \"{}\" is {}", op.op.text,
                            op.inputs[a].text, name(dtype(a)), op.inputs[b].text, name(dtype(b))));
}

std::int64_t OpCall::whole(std::string_view key, std::int64_t least, std::int64_t most,
                           std::optional<std::int64_t> fallback) {
  const std::size_t before = diagnostics_.count();
  const std::optional<std::int64_t> read = attributes.integer(key, least, most);
  give_up_if(before);
  if (read) return *read;
  if (!fallback) refuse(formatted("{} needs \"{}\"", op.op.text, key));
  return *fallback;
}

double OpCall::number(std::string_view key, std::optional<double> fallback) {
  const std::size_t before = diagnostics_.count();
  const std::optional<double> read = attributes.number(key);
  give_up_if(before);
  if (read) return *read;
  if (!fallback) refuse(formatted("{} needs \"{}\"", op.op.text, key));
  return *fallback;
}

bool OpCall::flag(std::string_view key, bool fallback) {
  const std::size_t before = diagnostics_.count();
  const std::optional<bool> read = attributes.boolean(key);
  give_up_if(before);
  return read.value_or(fallback);
}

std::string OpCall::choice(std::string_view key, std::initializer_list<std::string_view> choices,
                           std::string_view fallback) {
  const std::size_t before = diagnostics_.count();
  const std::optional<std::string> read = attributes.choice(key, choices);
  give_up_if(before);
  return read.value_or(std::string(fallback));
}

std::vector<std::int64_t> OpCall::wholes(std::string_view key) {
  const Value* value = attributes.find(key);
  if (value == nullptr) refuse(formatted("{} needs \"{}\"", op.op.text, key));
  if (value->is(Value::Kind::Integer)) return {value->integer};
  if (!value->is(Value::Kind::Array)) refuse_key(key, formatted("\"{}\" must be a list of integers", key));
  std::vector<std::int64_t> numbers;
  for (const Value& item : value->items) {
    if (!item.is(Value::Kind::Integer)) refuse_at(item.offset, formatted("\"{}\" holds integers", key), {});
    numbers.push_back(item.integer);
  }
  return numbers;
}

std::size_t OpCall::dimension(std::string_view key, std::size_t rank, std::optional<std::int64_t> fallback) {
  const std::int64_t most = static_cast<std::int64_t>(std::max<std::size_t>(rank, 1));
  const std::int64_t dim = whole(key, -most, most - 1, fallback);
  return static_cast<std::size_t>(dim < 0 ? dim + most : dim);
}

std::vector<bool> OpCall::dimensions(std::string_view key, std::size_t rank) {
  std::vector<bool> chosen(rank, !attributes.has(key));
  if (!attributes.has(key)) return chosen;
  const auto most = static_cast<std::int64_t>(std::max<std::size_t>(rank, 1));
  for (std::int64_t dim : wholes(key)) {
    if (dim < -most || dim >= most) {
      refuse_key(key, formatted("\"{}\" must be from {} to {}, not {}", key, -most, most - 1, dim));
    }
    if (rank == 0) continue;
    const auto at = static_cast<std::size_t>(dim < 0 ? dim + most : dim);
    if (chosen[at]) refuse_key(key, formatted("dimension {} is named twice", dim));
    chosen[at] = true;
  }
  return chosen;
}

std::optional<DType> OpCall::dtype_named(std::string_view key) {
  if (!attributes.has(key)) return std::nullopt;
  const std::string text =
      choice(key, {"float16", "bfloat16", "float32", "float64", "int64", "int32", "int8", "uint8", "bool"}, "float32");
  const auto named = [&](const OpGraphDType& row) { return row.name == text; };
  return std::find_if(kOpGraphDTypes.begin(), kOpGraphDTypes.end(), named)->dtype;
}

}  // namespace dsplan
