// `dsplan calibrate`: measures this machine into a hardware file.

#include <cstdlib>
#include <ctime>
#include <fstream>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/running/machine.h"
#include "cli/running/temporary_folder.h"
#include "core/calibration.h"
#include "core/format.h"
#include "core/text/letters.h"
#include "core/training.h"
#include "exec/calibrate/calibrate.h"
#include "exec/device.h"
#include "exec/failure.h"
#include "io/locate.h"
#include "io/machine_files.h"
#include "report/calibration.h"

namespace dsplan {
namespace {

constexpr const char* kCalibrateFooter =
    "The file says the device's figures and, under \"calibration\", each measurement\n"
    "with its samples. `simulate`, `plan` and `run` take it as --hardware FILE;\n"
    "--calibration FILE takes the measurements alone.\n"
    "Ctrl-C ends the measuring: the file then holds what there was until then, and\n"
    "says that it is not complete (exit code 130). Exit code 6: no such device.\n"
    "Example: dsplan calibrate --backend cuda --hardware h100-sxm --out gpu.json";

struct CalibrateSaid {
  MachineWords machine;
  std::string out;
  std::optional<std::string> like;
  bool quick = false;
};

CalibrateSaid parse_calibrate(const Words& words) {
  CalibrateSaid said;
  std::optional<std::string> backend, out;
  CommandLine line("dsplan calibrate", "Measures this machine, in under two minutes.", kCalibrateFooter);
  line.option("--backend", "host|cuda", "What is measured; host by default", backend);
  line.option("--out", "FILE", "Print to a file, which appears when complete", out);
  line.option("--hardware", "NAME", "The device of configs/hardware that this is", said.like);
  line.flag("--quick", "Few and small inputs: to try it out", said.quick);
  line.parse(words);
  said.machine.backend = backend.value_or("host");
  said.out = out.value_or("");
  Diagnostics faults;
  check_words(said.machine, faults);
  if (said.like && said.machine.backend == "host") {
    faults.add({"--hardware", 0, 0, {}, "names a GPU, and the host is measured", {}});
  }
  faults.throw_if_any();
  return said;
}

// Of the bundled devices that are of this model: the one whose form factor the driver's name says, or else whose memory
// is nearest.
std::optional<Hardware> bundled_like(const MeasuredMachine& machine) {
  std::optional<Hardware> best;
  std::pair<int, std::int64_t> least;
  const std::string called = in_lower_case(machine.device);
  for (const std::string& name : list_bundled(Bundled::Hardware)) {
    if (!same_device(machine.device, name)) continue;
    Hardware one = load_hardware(name);
    const std::string form = name.substr(std::min(name.size(), name.find('-') + 1)).substr(0, 3);
    const std::int64_t apart = std::abs(one.capacity.value() - machine.memory.value());
    const std::pair rank{called.find(form) == std::string::npos ? 1 : 0, apart};
    if (best && rank >= least) continue;
    least = rank;
    best = std::move(one);
  }
  return best;
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "a processor that does not say what it is";
}

CalibratedFile describe(const MeasuredMachine& machine, const CalibrateSaid& said) {
  CalibratedFile file;
  file.processor = processor();
  file.recorded = utc_now();
  const bool host = machine.backend == "host" || machine.device == "host";
  if (said.like) file.like = load_hardware(*said.like);
  if (!said.like && !host) file.like = bundled_like(machine);
  std::string name = host ? "host" : file.like ? file.like->name.substr(0, file.like->name.find('-')) : "";
  if (name.empty()) {
    for (const char c : in_lower_case(machine.device)) {
      if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) name += c;
    }
  }
  file.name = name + "-calibrated";
  file.source = formatted("dsplan {} calibrate --backend {}{}, {} ({}), {}", DSPLAN_VERSION, machine.backend,
                          said.quick ? " --quick" : "", machine.device, file.processor, file.recorded);
  if (file.like) file.source += formatted("; what is not measured: {} ({})", file.like->name, file.like->source);
  return file;
}

MeasuredMachine measure(const CalibrateSaid& said, const Machine& machine) {
  const TemporaryFolder folder("calibrate");
  exec::CalibrateOptions options;
  options.backend = machine.backend;
  options.directory = folder.path();
  options.quick = said.quick;
  if (said.quick) options.time = std::chrono::seconds(60);
  options.stop = &Interrupt::asked();
  options.progress = [](const std::string& what) { say(formatted("calibrate: {}\n", what)); };
  const Interrupt interrupt;
  try {
    return exec::calibrate(options);
  } catch (const exec::RunFailure& failure) {
    throw Unavailable(formatted("--backend {}: {}\n", said.machine.backend, failure.what()));
  }
}

}  // namespace

int calibrate_command(const Words& words) {
  const CalibrateSaid said = parse_calibrate(words);
  Output output(said.out);  // Appears when all of it is there.
  const Machine machine = find_machine(said.machine);
  const MeasuredMachine measured = measure(said, machine);
  for (const NotMeasured& each : measured.failed) {
    say(formatted("calibrate: not measured: {}: {}\n", each.name, each.why));
  }
  say(formatted("calibrate: {} rows measured, {} not{}\n", measured.rows.size(), measured.failed.size(),
                measured.interrupted ? "; interrupted" : ""));
  if (!exec::computes(machine.info)) {
    say("calibrate: no file is written: on the dry device nothing is computed, and no duration means anything\n");
    return kUnavailable;
  }
  output.add(calibrated_hardware_json(measured, describe(measured, said)));
  output.finish();
  return measured.interrupted ? kInterrupted : kDone;
}

}  // namespace dsplan
