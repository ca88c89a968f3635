// The auditor against schedules that are wrong in exactly one event. Every mutant must be caught, except for classes
// that are listed here with their reason; the score is printed.
#include <doctest/doctest.h>
#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <type_traits>
#include <utility>

#include "core/audit.h"
#include "core/format.h"
#include "lowered.h"

using namespace dsplan;

namespace {

struct Score {
  int caught = 0;
  int total = 0;
  std::map<std::string, int> survivors;  // By class.
};

// A reason why a mutant is no fault. Everything else that survives fails the test.
const std::string kAdjacent = "adjacent releases";
const std::string kPart = "read of another part of a content";
const std::string kShorter = "shorter read";
const std::string kSpare = "longer write, its tail replaced before anyone reads it";
const std::string kPool = "the stream that a survivor was allocated on";
const std::string kFrees = "a wait on which only the end of frees depends";
const std::string kCached = "a cache that is emptied or not";
const std::string kOrdered = "work that waits of its neighbours order on another stream as well";
const std::string kUse = "a use in place of what nobody reads";
const std::string kUnawaited = "an event that nobody waits for";
const std::set<std::string> kLegalSurvivors{
    // Two releases with nothing in between happen at one moment: their order changes no byte at any event.
    kAdjacent,
    // Which part of a flat tensor an operator needs is the meaning of the work, which the auditor does not judge.
    kPart,
    // So is how much of a content it needs, as long as other readers see to it that no byte stays unread.
    kShorter,
    // The tail that a longer write adds to one of several pieces (of a bucket, of the gradients in a partition) is
    // replaced by the next piece before anyone reads it; what collectives made needs no reader.
    kSpare,
    // No release says where it belongs.
    kPool,
    // Where streams have waited for each other anyway, before the work and before its results are read, either stream
    // may do it. Which of them does is the framework's choice, which witnesses hold, not the auditor.
    kOrdered,
    // The host waits for numbers that it reads, which no work of the schedule does; and where it waits often enough,
    // streams need not. When frees end is the allocator's business.
    kFrees,
    // What the allocator keeps is its business, too.
    kCached,
    // A stream may record more than others ask it for.
    kUnawaited,
    // What was gathered for nobody is used on a stream (record_stream), so that its memory waits for that stream. The
    // bytes are nobody's.
    kUse,
};

struct Ranks {
  std::string name;
  std::vector<Schedule> ranks;
};

std::span<Access> accesses_of(Schedule& schedule, const Event& event, bool writes) {
  const auto pick = [&](const auto& work) -> std::span<Access> {
    const Span span = writes ? work.writes : work.reads;
    return {schedule.accesses.data() + span.begin, span.end - span.begin};
  };
  if (const auto* compute = std::get_if<Compute>(&event)) return pick(*compute);
  if (const auto* communicate = std::get_if<Communicate>(&event)) return pick(*communicate);
  return {};
}

// What an event does to buffers, for dependence. Allocations and releases write all of theirs.
struct Touch {
  BufferId buffer;
  std::int64_t from;
  std::int64_t to;
  bool write;
};
std::vector<Touch> touches(Schedule& schedule, const Event& event) {
  std::vector<Touch> list;
  if (const auto* allocate = std::get_if<Allocate>(&event)) list.push_back({allocate->buffer, 0, INT64_MAX, true});
  if (const auto* release = std::get_if<Release>(&event)) list.push_back({release->buffer, 0, INT64_MAX, true});
  for (const bool writes : {false, true}) {
    for (const Access& a : accesses_of(schedule, event, writes)) {
      list.push_back({a.buffer, a.offset.value(), (a.offset + a.bytes).value(), writes});
    }
  }
  return list;
}

bool dependent(Schedule& schedule, const Event& a, const Event& b) {
  for (const Touch& x : touches(schedule, a)) {
    for (const Touch& y : touches(schedule, b)) {
      if (x.buffer == y.buffer && (x.write || y.write) && x.from < y.to && y.from < x.to) return true;
    }
  }
  return false;
}

// Which events the one given comes after, and which come after it, whatever the speed of streams: by their own order,
// by what they wait for and by what the host waits for. A second derivation of what the auditor keeps in clocks.
struct Neighbours {
  std::vector<bool> before;
  std::vector<bool> after;
};

std::optional<StreamId> stream_of(const Event& event) {
  if (const auto* allocate = std::get_if<Allocate>(&event)) return allocate->stream;
  if (const auto* compute = std::get_if<Compute>(&event)) return compute->stream;
  if (const auto* communicate = std::get_if<Communicate>(&event)) return communicate->stream;
  if (const auto* record = std::get_if<RecordEvent>(&event)) return record->stream;
  return std::nullopt;
}

Neighbours neighbours(const std::vector<Event>& events, std::size_t at) {
  Neighbours found{std::vector<bool>(events.size()), std::vector<bool>(events.size())};
  std::set<StreamId> streams{*stream_of(events[at])};
  std::set<ContentId> recorded;
  for (std::size_t i = at; i-- > 0;) {  // The streams all of whose earlier work comes before.
    const auto* record = std::get_if<RecordEvent>(&events[i]);
    if (record != nullptr && recorded.contains(record->id)) streams.insert(record->stream);
    const std::optional<StreamId> stream = stream_of(events[i]);
    found.before[i] = stream && streams.contains(*stream);
    const auto* wait = std::get_if<WaitEvent>(&events[i]);
    if (wait == nullptr) continue;
    if (wait->waiter == kHostSync || streams.contains(wait->waiter)) recorded.insert(wait->recorded);
  }
  streams = {*stream_of(events[at])};
  recorded.clear();
  bool host = false;
  for (std::size_t i = at + 1; i < events.size(); ++i) {  // The streams all of whose later work comes after.
    const std::optional<StreamId> stream = stream_of(events[i]);
    found.after[i] = stream && (host || streams.contains(*stream));
    const auto* record = std::get_if<RecordEvent>(&events[i]);
    if (record != nullptr && found.after[i]) recorded.insert(record->id);
    const auto* wait = std::get_if<WaitEvent>(&events[i]);
    if (wait == nullptr || !recorded.contains(wait->recorded)) continue;
    host = host || wait->waiter == kHostSync;
    streams.insert(wait->waiter);
  }
  return found;
}

class Mutator {
 public:
  Mutator(Ranks& group, std::size_t rank, std::map<std::string, Score>& scores)
      : group_(group), schedule_(group.ranks[rank]), scores_(scores) {}

  void mutate(std::size_t at) {
    std::vector<Event>& events = schedule_.events;
    if (std::holds_alternative<Mark>(events[at])) return;
    const Event original = events[at];
    const auto here = events.begin() + static_cast<std::ptrdiff_t>(at);
    events.erase(here);
    judge("delete", why_nobody_misses(original));
    events.insert(here, original);
    events.insert(here, original);
    judge("duplicate");
    events.erase(here);
    if (at + 1 < events.size()) swap_with_next(at);
    mutate_accesses(at);
    if (auto* event = std::get_if<Allocate>(&events[at])) {
      change("wrong stream", event->stream, 1, survives(event->buffer) ? kPool : "");
      change_bytes("buffer size", schedule_.buffers[event->buffer].size, 1);
      change_bytes("buffer size", schedule_.buffers[event->buffer].size, -1);
    } else if (auto* release = std::get_if<Release>(&events[at])) {
      change("wrong stream", release->stream, 1);
    } else if (auto* compute = std::get_if<Compute>(&events[at])) {
      ++compute->stream;
      const bool ordered = is_ordered(at);
      --compute->stream;
      change("wrong stream", compute->stream, 1, ordered ? kOrdered : "");
    } else if (auto* communicate = std::get_if<Communicate>(&events[at])) {
      change("wrong stream", communicate->stream, 1);
      change_bytes("payload", communicate->payload, 1);
      change_bytes("payload", communicate->payload, -1);
      const DType dtype = communicate->dtype;
      for (const DType wrong : {DType::Float32, DType::BFloat16, DType::Float16, DType::UInt8}) {
        if (wrong == dtype) continue;
        communicate->dtype = wrong;
        judge("wrong dtype");
      }
      communicate->dtype = dtype;
    } else if (auto* record = std::get_if<RecordEvent>(&events[at])) {
      change("wrong stream", record->stream, 1, kFrees);
    } else if (auto* wait = std::get_if<WaitEvent>(&events[at])) {
      change("wrong stream", wait->waiter, 1, kFrees);
      change("wrong event", wait->recorded, 1, kFrees);
    }
  }

  void mutate_rank() {
    const std::int64_t rank = schedule_.rank;
    for (std::int64_t wrong = -1; wrong <= schedule_.dp; ++wrong) {
      if (wrong == rank) continue;
      schedule_.rank = wrong;
      judge("wrong rank");
    }
    schedule_.rank = rank;
  }

  // Whether all that touches what the event touches comes before or after it. An allocation is the host's: memory may
  // be what its stream used until then, so that the stream's last work has to come before. A release is the
  // allocator's, which waits for other streams' uses.
  bool is_ordered(std::size_t at) {
    const std::vector<Event>& events = schedule_.events;
    const Neighbours near = neighbours(events, at);
    for (std::size_t i = 0; i < events.size(); ++i) {
      if (i == at || !stream_of(events[i]) || !dependent(schedule_, events[at], events[i])) continue;
      std::size_t work = i;
      if (std::holds_alternative<Allocate>(events[i])) work = last_work(i);
      if (work < events.size() && !near.before[work] && !near.after[work]) return false;
    }
    return true;
  }

  // Of the stream of the event, before it; the number of events where it has had none.
  std::size_t last_work(std::size_t at) const {
    const std::vector<Event>& events = schedule_.events;
    const auto is_work = [&](const Event& event) {
      return std::holds_alternative<Compute>(event) || std::holds_alternative<Communicate>(event);
    };
    for (std::size_t i = at; i-- > 0;) {
      if (is_work(events[i]) && stream_of(events[i]) == stream_of(events[at])) return i;
    }
    return events.size();
  }

  // Empty: somebody has to.
  std::string why_nobody_misses(const Event& event) const {
    if (std::holds_alternative<WaitEvent>(event)) return kFrees;
    if (std::holds_alternative<EmptyCache>(event)) return kCached;
    if (uses_in_place(event)) return kUse;
    const auto* record = std::get_if<RecordEvent>(&event);
    const auto awaits = [&](const Event& other) {
      const auto* wait = std::get_if<WaitEvent>(&other);
      return wait != nullptr && wait->recorded == record->id;
    };
    if (record != nullptr && std::none_of(schedule_.events.begin(), schedule_.events.end(), awaits)) return kUnawaited;
    return {};
  }

  // Whether the work reads and writes the same bytes, which nobody need read.
  bool uses_in_place(const Event& event) const {
    const auto* compute = std::get_if<Compute>(&event);
    if (compute == nullptr || !fills_scratch(*compute)) return false;
    const std::span<const Access> reads = schedule_.range(compute->reads);
    const std::span<const Access> writes = schedule_.range(compute->writes);
    return std::equal(reads.begin(), reads.end(), writes.begin(), writes.end(), [](const Access& a, const Access& b) {
      return a.buffer == b.buffer && a.offset == b.offset && a.bytes == b.bytes;
    });
  }

  // Whether nobody need read what the work makes.
  bool fills_scratch(const Compute& compute) const {
    const std::span<const Access> writes = schedule_.range(compute.writes);
    return std::all_of(writes.begin(), writes.end(),
                       [&](const Access& access) { return schedule_.buffers[access.buffer].scratch; });
  }

 private:
  void judge(const std::string& kind, const std::string& survivor = "") {
    Score& score = scores_[kind];
    ++score.total;
    if (!audit(schedule_, 1).empty() || !audit_ranks(group_.ranks, 1).empty()) {
      ++score.caught;
    } else {
      ++score.survivors[survivor.empty() ? "in " + group_.name : survivor];
    }
  }

  template <class Field>
  void change(const std::string& kind, Field& field, int by, const std::string& survivor = "") {
    const Field original = field;
    if constexpr (std::is_arithmetic_v<Field>) {
      field = static_cast<Field>(field + static_cast<Field>(by));
    } else {
      field = Field(static_cast<std::int64_t>(field.number()) + by);
    }
    judge(kind, survivor);
    field = original;
  }

  void change_bytes(const std::string& kind, Bytes& field, std::int64_t by, const std::string& survivor = "") {
    field += Bytes(by);
    judge(kind, survivor);
    field -= Bytes(by);
  }

  // A release moves over its neighbour in both directions; other events swap where one depends on the other.
  void swap_with_next(std::size_t at) {
    std::vector<Event>& events = schedule_.events;
    const bool first = std::holds_alternative<Release>(events[at]);
    const bool second = std::holds_alternative<Release>(events[at + 1]);
    const bool swaps = !first && !second && dependent(schedule_, events[at], events[at + 1]);
    if (!first && !second && !swaps) return;
    std::swap(events[at], events[at + 1]);
    judge(first ? "release later" : second ? "release earlier" : "swap", first && second ? kAdjacent : "");
    std::swap(events[at], events[at + 1]);
  }

  void mutate_accesses(std::size_t at) {
    for (const bool writes : {false, true}) {
      const std::string shorter = !writes ? kShorter : uses_in_place(schedule_.events[at]) ? kUse : "";
      for (Access& access : accesses_of(schedule_, schedule_.events[at], writes)) mutate(access, writes, shorter);
    }
  }

  void mutate(Access& access, bool writes, const std::string& shorter) {
    const std::int64_t width = bytes_per_element(schedule_.buffers[access.buffer].dtype);
    const std::string part = !writes && is_partial(access) ? kPart : "";
    const std::string bytewise = width == 1 ? part : "";
    change_bytes("access bytes", access.bytes, 1, bytewise);
    change_bytes("access bytes", access.bytes, -1, width == 1 ? shorter : "");
    change_bytes("access offset", access.offset, 1, bytewise);
    change_bytes("access offset", access.offset, -1, bytewise);
    change_bytes("access an element up", access.offset, width, part);
    const bool has_tail = writes && access.offset + access.bytes < schedule_.buffers[access.buffer].size;
    change_bytes("access an element longer", access.bytes, width, has_tail ? kSpare : part);
    change_bytes("access an element shorter", access.bytes, -width, shorter);
    change("wrong content", access.content, 1);
  }

  bool survives(BufferId id) const {
    return std::find(schedule_.survivors.begin(), schedule_.survivors.end(), id) != schedule_.survivors.end();
  }

  // Whether the content that is read was made larger than what is read of it.
  bool is_partial(const Access& read) const {
    return std::any_of(schedule_.accesses.begin(), schedule_.accesses.end(), [&](const Access& access) {
      return access.content == read.content && access.bytes > read.bytes;
    });
  }

  Ranks& group_;
  Schedule& schedule_;
  std::map<std::string, Score>& scores_;
};

// Large enough that sub-groups and partitions go to files.
ModelSpec large_llama() {
  return lowered::inlined("llama", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "vocab_size": 4500, "hidden_size": 504, "intermediate_size": 2081, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": false})");
}

std::vector<Ranks> groups() {
  std::vector<Ranks> made;
  const ModelSpec gpt2 = lowered::bundled("tiny-gpt2");
  const ModelSpec llama = lowered::bundled("tiny-llama");
  const auto add = [&](const ModelSpec& model, int stage, std::int64_t ranks, auto change) {
    Job job = lowered::job(stage, ranks);
    change(job);
    made.push_back(
        {dsplan::formatted("{} stage {} ranks {}", model.name, stage, ranks), lowered::all_ranks(model, job)});
  };
  const auto small = [](Job& job) {
    job.training.zero.reduce_bucket_size = Elements(20'000);
    job.training.grad_accum = 2;
  };
  const auto checkpointed = [](Job& job) {
    job.training.checkpoint.groups = {{0, 0}, {1, 1}};
    job.training.zero.param_persistence_threshold = Elements(100);
  };
  for (int stage = -1; stage <= 3; ++stage) {
    add(gpt2, stage, stage < 0 ? 1 : 2, checkpointed);
    add(llama, stage, 2, small);
  }
  add(gpt2, 2, 3, [](Job& job) {
    job.training.zero.contiguous_gradients = false;
    lowered::set_dtype(job, DType::Float16);
  });
  add(llama, 1, 4, [](Job& job) { job.training.zero.use_multi_rank_bucket_allreduce = false; });
  add(llama, 2, 2, [&](Job& job) {
    small(job);
    job.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
    job.training.zero.offload_optimizer.pin_memory = true;
  });
  const auto cut = [&](const ModelSpec& model, int stage) {
    add(model, stage, 2, [](Job& job) {
      job.parallelism.tp = 2;
      job.parallelism.world = 4;
      job.training.checkpoint.groups = {{0, 0}, {1, 1}};
    });
  };
  const auto overlapping = [&](const ModelSpec& model, int stage) {
    add(model, stage, 2, [&](Job& job) {
      small(job);
      job.training.zero.overlap_comm = true;
      job.training.zero.param_persistence_threshold = Elements(0);
      if (stage == 3) lowered::set_dtype(job, DType::Float16);
    });
  };
  overlapping(llama, 2);
  overlapping(gpt2, 1);
  overlapping(llama, 3);
  cut(gpt2, 1);
  cut(llama, 3);
  add(llama, 3, 1, [](Job& job) { job.training.optimizer.kind = OptimizerKind::Adam8bit; });
  add(large_llama(), 3, 2, [](Job& job) {
    Zero& zero = job.training.zero;
    zero.reduce_bucket_size = Elements(2'500'000);
    zero.prefetch_bucket_size = Elements(100);
    zero.max_reuse_distance = Elements(0);
    zero.sub_group_size = Elements(1'200'000);
    zero.offload_optimizer.device = zero.offload_param.device = OffloadDevice::Nvme;
    zero.offload_optimizer.buffer_count = 12;
    zero.offload_optimizer.pipeline_read = zero.offload_optimizer.pipeline_write = true;
    zero.offload_param.buffer_count = 5;
    zero.offload_param.max_in_cpu = Elements(2'500'000);
  });
  return made;
}

// All collectives, which are few and of many kinds, as many events of streams and of the cache, and what fills scratch
// right behind a wait of the host, where a survivor is so rare that a draw may miss it.
std::set<std::size_t> chosen_by_kind(const std::vector<Event>& events, const Mutator& mutator, std::size_t each) {
  std::set<std::size_t> chosen;
  std::size_t limit = 0;
  const auto choose = [&](auto wanted) {
    limit += each;
    for (std::size_t at = 0; at < events.size() && chosen.size() < limit; ++at) {
      if (wanted(at)) chosen.insert(at);
    }
  };
  choose([&](std::size_t at) { return std::holds_alternative<Communicate>(events[at]); });
  choose([&](std::size_t at) {
    return std::holds_alternative<RecordEvent>(events[at]) || std::holds_alternative<WaitEvent>(events[at]) ||
           std::holds_alternative<EmptyCache>(events[at]);
  });
  bool waited = false;
  choose([&](std::size_t at) {
    if (const auto* wait = std::get_if<WaitEvent>(&events[at])) waited = waited || wait->waiter == kHostSync;
    const auto* compute = std::get_if<Compute>(&events[at]);
    return compute != nullptr && std::exchange(waited, false) && mutator.fills_scratch(*compute);
  });
  return chosen;
}

}  // namespace

TEST_CASE("a schedule that is wrong in one event is caught") {
  constexpr std::size_t kEventsPerGroup = 400;  // Of each group's thousands; a seed chooses.
  std::map<std::string, Score> scores;
  std::mt19937 random(20260101);
  for (Ranks& group : groups()) {
    CAPTURE(group.name);
    for (const Schedule& schedule : group.ranks) REQUIRE(audit(schedule).empty());
    REQUIRE(audit_ranks(group.ranks).empty());
    const std::size_t rank = random() % group.ranks.size();
    Mutator mutator(group, rank, scores);
    mutator.mutate_rank();
    // Some of each kind, and a sample of the rest.
    const std::vector<Event>& events = group.ranks[rank].events;
    std::set<std::size_t> chosen = chosen_by_kind(events, mutator, kEventsPerGroup / 4);
    while (chosen.size() < std::min(kEventsPerGroup, events.size())) chosen.insert(random() % events.size());
    for (std::size_t at : chosen) mutator.mutate(at);
    // Nothing of the mutations stays behind.
    REQUIRE(audit(group.ranks[rank]).empty());
  }
  int caught = 0;
  int total = 0;
  std::set<std::string> survived;
  for (const auto& [kind, score] : scores) {
    std::fputs(dsplan::formatted("  {:26} {:6} of {:6} caught\n", kind, score.caught, score.total).c_str(), stdout);
    caught += score.caught;
    total += score.total;
    for (const auto& [survivor, count] : score.survivors) {
      std::fputs(dsplan::formatted("  {:26}   {} x {}\n", "", count, survivor).c_str(), stdout);
      survived.insert(survivor);
      CHECK_MESSAGE(kLegalSurvivors.contains(survivor), kind << " survives " << survivor);
    }
  }
  std::fputs(dsplan::formatted("  mutants caught: {} of {}\n", caught, total).c_str(), stdout);
  // The list holds nothing that is caught after all.
  CHECK(survived == kLegalSurvivors);
  CHECK(total > 10'000);
}
