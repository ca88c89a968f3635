#include "report/receipt.h"

#include <algorithm>
#include <array>

#include "core/format.h"
#include "core/sha256.h"
#include "io/measured_file.h"
#include "io/own_file.h"

namespace dsplan {
namespace {

constexpr std::array<std::string_view, 4> kPhases = {"init", "first_step", "middle_steps", "steady"};
constexpr std::array<Counter, 4> kPeaks = {Counter::Requested, Counter::Allocated, Counter::Active, Counter::Reserved};
constexpr std::array<Counter, 5> kAll = {Counter::Requested, Counter::Allocated, Counter::Active, Counter::Reserved,
                                         Counter::Process};

class Reader {
 public:
  explicit Reader(const Document& document) : document_(document) {}

  Receipt read() {
    ObjectReader reader(document_, document_.root, faults_);
    Receipt receipt;
    receipt.path = document_.path;
    need(reader, {"schema", "source", "name", "level", "device", "ranks_are", "complete", "outcome", "message",
                  "environment", "inputs", "world_size", "ranks", "samples"});
    (void)reader.choice("schema", {"dsplan.receipt/1"});
    receipt.source = reader.string("source").value_or("");
    receipt.name = reader.string("name").value_or("");
    if (receipt.name.empty() || receipt.name.find_first_of("/*") != std::string::npos) {
      reader.fault("name", "\"name\" must be a file's name without \"/\" and \"*\"");
    }
    read_kind(reader, receipt);
    if (const Value* environment = reader.object("environment"))
      receipt.environment = detail::read_environment(document_, *environment, faults_);
    if (const Value* inputs = reader.object("inputs")) receipt.inputs = read_inputs(*inputs);
    receipt.world = reader.integer("world_size", 1, 1 << 24).value_or(1);
    if (const Value* ranks = reader.array("ranks")) read_ranks(*ranks, receipt);
    if (const Value* samples = reader.array("samples")) read_samples(*samples, receipt);
    if (const Value* process = reader.object("process")) receipt.process = read_process(*process);
    reader.refuse_unread("a receipt");
    faults_.throw_if_any();
    return receipt;
  }

 private:
  static void need(ObjectReader& reader, std::initializer_list<std::string_view> keys) { detail::need(reader, keys); }
  template <class T>
  static T chosen(const std::optional<std::string>& word, std::initializer_list<T> values) {
    for (const T value : values) {
      if (word && *word == name(value)) return value;
    }
    return *values.begin();
  }

  ProcessBytes read_process(const Value& value) {
    ObjectReader reader(document_, value, faults_);
    need(reader, {"moments", "rows", "unexplained"});
    ProcessBytes process;
    const auto each = [&](const char* key, auto&& read) {
      const Value* list = reader.array(key);
      for (const Value& item : list == nullptr ? std::vector<Value>() : list->items) {
        if (!detail::is_object(document_, item, key, faults_)) continue;
        ObjectReader one(document_, item, faults_);
        read(one);
        one.refuse_unread(key);
      }
    };
    each("moments", [&](ObjectReader& one) {
      need(one, {"name", "device_used", "process", "reserved"});
      process.moments.push_back({one.string("name").value_or(""), detail::bytes(one, "device_used"),
                                 detail::bytes(one, "process"), detail::bytes(one, "reserved").value_or(Bytes(0))});
    });
    each("rows", [&](ObjectReader& one) {
      need(one, {"what", "bytes", "from"});
      process.rows.push_back({one.string("what").value_or(""), detail::bytes(one, "bytes").value_or(Bytes(0)),
                              one.string("from").value_or("")});
    });
    const std::optional<std::int64_t> said = reader.integer("unexplained", INT64_MIN, INT64_MAX);
    if (said != process.unexplained()) reader.fault("unexplained", "is not what moments and rows leave over");
    reader.refuse_unread("what a process holds");
    return process;
  }

  void read_kind(ObjectReader& reader, Receipt& into) {
    using R = Receipt;
    into.level = chosen(reader.choice("level", {"threads", "virtual", "nccl", "tcp", "framework"}),
                        {R::Level::Framework, R::Level::Threads, R::Level::Virtual, R::Level::Nccl, R::Level::Tcp});
    into.device = chosen(reader.choice("device", {"cuda", "cpu", "fake", "host"}),
                         {R::Device::Cuda, R::Device::Cpu, R::Device::Fake, R::Device::Host});
    into.ranks_are = chosen(reader.choice("ranks_are", {"process", "fake_process_group"}),
                            {R::Ranks::Process, R::Ranks::FakeProcessGroup});
    into.outcome = chosen(reader.choice("outcome", {"ran", "out_of_memory", "error"}),
                          {R::Outcome::Ran, R::Outcome::OutOfMemory, R::Outcome::Error});
    for (const char* key : {"level", "device", "ranks_are", "complete", "outcome"}) {
      if (const Value* value = reader.value().find(key); value != nullptr && value->is(Value::Kind::Null)) {
        reader.fault(key, formatted("\"{}\" must not be null", key));
      }
    }
    into.complete = reader.boolean("complete").value_or(false);
    into.message = reader.string("message");
    if (into.complete && into.outcome != R::Outcome::Ran) {
      reader.fault("complete", formatted("true, but the outcome is {}", name(into.outcome)));
    }
  }

  static std::optional<Bytes> bytes(ObjectReader& reader, std::string_view key) { return detail::bytes(reader, key); }

  std::optional<Document> part(ObjectReader& reader, std::string_view key) {
    const Value* value = reader.object(key);
    return value == nullptr ? std::nullopt : std::optional(Document{document_.path, document_.text, *value});
  }

  ReceiptInputs read_inputs(const Value& value) {
    ObjectReader reader(document_, value, faults_);
    need(reader, {"model", "deepspeed", "training", "training_arguments", "options", "fingerprint"});
    ReceiptInputs into;
    into.model = part(reader, "model");
    if (!into.model && !reader.has("model") && value.find("model") != nullptr) {
      reader.fault("model", "\"model\" must be the whole config.json");
    }
    into.deepspeed = part(reader, "deepspeed");
    into.training = part(reader, "training");
    into.training_arguments = part(reader, "training_arguments");
    if (const Value* options = reader.array("options")) {
      for (const Value& option : options->items) {
        if (option.is(Value::Kind::String)) {
          into.options.push_back(option.string);
        } else {
          reader.fault(option, formatted("an option must be a string, not {}", describe(option.kind)));
        }
      }
    }
    into.fingerprint = reader.string("fingerprint");
    reader.refuse_unread("a receipt's inputs");
    Value configuration = value;
    std::erase_if(configuration.members, [](const Member& member) { return member.key == "fingerprint"; });
    into.digest = sha256(canonical_json(configuration));
    return into;
  }

  void read_samples(const Value& list, Receipt& into) {
    for (const Value& item : list.items) {
      if (!is_object(item, "a sample")) continue;
      ObjectReader reader(document_, item, faults_);
      need(reader, {"phase", "rank", "step_ns"});
      ReceiptSample sample;
      sample.phase = phase_name(reader, "phase");
      sample.rank = reader.integer("rank", 0, into.world - 1).value_or(0);
      sample.step_ns = reader.integer("step_ns", 0, INT64_MAX);
      reader.refuse_unread("a sample");
      into.samples.push_back(std::move(sample));
    }
  }

  bool is_object(const Value& value, std::string_view what) {
    if (value.is(Value::Kind::Object)) return true;
    faults_.add(document_.at(value.offset, formatted("{} must be an object, not {}", what, describe(value.kind))));
    return false;
  }

  std::string phase_name(ObjectReader& reader, std::string_view key) {
    const std::optional<std::string> read = reader.string(key);
    if (read && std::find(kPhases.begin(), kPhases.end(), *read) == kPhases.end()) {
      reader.fault(key, formatted("no phase \"{}\"", *read), "phases are init, first_step, middle_steps, steady");
    }
    return read.value_or("");
  }

  void read_ranks(const Value& list, Receipt& into) {
    if (into.complete && list.items.empty()) faults_.add(document_.at(list.offset, "a complete receipt has ranks"));
    for (const Value& item : list.items) {
      if (!is_object(item, "a rank")) continue;
      const std::size_t faults = faults_.count();
      ObjectReader reader(document_, item, faults_);
      RankFigures figures = read_rank(reader, into.world);
      for (const RankFigures& other : into.ranks) {
        if (other.rank == figures.rank) reader.fault("rank", formatted("rank {} stands twice", figures.rank));
      }
      if (into.complete && faults_.count() == faults) refuse_silence(reader, figures);
      into.ranks.push_back(std::move(figures));
    }
  }

  RankFigures read_rank(ObjectReader& reader, std::int64_t world) {
    RankFigures into;
    need(reader, {"rank", "parameters", "memory", "communication", "snapshot", "not_measured"});
    into.rank = reader.integer("rank", 0, world - 1).value_or(0);
    if (const Value* value = reader.object("parameters")) {
      ObjectReader parameters(document_, *value, faults_);
      need(parameters, {"total", "trainable"});
      if (const auto total = parameters.integer("total", 0, INT64_MAX)) into.parameters_total = Elements(*total);
      if (const auto some = parameters.integer("trainable", 0, INT64_MAX)) into.parameters_trainable = Elements(*some);
      parameters.refuse_unread("a rank's parameters");
    }
    if (const Value* memory = reader.object("memory")) read_memory(*memory, into);
    if (const Value* rows = reader.array("communication")) into.communication = read_communication(*rows);
    into.snapshot = reader.string("snapshot").value_or("");
    if (const Value* rows = reader.array("not_measured")) read_absent(*rows, into);
    reader.refuse_unread("a rank of a receipt");
    return into;
  }

  void read_absent(const Value& rows, RankFigures& into) {
    for (const Value& item : rows.items) {
      if (!is_object(item, "an entry of \"not_measured\"")) continue;
      ObjectReader reader(document_, item, faults_);
      need(reader, {"what", "why"});
      into.absent.push_back({reader.string("what").value_or(""), reader.string("why").value_or("")});
      reader.refuse_unread("an entry of \"not_measured\"");
    }
  }

  void read_memory(const Value& value, RankFigures& into) {
    ObjectReader reader(document_, value, faults_);
    need(reader, {"persistent", "peak", "phases", "host"});
    if (const Value* found = reader.object("persistent")) {
      ObjectReader persistent(document_, *found, faults_);
      read_counters(persistent, "", {Counter::Requested, Counter::Allocated}, into.persistent);
      persistent.refuse_unread("\"persistent\"");
    }
    if (const Value* found = reader.object("peak")) {
      ObjectReader peak(document_, *found, faults_);
      read_counters(peak, "", kAll, into.peak);
      need(peak, {"phase"});
      into.peak_phase = phase_name(peak, "phase");
      peak.refuse_unread("\"peak\"");
    }
    if (const Value* found = reader.object("host")) {
      ObjectReader host(document_, *found, faults_);
      need(host, {"pinned", "pageable", "peak", "per_node"});
      into.host.pinned = bytes(host, "pinned");
      into.host.pageable = bytes(host, "pageable");
      into.host.peak = bytes(host, "peak");
      into.host.per_node = bytes(host, "per_node");
      into.host.nvme = bytes(host, "nvme");  // Only where there are files.
      into.host.nvme_read = bytes(host, "nvme_read");
      into.host.nvme_written = bytes(host, "nvme_written");
      host.refuse_unread("\"host\"");
    }
    if (const Value* phases = reader.array("phases")) read_phases(*phases, into);
    reader.refuse_unread("a rank's memory");
  }

  template <class List>
  void read_counters(ObjectReader& reader, const std::string& prefix, const List& which, Counters& into) {
    for (const Counter counter : which) {
      const std::string key = prefix + std::string(name(counter));
      const Value* value = reader.value().find(key);
      if (value == nullptr) {
        faults_.add(document_.at(reader.value().offset, formatted("\"{}\" is missing", key)));
        continue;
      }
      into[counter] = bytes(reader, kept(key));
    }
  }
  void read_counters(ObjectReader& reader, const std::string& prefix, std::initializer_list<Counter> which,
                     Counters& into) {
    read_counters(reader, prefix, std::vector<Counter>(which), into);
  }

  // ObjectReader remembers views of the keys that it was asked for.
  std::string_view kept(const std::string& key) {
    for (const Counter counter : kAll) {
      if (key == name(counter)) return name(counter);
    }
    constexpr std::array<std::string_view, 4> kPeakKeys = {"peak_requested", "peak_allocated", "peak_active",
                                                           "peak_reserved"};
    return *std::find(kPeakKeys.begin(), kPeakKeys.end(), key);
  }

  void read_phases(const Value& list, RankFigures& into) {
    for (const Value& item : list.items) {
      if (!is_object(item, "a phase")) continue;
      ObjectReader reader(document_, item, faults_);
      need(reader, {"name", "marks"});
      FigurePhase phase;
      phase.name = phase_name(reader, "name");
      for (const FigurePhase& other : into.phases) {
        if (other.name == phase.name) reader.fault("name", formatted("phase \"{}\" stands twice", phase.name));
      }
      read_counters(reader, "peak_", kPeaks, phase.peak);
      phase.requested_total = bytes(reader, "requested_total");
      phase.allocations = reader.integer("allocations", 0, INT64_MAX);
      phase.host_requested_total = bytes(reader, "host_requested_total");
      if (const Value* marks = reader.array("marks")) read_marks(*marks, phase);
      reader.refuse_unread("a phase");
      into.phases.push_back(std::move(phase));
    }
  }

  void read_marks(const Value& list, FigurePhase& phase) {
    for (const Value& item : list.items) {
      if (!is_object(item, "a mark")) continue;
      ObjectReader reader(document_, item, faults_);
      need(reader, {"name"});
      FigureMark mark;
      mark.name = reader
                      .choice("name", {"begin", "before batch", "before forward", "after forward", "before backward",
                                       "after backward", "before step", "after step", "end"})
                      .value_or("");
      read_counters(reader, "", kAll, mark.at);
      for (const Counter counter : kPeaks) {
        if (mark.at[counter] && phase.peak[counter] && *mark.at[counter] > *phase.peak[counter]) {
          reader.fault(name(counter), formatted("{} is above the phase's peak of {}", mark.at[counter]->value(),
                                                phase.peak[counter]->value()));
        }
      }
      reader.refuse_unread("a mark");
      phase.marks.push_back(std::move(mark));
    }
  }

  std::vector<TrafficFigure> read_communication(const Value& list) {
    std::vector<TrafficFigure> rows;
    for (const Value& item : list.items) {
      if (!is_object(item, "a row of \"communication\"")) continue;
      ObjectReader reader(document_, item, faults_);
      need(reader, {"collective", "group", "phase", "dtype", "kind", "calls", "payload_bytes", "wire_bytes"});
      TrafficFigure row;
      row.collective = reader
                           .choice("collective", {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
                                                  "all_to_all", "send_recv"})
                           .value_or("");
      row.group = reader.choice("group", {"dp", "tp", "sp", "ep", "dp_intra", "dp_inter"}).value_or("");
      row.phase = reader.choice("phase", {"init", "forward", "backward", "step", "save"}).value_or("");
      row.dtype = reader.string("dtype").value_or("");
      row.kind = reader.choice("kind", {"data", "control"}).value_or("");
      row.calls = reader.integer("calls", 0, INT64_MAX);
      row.payload = bytes(reader, "payload_bytes");
      row.wire = bytes(reader, "wire_bytes");
      reader.refuse_unread("a row of \"communication\"");
      rows.push_back(std::move(row));
    }
    return rows;
  }

  // Every null of a complete receipt has its reason.
  void refuse_silence(ObjectReader& reader, const RankFigures& figures) {
    const auto need_reason = [&](bool there, const std::string& path) {
      if (there || absence_of(figures.absent, path) != nullptr) return;
      reader.fault("not_measured", formatted("{} is null, and \"not_measured\" does not say why", path));
    };
    need_reason(figures.parameters_total.has_value(), "parameters.total");
    need_reason(figures.parameters_trainable.has_value(), "parameters.trainable");
    for (const Counter counter : kAll) {
      const std::string text(name(counter));
      need_reason(figures.peak[counter].has_value(), "memory.peak." + text);
      if (counter <= Counter::Allocated)
        need_reason(figures.persistent[counter].has_value(), "memory.persistent." + text);
      for (const FigurePhase& phase : figures.phases) {
        const bool peaks = counter != Counter::Process;
        if (peaks)
          need_reason(phase.peak[counter].has_value(), formatted("memory.phases.{}.peak_{}", phase.name, text));
        const bool all = std::all_of(phase.marks.begin(), phase.marks.end(),
                                     [&](const FigureMark& mark) { return mark.at[counter].has_value(); });
        need_reason(all, formatted("memory.phases.{}.marks.{}", phase.name, text));
      }
    }
    need_reason(figures.host.pinned.has_value(), "memory.host.pinned");
    need_reason(figures.host.pageable.has_value(), "memory.host.pageable");
    need_reason(figures.host.peak.has_value(), "memory.host.peak");
    need_reason(figures.host.per_node.has_value(), "memory.host.per_node");
    need_reason(figures.communication.has_value(), "communication");
  }

  const Document& document_;
  Diagnostics faults_;
};

}  // namespace

Receipt read_receipt(const Document& document) {
  expect_object(document, "a receipt");
  return Reader(document).read();
}

}  // namespace dsplan
