#include "report/baseline.h"

#include <algorithm>

#include "core/format.h"
#include "core/receipt.h"
#include "io/fields.h"
#include "io/own_file.h"
#include "report/kept_figures.h"

namespace dsplan {
namespace {

std::string shown(const Value& value) {
  constexpr std::size_t kMost = 60;
  std::string text = canonical_json(value);
  if (text.size() <= kMost) return text;
  std::size_t end = kMost;
  while ((static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // Not within a character.
  return text.substr(0, end) + "...";
}

class Differences {
 public:
  explicit Differences(const Document& after) : after_(after) {}

  void visit(const std::string& key, const Value& before, const Value& now, std::size_t offset) {
    if (before.is(Value::Kind::Object) && now.is(Value::Kind::Object)) return visit_members(key, before, now);
    const bool lists = before.is(Value::Kind::Array) && now.is(Value::Kind::Array);
    if (lists && before.items.size() == now.items.size()) {
      for (std::size_t i = 0; i < now.items.size(); ++i) {
        visit(formatted("{}[{}]", key, i), before.items[i], now.items[i], now.items[i].offset);
      }
      return;
    }
    if (canonical_json(before) != canonical_json(now)) add(key, shown(before), shown(now), offset);
  }

  [[nodiscard]] std::vector<KeyChange> all() && { return std::move(changes_); }

 private:
  void visit_members(const std::string& key, const Value& before, const Value& now) {
    const std::string base = key.empty() ? key : key + ".";
    for (const Member& member : now.members) {
      if (const Value* was = before.find(member.key)) {
        visit(base + member.key, *was, member.value, member.key_offset);
      } else {
        add(base + member.key, {}, shown(member.value), member.key_offset);
      }
    }
    for (const Member& member : before.members) {
      if (now.find(member.key) == nullptr) add(base + member.key, shown(member.value), {}, now.offset);
    }
  }

  void add(std::string key, std::string before, std::string now, std::size_t offset) {
    changes_.push_back({std::move(key), std::move(before), std::move(now), place_at(after_, offset)});
  }

  const Document& after_;
  std::vector<KeyChange> changes_;
};

const FigureRow* find_row(const BaselineRank* rank, std::string_view path) {
  if (rank == nullptr) return nullptr;
  const auto found =
      std::find_if(rank->rows.begin(), rank->rows.end(), [&](const FigureRow& row) { return row.path == path; });
  return found == rank->rows.end() ? nullptr : &*found;
}

FigureValue value_in(const BaselineRank* rank, std::string_view path) {
  if (const FigureRow* row = find_row(rank, path)) return row->value;
  // A row "communication" stands for traffic that is not predicted at all.
  const bool silent = rank == nullptr || find_row(rank, "communication") != nullptr;
  if (path.starts_with("communication.") && !silent) return {0, {}};
  return {};
}

bool beyond(const FigureValue& before, const FigureValue& after, std::int64_t tolerance) {
  if (before == after) return false;
  const std::optional<std::int64_t> by = difference(before, after);
  return !by || *by > tolerance || *by < -tolerance;
}

// All sides of one rank; those that lack it are null.
struct Sides {
  const BaselineRank* stored = nullptr;
  const BaselineRank* replayed = nullptr;
  const BaselineRank* now = nullptr;
  std::vector<const BaselineRank*> alone;  // Null: refused.
};

CheckedRow checked_row(const std::string& path, const Sides& sides, const Tolerances& tolerances) {
  CheckedRow row;
  row.path = path;
  row.kind = kind_of_row(path).value_or(RowKind::Requested);
  row.stored = value_in(sides.stored, path);
  row.replayed = value_in(sides.replayed, path);
  row.now = value_in(sides.now, path);
  for (const BaselineRank* alone : sides.alone) {
    row.by_source.push_back(alone == nullptr ? std::nullopt : difference(row.replayed, value_in(alone, path)));
  }
  // A gate has no tolerance but what it is given.
  const auto allowed = tolerances.by_kind.find(row.kind);
  if (allowed != tolerances.by_kind.end()) row.tolerance = allowed->second.of(row.stored.number.value_or(0));
  row.newer = beyond(row.stored, row.replayed, row.tolerance);
  row.yours = beyond(row.replayed, row.now, row.tolerance);
  return row;
}

// The rows of today in their order, then those that only older sides have.
CheckedRank checked_rank(const Sides& sides, const Tolerances& tolerances) {
  CheckedRank rank;
  std::vector<std::string> paths;
  for (const BaselineRank* side : {sides.now, sides.replayed, sides.stored}) {
    if (side == nullptr) continue;
    for (const FigureRow& row : side->rows) {
      if (std::find(paths.begin(), paths.end(), row.path) == paths.end()) paths.push_back(row.path);
    }
  }
  const BaselineRank* any = sides.now != nullptr        ? sides.now
                            : sides.replayed != nullptr ? sides.replayed
                                                        : sides.stored;
  rank.now = any->rank;
  rank.stored = sides.stored == nullptr ? any->rank : sides.stored->rank;
  for (const std::string& path : paths) rank.rows.push_back(checked_row(path, sides, tolerances));
  return rank;
}

const BaselineRank* find_rank(const FiguresOfRanks& ranks, std::int64_t rank, bool single) {
  if (single && !ranks.empty()) return &ranks.front();
  const auto found =
      std::find_if(ranks.begin(), ranks.end(), [&](const BaselineRank& one) { return one.rank == rank; });
  return found == ranks.end() ? nullptr : &*found;
}

}  // namespace

std::string_view name(SourceKind kind) {
  switch (kind) {
    case SourceKind::Model: return "model";
    case SourceKind::DeepSpeed: return "deepspeed";
    case SourceKind::Training: return "training";
    case SourceKind::Checkpoint: return "checkpoint";
    case SourceKind::Routing: return "routing";
    case SourceKind::Hardware: return "hardware";
    case SourceKind::Cluster: return "cluster";
    case SourceKind::Calibration: return "calibration";
    case SourceKind::LaunchFile: return "launch_file";
    case SourceKind::SecondLaunchFile: return "second_launch_file";
    case SourceKind::Command: return "command";
  }
  return "?";
}

std::optional<RowKind> kind_of_row(std::string_view path) {
  if (path == "verdict") return RowKind::Verdict;
  if (path.starts_with("parameters.")) return RowKind::Parameters;
  if (path.starts_with("memory.host.")) return RowKind::Host;
  std::string_view last = path.substr(path.rfind('.') + 1);
  if (path.starts_with("communication")) {
    if (last == "payload_bytes") return RowKind::Payload;
    return last == "wire_bytes" ? RowKind::Wire : RowKind::Calls;
  }
  if (!path.starts_with("memory.")) return std::nullopt;
  if (last == "allocations") return RowKind::Calls;
  if (last == "host_requested_total") return RowKind::Host;
  if (last.starts_with("peak_")) last.remove_prefix(5);
  for (const RowKind kind : {RowKind::Allocated, RowKind::Active, RowKind::Reserved, RowKind::Process}) {
    if (last == name(kind)) return kind;
  }
  return RowKind::Requested;  // By role, too.
}

std::vector<KeyChange> changes_of(const Document& before, const Document& after) {
  Differences differences(after);
  differences.visit({}, before.root, after.root, after.root.offset);
  return std::move(differences).all();
}

std::vector<InputChange> changes_of(const std::vector<ResolvedInput>& before, const std::vector<ResolvedInput>& after) {
  const auto find = [](const std::vector<ResolvedInput>& list, const std::string& name) {
    const auto found =
        std::find_if(list.begin(), list.end(), [&](const ResolvedInput& one) { return one.name == name; });
    return found == list.end() ? nullptr : &*found;
  };
  std::vector<InputChange> changes;
  for (const ResolvedInput& now : after) {
    const ResolvedInput* was = find(before, now.name);
    if (was == nullptr || was->value != now.value) {
      changes.push_back({now.name, was == nullptr ? std::string() : was->value, now.value, now.reason});
    }
  }
  for (const ResolvedInput& was : before) {
    if (find(after, was.name) == nullptr) changes.push_back({was.name, was.value, {}, {}});
  }
  return changes;
}

std::optional<std::int64_t> difference(const FigureValue& before, const FigureValue& after) {
  if (!before.number || !after.number) return std::nullopt;
  return checked_add(*after.number, -*before.number);
}

RowCounts counts(const CheckedBaseline& checked) {
  RowCounts counts;
  for (const CheckedRank& rank : checked.ranks) {
    for (const CheckedRow& row : rank.rows) {
      ++counts.rows;
      counts.newer += row.newer ? 1 : 0;
      counts.yours += row.yours ? 1 : 0;
      counts.within += row.within() ? 1 : 0;
    }
  }
  return counts;
}

bool differs(const CheckedBaseline& checked) {
  const RowCounts rows = counts(checked);
  return rows.newer > 0 || rows.yours > 0;
}

std::optional<Bytes> process_now(const CheckedBaseline& checked) {
  std::optional<Bytes> most;
  for (const CheckedRank& rank : checked.ranks) {
    for (const CheckedRow& row : rank.rows) {
      if (row.path != "memory.peak.process" || !row.now.number) continue;
      most = std::max(most.value_or(Bytes(0)), Bytes(*row.now.number));
    }
  }
  return most;
}

bool exceeds(const CheckedBaseline& checked) {
  if (!checked.at_most) return false;
  const std::optional<Bytes> process = process_now(checked);
  return !process || *process > *checked.at_most;
}

std::string_view state(const CheckedBaseline& checked) {
  if (!checked.refused.empty()) return "refused";
  return differs(checked) || exceeds(checked) ? "differs" : "agrees";
}

bool stands_for_the_run(const CheckedRow& row) {
  constexpr std::array<std::string_view, 8> kPaths = {"verdict",
                                                      "memory.persistent.requested",
                                                      "memory.persistent.allocated",
                                                      "memory.peak.requested",
                                                      "memory.peak.allocated",
                                                      "memory.peak.active",
                                                      "memory.peak.reserved",
                                                      "memory.peak.process"};
  return std::find(kPaths.begin(), kPaths.end(), row.path) != kPaths.end();
}

std::vector<CheckedRank> lay_over(const FiguresOfRanks& stored, const FiguresOfRanks& replayed,
                                  const FiguresOfRanks& now, const std::vector<std::optional<FiguresOfRanks>>& alone,
                                  const Tolerances& tolerances) {
  const bool single = stored.size() == 1 && replayed.size() == 1 && now.size() == 1;
  std::vector<std::int64_t> numbers;
  for (const FiguresOfRanks* side : {&now, &replayed, &stored}) {
    for (const BaselineRank& rank : *side) {
      const bool known = std::find(numbers.begin(), numbers.end(), rank.rank) != numbers.end();
      if (!known && !(single && !numbers.empty())) numbers.push_back(rank.rank);
    }
  }
  std::vector<CheckedRank> ranks;
  for (const std::int64_t number : numbers) {
    Sides sides{
        find_rank(stored, number, single), find_rank(replayed, number, single), find_rank(now, number, single), {}};
    for (const auto& one : alone) sides.alone.push_back(one ? find_rank(*one, number, single) : nullptr);
    ranks.push_back(checked_rank(sides, tolerances));
  }
  return ranks;
}

namespace {

constexpr std::array<SourceKind, kSourceFiles> kFiles = {
    SourceKind::Model,      SourceKind::DeepSpeed,       SourceKind::Training, SourceKind::Checkpoint,
    SourceKind::Routing,    SourceKind::Hardware,        SourceKind::Cluster,  SourceKind::Calibration,
    SourceKind::LaunchFile, SourceKind::SecondLaunchFile};

// Where a key's value stands, if anything is read.
void take_place(Fields& fields, std::string_view key, Place& place) {
  ObjectReader* reader = fields.reader();
  const Value* value = reader == nullptr ? nullptr : reader->value().find(key);
  if (value != nullptr) place = place_at(reader->document(), value->offset);
}

// A bundled file is dsplan's own, and has no content here.
void describe_file(Fields& fields, SourceFile& file, SourceKind kind) {
  const bool reads = fields.reader() != nullptr;
  if (reads) file.bundled = fields.reader()->has("bundled");
  if (file.bundled) {
    fields("bundled", file.name);
    if (reads) file.model = file.name;
    return;
  }
  fields("path", file.name);
  if (kind == SourceKind::Model) fields("name", file.model);
  fields.document("content", file.content, "the whole file");
}

void describe_inputs(Fields& fields, Sources& inputs) {
  fields.texts("command", inputs.command, "a word");
  for (const SourceKind kind : kFiles) {
    // Most launch lines name no file, few jobs have one of tokens, and baselines of before know none.
    const bool rare =
        kind == SourceKind::LaunchFile || kind == SourceKind::SecondLaunchFile || kind == SourceKind::Routing;
    const ObjectReader* before = fields.reader();
    if (rare && !(before != nullptr ? before->value().find(name(kind)) != nullptr : inputs[kind].has_value())) {
      continue;
    }
    const std::string what = formatted("the {} file of a baseline", name(kind));
    const bool bundled = inputs[kind] && inputs[kind]->bundled;
    fields.object(name(kind), inputs[kind], {what, bundled ? FieldLine::Same : FieldLine::Own},
                  [&](SourceFile& file) { describe_file(fields, file, kind); });
  }
  ObjectReader* reader = fields.reader();
  if (reader != nullptr && !reader->has("model")) {
    reader->fault("model", "\"model\" must be a file or a bundled name");
  }
}

void describe_baseline(Fields& fields, Baseline& baseline) {
  describe_head(fields, "baseline", baseline.source);
  fields("folder", baseline.folder);
  fields.texts("command", baseline.command, "a word");
  take_place(fields, "command", baseline.command_place);
  detail::describe_versions(fields, "written", baseline.written);
  fields("fingerprint", baseline.fingerprint);
  fields("model_sha256", baseline.model_sha256);
  detail::describe_ranks(fields, baseline.ranks, "a rank of a baseline");
  fields.list(Key::if_there("accepted", !baseline.accepted.empty()), baseline.accepted,
              {"an accepted assumption", FieldLine::Same}, [&](ResolvedInput& input) {
                fields("name", input.name);
                fields("value", input.value);
              });
  fields(Key::if_there("at_most_bytes", baseline.at_most.has_value()), baseline.at_most);
  fields.list("resolved", baseline.resolved, {"a resolved input", FieldLine::Same}, [&](ResolvedInput& input) {
    fields("name", input.name);
    fields("value", input.value);
    fields.named("origin", input.origin, {Origin::Given, Origin::Derived, Origin::Assumed});
  });
  fields.object("inputs", {"\"inputs\""}, [&] { describe_inputs(fields, baseline.inputs); });
  take_place(fields, "inputs", baseline.inputs_place);
}

}  // namespace

bool is_baseline(const Document& document) { return is_kind(document, "baseline"); }

Baseline read_baseline(const Document& document) {
  expect_object(document, "a baseline");
  Baseline baseline;
  baseline.path = document.path;
  read_fields(document, "a baseline", [&](Fields& fields) { describe_baseline(fields, baseline); });
  return baseline;
}

std::string baseline_json(const Baseline& baseline) {
  return written([&](Fields& fields) { describe_baseline(fields, described(baseline)); }, {1, true});
}

}  // namespace dsplan
