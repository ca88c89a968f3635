// The small commands: replay and doctor.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/output.h"
#include "core/error.h"
#include "core/training.h"
#include "io/allocator_trace.h"
#include "io/locate.h"
#include "io/text.h"
#include "sim/allocator_replay.h"

namespace dsplan {

int replay_command(const Words& words) {
  std::optional<std::string> path, out;
  CommandLine line("dsplan replay", "Replays an allocator trace and prints the allocator's statistics as CSV.");
  line.positional("FILE", "Allocator trace", path);
  line.option("--out", "FILE", "Print to a file, which appears when it is complete", out);
  line.parse(words);
  if (!path) throw Refusal("dsplan replay", "FILE is missing");
  if (path->ends_with(".pickle") || path->ends_with(".pkl")) {
    throw Refusal(*path, "memory snapshots of PyTorch are not modelled yet", "allocator traces are");
  }
  Output output(out.value_or(""));
  output.add(replay_csv(read_allocator_trace(*path, read_file(*path))));
  output.finish();
  return kDone;
}

int doctor_command(const Words& words) {
  CommandLine line("dsplan doctor", "Says what is installed.");
  line.parse(words);
  Output output("");
  output.add(fmt::format("dsplan        {}\n", DSPLAN_VERSION));
  output.add(fmt::format("modelled      torch {}, transformers {}, deepspeed {}\n", kTorchVersion, kTransformersVersion,
                         kDeepSpeedVersion));
  const std::string data = data_dir();
  output.add(fmt::format("data          {} ({} models)\n", data, list_bundled(Bundled::Model).size()));
  output.add("CUDA          not built in yet\n");
  output.finish();
  return kDone;
}

}  // namespace dsplan
