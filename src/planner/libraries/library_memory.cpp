#include "planner/libraries/library_memory.h"

#include <charconv>

namespace dsplan {
namespace {

constexpr Bytes kLarge{32LL << 20};
constexpr Bytes kUsual{2 * 4096 * 1024 + 8 * 16 * 1024};
constexpr Bytes kLt{1 << 20};

// One communicator whose calls go around rings, with the most channels: the high end.
constexpr Bytes kCommunicator = nccl_tables(kNcclChannels) + nccl_ring(kNcclChannels);

// "sm_90" -> 9, "sm_103" -> 10.
std::optional<int> major_capability(std::string_view architecture) {
  if (!architecture.starts_with("sm_")) return std::nullopt;
  int number = 0;
  const char* end = architecture.data() + architecture.size();
  const auto [stop, error] = std::from_chars(architecture.data() + 3, end, number);
  if (error != std::errc() || stop == architecture.data() + 3) return std::nullopt;
  return number / 10;
}

}  // namespace

std::optional<LibraryWorkspaces> library_workspaces(const Job& job) {
  if (!job.hardware || job.training.level == Level::Dispatch) return std::nullopt;
  const std::optional<int> capability = major_capability(job.hardware->architecture);
  if (!capability) return std::nullopt;
  const Version& torch = job.training.torch;
  const bool later = torch >= Version{2, 12, 0};
  LibraryWorkspaces sizes;
  sizes.cublas = *capability == 9 || (later && (*capability == 10 || *capability == 12)) ? kLarge : kUsual;
  sizes.cublaslt = later ? Bytes(0) : kLt;
  sizes.lt_per_call = torch < Version{2, 9, 0};
  if (job.calibration) {
    sizes.cublas = job.calibration->cublas_workspace.value_or(sizes.cublas);
    sizes.cublaslt = job.calibration->cublaslt_workspace.value_or(sizes.cublaslt);
  }
  return sizes;
}

Bytes context_of(const Job& job) { return job.context.value_or(kUncalibratedContext); }

std::int64_t communicator_count(const Job& job) {
  const Parallelism& parallel = job.parallelism;
  return (parallel.dp > 1 ? 1 : 0) + (parallel.tp * parallel.sp > 1 ? 1 : 0);
}

Bytes communicators_of(const Job& job) { return job.communicators.value_or(kCommunicator * communicator_count(job)); }

}  // namespace dsplan
