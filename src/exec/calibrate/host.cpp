// What the host itself does for a plan: Adam over states that lie there, and files.
#include <algorithm>
#include <barrier>
#include <thread>
#include <vector>

#include "core/format.h"
#include "core/program.h"
#include "exec/calibrate/bench.h"
#include "exec/host/host_backend.h"
#include "exec/host/kernels.h"

namespace dsplan::exec {
namespace {

using Unit = MeasuredRow::Unit;

// One AdamW step over `elements`, fp32 throughout.
class AdamStep {
 public:
  AdamStep(Device& device, std::int64_t elements) : device_(device), elements_(elements) {
    for (int i = 0; i < 4; ++i) {
      memory_.push_back(
          std::make_unique<DeviceBlock>(device, Space::Device, storage(Elements(elements), DType::Float32)));
      device.fill(memory_.back()->data(), Space::Device, 0, memory_.back()->bytes());
    }
  }

  void run() {
    std::vector<dsplan_tensor> tensors;
    for (const auto& each : memory_) {
      dsplan_tensor tensor{};
      tensor.data = each->data();
      tensor.dtype = static_cast<std::int32_t>(DType::Float32);
      tensor.rank = 1;
      tensor.dims[0] = elements_;
      tensor.strides[0] = 1;
      tensors.push_back(tensor);
    }
    const std::array<std::int64_t, 2> integers = {1, 2};
    const std::array<double, 7> numbers = {1e-3, 0.9, 0.999, 1e-8, 0.01, 0, 1};
    dsplan_launch what{};
    what.size = sizeof what;
    what.body = static_cast<std::uint32_t>(Body::Update);
    what.inputs = &tensors[3];
    what.input_count = 1;
    what.made = tensors.data();
    what.made_count = 3;
    what.integers = integers.data();
    what.integer_count = integers.size();
    what.numbers = numbers.data();
    what.number_count = numbers.size();
    device_.launch(what);
  }

 private:
  Device& device_;
  std::int64_t elements_;
  std::vector<std::unique_ptr<DeviceBlock>> memory_;
};

// Nanoseconds until every core has stepped over its own part.
std::vector<std::int64_t> steps_on_all_cores(int cores, std::int64_t elements, int samples) {
  HostOptions options;
  options.kernels = host_kernels;
  const HostBackend backend(options);
  std::vector<std::int64_t> times;
  Bench::Clock::time_point begin;
  std::barrier start(cores, [&]() noexcept { begin = Bench::Clock::now(); });
  std::barrier end(cores);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(cores));
  std::vector<std::jthread> threads;
  for (int core = 0; core < cores; ++core) {
    threads.emplace_back([&, core] {
      try {
        Device device(backend.table(), {core, 0, {}});
        AdamStep step(device, elements / cores);
        step.run();
        for (int sample = 0; sample < samples; ++sample) {
          start.arrive_and_wait();
          step.run();
          end.arrive_and_wait();
          const auto taken = std::chrono::duration_cast<std::chrono::nanoseconds>(Bench::Clock::now() - begin).count();
          if (core == 0) times.push_back(std::max<std::int64_t>(taken, 1));
          end.arrive_and_wait();  // `begin` was read by everybody.
        }
      } catch (...) {
        failures[static_cast<std::size_t>(core)] = std::current_exception();
        start.arrive_and_drop();
        end.arrive_and_drop();
      }
    });
  }
  threads.clear();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return times;
}

}  // namespace

void measure_adam(Bench& bench) {
  const std::int64_t elements = bench.options().quick ? std::int64_t{1} << 18 : std::int64_t{1} << 23;
  const std::string row = formatted("host_adam:{}", elements);
  bench.row(row, [&] {
    const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    const std::vector<std::int64_t> times = steps_on_all_cores(cores, elements, bench.options().quick ? 3 : 7);
    bench.add(
        row, Unit::ElementsPerSecond,
        formatted("dsplan's own AdamW in fp32 on {} threads together; {} samples, wall clock", cores, times.size()),
        Bench::per_second(times, elements));
  });
}

// Sizes that a system keeps in its memory are measured as such, and said to be.
void measure_files(Bench& bench) {
  const std::int64_t bytes = bench.options().quick ? 4 << 20 : 256 << 20;
  Device& device = bench.device();
  bench.row(formatted("files of {} bytes", bytes), [&] {
    const DeviceBlock memory(device, Space::Pinned, Bytes(bytes));
    device.fill(memory.data(), Space::Pinned, 0x5a, memory.bytes());
    device.synchronize();
    dsplan_file* file = device.files().create("dsplan-calibrate", Bytes(bytes));
    std::vector<std::int64_t> written;
    std::vector<std::int64_t> read;
    const auto timed = [&](std::vector<std::int64_t>& into, auto&& work) {
      const Bench::Clock::time_point begin = Bench::Clock::now();
      work();
      const auto taken = std::chrono::duration_cast<std::chrono::nanoseconds>(Bench::Clock::now() - begin);
      into.push_back(std::max<std::int64_t>(taken.count(), 1));
    };
    try {
      for (int sample = 0; sample < 3; ++sample) {
        timed(written, [&] { device.files().write(file, Bytes(0), memory.data(), Bytes(bytes)); });
        timed(read, [&] { device.files().read(file, Bytes(0), memory.data(), Bytes(bytes)); });
        bench.throw_if_stopped();
      }
    } catch (...) {
      device.files().remove(file);
      throw;
    }
    device.files().remove(file);
    const char* how = "3 samples, wall clock; through the system's own cache of files";
    bench.add(formatted("file_write:{}", bytes), Unit::BytesPerSecond, how, Bench::per_second(written, bytes));
    bench.add(formatted("file_read:{}", bytes), Unit::BytesPerSecond, how, Bench::per_second(read, bytes));
  });
}

}  // namespace dsplan::exec
