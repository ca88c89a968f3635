// Bodies that work on ranges of buffers, and those that autograd and the loop bring along. Inputs and results are
// stated in exec/host/flat.cpp; ranges are tensors of one dimension.
#include "core/program.h"
#include "cuda/kernels.h"

namespace dsplan::cuda {
namespace {

const dsplan_tensor& input(const dsplan_launch& call, std::size_t i) {
  expect(i < call.input_count && call.inputs[i].data != nullptr, "an input is missing");
  return call.inputs[i];
}

const dsplan_tensor& made(const dsplan_launch& call, std::size_t i) {
  expect(i < call.made_count && call.made[i].data != nullptr, "a result is missing");
  return call.made[i];
}

double number(const dsplan_launch& call, std::size_t i) {
  expect(i < call.number_count, "a number is missing");
  return call.numbers[i];
}

Arithmetic wider(const dsplan_tensor& a, const dsplan_tensor& b) {
  const bool wide = dtype_of(a) == DType::Float64 || dtype_of(b) == DType::Float64;
  return wide ? Arithmetic::Double : Arithmetic::Single;
}

// made[0] += inputs[0].
void add(const dsplan_launch& call, const Queue& queue) {
  const dsplan_tensor& to = made(call, 0);
  expect_count(to, count_of(input(call, 0)), "what is added to");
  map(queue, wider(to, input(call, 0)), to, {Function::Add, {&to, &input(call, 0)}});
}

// made[0] = inputs[0] + inputs[1]; made[0] may be inputs[0].
void add_gradients(const dsplan_launch& call, const Queue& queue) {
  const dsplan_tensor& to = made(call, 0);
  expect_dims(to, dims_of(input(call, 0)), "the sum of gradients");
  expect_dims(to, dims_of(input(call, 1)), "the sum of gradients");
  map(queue, wider(to, input(call, 0)), to, {Function::Add, {&input(call, 0), &input(call, 1)}});
}

void load_parameter(const dsplan_launch& call, const Queue& queue) {
  const dsplan_tensor& to = made(call, 0);
  expect(call.integer_count > 0, "an integer is missing");
  const std::int64_t kind = call.integers[0];
  expect(kind >= 0 && kind <= 2, "no such initial values");
  if (kind != 2) return fill(queue, to, static_cast<double>(kind));
  normal_values(queue, to, number(call, 0), call.random);
}

}  // namespace

bool run_flat(const dsplan_launch& call, const Queue& queue) {
  switch (static_cast<Body>(call.body)) {
    case Body::Clear:
    case Body::Nothing:
    case Body::RandomState:
      for (std::size_t i = 0; i < call.made_count; ++i) fill(queue, made(call, i), 0);
      return true;
    case Body::Copy:
    case Body::CloneGradient: copy_in_order(queue, input(call, 0), made(call, 0)); return true;
    case Body::Add: add(call, queue); return true;
    case Body::Scale:
    case Body::Clip:
      map(queue, arithmetic_of(dtype_of(made(call, 0))), made(call, 0),
          {Function::MulNumber, {&made(call, 0)}, number(call, 0)});
      return true;
    case Body::SquareSum: square_sum(queue, input(call, 0), made(call, 0)); return true;
    case Body::OverflowScan: overflow_scan(queue, input(call, 0), made(call, 0)); return true;
    case Body::Update: update(queue, call); return true;
    case Body::LoadParameter: load_parameter(call, queue); return true;
    case Body::LossSeed: fill(queue, made(call, 0), number(call, 0)); return true;
    case Body::AddGradients: add_gradients(call, queue); return true;
    default: return false;
  }
}

}  // namespace dsplan::cuda
