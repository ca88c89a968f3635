// Our own descriptions of devices and nodes (configs/hardware, configs/clusters).
#pragma once

#include <string>

#include "core/cluster.h"
#include "core/document.h"

namespace dsplan {

// Kind "hardware": {"dsplan": 1, "kind": "hardware", "source", "name", "architecture", "driver_memory_bytes",
// "torch_total_bytes", "context_bytes", "tflops": {"fp32", "tf32", "bf16", "fp16", "fp8"}, "memory_gb_per_s",
// "link_gb_per_s", "host_link_gb_per_s", "multiprocessors"}. One of the two memory sizes is required: the capacity is
// torch's total where it is known, else what the driver reports. Bytes are integers, rates are GB/s (10^9) in one
// direction and TFLOP/s of dense matrices. "calibration" holds what `dsplan calibrate` measured (report/calibration.h).
[[nodiscard]] Hardware read_hardware(const Document& document);

// Kind "cluster": {"dsplan": 1, "kind": "cluster", "source", "name", "hardware", "gpus_per_node", "nodes",
// "node_network_gb_per_s", "host_links", "nvme_read_gb_per_s", "nvme_write_gb_per_s", "host_memory_bytes",
// "nvme_memory_bytes" (what files of one node may take)}; nodes default to 1, what comes after may be absent (unknown).
[[nodiscard]] Cluster read_cluster(const Document& document);

// A bundled name ("h100-sxm", "8xh100") or a file. An unknown name is refused with the nearest bundled one.
[[nodiscard]] Hardware load_hardware(const std::string& name_or_file);
[[nodiscard]] Cluster load_cluster(const std::string& name_or_file);

}  // namespace dsplan
