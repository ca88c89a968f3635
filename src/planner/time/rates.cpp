#include "planner/time/rates.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "planner/time/links.h"

namespace dsplan {
namespace {

constexpr double kGiga = 1e9;

// The tiles that a library chooses from, with what each reaches of the largest one's rate.
struct Tile {
  double m, n, rate;
};
constexpr std::array kTiles = {Tile{128, 256, 1.0}, Tile{128, 128, 0.92}, Tile{64, 128, 0.72}, Tile{64, 64, 0.55},
                               Tile{32, 32, 0.25}};
// Before a tile's first product its operands have to arrive, and at the end its results go: as so much of `k`.
constexpr double kTileStart = 150;
// Libraries fill the last wave with parts of tiles: of what rounding up to whole waves costs, so much remains.
constexpr double kWaveLoss = 0.5;
constexpr std::array kSplits = {1.0, 2.0, 4.0, 8.0, 16.0};
// Rows that do not begin on 16 bytes (hidden 10922 against 10944: 273 and 398 TFLOP/s on H100).
constexpr double kMisaligned = 0.68;
// What any kernel takes on the device.
constexpr double kKernel = 2e-6;
// Pageable memory goes through a pinned bounce buffer, one memcpy per copy: the host's own rate bounds it.
constexpr double kPageable = 6e9;
// DeepSpeedCPUAdam, all cores of a node (fact sheet 2.5: 10B parameters in 6.2 to 6.5 s).
constexpr double kHostAdam = 1.6e9;

double ceiling(double a, double b) { return std::ceil(a / b); }

double waves(double tiles, double multiprocessors) {
  const double exact = tiles / multiprocessors;
  return std::max(1.0, exact + (std::ceil(exact) - exact) * kWaveLoss);
}

// Between measured sizes in proportion to their logarithm; beyond them as at the nearest.
double measured_rate(const std::vector<std::pair<double, double>>& measured, double operations) {
  const auto above =
      std::find_if(measured.begin(), measured.end(), [&](const auto& one) { return one.first >= operations; });
  if (above == measured.begin()) return above->second;
  const auto below = std::prev(above);
  if (above == measured.end()) return below->second;
  const double part = std::log(operations / below->first) / std::log(above->first / below->first);
  return below->second * std::pow(above->second / below->second, part);
}

}  // namespace

double Rates::peak(DType dtype) const {
  if (dtype == DType::BFloat16) return peak_half_;
  return dtype == DType::Float16 ? peak_fp16_ : peak_single_;
}

double Rates::product(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k, DType dtype,
                      bool aligned) const {
  const auto b = static_cast<double>(batch);
  const auto rows = static_cast<double>(m);
  const auto columns = static_cast<double>(n);
  const auto depth = static_cast<double>(k);
  if (b * rows * columns * depth == 0) return 0;
  const double operations = 2 * b * rows * columns * depth;
  if (!measured_products_.empty()) return kernel_ + operations / measured_rate(measured_products_, operations);
  const double rate = peak(dtype) * constants_.product / multiprocessors_;
  double least = INFINITY;
  for (const Tile& tile : kTiles) {
    const double tiles = b * ceiling(rows, tile.m) * ceiling(columns, tile.n);
    for (const double split : kSplits) {
      const double seconds = waves(tiles * split, multiprocessors_) * 2 * tile.m * tile.n *
                             (depth / split + kTileStart) / (rate * tile.rate);
      least = std::min(least, seconds);
    }
  }
  if (!aligned) least /= kMisaligned;
  const double bytes =
      b * (rows * depth + depth * columns + rows * columns) * static_cast<double>(bytes_per_element(dtype));
  return kernel_ + std::max(least, bytes / memory_);
}

double Rates::attention(double flops, DType dtype) const {
  return kernel_ + flops / (peak(dtype) * constants_.attention);
}
double Rates::attention_backward(double flops, DType dtype) const {
  return kernel_ + flops / (peak(dtype) * constants_.attention_backward);
}
double Rates::memory(Bytes moved) const {
  return moved == Bytes(0) ? 0 : kernel_ + static_cast<double>(moved.value()) / memory_;
}
double Rates::elementwise(Bytes moved) const {
  return moved == Bytes(0) ? 0 : kernel_ + static_cast<double>(moved.value()) * constants_.elementwise / memory_;
}
double Rates::launch() const { return constants_.launch; }
double Rates::overlap() const { return constants_.overlap; }

double Rates::collective(Collective collective, Group group, Bytes payload) const {
  if (const Curve* measured = measured_collective(collective, links(group).ranks)) {
    const auto bytes = static_cast<double>(payload.value());
    return bytes == 0 ? 0 : bytes / measured_rate(*measured, bytes);
  }
  return collective_seconds(links(group), collective, static_cast<double>(payload.value()));
}
// Of as many ranks, else of the next fewer; what was not measured of its kind counts as a gather. nullptr: nothing was.
const Rates::Curve* Rates::measured_collective(Collective collective, std::int64_t ranks) const {
  if (ranks <= 1) return nullptr;
  auto kind = measured_collectives_.find(collective);
  if (kind == measured_collectives_.end()) kind = measured_collectives_.find(Collective::AllGather);
  if (kind == measured_collectives_.end() || kind->second.empty()) return nullptr;
  const auto above = kind->second.upper_bound(ranks);
  return &(above == kind->second.begin() ? above : std::prev(above))->second;
}
double Rates::collective_tax(Group group) const {
  const GroupLinks& on = links(group);
  if (on.ranks == 1) return 0;
  return on.nodes > 1 ? constants_.tax_network : constants_.tax_link;
}

double Rates::host_copy(Bytes moved, bool pinned) const {
  return moved == Bytes(0) ? 0 : kernel_ + static_cast<double>(moved.value()) / (pinned ? pinned_ : pageable_);
}
double Rates::host_optimizer(Elements elements) const { return static_cast<double>(elements.value()) / host_adam_; }
double Rates::nvme(Bytes moved, bool write) const {
  const double rate = write ? nvme_write_ : nvme_read_;
  return moved == Bytes(0) || rate == 0 ? 0 : static_cast<double>(moved.value()) / rate;
}

bool Rates::calibrated() const { return calibrated_; }
const std::string& Rates::basis() const { return basis_; }

Rates Rates::of(const Job& job) {
  return of(job, job.hardware ? time_constants(job.hardware->architecture) : TimeConstants{});
}

Rates Rates::of(const Job& job, const TimeConstants& constants) {
  if (const std::string lacking = missing(job); !lacking.empty()) throw Refusal("step time", lacking);
  const Hardware& hardware = *job.hardware;
  const auto tflops = [&](const char* dtype) {
    const auto found = hardware.tflops.find(dtype);
    return found == hardware.tflops.end() ? 0 : found->second * 1e12;
  };
  Rates rates;
  rates.constants_ = constants;
  rates.peak_half_ = tflops("bf16");
  rates.peak_fp16_ = tflops("fp16");
  rates.peak_single_ = tflops("fp32");  // PyTorch uses tf32 only where it is told to.
  rates.memory_ = hardware.memory_gb_per_s * kGiga * constants.memory;
  rates.kernel_ = kKernel;
  rates.multiprocessors_ = static_cast<double>(hardware.multiprocessors);
  rates.links_ = group_links(job);
  const auto ranks = static_cast<double>(machine::ranks_of_node(job));
  rates.host_share_ = static_cast<double>(machine::host_links(job)) / ranks;
  rates.pinned_ = hardware.host_link_gb_per_s * kGiga * rates.host_share_;
  rates.pageable_ = std::min(rates.pinned_, kPageable);
  rates.host_adam_ = kHostAdam / ranks;
  rates.nvme_read_ = machine::nvme_read(job) * kGiga / ranks;
  rates.nvme_write_ = machine::nvme_write(job) * kGiga / ranks;
  rates.basis_ =
      formatted("{} by its {}, efficiencies {}", hardware.name, hardware.architecture == "host" ? "file" : "data sheet",
                constants.fitted ? "fitted to published steps" : "not fitted for this architecture");
  if (job.calibration) rates.use(*job.calibration, job);
  return rates;
}

// Which rows of configs/hardware and configs/clusters a job needs.

namespace {

class Missing {
 public:
  explicit Missing(const Job& job) : job_(job), hardware_(*job.hardware) {}

  std::string all() {
    kernels();
    groups();
    host();
    std::string text;
    for (const std::string& row : rows_) text += (text.empty() ? "" : "; ") + row;
    return text;
  }

 private:
  void hardware(bool there, std::string_view row, std::string_view why) {
    if (!there) rows_.push_back(formatted("configs/hardware: {} has no \"{}\" rate ({})", hardware_.name, row, why));
  }
  void cluster(bool there, std::string_view row, std::string_view why) {
    if (there) return;
    if (job_.cluster) {
      rows_.push_back(formatted("configs/clusters: {} has no \"{}\" ({})", job_.cluster->name, row, why));
    } else {
      rows_.push_back(formatted("{}, and with it no \"{}\" ({})", kNoCluster, row, why));
    }
  }

  void kernels() {
    const Training& t = job_.training;
    const DType dtype = t.compute_dtype();
    const std::string_view peak = name(dtype);
    hardware(hardware_.tflops.contains(std::string(peak)), peak, "matrix products");
    // Losses and tables are fp32 everywhere.
    if (dtype != DType::Float32) hardware(hardware_.tflops.contains("fp32"), "fp32", "products of fp32 tensors");
    hardware(hardware_.memory_gb_per_s > 0, "memory_gb_per_s", "kernels that only read and write");
    hardware(hardware_.multiprocessors > 0, "multiprocessors", "how many tiles run at once");
  }

  void groups() {
    const Parallelism& p = job_.parallelism;
    if (p.world == 1) return;
    const std::int64_t node = machine::ranks_of_node(job_);
    if (node > 1) {
      hardware(hardware_.link_gb_per_s > 0 || hardware_.host_link_gb_per_s > 0, "link_gb_per_s",
               "collectives inside a node");
      const std::int64_t joined = machine::link_devices(hardware_);
      const bool linked = hardware_.link_gb_per_s > 0 && (joined == 0 || node <= joined);
      if (!linked && hardware_.link_gb_per_s > 0) {
        hardware(hardware_.host_link_gb_per_s > 0, "host_link_gb_per_s", "collectives among more than a pair of cards");
      }
    }
    if (p.world > node) {
      cluster(job_.cluster && job_.cluster->node_network_gb_per_s > 0, "node_network_gb_per_s",
              "collectives between nodes");
    }
  }

  void host() {
    const Training& t = job_.training;
    const bool zero = t.runtime == Runtime::DeepSpeed;
    const auto on = [&](OffloadDevice device) {
      return zero && (t.zero.offload_optimizer.device == device || t.zero.offload_param.device == device);
    };
    const bool shards = is_fsdp(t.runtime) && t.fsdp.cpu_offload;
    const bool copies = shards || on(OffloadDevice::Cpu) || on(OffloadDevice::Nvme) ||
                        (t.checkpoint.by_deepspeed() && t.checkpoint.deepspeed.cpu);
    if (copies) hardware(hardware_.host_link_gb_per_s > 0, "host_link_gb_per_s", "copies to and from the host");
    if (!on(OffloadDevice::Nvme)) return;
    cluster(machine::nvme_read(job_) > 0 || measured("file_read:"), "nvme_read_gb_per_s", "files");
    cluster(machine::nvme_write(job_) > 0 || measured("file_write:"), "nvme_write_gb_per_s", "files");
  }
  [[nodiscard]] bool measured(std::string_view family) const {
    return job_.calibration && std::any_of(job_.calibration->rates.begin(), job_.calibration->rates.end(),
                                           [&](const auto& one) { return one.first.starts_with(family); });
  }

  const Job& job_;
  const Hardware& hardware_;
  std::vector<std::string> rows_;
};

}  // namespace

std::string Rates::missing(const Job& job) {
  if (!job.hardware) return "no device is named, and with it no rate: name one with --hardware or --cluster";
  return Missing(job).all();
}

}  // namespace dsplan
