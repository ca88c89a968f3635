// The device's kernels (src/cuda), compiled for the host: every launch of small operators and of whole training runs is
// made twice, by the host's kernels and by the device's, and what they write is compared. What is left for a GPU to
// show is that nvcc's code does the same: with DSPLAN_TEST_BACKEND=build/release/libdsplan_cuda.so in the environment
// these very tests run on it.
#include <doctest/doctest.h>

#include <cstdlib>

#include "cuda/kernels.h"
#include "exec/attributes.h"
#include "exec_walk.h"
#include "running.h"
#include "small_graphs.h"
#include "twice.h"

using namespace dsplan;

namespace {

using twice::expect_no_faults;
using twice::host::launch_error;

// Forward and backward of one small graph, in one dtype.
void walk(const small_graphs::Case& test, DType dtype) {
  small_graphs::Small small;
  small.floats = dtype;
  test.build(small);
  walking::Walk walk(small.graph, true);
  double order = 1;
  for (const TensorId id : small.graph.tensors.ids()) {
    const auto tensor = TensorId(id);
    if (small.graph.tensors[id].producer != kNone) continue;
    std::vector<double> values = small_graphs::waves(small.graph, tensor, order);
    order += 1;
    for (double& value : values) value += test.shift;
    if (const auto fixed = test.fixed.find(tensor); fixed != test.fixed.end()) values = fixed->second;
    walk.set_values(tensor, values);
  }
  walk.forward();
  walk.set_gradient(small.result, small_graphs::waves(small.graph, small.result, 9));
  walk.backward_from(small.result);
}

// Kernels of walks are compared with those of a backend: the one that the environment names, or `path`.
class Between {
 public:
  explicit Between(const char* path = std::getenv("DSPLAN_TEST_BACKEND")) {
    walking::launcher = twice::launch;
    if (path == nullptr) return;
    const exec::Plugin plugin = exec::load_plugin_from(path);
    REQUIRE_MESSAGE(plugin.table != nullptr, plugin.why);
    twice::backend() = plugin.table;
  }
  ~Between() {
    walking::launcher = exec::host::launch;
    twice::backend() = nullptr;
  }
  Between(const Between&) = delete;
  Between& operator=(const Between&) = delete;
};

// A dense tensor with memory of its own.
struct Own {
  std::vector<unsigned char> bytes;
  dsplan_tensor tensor{};

  Own(std::vector<std::int64_t> dims, DType dtype, double scale = 1) {
    std::int64_t count = 1;
    tensor.rank = static_cast<std::int32_t>(dims.size());
    for (std::size_t d = dims.size(); d-- > 0;) {
      tensor.dims[d] = dims[d];
      tensor.strides[d] = count;
      count *= dims[d];
    }
    bytes.resize(static_cast<std::size_t>(count * bytes_per_element(dtype)));
    tensor.data = bytes.data();
    tensor.dtype = static_cast<std::int32_t>(dtype);
    std::vector<double> values(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      values[static_cast<std::size_t>(i)] = scale * small_graphs::wave(i, static_cast<double>(count));
    }
    exec::host::store(exec::host::strided(tensor), 0, count, values.data());
  }
};

// One launch of both; of a graph's operator, or of a body that works on ranges.
void launched(Body body, Op op, const std::vector<dsplan_tensor>& in, const std::vector<dsplan_tensor>& made,
              double number = 0) {
  std::vector<std::int64_t> integers(DSPLAN_CODES, 0);
  integers[DSPLAN_INPUTS] = static_cast<std::int64_t>(in.size());
  integers[DSPLAN_FORWARD_MADE] = 1;
  integers.push_back(DSPLAN_SLOT(static_cast<std::int64_t>(SlotKind::Output), 0));
  dsplan_launch call{};
  call.size = sizeof call;
  call.body = static_cast<std::uint32_t>(body);
  call.op = static_cast<std::uint32_t>(op);
  call.inputs = in.data();
  call.input_count = static_cast<std::uint32_t>(in.size());
  call.made = made.data();
  call.made_count = static_cast<std::uint32_t>(made.size());
  call.integers = integers.data();
  call.integer_count = static_cast<std::uint32_t>(integers.size());
  call.numbers = &number;
  call.number_count = 1;
  INFO(name(body) << " " << name(op));
  CHECK_MESSAGE(twice::launch(call) == 0, launch_error());
  expect_no_faults();
}

// "... has no such kernel", whatever else the launch lacks.
bool has_none(Body body, Op op, bool device) {
  std::vector<std::int64_t> integers(DSPLAN_CODES, 0);
  const double number = 0;
  const Own gradient({1}, DType::Float32);
  dsplan_launch call{};
  call.size = sizeof call;
  call.body = static_cast<std::uint32_t>(body);
  call.op = static_cast<std::uint32_t>(op);
  call.inputs = &gradient.tensor;
  call.input_count = 1;
  call.integers = integers.data();
  call.integer_count = DSPLAN_CODES;
  call.numbers = &number;
  call.number_count = 1;
  std::string said;
  if (device) {
    try {
      cuda::launch(call, twice::queue());
    } catch (const std::exception& refused) {
      said = refused.what();
    }
  } else if (exec::host::launch(call) != 0) {
    said = launch_error();
  }
  return said.find("has no such kernel") != std::string::npos;
}

}  // namespace

namespace {

void walk_all(const std::vector<DType>& dtypes) {
  for (const DType dtype : dtypes) {
    for (const auto& cases :
         {small_graphs::elementwise_cases(), small_graphs::shaping_cases(), small_graphs::spreading_cases(),
          small_graphs::picking_cases(), small_graphs::placing_cases(), small_graphs::ordering_cases(),
          small_graphs::choosing_cases(), small_graphs::large_cases(), small_graphs::parallel_cases()}) {
      for (const small_graphs::Case& test : cases) {
        INFO(test.name << " " << name(dtype));
        walk(test, dtype);
        expect_no_faults();
      }
    }
  }
}

}  // namespace

TEST_CASE("the device's kernels compute what the host's do, operator by operator") {
  const Between between;
  walk_all({DType::Float64, DType::Float32, DType::BFloat16, DType::Float16});
}

TEST_CASE("likewise through copies to a loaded backend and back") {
  if (std::getenv("DSPLAN_TEST_BACKEND") != nullptr) return;  // Then everything goes that way.
  const Between between(DSPLAN_TEST_BACKENDS "/libdsplan_backend_on_host.so");
  walk_all({DType::BFloat16});
}

TEST_CASE("many indices are sorted, and their gradients summed in the order of their places") {
  const Between between;
  for (const DType dtype : {DType::Float32, DType::BFloat16}) {
    small_graphs::Case test{"embedding of many", [](small_graphs::Small& s) {
                              const TensorId ids = s.input({4, 1000}, false, DType::Int64);
                              s.result = s.add(Op::Embedding, {s.input({50, 8}), ids}, {4, 1000, 8});
                            }};
    for (int i = 0; i < 4000; ++i) test.fixed[TensorId(0)].push_back(i * i % 47);
    walk(test, dtype);
    expect_no_faults();
  }
}

TEST_CASE("pieces of several ranks become one as on the host") {
  for (const DType dtype : {DType::Float64, DType::Float32, DType::Float16, DType::BFloat16, DType::Int64, DType::Int32,
                            DType::Int8, DType::UInt8, DType::Bool}) {
    for (const dsplan_reduction how : {DSPLAN_SUM, DSPLAN_MAX}) {
      constexpr std::int64_t kCount = 700;
      const auto bytes = static_cast<std::size_t>(kCount * bytes_per_element(dtype));
      std::vector<std::vector<unsigned char>> pieces(3, std::vector<unsigned char>(bytes));
      std::vector<const void*> at;
      for (std::size_t k = 0; k < pieces.size(); ++k) {
        std::vector<double> values(kCount);
        for (std::size_t i = 0; i < kCount; ++i)
          values[i] = small_graphs::wave(static_cast<std::int64_t>(i), 40.0 * static_cast<double>(k)) * 50;
        exec::host::store_run(pieces[k].data(), dtype, 1, kCount, values.data());
        at.push_back(pieces[k].data());
      }
      std::vector<unsigned char> ours(bytes);
      std::vector<unsigned char> theirs(bytes);
      CHECK(cuda::combine(twice::queue(), how, dtype, ours.data(), at.data(), 3, kCount));
      CHECK(exec::combine_pieces(how, dtype, theirs.data(), at.data(), 3, kCount));
      INFO(name(dtype) << " " << how);
      CHECK(ours == theirs);
    }
  }
}

TEST_CASE("the device's kernels compute what the host's do, in whole training runs") {
  const Between between;
  exec::HostOptions machine;
  machine.kernels = twice::launch_or_throw;
  const exec::HostBackend backend(machine);
  running::Options options;
  options.backend = &backend.table();
  for (const char* config : {running::kGpt2, running::kGpt2Dropout, running::kLlama}) {
    for (const DType dtype : {DType::BFloat16, DType::Float32}) {
      for (const Attention attention : {Attention::Math, Attention::Flash, Attention::MemoryEfficient}) {
        for (const int stage : {-1, 2, 3}) {
          const ModelSpec model = running::model(config);
          const bool grouped = model.dims.heads != model.dims.kv_heads;
          if ((dtype == DType::Float32 && attention == Attention::Flash) ||
              (grouped && attention == Attention::MemoryEfficient)) {
            continue;  // Which no framework does.
          }
          Job job = lowered::job(stage, stage < 0 ? 1 : 2);
          lowered::set_dtype(job, dtype);
          job.training.attention = attention;
          job.training.grad_accum = 2;
          job.training.gradient_clipping = 0.5;
          const exec::RunResult result = running::run(model, job, options);
          INFO(config << " " << name(dtype) << " attention " << static_cast<int>(attention) << " stage " << stage);
          CHECK_MESSAGE(result.message == "", result.message);
          expect_no_faults();
        }
      }
    }
  }
}

namespace {

// What no plan here takes.
void launch_the_rest() {
  Own flags({1, 1, 5, 7}, DType::Bool);
  launched(Body::Forward, Op::GreaterEqual,
           {Own({1}, DType::Int64).tensor, Own({1}, DType::Int64).tensor, Own({5, 1}, DType::Int64, 9).tensor,
            Own({7}, DType::Int64, 9).tensor},
           {flags.tensor});
  Own compared({5, 7}, DType::Bool);
  launched(Body::Forward, Op::GreaterEqual, {Own({5, 1}, DType::Int64, 9).tensor, Own({7}, DType::Int64, 9).tensor},
           {compared.tensor});
  Own floats({40}, DType::BFloat16);
  launched(Body::Forward, Op::SubScalar, {Own({40}, DType::BFloat16).tensor}, {floats.tensor}, 0.3);
  launched(Body::CloneGradient, Op::Input, {Own({40}, DType::BFloat16).tensor}, {floats.tensor});
  launched(Body::Clip, Op::Input, {}, {floats.tensor}, 0.25);
  launched(Body::Nothing, Op::Input, {}, {floats.tensor});
  launched(Body::RandomState, Op::Input, {}, {Own({4}, DType::Int64, 9).tensor});
  Own verdict({1}, DType::Int64, 0);
  launched(Body::OverflowScan, Op::Input, {Own({300}, DType::Float32).tensor}, {verdict.tensor});
  CHECK(twice::values_of(verdict.tensor).front() == 0);
  Own broken({300}, DType::Float16, 1e9);
  launched(Body::OverflowScan, Op::Input, {broken.tensor}, {verdict.tensor});
  CHECK(twice::values_of(verdict.tensor).front() == 1);
  Own squares({1}, DType::Float64);
  launched(Body::SquareSum, Op::Input, {Own({5000}, DType::Float32).tensor}, {squares.tensor});
}

}  // namespace

namespace {

// Ranks that share layers, with accumulated, clipped steps.
Job shared_layers(int stage, DType dtype) {
  Job job = lowered::job(stage, 1);
  lowered::set_dtype(job, dtype);
  job.training.attention = Attention::Math;
  job.training.grad_accum = 2;
  job.training.gradient_clipping = 0.5;
  job.parallelism.tp = 2;
  job.parallelism.world = 2;
  return job;
}

// What `dsplan run` refuses on a device by name.
bool quantizes(Body body) { return body == Body::Quantize || body == Body::Dequantize; }

}  // namespace

TEST_CASE("the device's kernels compute what the host's do where ranks share layers") {
  const Between between;
  for (const DType dtype : {DType::Float32, DType::BFloat16}) {
    for (const small_graphs::Case& test : small_graphs::parallel_cases()) {
      INFO(test.name << " " << name(dtype));
      walk(test, dtype);
      expect_no_faults();
    }
  }
  exec::HostOptions machine;
  machine.kernels = twice::launch_or_throw;
  const exec::HostBackend backend(machine);
  running::Options options;
  options.backend = &backend.table();
  for (const char* config : {running::kGpt2Dropout, running::kLlama}) {
    for (const DType dtype : {DType::Float32, DType::BFloat16}) {
      for (const int stage : {-1, 3}) {
        const exec::RunResult result = running::run(running::model(config), shared_layers(stage, dtype), options);
        INFO(config << " " << name(dtype) << " stage " << stage);
        CHECK_MESSAGE(result.message == "", result.message);
        expect_no_faults();
      }
    }
  }
}

TEST_CASE("no kernel is left that was not compared") {
  const Between between;
  launch_the_rest();
  walk_all({DType::BFloat16});
  exec::HostOptions machine;
  machine.kernels = twice::launch_or_throw;
  const exec::HostBackend backend(machine);
  running::Options options;
  options.backend = &backend.table();
  for (const char* config : {running::kGpt2Dropout, running::kLlama}) {
    Job job = lowered::job(3, 2);
    job.training.grad_accum = 2;
    job.training.gradient_clipping = 0.5;
    CHECK(running::run(running::model(config), job, options).message == "");
  }
  CHECK(running::run(running::model(running::kLlama), shared_layers(2, DType::BFloat16), options).message == "");
  expect_no_faults();
  std::string missing;
  for (std::uint32_t body = 0; body < kBodies; ++body) {
    const bool nodes = body <= static_cast<std::uint32_t>(Body::Backward);
    for (std::uint32_t op = 0; op < (nodes ? kOps : 1); ++op) {
      if (has_none(static_cast<Body>(body), static_cast<Op>(op), false)) continue;
      if (quantizes(static_cast<Body>(body))) continue;
      const auto& seen = twice::findings().kernels;
      if (std::any_of(seen.begin(), seen.end(),
                      [&](const auto& at) { return std::get<0>(at) == body && std::get<1>(at) == op; })) {
        continue;
      }
      missing += nodes ? dsplan::formatted("{} {}, ", name(static_cast<Op>(op)), name(static_cast<Body>(body)))
                       : dsplan::formatted("{}, ", name(static_cast<Body>(body)));
    }
  }
  CHECK(missing == "");
}

TEST_CASE("the device has a kernel wherever the host has one, and none else") {
  for (std::size_t body = 0; body < kBodies; ++body) {
    const bool nodes = body <= static_cast<std::size_t>(Body::Backward);
    for (std::size_t op = 0; op < (nodes ? kOps : 1); ++op) {
      INFO(name(static_cast<Body>(body)) << " " << name(static_cast<Op>(op)));
      if (quantizes(static_cast<Body>(body))) {
        CHECK(has_none(static_cast<Body>(body), static_cast<Op>(op), true));
        continue;
      }
      CHECK(has_none(static_cast<Body>(body), static_cast<Op>(op), true) ==
            has_none(static_cast<Body>(body), static_cast<Op>(op), false));
    }
  }
}
