// fully_shard and FullyShardedDataParallel against real PyTorch (tools/oracles/fsdp_witness.py, fsdp1_witness.py):
// every allocation and free of one rank's init and two steps, on every stream, in order and to the byte.
#include <doctest/doctest.h>
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/format.h"
#include "io/machine_files.h"
#include "io/text.h"
#include "io/training_file.h"
#include "model/families.h"
#include "paths.h"
#include "planner/lower/lower.h"
#include "planner/lower/unsupported.h"
#include "planner/resolve/resolve.h"

using namespace dsplan;
using Json = nlohmann::ordered_json;

namespace {

// size * 8 + stream, negative where it is freed.
struct DeviceLog : Ignores<Compute, Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit, Mark> {
  using Ignores::on;
  explicit DeviceLog(const Schedule& read) : schedule(read) {}
  void on(std::size_t, const Allocate& event) { add(event.buffer, event.stream, 1); }
  void on(std::size_t, const Release& event) { add(event.buffer, event.stream, -1); }

  void add(BufferId id, StreamId stream, std::int64_t sign) {
    const Buffer& buffer = schedule.buffers[id];
    if (buffer.space != Space::Device) return;
    if (std::string_view(buffer.label) == "table of positions") return;  // The oracle leaves out what is gone again.
    const bool batch = buffer.role == Role::Inputs && std::string_view(buffer.label) == "batch";
    if (batch && (sign < 0 || first_forward)) return;  // The oracle keeps its first batch.
    if (batch) inputs = true;
    first_forward = first_forward || (inputs && !batch);
    auto at = std::find(streams.begin(), streams.end(), stream);
    if (at == streams.end()) at = streams.insert(at, stream);
    changes.push_back(sign * (buffer.size.value() * 8 + (at - streams.begin())));
    labels.push_back(buffer.label);
  }

  const Schedule& schedule;
  std::vector<StreamId> streams;
  std::vector<std::int64_t> changes;
  std::vector<std::string> labels;
  bool inputs = false;
  bool first_forward = false;  // The first batch is there.
};

// Several frees between two allocations have no order of their own.
void order_frees(std::vector<std::int64_t>& changes) {
  for (auto at = changes.begin(); at != changes.end();) {
    const auto end = std::find_if(at, changes.end(), [](std::int64_t change) { return change > 0; });
    std::sort(at, end);
    at = end == changes.end() ? end : end + 1;
  }
}

std::string around(const std::vector<std::int64_t>& changes, std::size_t at) {
  std::string text;
  for (std::size_t k = at > 12 ? at - 12 : 0; k < std::min(changes.size(), at + 12); ++k) {
    const std::int64_t size = std::abs(changes[k]);
    text += formatted("{} {}{} on {}\n", k == at ? ">>" : "  ", changes[k] > 0 ? "+" : "-", size / 8, size % 8);
  }
  return text;
}

struct Run {
  ModelSpec model;
  Job job;
  std::int64_t rank = 0;
};

Run read(const Json& run) {
  const std::string name = run.at("name");
  ModelSpec model = build_model(parse_json(name, run.at("config").dump()), name);
  Json training = {{"dsplan", 1}, {"kind", "training"}, {"source", "witness"}, {"loop", "minimal"}};
  training.update(run.at("training"));
  Request request = read_training_file(parse_json(name, training.dump()));
  request.gpus = {run.at("world").get<std::int64_t>(), option("--gpus")};
  model = model_of(std::move(model), request);  // With adapters.
  const std::string device = test_paths::source_dir() + "/configs/hardware/h100-sxm.json";
  const Hardware hardware = read_hardware(read_document(device));
  Job job = resolve(model, request, nullptr, &hardware, nullptr);
  return {std::move(model), std::move(job), run.at("rank")};
}

// Places in a list of sizes, where there is one.
std::vector<std::int64_t> events_of(const Json& run) {
  std::vector<std::int64_t> events = run.at("events");
  if (!run.contains("sizes")) return events;
  const std::vector<std::int64_t> sizes = run.at("sizes");
  for (std::int64_t& event : events) {
    const std::int64_t size = sizes.at(static_cast<std::size_t>(std::abs(event)) - 1);
    event = event > 0 ? size : -size;
  }
  return events;
}

// Of a mixture: sorts, counts and scatters of routing have temporaries inside of PyTorch's kernels, on the stream that
// computes, which no schedule has (docs/operators.md); so have the counts of Liger's loss. What FSDP itself makes is on
// others.
void keep_other_streams(std::vector<std::int64_t>& changes) {
  changes.erase(std::remove_if(changes.begin(), changes.end(), [](std::int64_t change) { return change % 8 == 0; }),
                changes.end());
}

// Of a loss that is scaled: the numbers that its scale and division make of the gradient are in no schedule.
void leave_numbers_out(std::vector<std::int64_t>& changes) {
  changes.erase(
      std::remove_if(changes.begin(), changes.end(), [](std::int64_t change) { return std::abs(change) / 8 == 4; }),
      changes.end());
}

void compare(const Json& one) {
  const std::string name = one.at("name");
  CAPTURE(name);
  const Run run = read(one);
  if (const auto refused = unsupported(run.model, run.job)) {
    FAIL_CHECK(*refused);
    return;
  }
  const Schedule schedule = lower(run.model, run.job, build_shapes(run.model, run.job), run.rank);
  DeviceLog log(schedule);
  replay(schedule, log);
  std::vector<std::int64_t> measured = events_of(one);
  std::vector<std::int64_t> predicted = log.changes;

  if (run.model.dims.experts > 0 || run.job.training.loss == Loss::Liger) {
    keep_other_streams(measured);
    keep_other_streams(predicted);
  }
  if (run.job.training.grad_scaler) {
    leave_numbers_out(measured);
    leave_numbers_out(predicted);
  }
  order_frees(measured);
  order_frees(predicted);
  const auto [ours, theirs] = std::mismatch(predicted.begin(), predicted.end(), measured.begin(), measured.end());
  if (ours == predicted.end() && theirs == measured.end()) return;
  const auto at = static_cast<std::size_t>(ours - predicted.begin());
  const std::string what = formatted("{}: first difference at {} of {} and {}\npredicted:\n{}PyTorch:\n{}", name, at,
                                     predicted.size(), measured.size(), around(predicted, at), around(measured, at));
  FAIL_CHECK(what);
}

// How many runs it has.
int compare_all(const char* witness) {
  std::ifstream file(test_paths::source_dir() + "/tests/witnesses/" + witness);
  const Json read = Json::parse(file);
  int runs = 0;
  for (const Json& one : read.at("runs")) {
    compare(one);
    ++runs;
  }
  return runs;
}

}  // namespace

TEST_CASE("fsdp: PyTorch's own allocations, event by event") { CHECK(compare_all("fsdp.json") >= 322); }

TEST_CASE("fsdp1: PyTorch's own allocations, event by event") { CHECK(compare_all("fsdp1.json") >= 449); }
