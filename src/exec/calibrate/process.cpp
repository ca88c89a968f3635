// What a process holds on a device beside its own memory, by when it comes: with the device, with the first product,
// with the first launch of the other kernels.
#include "exec/calibrate/operator.h"

#include "core/format.h"

namespace dsplan::exec {
namespace {

using Unit = MeasuredRow::Unit;

// Of the process; where nobody says that, of the whole device, which others may be using.
struct Counted {
  std::int64_t bytes = -1;
  bool of_process = false;
};

Counted held_by(Device& device) {
  const dsplan_usage usage = device.usage();
  if (usage.process_bytes >= 0) return {usage.process_bytes, true};
  if (usage.device_total < 0 || usage.device_free < 0) return {};
  return {usage.device_total - usage.device_free, false};
}

const char* how(const Bench& bench, const Counted& held) {
  if (bench.host()) return "the resident set, before and after";
  return held.of_process ? "NVML's figure of the process, before and after" : "cudaMemGetInfo, before and after";
}

// Runs `work` with memory that is gone afterwards; what stays is the library's.
void grows(Bench& bench, const std::string& name, std::int64_t& sum, const std::function<void()>& work) {
  bench.row(name, [&] {
    const Counted before = held_by(bench.device());
    work();
    bench.device().synchronize();
    const Counted after = held_by(bench.device());
    if (after.bytes < 0 || after.of_process != before.of_process) return bench.failed(name, "nobody counts it here");
    const std::int64_t grown = after.bytes - before.bytes;
    if (grown < 0) return bench.failed(name, formatted("shrank by {} bytes: somebody else is at work here", -grown));
    bench.add(name, Unit::PlainBytes, how(bench, after), {grown});
    sum += grown;
  });
}

// One launch of each kind of kernel that is no product.
void all_kinds(Device& device) {
  for (const DType dtype : {DType::BFloat16, DType::Float32}) {
    const Shape rows{16, 64};
    Operator(device, Op::Add, dtype, {rows, rows}, rows).forward();
    Operator(device, Op::Silu, dtype, {rows}, rows).backward();
    Operator norm(device, Op::LayerNorm, dtype, {rows, {64}, {64}}, rows, [](Node& node) { node.number = 1e-5; });
    norm.forward();
    norm.backward();
    Operator softmax(device, Op::Softmax, dtype, {rows}, rows);
    softmax.forward();
    softmax.backward();
  }
  const Shape heads{1, 2, 16, 32};
  Operator attention(device, Op::Attention, DType::BFloat16, {heads, heads, heads}, heads,
                     [](Node& node) { node.attention = AttentionKernel::Flash; });
  attention.forward();
  attention.backward();
}

}  // namespace

void measure_process(Bench& bench) {
  Device& device = bench.device();
  const Counted opened = held_by(device);
  std::int64_t sum = 0;
  if (opened.bytes >= 0 && opened.of_process && !bench.host()) {
    bench.add("context:opened", Unit::PlainBytes, "NVML's figure of the process, once the device is open",
              {opened.bytes});
    sum = opened.bytes;
  } else if (!bench.host()) {
    bench.failed("context", "NVML does not say what this process has on the device");
  }
  grows(bench, "cublaslt_handle", sum, [&] {
    Operator(device, Op::Linear, DType::BFloat16, {{64, 64}, {64, 64}}, {64, 64}).forward();
    device.synchronize();
  });
  grows(bench, "first_use:kernels", sum, [&] { all_kinds(device); });
  if (bench.host() || !opened.of_process) return;
  bench.add("context", Unit::PlainBytes, "context:opened, cublaslt_handle and first_use:kernels together", {sum});
}

}  // namespace dsplan::exec
