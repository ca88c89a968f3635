// `dsplan emit`: a prediction as files of other tools.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/predicted.h"
#include "core/error.h"
#include "io/snapshot.h"
#include "sim/snapshot_of.h"

namespace dsplan {
namespace {

constexpr std::array<std::string_view, 3> kLater = {"deepspeed", "perfetto", "html"};

void check_format(const Request& request) {
  if (!request.format.given()) throw Refusal("--format", "is missing", "`dsplan emit MODEL --format snapshot`");
  const std::string& format = *request.format;
  if (format == "snapshot") return;
  if (std::find(kLater.begin(), kLater.end(), format) != kLater.end()) {
    throw Refusal({request.format.place.says(fmt::format("\"{}\" is not modelled yet", format), "snapshot is")});
  }
  throw Refusal({request.format.place.says(fmt::format("no format \"{}\" of emit", format), "formats are snapshot")});
}

}  // namespace

int emit_command(const Words& words) {
  const SimulateWords said = parse_simulate("emit", words);
  check_format(said.options);
  if (!said.options.out.given()) {
    throw Refusal("--out", "is missing: a snapshot is binary", "name a file, such as --out predicted.pickle");
  }
  Output output(*said.options.out);
  const Predicted predicted = predicted_schedule(said, "--format snapshot");
  const Snapshot snapshot = snapshot_of(predicted.schedule, predicted.inputs.model, predicted.config, predicted.limit);
  output.add(write_snapshot(snapshot));
  output.finish();
  say(fmt::format("{}: {} entries, {} segments; times count entries (step times are not modelled yet)\n",
                  *said.options.out, snapshot.traces.front().size(), snapshot.segments.size()));
  return kDone;
}

}  // namespace dsplan
