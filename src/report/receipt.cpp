#include "report/receipt.h"

#include <algorithm>
#include <array>

#include "core/format.h"
#include "core/sha256.h"
#include "io/fields.h"
#include "io/own_file.h"

namespace dsplan {
namespace {

constexpr const char* kReceiptSchema = "dsplan.receipt/1";
constexpr std::array<Counter, 5> kAll = {Counter::Requested, Counter::Allocated, Counter::Active, Counter::Reserved,
                                         Counter::Process};
constexpr std::array<std::string_view, 4> kPeakKeys = {"peak_requested", "peak_allocated", "peak_active",
                                                       "peak_reserved"};
constexpr std::size_t kPersistent = 2;

void describe_counters(Fields& fields, Counters& counters, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) fields(name(kAll[i]), counters[kAll[i]]);
}

bool any(const Counters& counters) {
  return std::any_of(counters.bytes.begin(), counters.bytes.end(), [](const auto& bytes) { return bytes.has_value(); });
}

void refuse_other_phases(Fields& fields, const char* key, const std::string& phase) {
  constexpr std::array<std::string_view, 5> kPhaseNames = {"init", "first_step", "middle_steps", "steady", "save"};
  ObjectReader* reader = fields.reader();
  if (reader == nullptr || !reader->has(key) ||
      std::find(kPhaseNames.begin(), kPhaseNames.end(), phase) != kPhaseNames.end())
    return;
  reader->fault(key, formatted("no phase \"{}\"", phase), "phases are init, first_step, middle_steps, steady, save");
}

// Of the items of a list, this one says again what another said before it.
template <class T, class Same>
bool stands_twice(const std::vector<T>& items, const T& item, Same&& same) {
  return std::any_of(items.data(), &item, [&](const T& other) { return same(other, item); });
}

// A phase's peak is above its marks, or no measurement. Whoever reads `phase` has just read all of it.
void refuse_marks_above_peak(ObjectReader& reader, const FigurePhase& phase) {
  const Value* marks = reader.array("marks");
  for (std::size_t i = 0; i < phase.marks.size(); ++i) {
    for (const Counter counter : kAll) {
      const std::optional<Bytes>& at = phase.marks[i].at[counter];
      if (!at || !phase.peak[counter] || *at <= *phase.peak[counter]) continue;
      ObjectReader mark(reader.document(), marks->items[i], reader.diagnostics());
      mark.fault(name(counter),
                 formatted("{} is above the phase's peak of {}", at->value(), phase.peak[counter]->value()));
    }
  }
}

void describe_phase(Fields& fields, FigurePhase& phase) {
  fields("name", phase.name);
  refuse_other_phases(fields, "name", phase.name);
  fields.list("marks", phase.marks, {"a mark"}, [&](FigureMark& mark) {
    fields.word("name", mark.name,
                {"begin", "before batch", "before forward", "after forward", "before backward", "after backward",
                 "before step", "after step", "end"});
    describe_counters(fields, mark.at, kCounters);
  });
  for (std::size_t i = 0; i < kPeakKeys.size(); ++i) fields(kPeakKeys[i], phase.peak[kAll[i]]);
  fields(Key::if_there("requested_total", phase.requested_total.has_value()), phase.requested_total);
  fields(Key::if_there("allocations", phase.allocations.has_value()), phase.allocations);
  fields(Key::if_there("host_requested_total", phase.host_requested_total.has_value()), phase.host_requested_total);
  if (ObjectReader* reader = fields.reader()) refuse_marks_above_peak(*reader, phase);
}

void describe_host(Fields& fields, HostMemory& host) {
  const bool files = host.nvme.value_or(Bytes(0)) > Bytes(0);
  const bool any = host.pinned || host.pageable || host.peak || host.per_node || files;
  fields.object("host", {"\"host\"", FieldLine::Own, true, any}, [&] {
    fields("pinned", host.pinned);
    fields("pageable", host.pageable);
    fields("peak", host.peak);
    fields("per_node", host.per_node);
    fields(Key::if_there("nvme", files), host.nvme);
    fields(Key::if_there("nvme_read", files), host.nvme_read);
    fields(Key::if_there("nvme_written", files), host.nvme_written);
  });
}

// A part of which nothing was measured is null.
void describe_memory(Fields& fields, RankFigures& rank) {
  fields.object("persistent", {"\"persistent\"", FieldLine::Own, true, any(rank.persistent)},
                [&] { describe_counters(fields, rank.persistent, kPersistent); });
  fields.object("peak", {"\"peak\"", FieldLine::Own, true, any(rank.peak) || !rank.peak_phase.empty()}, [&] {
    describe_counters(fields, rank.peak, kCounters);
    fields.text_or_null("phase", rank.peak_phase);
    refuse_other_phases(fields, "phase", rank.peak_phase);
  });
  fields.list("phases", rank.phases, {"a phase"}, [&](FigurePhase& phase) {
    describe_phase(fields, phase);
    const auto same = [](const FigurePhase& a, const FigurePhase& b) { return a.name == b.name; };
    if (fields.reader() != nullptr && stands_twice(rank.phases, phase, same)) {
      fields.reader()->fault("name", formatted("phase \"{}\" stands twice", phase.name));
    }
  });
  describe_host(fields, rank.host);
}

void describe_row(Fields& fields, TrafficFigure& row) {
  fields.word("collective", row.collective,
              {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send_recv"});
  fields.word("group", row.group, {"dp", "tp", "sp", "ep", "dp_intra", "dp_inter", "dp_replicas"});
  fields.word("phase", row.phase, {"init", "forward", "backward", "step", "save"});
  fields("dtype", row.dtype);
  fields.word("kind", row.kind, {"data", "control"});
  fields("calls", row.calls);
  fields("payload_bytes", row.payload);
  fields("wire_bytes", row.wire);
}

// The paths of what a rank has no figure of.
std::vector<std::string> silent_paths(const RankFigures& figures) {
  std::vector<std::string> paths;
  const auto add = [&](bool there, std::string path) {
    if (!there) paths.push_back(std::move(path));
  };
  add(figures.parameters_total.has_value(), "parameters.total");
  add(figures.parameters_trainable.has_value(), "parameters.trainable");
  for (std::size_t i = 0; i < kCounters; ++i) {
    const Counter counter = kAll[i];
    const std::string text(name(counter));
    add(figures.peak[counter].has_value(), "memory.peak." + text);
    if (i < kPersistent) add(figures.persistent[counter].has_value(), "memory.persistent." + text);
    for (const FigurePhase& phase : figures.phases) {
      if (counter != Counter::Process) {
        add(phase.peak[counter].has_value(), formatted("memory.phases.{}.peak_{}", phase.name, text));
      }
      const bool all = std::all_of(phase.marks.begin(), phase.marks.end(),
                                   [&](const FigureMark& mark) { return mark.at[counter].has_value(); });
      add(all, formatted("memory.phases.{}.marks.{}", phase.name, text));
    }
  }
  add(figures.host.pinned.has_value(), "memory.host.pinned");
  add(figures.host.pageable.has_value(), "memory.host.pageable");
  add(figures.host.peak.has_value(), "memory.host.peak");
  add(figures.host.per_node.has_value(), "memory.host.per_node");
  add(figures.communication.has_value(), "communication");
  return paths;
}

void describe_rank(Fields& fields, RankFigures& rank, std::int64_t world) {
  fields("rank", rank.rank, 0, world - 1);
  fields.object("parameters", {"a rank's parameters"}, [&] {
    fields("total", rank.parameters_total);
    fields("trainable", rank.parameters_trainable);
  });
  fields.object("memory", {"a rank's memory"}, [&] { describe_memory(fields, rank); });
  fields.list("communication", rank.communication, {"a row of \"communication\""},
              [&](TrafficFigure& row) { describe_row(fields, row); });
  fields.text_or_null("snapshot", rank.snapshot);
  fields.list("not_measured", rank.absent, {"an entry of \"not_measured\""}, [&](Absence& absence) {
    fields("what", absence.what);
    fields("why", absence.why);
  });
}

void describe_ranks(Fields& fields, Receipt& receipt) {
  fields.list("ranks", receipt.ranks, {"a rank of a receipt"}, [&](RankFigures& rank) {
    const std::size_t faults = fields.reader() == nullptr ? 0 : fields.reader()->diagnostics().count();
    describe_rank(fields, rank, receipt.world);
    ObjectReader* reader = fields.reader();
    if (reader == nullptr) return;
    const auto same = [](const RankFigures& a, const RankFigures& b) { return a.rank == b.rank; };
    if (stands_twice(receipt.ranks, rank, same)) {
      reader->fault("rank", formatted("rank {} stands twice", rank.rank));
    }
    // Every null of a complete receipt has its reason.
    if (!receipt.complete || reader->diagnostics().count() != faults) return;
    for (const std::string& path : silent_paths(rank)) {
      if (absence_of(rank.absent, path) != nullptr) continue;
      reader->fault("not_measured", formatted("{} is null, and \"not_measured\" does not say why", path));
    }
  });
  if (fields.reader() != nullptr && receipt.complete && receipt.ranks.empty()) {
    fields.reader()->fault("ranks", "a complete receipt has ranks");
  }
}

void describe_inputs(Fields& fields, ReceiptInputs& inputs) {
  fields.document("model", inputs.model);
  fields.document("deepspeed", inputs.deepspeed);
  fields.document("training", inputs.training);
  fields.document("training_arguments", inputs.training_arguments);
  fields.texts("options", inputs.options, "an option");
  fields("fingerprint", inputs.fingerprint);
  ObjectReader* reader = fields.reader();
  if (reader == nullptr) return;
  if (!inputs.model && !reader->has("model")) reader->fault("model", "\"model\" must be the whole config.json");
  Value configuration = reader->value();
  std::erase_if(configuration.members, [](const Member& member) { return member.key == "fingerprint"; });
  inputs.digest = sha256(canonical_json(configuration));
}

void describe_process(Fields& fields, ProcessBytes& process) {
  fields.list("moments", process.moments, {"a moment"}, [&](ProcessMoment& moment) {
    fields("name", moment.name);
    fields("device_used", moment.device_used);
    fields("process", moment.process);
    fields("reserved", moment.reserved);
  });
  fields.list("rows", process.rows, {"a row of what a process holds"}, [&](ProcessRow& row) {
    fields("what", row.what);
    fields("bytes", row.bytes);
    fields("from", row.from);
  });
  fields.derived("unexplained", process.unexplained(), INT64_MIN);
  ObjectReader* reader = fields.reader();
  if (reader != nullptr && reader->integer("unexplained", INT64_MIN, INT64_MAX) != process.unexplained()) {
    reader->fault("unexplained", "is not what moments and rows leave over");
  }
}

void describe_run(Fields& fields, Receipt& receipt) {
  using R = Receipt;
  fields.constant("schema", kReceiptSchema);
  fields("source", receipt.source);
  fields("name", receipt.name);
  if (fields.reader() != nullptr && (receipt.name.empty() || receipt.name.find_first_of("/*") != std::string::npos)) {
    fields.reader()->fault("name", "\"name\" must be a file's name without \"/\" and \"*\"");
  }
  fields.named("level", receipt.level,
               {R::Level::Threads, R::Level::Virtual, R::Level::Nccl, R::Level::Tcp, R::Level::Framework});
  fields.named("device", receipt.device, {R::Device::Cuda, R::Device::Cpu, R::Device::Fake, R::Device::Host});
  fields.named("ranks_are", receipt.ranks_are, {R::Ranks::Process, R::Ranks::FakeProcessGroup});
  fields("complete", receipt.complete);
  fields.named("outcome", receipt.outcome, {R::Outcome::Ran, R::Outcome::OutOfMemory, R::Outcome::Error});
  fields("message", receipt.message);
  if (fields.reader() != nullptr && receipt.complete && receipt.outcome != R::Outcome::Ran) {
    fields.reader()->fault("complete", formatted("true, but the outcome is {}", name(receipt.outcome)));
  }
}

void describe_receipt(Fields& fields, Receipt& receipt) {
  describe_run(fields, receipt);
  fields.object("environment", {"an environment"}, [&] { detail::describe_environment(fields, receipt.environment); });
  fields.object("inputs", {"a receipt's inputs"}, [&] { describe_inputs(fields, receipt.inputs); });
  fields("world_size", receipt.world, 1, 1 << 24);
  if (fields.reader() != nullptr) receipt.world = std::max<std::int64_t>(receipt.world, 1);
  describe_ranks(fields, receipt);
  fields.list("samples", receipt.samples, {"a sample"}, [&](ReceiptSample& sample) {
    fields("phase", sample.phase);
    refuse_other_phases(fields, "phase", sample.phase);
    fields("rank", sample.rank, 0, receipt.world - 1);
    fields("step_ns", sample.step_ns);
  });
  fields.object(Key::if_there("process", receipt.process.has_value()), receipt.process, {"what a process holds"},
                [&](ProcessBytes& process) { describe_process(fields, process); });
  fields(Key::if_there("strangers", receipt.strangers.has_value()), receipt.strangers, 0);
}

}  // namespace

Receipt read_receipt(const Document& document) {
  expect_object(document, "a receipt");
  Receipt receipt;
  receipt.path = document.path;
  read_fields(document, "a receipt", [&](Fields& fields) { describe_receipt(fields, receipt); });
  return receipt;
}

std::string receipt_json(const Receipt& receipt) {
  return written([&](Fields& fields) { describe_receipt(fields, described(receipt)); }, {1});
}

std::string receipt_schema() {
  return schema_of(
      kReceiptSchema,
      "What `dsplan run` and `dsplan measure` write and `dsplan compare` reads (docs/receipts.md). Sizes are "
      "bytes; what was not measured is null, with a reason in \"not_measured\".",
      [](Fields& fields) {
        Receipt any;
        describe_receipt(fields, any);
      });
}

}  // namespace dsplan
