// The table of settings against the structs: a field without a row, and a row without an effect, fail here.
#include "core/settings.h"

#include <doctest/doctest.h>
#include <algorithm>
#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/field_count.h"
#include "core/format.h"
#include "io/deepspeed.h"
#include "io/text.h"
#include "lowered.h"
#include "planner/predict/predict.h"
#include "planner/resolve/resolve.h"

using namespace dsplan;

namespace {

// A struct inside another one, and how many rows reach a field that is its own.
struct Part {
  std::string_view name;
  const void* begin = nullptr;
  std::size_t size = 0;
  std::size_t fields = 0;

  [[nodiscard]] bool holds(const void* address) const {
    const auto* first = static_cast<const std::byte*>(begin);
    return !std::less<>()(address, begin) && std::less<>()(address, static_cast<const void*>(first + size));
  }
};

template <class T>
Part part(std::string_view name, const T& owner, std::size_t without) {
  return {name, &owner, sizeof(T), field_count<T>() - without};
}

template <class Variant>
const void* address(const Variant& field) {
  return std::visit([](const auto* at) { return static_cast<const void*>(at); }, field);
}

// Each address once, and in each part as many as it has fields. Parts stand before those that they hold.
void check_parts(const std::vector<const void*>& addresses, const std::vector<Part>& parts) {
  CHECK(std::set<const void*>(addresses.begin(), addresses.end()).size() == addresses.size());
  std::vector<std::size_t> found(parts.size(), 0);
  for (const void* one : addresses) {
    const auto inner =
        std::find_if(parts.rbegin(), parts.rend(), [one](const Part& candidate) { return candidate.holds(one); });
    REQUIRE(inner != parts.rend());
    ++found[static_cast<std::size_t>(std::distance(inner, parts.rend()) - 1)];
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    CHECK_MESSAGE(found[i] == parts[i].fields, parts[i].name);
  }
}

std::string words_of(const SettingRow& row) {
  if (row.request.option != nullptr) return row.request.option;
  if (!row.request.key.empty()) return std::string(row.request.key);
  if (!row.json.path.empty()) return std::string(row.json.path);
  return formatted("line {}, {}: {}", static_cast<int>(row.job.line), row.job.at, row.job.inert);
}

// Another value than the field has, of whatever type.
struct Change {
  void operator()(bool* field) const { *field = !*field; }
  void operator()(int* field) const { ++*field; }
  void operator()(std::int64_t* field) const { --*field; }  // Some are at their largest.
  void operator()(double* field) const { *field = *field > 0 ? *field / 2 : 1; }
  void operator()(Elements* field) const { *field = *field == Elements(0) ? Elements(1) : Elements(0); }
  void operator()(Bytes* field) const { *field = Bytes(field->value() + 1); }
  void operator()(std::string* field) const { *field += "x"; }
  void operator()(Version* field) const { ++field->minor; }
  void operator()(AllocatorConfig* field) const { field->expandable_segments = !field->expandable_segments; }
  void operator()(std::vector<std::string>* field) const { field->push_back("x"); }
  void operator()(std::vector<std::int64_t>* field) const { field->push_back(8); }
  void operator()(std::optional<Bytes>* field) const { *field = Bytes(field->value_or(Bytes(0)).value() + 1); }
  void operator()(std::optional<DType>* field) const {
    *field = *field == DType::Float16 ? DType::BFloat16 : DType::Float16;
  }
  void operator()(std::optional<Hardware>* field) const { field->emplace().architecture = "sm_80"; }
  void operator()(std::optional<Cluster>* field) const { field->emplace().nodes = 7; }
  void operator()(std::optional<Calibration>* field) const { field->emplace().cublas_workspace = Bytes(1); }
  void operator()(LigerKernels* field) const { field->swiglu = !field->swiglu; }
  void operator()(Routing* field) const { field->kind = Routing::Kind::Worst; }
  void operator()(AdapterKernels* field) const { field->mlp = !field->mlp; }
  void operator()(ModelCode* field) const {
    *field = *field == ModelCode::Torchtitan ? ModelCode::Transformers : ModelCode::Torchtitan;
  }
  template <class T>
  void operator()(std::vector<T>* field) const {
    field->emplace_back();
  }
  template <class Enumeration>
  void operator()(Enumeration* field) const {
    *field = static_cast<Enumeration>(*field == Enumeration{} ? 1 : 0);
  }
};

// Says another value than the job has.
struct Say {
  template <class Said, class Field>
  void operator()(Setting<Said>* said, const Field* now) const {
    if constexpr (std::is_same_v<Said, bool> && std::is_same_v<Field, bool>) *said = {!*now, option("test")};
    if constexpr (std::is_same_v<Said, std::int64_t>) *said = {2, option("test")};
    if constexpr (std::is_same_v<Said, double>) *said = {0.5, option("test")};
    if constexpr (std::is_same_v<Said, std::string>) *said = {"x", option("test")};
    if constexpr (std::is_same_v<Said, std::vector<std::string>>) *said = {{"x"}, option("test")};
    if constexpr (std::is_same_v<Said, OffloadDevice> && std::is_same_v<Field, OffloadDevice>) {
      *said = {*now == OffloadDevice::Cpu ? OffloadDevice::None : OffloadDevice::Cpu, option("test")};
    }
  }
};
struct Differs {
  template <class T>
  static constexpr bool kSaid =
      std::is_same_v<T, bool> || std::is_same_v<T, std::int64_t> || std::is_same_v<T, double> ||
      std::is_same_v<T, Elements> || std::is_same_v<T, std::string> || std::is_same_v<T, std::vector<std::string>> ||
      std::is_same_v<T, OffloadDevice>;
  template <class A, class B>
  bool operator()(const A* a, const B* b) const {
    if constexpr (std::is_same_v<A, B> && kSaid<A>) return !(*a == *b);
    return false;
  }
};

// Jobs in which every field has a chance: what counts only beside something else stands beside it.
std::vector<Job> jobs() {
  Job deepspeed;
  Training& t = deepspeed.training;
  t.runtime = Runtime::DeepSpeed;
  t.zero.stage = 3;
  t.autocast = DType::BFloat16;
  t.loss = Loss::Chunked;
  t.loss_chunks = 8;
  t.checkpoint.groups = {{0, 1, CheckpointKind::DeepSpeed}};
  t.checkpoint.modules = {"mlp"};
  deepspeed.hardware.emplace().architecture = "sm_90";
  Job pytorch;
  pytorch.training.optimizer = {OptimizerKind::Adam, Implementation::ForLoop};
  pytorch.training.images = 2;
  pytorch.training.image_size = {448, 448};
  Job sharded;
  sharded.training.runtime = Runtime::Fsdp2;
  Job looped;
  looped.training.experts = ExpertsImplementation::Loop;
  looped.training.model_code = ModelCode::Torchtitan;
  Job flat;
  flat.training.runtime = Runtime::Fsdp1;
  return {deepspeed, pytorch, sharded, flat, looped};
}

}  // namespace

TEST_CASE("settings: each field of a job has one row") {
  const Job job;
  const Training& t = job.training;
  std::vector<const void*> addresses;
  for (const SettingRow& row : settings()) {
    if (row.job.field) addresses.push_back(address(row.job.field.of(job)));
  }
  check_parts(
      addresses,
      {part("Job", job, 2), part("Parallelism", job.parallelism, 0), part("Training", t, 5), part("Fsdp", t.fsdp, 0),
       part("Ddp", t.ddp, 0), part("Optimizer", t.optimizer, 0), part("Checkpointing", t.checkpoint, 1),
       part("DeepSpeedCheckpointing", t.checkpoint.deepspeed, 0), part("Zero", t.zero, 2),
       part("offload_param", t.zero.offload_param, 0), part("offload_optimizer", t.zero.offload_optimizer, 0)});
}

TEST_CASE("settings: a field of a job moves its fingerprint, or the table says why not") {
  for (const SettingRow& row : settings()) {
    if (!row.job.field) continue;
    INFO(words_of(row));
    CHECK((row.job.line == Line::None) == !row.job.inert.empty());
    bool moves = false;
    for (const Job& job : jobs()) {
      Job other = job;
      std::visit(Change{}, row.job.field.of(other));
      moves = moves || fingerprint({}, other) != fingerprint({}, job);
    }
    CHECK(moves == row.job.inert.empty());
  }
}

TEST_CASE("settings: each field of an allocator's configuration moves the fingerprint") {
  const Job job;
  std::vector<AllocatorConfig> others(7);
  static_assert(field_count<AllocatorConfig>() == 7, "each has an entry below");
  others[0].max_split_size = Bytes(64 * kMebibyte);
  others[1].max_non_split_rounding = Bytes(64 * kMebibyte);
  others[2].large_segment_size = Bytes(64 * kMebibyte);
  others[3].garbage_collection_threshold = 0.5;
  others[4].roundup_power2_divisions[3] = 4;
  others[5].expandable_segments = true;
  others[6].memory_fraction = 0.5;
  std::set<std::string> seen = {fingerprint({}, job)};
  for (const AllocatorConfig& config : others) {
    Job other = job;
    other.allocator = config;
    CHECK(seen.insert(fingerprint({}, other)).second);
  }
}

TEST_CASE("settings: fields of one line have places of their own") {
  std::set<std::pair<Line, int>> places;
  for (const SettingRow& row : settings()) {
    if (row.job.line == Line::None) continue;
    INFO(words_of(row));
    CHECK(places.insert({row.job.line, row.job.at}).second);
  }
}

TEST_CASE("settings: each field that a DeepSpeed JSON fills has one row") {
  const DeepSpeedInput in;
  std::vector<const void*> addresses;
  for (const SettingRow& row : settings()) {
    if (row.json.field) addresses.push_back(address(row.json.field.of(in)));
  }
  // Without: where it stands, blocks, and lists that the reader fills. offload_param has no pipelining, and
  // offload_optimizer no sizes: two fields less each.
  check_parts(addresses, {part("DeepSpeedInput", in, 10), part("OptimizerInput", in.optimizer, 2),
                          part("ActivationCheckpointingInput", in.activation_checkpointing, 2),
                          part("ZeroInput", in.zero, 4), part("offload_param", in.zero.offload_param, 4),
                          part("offload_optimizer", in.zero.offload_optimizer, 4)});
}

TEST_CASE("settings: what a DeepSpeed JSON says in a plain key reaches its field of the job") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const DeepSpeedInput base = read_deepspeed(parse_hjson("ds.json", R"({"train_micro_batch_size_per_gpu": 1,
      "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})"));
  Request request;
  request.gpus = {4, option("--gpus")};
  request.seq = {16, option("--seq")};
  const Job job = resolve(model, request, &base, nullptr, nullptr);
  int rows = 0;
  for (const SettingRow& row : settings()) {
    const bool plain = row.json.path.starts_with("zero_optimization.") || row.json.path.starts_with("aio.");
    if (!plain || !row.json.field || !row.job.field || row.json.path == "zero_optimization.stage") continue;
    INFO(row.json.path);
    DeepSpeedInput in = base;
    std::visit(Say{}, row.json.field.of(in), row.job.field.of(job));
    const Job other = resolve(model, request, &in, nullptr, nullptr);
    CHECK(std::visit(Differs{}, row.job.field.of(other), row.job.field.of(job)));
    ++rows;
  }
  CHECK(rows == 36);
}

TEST_CASE("settings: each setting of a request has one row") {
  const Request request;
  std::vector<const void*> addresses;
  std::set<std::string_view> names;
  for (const SettingRow& row : settings()) {
    if (!row.request.field) continue;
    INFO(words_of(row));
    addresses.push_back(address(row.request.field.of(request)));
    if (!row.request.key.empty()) CHECK(names.insert(row.request.key).second);
    if (row.request.option != nullptr) CHECK(names.insert(row.request.option).second);
  }
  // Without: what kinds of sources there were, their own structs, two lists, and places of faults.
  check_parts(addresses,
              {part("Request", request, 9), part("FsdpInput", request.fsdp, 0), part("DdpInput", request.ddp, 0)});
}
