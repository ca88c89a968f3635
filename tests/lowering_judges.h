// Who notices that a size rule of the lowering is another one (lowering_sizes_test.cpp), and how a rule is changed.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/audit.h"
#include "core/format.h"
#include "core/operator_runs.h"
#include "eager/of_job.h"
#include "planner/fsdp/flat_facts.h"
#include "planner/lower/lower.h"
#include "planner/predict/footprint.h"
#include "program_fit.h"
#include "sim/host_memory.h"
#include "sim/memory.h"
#include "sim/traffic.h"

namespace judging {

using namespace dsplan;

inline std::string rule_of(const Buffer& buffer) {
  return dsplan::formatted("{} ({}, space {})", buffer.label, name(buffer.role), static_cast<int>(buffer.space));
}

// Buffers that runtimes ask for: operators are held against the executor's own (exec_sizes_test.cpp).
inline std::map<std::string, std::vector<BufferId>> rules_of(const Executable& plan) {
  std::set<BufferId> of_operators;
  for (const TensorValue& value : plan.program.values) {
    if (value.tensor == kNone && value.buffer != kNoBuffer) of_operators.insert(value.buffer);
  }
  for (const Task& task : plan.program.tasks) {
    for (const MadeValue& made : plan.program.made_by(task))
      of_operators.insert(plan.program.values[made.value].buffer);
  }
  std::map<std::string, std::vector<BufferId>> rules;
  for (const BufferId id : plan.schedule.buffers.ids()) {
    if (!of_operators.contains(id)) rules[rule_of(plan.schedule.buffers[id])].push_back(id);
  }
  return rules;
}

inline std::string change_of(const std::string& rule, std::int64_t by) {
  return dsplan::formatted("{:+} {}", by, rule);
}

inline bool same_steps(const OptimizerLogs& ours, const OptimizerLogs& theirs) {
  for (std::size_t at = 0; at < ours.size(); ++at) {
    if (ours[at].lines != theirs[at].lines) return false;
  }
  return true;
}

template <class Range>
void stretch(Range& range, Bytes end, Bytes by) {
  if (range.offset + range.bytes == end) range.bytes += by;
}

inline Executable changed(Executable plan, const std::vector<BufferId>& buffers, std::int64_t elements) {
  Schedule& schedule = plan.schedule;
  Indexed<BufferId, Bytes> end(schedule.buffers.size());
  Indexed<BufferId, Bytes> by(schedule.buffers.size());
  for (const BufferId id : buffers) {
    Buffer& buffer = schedule.buffers[id];
    end[id] = buffer.size;
    by[id] = Bytes(elements * bytes_per_element(buffer.dtype));
    buffer.size += by[id];
  }
  const auto touches = [&](BufferId id) { return by.has(id) && by[id] != Bytes(0); };
  for (Event& event : schedule.events) {
    auto* sent = std::get_if<Communicate>(&event);
    if (sent == nullptr) continue;
    for (const Access& access : schedule.range(sent->writes)) {
      if (touches(access.buffer) && access.offset + access.bytes == end[access.buffer])
        sent->payload += by[access.buffer];
    }
  }
  for (Access& access : schedule.accesses) {
    if (touches(access.buffer)) stretch(access, end[access.buffer], by[access.buffer]);
  }
  for (Promise& promise : schedule.promises) {
    if (touches(promise.what.buffer)) stretch(promise.what, end[promise.what.buffer], by[promise.what.buffer]);
  }
  for (ByteRange& range : plan.program.ranges) {
    if (touches(range.buffer)) stretch(range, end[range.buffer], by[range.buffer]);
  }
  return plan;
}

// What no other derivation covers, the host's side of offloading and scans before the step, written out from
// DeepSpeed's source (stage_1_and_2.py and stage3.py: cpu_offload, _has_inf_or_nan, set_norm_for_param_grad_in_gpu):
// the sizes that a buffer of that label may have. 16-bit weights, fp32 masters; nothing to pad, one sub-group.
class ByHand {
 public:
  ByHand(const ModelSpec& model, const Job& job, std::int64_t rank) {
    std::int64_t all = 0;
    for (const Parameter& p : model.parameters) all += p.tied_to == kNone ? p.shape.elements().value() : 0;
    const std::int64_t share = all / job.parallelism.dp;
    const bool cut = job.training.zero.stage == 3;  // Each parameter apart; else the flat one.
    std::set<std::int64_t> parts;
    std::set<std::int64_t> wholes;
    std::int64_t offset = 0;
    for (const Parameter& p : model.parameters) {
      if (p.tied_to != kNone) continue;
      const std::int64_t count = p.shape.elements().value();
      const std::int64_t begin = std::max(offset, share * rank);
      parts.insert(cut ? count / job.parallelism.dp : std::min(offset + count, share * (rank + 1)) - begin);
      wholes.insert(count);
      offset += count;
    }
    const auto times = [](std::int64_t bytes, const std::set<std::int64_t>& counts) {
      std::set<std::int64_t> result;
      for (const std::int64_t count : counts) result.insert(bytes * count);
      return result;
    };
    for (const char* label : {"exp_avg", "exp_avg_sq", "gradient on the host", "master weights on the device"})
      sizes_[label] = {4 * share};
    sizes_["zero gradients of initialize_optimizer_states"] = {4 * share};
    sizes_["16-bit parameters on the host"] = sizes_["absolute gradients"] = {2 * share};
    sizes_["gradient scratch of the host"] = {2 * *wholes.rbegin()};
    sizes_["sum of a gradient on the host"] = times(2, wholes);
    sizes_["overflow scan"] = {share};
    sizes_["overflow tracker"] = sizes_["overflow found"] = {1};
    sizes_["clip factor"] = {8};  // Of norms in fp64.
    sizes_["gradient norm of a sub-group"] = {4};
    sizes_["gradient norm"] = sizes_["gradient in fp64"] = times(8, parts);
    sizes_["gradient norm"].insert({4, 8});
    sizes_["tensor before it is pinned"] = times(2, parts);
    sizes_["tensor before it is pinned"].insert({2 * share, 4 * share});
    applies_ = job.training.zero.stage > 0 && job.training.dtype != DType::Float32 &&
               job.training.runtime == Runtime::DeepSpeed;
  }

  [[nodiscard]] bool agrees(const Schedule& schedule) const {
    return !applies_ || std::all_of(schedule.buffers.begin(), schedule.buffers.end(), [&](const Buffer& buffer) {
      const auto known = sizes_.find(buffer.label);
      return known == sizes_.end() || known->second.contains(buffer.size.value());
    });
  }

 private:
  std::map<std::string, std::set<std::int64_t>> sizes_;
  bool applies_ = false;
};

// Likewise, what is the same under any job: of tensors, not of a rank's share.
class OfTensors {
 public:
  OfTensors(const ModelSpec& model, const Job& job) {
    const Training& t = job.training;
    const std::int64_t width = bytes_per_element(t.dtype);
    const std::int64_t inside = t.zero.hpz_partition_size;
    sizes_["mask of an invalid norm"] = {1, 4};
    sizes_["root of a norm"] = {4};
    std::int64_t trained = 0;
    std::int64_t trained_elements = 0;
    for (const Parameter& p : model.parameters) {
      if (p.tied_to != kNone || job.parallelism.tp > 1) continue;
      const std::int64_t count = p.shape.elements().value();
      const std::int64_t part = (count + job.parallelism.dp - 1) / job.parallelism.dp;
      // CUDAQuantizer takes fp16. With nothing fetched ahead a module's one parameter is sent at a time.
      if (t.zero.prefetch_bucket_size == Elements(0)) {
        sizes_["partitions in fp16"].insert(2 * part);
        if (inside > 1) sizes_["partitions in fp16"].insert(2 * part * job.parallelism.dp / inside);
      }
      const bool frozen = std::any_of(t.freeze.begin(), t.freeze.end(),
                                      [&](const std::string& glob) { return glob_matches(glob, p.name); });
      if (!frozen) ++trained;
      if (!frozen) trained_elements += count;
      sizes_["weight to save"].insert(width * count);
      sizes_["padded gradient"].insert(bytes_per_element(t.grad_accum_dtype) * part);
    }
    // torch/csrc/.../ForeachReduceOp.cu: an fp32 for each chunk of 65,536 elements of the largest tensor, by tensor.
    if (job.parallelism.tp == 1) sizes_["sums of squares by chunk"] = {4 * trained};
    // Flat parameters are padded to 2 W elements (stage_1_and_2.py, nccl_start_alignment_factor): zeros behind the
    // last.
    if (job.parallelism.tp == 1 && t.zero.stage > 0 && t.zero.stage < 3) {
      const std::int64_t unit = 2 * job.parallelism.dp;
      const std::int64_t padding = (trained_elements + unit - 1) / unit * unit - trained_elements;
      for (const char* label : {"padding of flat parameters", "padding of the partition"}) {
        sizes_[label] = {width * padding};
      }
    }
    // FP16_UnfusedOptimizer takes the norm of each gradient in fp32 (runtime/utils.py, get_weight_norm), and
    // FP16_Optimizer that of all of them together (get_flattened_grad_norm): a number, which is there twice.
    if (t.runtime == Runtime::DeepSpeed && t.zero.stage == 0 && t.dtype != DType::Float32 && job.parallelism.tp == 1) {
      for (const Parameter& p : model.parameters) sizes_["gradient norm"].insert(4 * p.shape.elements().value());
      sizes_["gradient norm"].insert(4);
    }
    add_buffers(model, t);
    add_packed(model);
    if (t.runtime == Runtime::Fsdp2) add_whole(model, job);
    add_flat(model, job);
    if (job.hardware && job.hardware->multiprocessors > 0) add_norms(model, job);
    sizes_["parameter of the backup optimizer"] = {4, width};
    sizes_["stand-in of a parameter on the host"] = {4};  // torch.empty(0), as a scalar.
    sizes_["empty flat buffer"] = {width};
    const std::int64_t unit = 1024 * t.zero.aio_intra_op_parallelism;
    const std::int64_t buffer = (t.zero.offload_param.buffer_size.value() * width + unit - 1) / unit * unit;
    sizes_["swap buffers before they are locked"] = {buffer * t.zero.offload_param.buffer_count};
  }

  // FSDP1 without views: a tensor for each unit.
  void add_flat(const ModelSpec& model, const Job& job) {
    if (job.training.runtime != Runtime::Fsdp1 || job.training.fsdp.use_orig_params) return;
    sizes_["sums of squares by chunk"] = {4 * static_cast<std::int64_t>(flat_units(model, job).size())};
  }

  // Before fully_shard cuts it, and what a scatter sends: as many rows to each rank, the last ones padded.
  void add_whole(const ModelSpec& model, const Job& job) {
    const std::int64_t ranks = job.parallelism.dp / job.training.fsdp.replicate;
    sizes_["weight to save"].clear();  // All ranks' rows, padded; and on the host without.
    for (const Parameter& p : model.parameters) {
      const std::int64_t all =
          p.shape.elements().value() * bytes_per_element(p.dtype.value_or(job.training.master_dtype));
      const std::int64_t rows = p.shape.dims[0];
      const std::int64_t shard = (rows + ranks - 1) / ranks * (all / rows);
      sizes_["whole parameter"].insert(all);
      sizes_["weight to save"].insert({all, ranks * shard});
      for (const char* label : {"rows of a rank, padded", "shard under a tied name", "padded shard to save"}) {
        sizes_[label].insert(shard);
      }
      const std::int64_t left = rows % ((rows + ranks - 1) / ranks) * (all / rows);  // axolotl's, without padding.
      if (left > 0) sizes_["shard under a tied name"].insert(left);
      sizes_["an optimizer's parameter, until it is cut"].insert(all / p.shape.elements().value());
    }
  }

  // Tables, in their own dtype or in the model's.
  void add_buffers(const ModelSpec& model, const Training& t) {
    for (const ModelBuffer& buffer : model.buffers) {
      const std::int64_t rows = buffer.by_length ? t.seq : 1;
      for (const DType type : {buffer.dtype, t.dtype, t.master_dtype}) {
        sizes_["buffer"].insert(rows * buffer.shape.elements().value() * bytes_per_element(type));
      }
    }
    if (model.code != ModelCode::Torchtitan) return;
    // precompute_freqs_cis: frequencies and what scales them, flags, places, angles and ones beside them. The number of
    // tokens that count.
    const std::int64_t half = model.dims.head_dim / 2;
    sizes_["what computes the rotary table"] = {4 * half, half, 8 * t.seq, 4 * half * t.seq};
    sizes_["tokens that count"] = {8};
    sizes_["state of the generator"] = {16};
    for (const Parameter& p : model.parameters) {
      sizes_["weight as it is drawn"].insert(4 *
                                             p.shape.elements().value());  // Of a model that is whole on the device.
    }
  }

  // bitsandbytes functional.py, quantize_4bit: a weight as it was loaded, in 16 bits, and an fp32 for each 64 of its
  // elements; its table of 16 fp32 once more, and its largest. transformers modeling_utils.py,
  // caching_allocator_warmup: what all parameters take on the device.
  void add_packed(const ModelSpec& model) {
    constexpr std::int64_t kTable = 4 * 16;
    std::int64_t room = 0;
    for (const Parameter& p : model.parameters) {
      const bool adapter = p.name.find(".lora_") != std::string::npos;
      if (p.tied_to != kNone || adapter) continue;
      const bool packs = p.dtype == DType::UInt8;  // Two elements in a byte.
      const std::int64_t count = p.shape.elements().value() * (packs ? 2 : 1);
      room += packs ? count / 2 : 2 * count;
      if (packs) sizes_["weight before it is packed"].insert({2 * count, 4 * ((count + 63) / 64), kTable, 4});
    }
    sizes_["room for the model"] = {room};
  }

  // aten/src/ATen/native/cuda/Reduce.cuh: a sum of n elements that lie side by side is divided over blocks of 512
  // threads, which take 4 of them at a time; where each has 256 or more, over as many blocks as the device holds, of at
  // least 16 elements for a thread. Each leaves an fp32 (fp64 of fp64), and all share one counter.
  void add_norms(const ModelSpec& model, const Job& job) {
    sizes_["semaphores of a norm"] = {4};
    const std::int64_t held = job.hardware->multiprocessors * (2048 / 512);
    std::set<std::int64_t> counts;
    std::int64_t all = 0;
    for (const Parameter& p : model.parameters) {
      if (p.tied_to != kNone) continue;
      const std::int64_t count = p.shape.elements().value();
      all += count;
      counts.insert({count, (count + job.parallelism.dp - 1) / job.parallelism.dp});
    }
    counts.insert(all);
    // A partition of stages 1 and 2 begins and ends within a tensor.
    std::int64_t offset = 0;
    const std::int64_t share = all / job.parallelism.dp;
    for (const Parameter& p : model.parameters) {
      if (p.tied_to != kNone) continue;
      const std::int64_t end = offset + p.shape.elements().value();
      for (std::int64_t rank = 0; rank < job.parallelism.dp; ++rank) {
        counts.insert(std::max<std::int64_t>(0, std::min(end, share * (rank + 1)) - std::max(offset, share * rank)));
      }
      offset = end;
    }
    for (const std::int64_t count : counts) {
      const std::int64_t of_thread = (count + 511) / 512;
      if (of_thread < 256) continue;
      const std::int64_t blocks = std::max(std::min(held, (of_thread + 15) / 16), (of_thread + 255) / 256);
      if (blocks > 1) sizes_["staging of a norm"].insert({4 * blocks, 8 * blocks});
    }
  }

  [[nodiscard]] bool agrees(const Schedule& schedule) const {
    std::set<std::int64_t> halves;  // What came as int8 becomes as many fp16.
    for (const Buffer& buffer : schedule.buffers) {
      if (std::string_view(buffer.label) == "quantized gather buffer") halves.insert(2 * buffer.size.value());
    }
    return std::all_of(schedule.buffers.begin(), schedule.buffers.end(), [&](const Buffer& buffer) {
      if (std::string_view(buffer.label) == "dequantized gather buffer") return halves.contains(buffer.size.value());
      const auto known = sizes_.find(buffer.label);
      return known == sizes_.end() || known->second.contains(buffer.size.value());
    });
  }

 private:
  std::map<std::string, std::set<std::int64_t>> sizes_;
};

// What fully_shard leaves on the host under CPUOffloadPolicy, by what one parameter of a rank has: its rows, or as many
// as the first rank (_fsdp_param.py, _init_sharded_param); and numbers of clip_grad_norm_, one or one for each
// gradient.
class ShardsOnHost {
 public:
  ShardsOnHost(const ModelSpec& model, const Job& job, std::int64_t rank) {
    if (!job.training.fsdp.cpu_offload) return;
    if (job.training.runtime == Runtime::Fsdp1) {
      flat(model, job);
      return;
    }
    const std::int64_t ranks = job.parallelism.dp / job.training.fsdp.replicate;
    const std::int64_t width = bytes_per_element(job.training.master_dtype);
    std::int64_t gradients = 0;
    for (const Parameter& p : model.parameters) {
      const std::int64_t rows = p.shape.dims[0];
      const std::int64_t row = p.shape.elements().value() / rows * width;
      const std::int64_t most = (rows + ranks - 1) / ranks;
      const std::int64_t own = std::clamp<std::int64_t>(rows - most * (rank % ranks), 0, most);
      if (p.tied_to != kNone) {  // As rank 0 sent it, once more.
        sizes_["shard of the host under a tied name"].insert(own * row);
        continue;
      }
      if (own > 0) ++gradients;
      for (const char* label : {"shard", "shard on the host"}) sizes_[label].insert({own * row, most * row});
      for (const char* label : {"square root of exp_avg_sq", "denominator"}) sizes_[label].insert(own * row);
    }
    for (const char* label : {"clip coefficient", "norm of a gradient", "total norm"}) sizes_[label] = {width};
    for (const char* label : {"stacked norms", "squares of norms", "sums of squares", "norms of whole gradients"}) {
      sizes_[label] = {width * gradients};
    }
    sizes_["step"] = {4};
  }

  [[nodiscard]] bool agrees(const Schedule& schedule) const {
    return std::all_of(schedule.buffers.begin(), schedule.buffers.end(), [&](const Buffer& buffer) {
      const auto known = sizes_.find(buffer.label);
      return buffer.space == Space::Device || known == sizes_.end() || known->second.contains(buffer.size.value());
    });
  }

 private:
  // Of FullyShardedDataParallel, without views.
  void flat(const ModelSpec& model, const Job& job) {
    const std::vector<FlatUnit> units = flat_units(model, job);
    const std::int64_t width = bytes_per_element(job.training.master_dtype);
    for (const FlatUnit& unit : units) {
      for (const char* label : {"square root of exp_avg_sq", "denominator"}) {
        sizes_[label].insert(unit.shard.value() * width);
      }
    }
    for (const char* label : {"clip coefficient", "norm of a gradient", "norm of a rank's gradients", "total norm"}) {
      sizes_[label] = {width};
    }
    sizes_["stacked norms"] = {width * static_cast<std::int64_t>(units.size())};
    sizes_["step"] = {4};
  }

  std::map<std::string, std::set<std::int64_t>> sizes_;
};

// What a flat parameter's rank makes for a moment only, by the pieces that fsdp1_test.cpp holds against the model.
class FlatAtOnce {
 public:
  FlatAtOnce(const ModelSpec& model, const Job& job) {
    if (job.training.runtime != Runtime::Fsdp1) return;
    const std::int64_t ranks = job.parallelism.dp / job.training.fsdp.replicate;
    const std::int64_t made =
        bytes_per_element(job.training.fsdp.widens_shards ? DType::BFloat16 : job.training.master_dtype);
    const std::int64_t computed = bytes_per_element(job.training.dtype);
    for (const char* label : {"norm of a rank's gradients", "squared norm", "zero"}) sizes_[label] = {4};
    for (const FlatUnit& unit : flat_units(model, job)) {
      const std::int64_t kept = unit.trains ? bytes_per_element(job.training.master_dtype) : made;
      for (const FlatPiece& piece : unit.pieces) {
        if (piece.id == kNone) sizes_["padding of a flat parameter"].insert(piece.elements.value() * made);
      }
      sizes_["shard on its way to the device"].insert(unit.shard.value() * kept);
      sizes_["sharded gradient on the host"].insert(unit.shard.value() * kept);
      sizes_["tensor before it is pinned"].insert(unit.shard.value() * kept);
      sizes_["shard of a flat parameter on the host"].insert({unit.shard.value() * made, unit.shard.value() * kept});
      std::set<std::int64_t>& once = sizes_["storage that is freed at once"];
      once.insert(unit.shard.value() * ranks * computed);
      if (kept != computed) once.insert({unit.shard.value() * computed, unit.shard.value() * ranks * kept});
    }
  }

  [[nodiscard]] bool agrees(const Schedule& schedule) const {
    return std::all_of(schedule.buffers.begin(), schedule.buffers.end(), [&](const Buffer& buffer) {
      const auto known = sizes_.find(buffer.label);
      return known == sizes_.end() || known->second.contains(buffer.size.value());
    });
  }

 private:
  std::map<std::string, std::set<std::int64_t>> sizes_;
};

inline Bytes locked_by(const Schedule& schedule) {
  Bytes sum;
  for (const Buffer& buffer : schedule.buffers) {
    if (buffer.space == Space::Locked) sum += buffer.size;
  }
  return sum;
}

// fully_shard's tables of tensors are written on the host, pinned, and sent: the one on the device comes next and is as
// large.
inline bool tables_agree(const Schedule& schedule) {
  for (std::uint32_t at = 0; at < schedule.buffers.size(); ++at) {
    const Buffer& table = schedule.buffers[BufferId(at)];
    if (table.label != std::string_view("table of tensors") || table.space != Space::Pinned) continue;
    if (at + 1 == schedule.buffers.size()) return false;
    const Buffer& sent = schedule.buffers[BufferId(at + 1)];
    if (sent.label != table.label || sent.space != Space::Device || sent.size != table.size) return false;
  }
  return true;
}

struct Judges {
  const ModelSpec& model;
  const Job& job;
  bool has_tape;
  std::vector<std::int64_t> tape;  // Sorted: what is asked for and given back on the device.

  [[nodiscard]] std::set<std::string> of(const Executable& plan) const {
    std::set<std::string> noticed;
    const Schedule& schedule = plan.schedule;
    MemoryMeter meter(schedule);
    HostMeter host(schedule);
    TrafficMeter traffic;
    replay(schedule, meter, host, traffic);
    if (meter.by_role() != footprint(model, job, schedule.rank).persistent) noticed.insert("states");
    const std::vector<TrafficRow> rows = traffic.rows(schedule.dp, schedule.dp_inside, schedule.tp);
    for (const TrafficRow& derived : traffic_formulas(model, job)) {
      Bytes sum;
      for (const TrafficRow& row : rows) {
        const bool same = row.group == derived.group && row.collective == derived.collective &&
                          row.phase == derived.phase && row.dtype == derived.dtype && row.kind == TrafficKind::Data;
        if (same) sum += row.payload;
      }
      if (sum != derived.payload) noticed.insert("traffic");
    }
    const NvmeFootprint files = nvme_footprint(model, job, schedule.rank);
    if (job.training.zero.stage == 3 && host.nvme_peak() != files.files) noticed.insert("files");
    if (locked_by(schedule) != files.locked) noticed.insert("files");
    if (!OfTensors(model, job).agrees(schedule)) noticed.insert("of tensors");
    for (const Task& task : plan.program.tasks) {
      if (!fitting::fault_of(plan, task).empty()) noticed.insert("fit");
    }
    if (!ShardsOnHost(model, job, schedule.rank).agrees(schedule)) noticed.insert("shards on the host");
    if (!tables_agree(schedule)) noticed.insert("tables");
    if (!FlatAtOnce(model, job).agrees(schedule)) noticed.insert("flat parameters");
    if (!ByHand(model, job, schedule.rank).agrees(schedule)) noticed.insert("by hand");
    if (!checkpoint_fault(model, job, schedule).empty()) noticed.insert("checkpoints");
    if (has_tape && log_of(schedule) != tape) noticed.insert("tape");
    if (!audit(schedule).empty()) noticed.insert("audit");
    return noticed;
  }

  [[nodiscard]] static std::vector<std::int64_t> log_of(const Schedule& schedule) {
    std::vector<std::int64_t> log;
    for (const Event& event : schedule.events) {
      const auto* made = std::get_if<Allocate>(&event);
      if (made == nullptr || schedule.buffers[made->buffer].space != Space::Device) continue;
      // The tape's tables come out of nothing.
      if (std::string_view(schedule.buffers[made->buffer].label) == "table of positions") continue;
      log.push_back(schedule.buffers[made->buffer].size.value());
    }
    std::sort(log.begin(), log.end());
    return log;
  }
};

inline Judges judges_of(const ModelSpec& model, const Job& job, bool has_tape, std::int64_t rank) {
  Judges judges{model, job, has_tape, {}};
  if (!has_tape) return judges;
  for (const eager::Entry& entry : eager::of_job(model, job, rank)) {
    if (entry.bytes > 0) judges.tape.push_back(entry.bytes);
  }
  std::sort(judges.tape.begin(), judges.tape.end());
  return judges;
}

}  // namespace judging
