// The machines: one device, how many of them, and how they are linked. Read from configs/hardware and
// configs/clusters by `io`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/units.h"

namespace dsplan {

// One accelerator. Rates are floating point because nothing exact follows from them; bytes are integers.
struct Hardware {
  std::string name;  // "h100-sxm"
  std::string source;
  std::string architecture;  // "sm_90", "gfx942"
  // What cudaMemGetInfo calls total, where a source has printed it; otherwise derived from the driver's figure
  // (nvidia-smi), which is an upper bound, and `capacity_is_driver_figure` says so.
  Bytes capacity;
  bool capacity_is_driver_figure = false;
  std::optional<Bytes> context;          // CUDA context; nullopt: uncalibrated.
  std::map<std::string, double> tflops;  // Dense peak by dtype: "fp32", "tf32", "bf16", "fp16", "fp8".
  double memory_gb_per_s = 0;            // HBM or GDDR.
  double link_gb_per_s = 0;              // Device to device inside a node, one direction; 0: none.
  std::int64_t link_devices = 0;         // How many devices that link joins (2: a bridge); 0: all of a node.
  double host_link_gb_per_s = 0;         // PCIe, one direction, as measured where known.
  std::int64_t multiprocessors = 0;
  std::optional<Bytes> l2;  // The cache's, where a device has told it.
};

// Context of an uncalibrated device (interface.md, Defaults).
inline constexpr Bytes kUncalibratedContext{600LL * 1024 * 1024};

struct Cluster {
  std::string name;
  std::string source;
  std::string hardware;  // Name of a Hardware.
  std::int64_t gpus_per_node = 1;
  std::int64_t nodes = 1;
  double node_network_gb_per_s = 0;  // All NICs of one node together, one direction; 0: unknown.
  std::optional<Bytes> host_memory;  // Per node.
  std::optional<Bytes> nvme_memory;  // What files may take, per node.
  // Links between host and devices that carry at once, in one node; nullopt: one for each device.
  std::optional<std::int64_t> host_links;
  double nvme_read_gb_per_s = 0;  // All files of one node together; 0: unknown.
  double nvme_write_gb_per_s = 0;
};

}  // namespace dsplan
