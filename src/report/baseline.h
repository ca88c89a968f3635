// A committed prediction, with everything that it was made from, and what has moved since (docs/ci.md).
//
// Three predictions stand side by side: *stored*, as the baseline has it; *replayed*, from the stored inputs by this
// dsplan; *now*, from the user's files of today by this dsplan. stored -> replayed is a newer dsplan's doing,
// replayed -> now is the user's change. The two sum to the whole difference by construction.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/document.h"
#include "core/inputs.h"
#include "core/job.h"
#include "core/units.h"
#include "report/comparison.h"

namespace dsplan {

// What a prediction is made from: nine files, and the words of the command. The launch line may name two: the
// launcher's configuration and the program's.
enum class SourceKind : std::uint8_t {
  Model,
  DeepSpeed,
  Training,
  Checkpoint,
  Routing,
  Hardware,
  Cluster,
  Calibration,
  LaunchFile,
  SecondLaunchFile,
  Command
};
inline constexpr std::size_t kSourceFiles = 10;  // All but Command.
inline constexpr std::size_t kSourceKinds = kSourceFiles + 1;
[[nodiscard]] std::string_view name(SourceKind kind);  // "model", ..., "command"

struct SourceFile {
  std::string name;      // A bundled name, or the path as the command says it.
  bool bundled = false;  // One of dsplan's own, whose content is dsplan's business.
  std::string model;     // Of Model only: what it is called in reports.
  Document content;
};

// Everything read, whole.
struct Sources {
  std::vector<std::string> command;  // The words after `simulate`.
  std::array<std::optional<SourceFile>, kSourceFiles> files;

  [[nodiscard]] std::optional<SourceFile>& operator[](SourceKind kind) { return files[static_cast<std::size_t>(kind)]; }
  [[nodiscard]] const std::optional<SourceFile>& operator[](SourceKind kind) const {
    return files[static_cast<std::size_t>(kind)];
  }
};

// One figure of a prediction: bytes, elements or calls, or the word of the verdict. Absent: not predicted.
struct FigureValue {
  std::optional<std::int64_t> number;
  std::string text;
  friend bool operator==(const FigureValue&, const FigureValue&) = default;
};

struct FigureRow {
  std::string path;  // As in the CSV of a prediction.
  FigureValue value;
  friend bool operator==(const FigureRow&, const FigureRow&) = default;
};

// What a row counts, by its path; nullopt: nobody knows such a row.
[[nodiscard]] std::optional<RowKind> kind_of_row(std::string_view path);

struct BaselineRank {
  std::int64_t rank = 0;
  std::vector<FigureRow> rows;
};

struct BaselineVersions {
  std::string dsplan;
  std::string torch;
  std::string transformers;
  std::string deepspeed;
};

struct Baseline {
  std::string path;    // As the user named it.
  std::string source;  // Who wrote it.
  // The folder in which `command` was said, from the one that holds the baseline: "..".
  std::string folder;
  std::vector<std::string> command;  // What is predicted now; people may edit it.
  Place command_place;
  BaselineVersions written;  // By which dsplan, and which versions it predicted.
  std::string fingerprint;
  std::string model_sha256;  // Over the canonical JSON of its config.json.
  std::vector<BaselineRank> ranks;
  // What no option can say and somebody has agreed to, with its value (`dsplan check --init`): name and value.
  std::vector<ResolvedInput> accepted;
  std::optional<Bytes> at_most;         // What the process of no rank may exceed.
  std::vector<ResolvedInput> resolved;  // Name, value and origin.
  Sources inputs;                       // What the figures were predicted from. Bundled files have no content here.
  Place inputs_place;
};

// One value that differs between two states of a file.
struct KeyChange {
  std::string key;  // "zero_optimization.reduce_bucket_size", "--seq"; empty: the file itself came or went.
  std::string before;
  std::string after;
  Place place;  // In today's file; of a key that is gone, of the object that held it.
};

// The leaves that differ, in the order of `after`, then those that are gone. Long values are cut.
[[nodiscard]] std::vector<KeyChange> changes_of(const Document& before, const Document& after);

struct SourceChange {
  SourceKind kind = SourceKind::Model;
  std::string name;  // The file, or "command".
  std::vector<KeyChange> keys;
  // Nothing is predicted with only this source changed: it contradicts the others as they were.
  std::optional<std::string> refused_alone;
};

// One resolved input with two values; an empty one is not there.
struct InputChange {
  std::string name;
  std::string before;
  std::string after;
  std::string reason;  // Of the later one.
  friend bool operator==(const InputChange&, const InputChange&) = default;
};
[[nodiscard]] std::vector<InputChange> changes_of(const std::vector<ResolvedInput>& before,
                                                  const std::vector<ResolvedInput>& after);

struct CheckedRow {
  std::string path;
  RowKind kind = RowKind::Requested;
  FigureValue stored;
  FigureValue replayed;
  FigureValue now;
  // What each SourceChange moves alone, in their order; absent where it is refused alone. They need not sum to the
  // whole: two changes can act together.
  std::vector<std::optional<std::int64_t>> by_source;
  std::int64_t tolerance = 0;
  bool newer = false;  // A newer dsplan moved it beyond the tolerance.
  bool yours = false;  // The user's change did.

  [[nodiscard]] bool moved() const { return newer || yours; }
  [[nodiscard]] bool within() const { return !moved() && (stored != replayed || replayed != now); }
};

// after - before where both are numbers.
[[nodiscard]] std::optional<std::int64_t> difference(const FigureValue& before, const FigureValue& after);

struct CheckedRank {
  std::int64_t stored = 0;  // The rank's number then, and now: "worst" may be another one.
  std::int64_t now = 0;
  std::vector<CheckedRow> rows;
};

struct CheckedBaseline {
  std::string path;
  Place place;                 // Of its command, for those who want a line.
  BaselineVersions written;    // In the baseline.
  BaselineVersions here;       // Of this dsplan, and of the versions that it predicts now.
  bool model_differs = false;  // A bundled model that is not what it was.
  std::vector<InputChange> newer_inputs;
  std::vector<InputChange> your_inputs;
  std::vector<SourceChange> changes;
  std::vector<CheckedRank> ranks;
  std::optional<Bytes> at_most;  // The smaller of the baseline's and --at-most.
  // Nothing could be checked: the faults, all of them.
  std::vector<Diagnostic> refused;
};

struct RowCounts {
  std::int64_t rows = 0;
  std::int64_t newer = 0;
  std::int64_t yours = 0;
  std::int64_t within = 0;
};
[[nodiscard]] RowCounts counts(const CheckedBaseline& checked);
[[nodiscard]] bool differs(const CheckedBaseline& checked);
// The largest process of all ranks now, where one is predicted.
[[nodiscard]] std::optional<Bytes> process_now(const CheckedBaseline& checked);
// More than `at_most`, or not known where there is one.
[[nodiscard]] bool exceeds(const CheckedBaseline& checked);
// "agrees", "differs" or "refused". What exceeds its threshold differs.
[[nodiscard]] std::string_view state(const CheckedBaseline& checked);

// The rows that stand for a whole run: persistent bytes, peaks and the verdict.
[[nodiscard]] bool stands_for_the_run(const CheckedRow& row);

// One side of a check: a prediction of each rank.
using FiguresOfRanks = std::vector<BaselineRank>;
// Lays the three predictions over each other, row by row. A collective that one side does not list counts 0 there,
// unless its traffic is unknown; any other row that one side lacks has moved. Single ranks meet whatever their number.
// `alone` holds a prediction for each change, with only that source changed; absent where it was refused.
[[nodiscard]] std::vector<CheckedRank> lay_over(const FiguresOfRanks& stored, const FiguresOfRanks& replayed,
                                                const FiguresOfRanks& now,
                                                const std::vector<std::optional<FiguresOfRanks>>& alone,
                                                const Tolerances& tolerances);

// Baselines: committed predictions (docs/ci.md).

// Reads kind "baseline". Faults, together and with their places: another kind, missing and unknown keys, wrong types,
// rows that nobody knows or that stand twice, negative figures, ranks that stand twice, no rank at all. Of another file
// version nothing but that is said. The contents of the inputs are kept as they are: whoever predicts reads them.
[[nodiscard]] Baseline read_baseline(const Document& document);

// Whether a document says that it is a baseline, of whatever version.
[[nodiscard]] bool is_baseline(const Document& document);

// The same as text: one row of figures per line, one option per line, keys always in the same order, so that a
// difference of two versions reads like a report.
[[nodiscard]] std::string baseline_json(const Baseline& baseline);

}  // namespace dsplan
