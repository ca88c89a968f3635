// `dsplan replay`: allocator traces and PyTorch's memory snapshots.
#include <algorithm>

#include "cli/assemble.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/predicted.h"
#include "cli/wrap.h"
#include "core/error.h"
#include "core/format.h"
#include "io/allocator_trace.h"
#include "io/pickle.h"
#include "io/snapshot.h"
#include "io/text.h"
#include "report/replay_report.h"
#include "sim/allocator_replay.h"
#include "sim/snapshot_of.h"
#include "sim/snapshot_replay.h"

namespace dsplan {
namespace {

struct ReplayWords {
  std::string path;
  std::optional<std::string> out;
  std::optional<std::string> format;
  std::optional<SimulateWords> against;  // What follows --against: MODEL and the options of `simulate`.
};

ReplayWords parse_replay(const Words& words) {
  const auto against = std::find(words.begin(), words.end(), "--against");
  ReplayWords said;
  std::optional<std::string> path;
  CommandLine line("dsplan replay",
                   "Replays an allocator trace and prints the allocator's statistics as CSV, "
                   "or a PyTorch memory snapshot and says whether all of it is explained.",
                   "`--against MODEL [options of simulate]` comes last and holds a prediction\n"
                   "against a snapshot.\n"
                   "Example: dsplan replay snapshot.pickle --against llama-3-8b --gpus 8\n"
                   "Exit codes: 0 done, 2 refused, 4 recording and prediction differ.");
  line.positional("FILE", "Allocator trace or memory snapshot", path);
  line.option("--format", "table|json", "How to print a snapshot's report", said.format);
  line.option("--out", "FILE", "Print to a file, which appears when complete", said.out);
  line.parse(Words(words.begin(), against));
  if (!path) throw Refusal("dsplan replay", "FILE is missing");
  said.path = *path;
  if (against != words.end()) said.against = parse_simulate("replay FILE --against", Words(against + 1, words.end()));
  return said;
}

constexpr char kSizes[] = "  {:<12}{:>17}{:>17}{:>17}\n";

std::string sizes_table(const DeviceReplay& device) {
  std::string text = formatted(kSizes, "bytes", "at the start", "at the end", "peak");
  const auto row = [&](const char* what, Bytes SnapshotSizes::*field) {
    text += formatted(kSizes, what, grouped((device.start.*field).value()), grouped((device.end.*field).value()),
                      grouped((device.peaks.*field).value()));
  };
  row("allocated", &SnapshotSizes::allocated);
  row("requested", &SnapshotSizes::requested);
  row("active", &SnapshotSizes::active);
  row("reserved", &SnapshotSizes::reserved);
  return text;
}

std::string device_report(const DeviceReplay& device) {
  std::string text = formatted("device {}\n", device.device);
  text +=
      listed("  ",
             {formatted("{} entries", grouped(static_cast<std::int64_t>(device.entries))),
              formatted("{} allocations", grouped(device.allocations)), formatted("{} frees", grouped(device.frees)),
              formatted("{} segment steps", grouped(device.segment_steps)),
              formatted("{} out of memory", grouped(device.ooms)),
              formatted("at the end {} segments of {} blocks", device.segments, device.blocks)},
             4);
  text += sizes_table(device);
  if (device.releases > 0) {
    text += wrapped("  ",
                    formatted("cached memory was given back {} time{}: by empty_cache, or because the device "
                              "had no more",
                              device.releases, device.releases == 1 ? "" : "s"),
                    4);
  }
  if (!device.difference) return text;
  const SnapshotDifference& difference = *device.difference;
  text += difference.entry ? formatted("  first difference: entry {}\n", *difference.entry)
                           : std::string("  first difference: the segments at the end\n");
  text += wrapped("    recorded   ", difference.recorded, 15);
  return text + wrapped("    predicted  ", difference.predicted, 15);
}

std::string comparison_report(const SnapshotComparison& comparison) {
  std::string text = formatted("device {} against the prediction: {}\n", comparison.device,
                               comparison.equal() ? "equal" : "different");
  text += formatted(kSizes, "bytes", "recorded", "predicted", "difference");
  const auto row = [&](const std::string& what, Bytes recorded, Bytes predicted) {
    text += formatted("  {:<18}{:>11}{:>17}{:>17}\n", what, grouped(recorded.value()), grouped(predicted.value()),
                      grouped((predicted - recorded).value()));
  };
  const auto both = [&](const char* what, Bytes SnapshotSizes::*field) {
    row(formatted("peak {}", what), comparison.recorded.*field, comparison.predicted.*field);
    row(formatted("end {}", what), comparison.recorded_end.*field, comparison.predicted_end.*field);
  };
  both("allocated", &SnapshotSizes::allocated);
  both("active", &SnapshotSizes::active);
  both("reserved", &SnapshotSizes::reserved);
  return text +
         formatted("  {:<18}{:>11}{:>17}\n", "segments", comparison.recorded_segments, comparison.predicted_segments);
}

std::string table(const std::vector<DeviceReplay>& devices, const std::vector<SnapshotComparison>& comparisons) {
  const bool agrees =
      std::none_of(devices.begin(), devices.end(), [](const auto& d) { return d.difference.has_value(); });
  std::string text = agrees ? "agrees: every request, segment and block is where the allocator's rules put it\n"
                            : "differs: the allocator's rules do not explain this recording\n";
  if (devices.empty()) text = "agrees: the snapshot is empty\n";
  for (const DeviceReplay& device : devices) text += "\n" + device_report(device);
  for (const SnapshotComparison& comparison : comparisons) text += "\n" + comparison_report(comparison);
  return text;
}

int replay_of_snapshot(const ReplayWords& said, std::string text) {
  const std::string format = said.format.value_or("table");
  if (format != "table" && format != "json") {
    throw Refusal("--format", formatted("no format \"{}\" of a snapshot's report", format), "formats are table, json");
  }
  const Snapshot snapshot = read_snapshot(said.path, std::move(text));
  const std::vector<DeviceReplay> devices = replay_snapshot(snapshot, said.path);
  std::vector<SnapshotComparison> comparisons;
  if (said.against) {
    if (devices.size() != 1) throw Refusal(said.path, "holds several devices, or none", "a prediction is of one rank");
    const Predicted predicted = predicted_schedule(*said.against, "--against");
    const Snapshot made = snapshot_of(predicted.schedule, predicted.inputs.model, predicted.config, predicted.limit);
    comparisons.push_back(compare_snapshots(devices.front(), replay_snapshot(made, "the prediction").front()));
  }
  Output output(said.out.value_or(""));
  output.add(format == "json" ? replay_json(devices, comparisons) : table(devices, comparisons));
  output.finish();
  const bool differs =
      std::any_of(devices.begin(), devices.end(), [](const auto& d) { return d.difference.has_value(); }) ||
      std::any_of(comparisons.begin(), comparisons.end(), [](const auto& c) { return !c.equal(); });
  return differs ? kDiffers : kDone;
}

bool is_snapshot(const std::string& path, std::string_view text) {
  return looks_like_pickle(text) || path.ends_with(".pickle") || path.ends_with(".pkl");
}

}  // namespace

int replay_command(const Words& words) {
  const ReplayWords said = parse_replay(words);
  std::string text = read_file(said.path, kLargestPickle);
  if (is_snapshot(said.path, text)) return replay_of_snapshot(said, std::move(text));
  if (text.size() > kLargestText) throw Refusal(said.path, formatted("larger than {} MiB", kLargestText >> 20));
  if (said.against) throw Refusal("--against", "holds a prediction against a memory snapshot, not an allocator trace");
  if (said.format && *said.format != "csv") throw Refusal("--format", "an allocator trace is answered as csv");
  Output output(said.out.value_or(""));
  output.add(replay_csv(read_allocator_trace(said.path, std::move(text))));
  output.finish();
  return kDone;
}

}  // namespace dsplan
