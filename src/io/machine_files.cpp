#include "io/machine_files.h"

#include "core/format.h"
#include "io/locate.h"
#include "io/own_file.h"
#include "io/text.h"

namespace dsplan {
namespace {

double rate(ObjectReader& reader, std::string_view key) {
  const std::optional<double> read = reader.number(key);
  if (read && *read < 0) reader.fault(key, formatted("\"{}\" must not be negative", key));
  return read.value_or(0);
}

std::string required_string(ObjectReader& reader, std::string_view key) {
  const std::optional<std::string> read = reader.string(key);
  if (!reader.has(key) || (read && read->empty())) reader.fault(key, formatted("\"{}\" is missing", key));
  return read.value_or("");
}

void read_tflops(ObjectReader& parent, Hardware& hardware) {
  const Value* object = parent.object("tflops");
  if (object == nullptr) return;
  ObjectReader reader(parent.document(), *object, parent.diagnostics());
  for (const char* dtype : {"fp32", "tf32", "bf16", "fp16", "fp8"}) {
    const double peak = rate(reader, dtype);
    if (peak > 0) hardware.tflops[dtype] = peak;
  }
  reader.refuse_unread("tflops");
}

void read_memory(ObjectReader& reader, Hardware& hardware) {
  const auto driver = reader.integer("driver_memory_bytes", 1, INT64_MAX);
  const auto torch = reader.integer("torch_total_bytes", 1, INT64_MAX);
  if (!driver && !torch && !reader.has("driver_memory_bytes") && !reader.has("torch_total_bytes")) {
    reader.fault("driver_memory_bytes", "one of \"driver_memory_bytes\" and \"torch_total_bytes\" is needed");
  }
  if (driver && torch && *torch > *driver) {
    reader.fault("torch_total_bytes", "torch's total cannot exceed what the driver reports");
  }
  hardware.capacity = Bytes(torch.value_or(driver.value_or(0)));
  hardware.capacity_is_driver_figure = !torch.has_value();
  if (const auto context = reader.integer("context_bytes", 0, INT64_MAX)) hardware.context = Bytes(*context);
}

}  // namespace

Hardware read_hardware(const Document& document) {
  expect_object(document, "a hardware file");
  Diagnostics diagnostics;
  ObjectReader reader(document, document.root, diagnostics);
  Hardware hardware;
  hardware.source = read_head(reader, "hardware");
  hardware.name = required_string(reader, "name");
  hardware.architecture = required_string(reader, "architecture");
  read_memory(reader, hardware);
  read_tflops(reader, hardware);
  hardware.memory_gb_per_s = rate(reader, "memory_gb_per_s");
  hardware.link_gb_per_s = rate(reader, "link_gb_per_s");
  hardware.link_devices = reader.integer("link_devices", 2, 1 << 20).value_or(0);
  hardware.host_link_gb_per_s = rate(reader, "host_link_gb_per_s");
  hardware.multiprocessors = reader.integer("multiprocessors", 1, INT64_MAX).value_or(0);
  (void)reader.object("calibration");  // report/calibration.h reads it.
  // What CUDA says of such a device; the dry device reads the rest.
  if (const Value* device = reader.object("device")) {
    ObjectReader told(document, *device, diagnostics);
    if (const auto l2 = told.integer("l2_bytes", 1, INT64_MAX)) hardware.l2 = Bytes(*l2);
  }
  reader.refuse_unread("the hardware file");
  diagnostics.throw_if_any();
  return hardware;
}

Cluster read_cluster(const Document& document) {
  expect_object(document, "a cluster file");
  Diagnostics diagnostics;
  ObjectReader reader(document, document.root, diagnostics);
  Cluster cluster;
  cluster.source = read_head(reader, "cluster");
  cluster.name = required_string(reader, "name");
  cluster.hardware = required_string(reader, "hardware");
  cluster.gpus_per_node = reader.required_integer("gpus_per_node", 1, 1 << 20, 1);
  cluster.nodes = reader.integer("nodes", 1, 1 << 20).value_or(1);
  cluster.node_network_gb_per_s = rate(reader, "node_network_gb_per_s");
  cluster.host_links = reader.integer("host_links", 1, 1 << 20);
  cluster.nvme_read_gb_per_s = rate(reader, "nvme_read_gb_per_s");
  cluster.nvme_write_gb_per_s = rate(reader, "nvme_write_gb_per_s");
  if (const auto host = reader.integer("host_memory_bytes", 1, INT64_MAX)) cluster.host_memory = Bytes(*host);
  if (const auto nvme = reader.integer("nvme_memory_bytes", 1, INT64_MAX)) cluster.nvme_memory = Bytes(*nvme);
  reader.refuse_unread("the cluster file");
  diagnostics.throw_if_any();
  return cluster;
}

Hardware load_hardware(const std::string& name_or_file) {
  return read_hardware(read_document(locate_hardware(name_or_file)));
}

Cluster load_cluster(const std::string& name_or_file) {
  return read_cluster(read_document(locate_cluster(name_or_file)));
}

}  // namespace dsplan
