#include "planner/lower/runtimes/zero3/partition_home.h"

#include <algorithm>
#include <utility>

namespace dsplan {
namespace {

constexpr What kPartition{Role::Parameters, "parameter partition", "zero/partition_parameters.py, _partition_param"};

class DeviceHome final : public PartitionHome {
 public:
  using PartitionHome::PartitionHome;
  [[nodiscard]] Variable empty(Bytes bytes, DType dtype, const What& what, ParameterId parameter) override {
    return eager_.empty(bytes, dtype, what, parameter);
  }
  void join() override;
  [[nodiscard]] bool away() const override { return false; }
};

// zero/utils.py, defragment: through the host, so that old and new never coexist on the device.
void DeviceHome::join() {
  std::vector<Variable> parts;
  for (const NamedParameter& p : sharding_.trained()) parts.push_back(std::move(own_[static_cast<std::size_t>(p.id)]));
  const Variable staging = eager_.empty(
      trained_bytes(sharding_.partition()), sharding_.trained_dtype(),
      {Role::Parameters, "staging of parameter partitions", "zero/utils.py, defragment"}, kNone, Space::Pageable);
  eager_.work().read(parts).write(staging).run(Body::Copy, "copy partitions to host");
  let_go(parts);
  eager_.emitter().empty_cache();
  flat_ = eager_.empty(
      trained_bytes(sharding_.partition()), sharding_.trained_dtype(),
      {Role::Parameters, "parameter partitions", "zero/stage3.py, _create_fp16_partitions_with_defragmentation"});
  eager_.copy(flat_, staging, "copy partitions to device");
}

class HostHome : public PartitionHome {
 public:
  using PartitionHome::PartitionHome;
  [[nodiscard]] Variable empty(Bytes bytes, DType dtype, const What& what, ParameterId parameter) override {
    return eager_.empty_on_host(bytes, dtype, what, training_.zero.offload_param.pin_memory, parameter);
  }
  void join() override;

 protected:
  virtual void move_to_flat(ParameterId id);
  virtual void reserve_for_updates() {}
};

// _create_param_groups_fp16_flat_cpu_memory and _move_to_flat_buffer: one buffer, pinned whatever pin_memory says. Of
// partitions on NVMe it has room for no more than max_in_cpu, and takes whole sub-groups.
void HostHome::join() {
  const std::int64_t elements = sharding_.in_flat();
  if (elements > 0) {
    flat_ = eager_.empty_on_host(
        trained_bytes(elements), sharding_.trained_dtype(),
        {Role::Parameters, "parameter partitions", "zero/stage3.py, _create_fp16_partitions_with_defragmentation",
         elements < sharding_.partition()},
        /*pinned=*/true);
  } else {
    flat_ = eager_.empty(trained_bytes(1), sharding_.trained_dtype(),
                         {Role::Parameters, "empty flat buffer",
                          "zero/stage3.py, _create_param_groups_fp16_flat_cpu_memory", /*capacity=*/true},
                         kNone, Space::Pageable);
    flat_.mark_scratch();
  }
  for (const NamedParameter& p : sharding_.trained()) {
    if (sharding_.of(p.id).in_flat) move_to_flat(p.id);
  }
  reserve_for_updates();
}

void HostHome::move_to_flat(ParameterId id) {
  Variable& own = own_[static_cast<std::size_t>(id)];
  eager_.copy(in_flat(sharding_.of(id)), own, "move partition to flat buffer");
  own.reset();
}

// What is too small for a file stays on the host.
class NvmeHome final : public HostHome {
 public:
  NvmeHome(const Training& training, const Sharding& sharding, Emitter& emitter)
      : HostHome(training, sharding, emitter), files_(training.zero, training.dtype, sharding.parameters(), emitter) {}

  void prepare() override { files_.make_pool(); }
  void cut(ParameterId id, Variable whole) override;
  void cut_tied(const Shard& of, ParameterId id, Variable whole) override;
  [[nodiscard]] Part partition(ParameterId id) const override;
  void read(ParameterId id) override { files_.read(id); }
  void read_missing(const std::vector<ParameterId>& list) override;
  void drop(ParameterId id) override;
  void wrote(ParameterId id) override;
  void write(const SubGroup& group, const Part& master) override;
  void promise_updates() override;

 private:
  void move_to_flat(ParameterId id) override;
  void reserve_for_updates() override;

  ParameterSwapper files_;
};

// Through a buffer into the file, where the sub-group may take it from again.
void NvmeHome::cut(ParameterId id, Variable whole) {
  const Shard& of = sharding_.of(id);
  if (!files_.swaps(of.bytes(of.part))) return HostHome::cut(id, std::move(whole));
  cut_into(files_.take(id, of.bytes(of.part)), of, whole);
  whole.reset();
  files_.write(id);
  files_.give_back(id);
}

// A tied tensor's file, which nobody reads, is left out.
void NvmeHome::cut_tied(const Shard& of, ParameterId id, Variable whole) {
  if (!files_.swaps(of.bytes(of.part))) HostHome::cut_tied(of, id, std::move(whole));
}

// What was in a file stays there as well, and is not read again.
void NvmeHome::move_to_flat(ParameterId id) {
  if (own_[static_cast<std::size_t>(id)]) return HostHome::move_to_flat(id);
  files_.read_into(id, in_flat(sharding_.of(id)), true);
}

// reserve_partitioned_swap_space, of the sub-group with the most elements, whichever lie in files. What is passed are
// the whole parameters' sizes (param.ds_numel), as many times what one rank writes as there are ranks.
void NvmeHome::reserve_for_updates() {
  const std::vector<SubGroup>& groups = sharding_.groups();
  if (std::all_of(groups.begin(), groups.end(), [](const SubGroup& group) { return group.in_flat; })) return;
  const auto most = std::max_element(groups.begin(), groups.end(),
                                     [](const SubGroup& a, const SubGroup& b) { return a.elements < b.elements; });
  Bytes all;
  for (std::size_t at = most->begin; at < most->end; ++at) {
    all += files_.aligned(trained_bytes(sharding_.of_trained(at).elements));
  }
  files_.reserve_for_updates(all);
}

Part NvmeHome::partition(ParameterId id) const {
  return sharding_.of(id).in_file ? files_.buffer(id) : HostHome::partition(id);
}

// _ensure_availability_of_partitioned_params.
void NvmeHome::read_missing(const std::vector<ParameterId>& list) {
  for (ParameterId id : list) {
    if (sharding_.of(id).in_file && !files_.has_buffer(id)) files_.read(id);
  }
}

void NvmeHome::drop(ParameterId id) {
  if (sharding_.of(id).in_file && files_.has_buffer(id)) files_.give_back(id);
}

void NvmeHome::wrote(ParameterId id) {
  if (sharding_.of(id).in_file) files_.write(id);
}

// _partitioned_params_swap_out: first what lies in memory, then the files.
void NvmeHome::write(const SubGroup& group, const Part& master) {
  if (group.in_flat) return HostHome::write(group, master);
  const DType type = training_.master_dtype;
  std::vector<ParameterId> in_files;
  std::vector<Part> from;
  for (std::size_t at = group.begin; at < group.end; ++at) {
    const ParameterId id = sharding_.trained()[at].id;
    const Shard& of = sharding_.of(id);
    const Part part(master.buffer, master.offset + storage(Elements(of.offset - group.offset), type),
                    storage(Elements(of.part), type));
    if (of.in_file) {
      in_files.push_back(id);
      from.push_back(part);
    } else {
      eager_.copy_across(partition(id), part, "copy master to partitions");
    }
  }
  files_.write_updates(in_files, from);
}

void NvmeHome::promise_updates() {
  for (const NamedParameter& p : sharding_.trained()) {
    const Part part = sharding_.of(p.id).in_file ? Part(files_.file(p.id)) : partition(p.id);
    eager_.emitter().promise_update(part.buffer, part.offset, eager_.bytes_of(part));
  }
}

}  // namespace

PartitionHome::PartitionHome(const Training& training, const Sharding& sharding, Emitter& emitter)
    : training_(training), sharding_(sharding), eager_(emitter), own_(sharding.parameters()) {}

void PartitionHome::cut(ParameterId id, Variable whole) {
  const Shard& of = sharding_.of(id);
  Variable& own = own_[static_cast<std::size_t>(id)];
  own = empty(of.bytes(of.part), of.dtype, kPartition, id);
  cut_into(own, of, whole);
}

void PartitionHome::cut_tied(const Shard& of, ParameterId id, Variable whole) {
  Variable own = empty(of.bytes(of.part), of.dtype, kPartition, id);
  cut_into(own, of, whole);
  set_aside(std::move(own));
}

// This rank's part, zeros behind the parameter's end.
void PartitionHome::cut_into(const Part& partition, const Shard& of, const Variable& whole) {
  const ElementRange mine = sharding_.real(of);
  eager_.work()
      .read(whole)
      .write(partition)
      .really_reads({{whole.id(), of.bytes(mine.from), of.bytes(mine.elements)}})
      .run(Body::Copy, "partition parameter");
}

void PartitionHome::drop_tied() {
  for (const Variable& variable : tied_) variable.mark_scratch();
  let_go(tied_);
}

Part PartitionHome::partition(ParameterId id) const {
  const Shard& of = sharding_.of(id);
  const Variable& own = own_[static_cast<std::size_t>(id)];
  return own ? Part(own.id(), Bytes(0), of.bytes(of.part)) : in_flat(of);
}

Part PartitionHome::in_flat(const SubGroup& group) const {
  return {flat_.id(), trained_bytes(group.offset), trained_bytes(group.elements)};
}

Part PartitionHome::in_flat(const Shard& of) const {
  return {flat_.id(), trained_bytes(of.offset), trained_bytes(of.part)};
}

Variable PartitionHome::bring(const Part& partition) {
  if (!away()) return {};
  return eager_.clone(
      partition, {Role::RuntimeBuffers, "partition on the device", "zero/partition_parameters.py, _all_gather_dtype"},
      "copy partition to device");
}

void PartitionHome::write(const SubGroup& group, const Part& master) {
  eager_.copy_across(in_flat(group), master, "copy master to partitions");
}

void PartitionHome::promise_updates() {
  for (const NamedParameter& p : sharding_.trained()) {
    const Part part = partition(p.id);
    eager_.emitter().promise_update(part.buffer, part.offset, part.bytes);
  }
}

std::unique_ptr<PartitionHome> make_partition_home(const Training& training, const Sharding& sharding,
                                                   Emitter& emitter) {
  switch (training.zero.offload_param.device) {
    case OffloadDevice::None: return std::make_unique<DeviceHome>(training, sharding, emitter);
    case OffloadDevice::Cpu: return std::make_unique<HostHome>(training, sharding, emitter);
    case OffloadDevice::Nvme: return std::make_unique<NvmeHome>(training, sharding, emitter);
  }
  return nullptr;
}

}  // namespace dsplan
