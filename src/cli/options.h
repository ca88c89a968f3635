// The options of `simulate` and of the commands that look at the same inputs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command_line.h"
#include "core/error.h"
#include "core/inputs.h"
#include "report/comparison.h"

namespace dsplan {

enum class Topic : std::uint8_t { Memory, Peak, Saved, Traffic, Time, Fragmentation, Advice, Assumed };

struct SimulateWords {
  std::string model;
  Request options;  // What the options say, each at its name.
  Words launch;     // The words after "--".
  std::vector<Topic> explain;
  bool verbose = false;        // The whole report instead of the first screen.
  std::string color = "auto";  // "always", "never"
  bool renew = false;          // A plan is taken by its inputs, whatever fingerprint it says.
};

// What a command says and takes beyond the options of `simulate`. `add` may register further options.
struct CommandExtras {
  std::string description = "Predicts the memory and the traffic of one configuration.";
  std::string footer;  // Empty: that of `simulate`.
  std::function<void(CommandLine&)> add;
  bool model_needed = true;  // MODEL may be missing otherwise.
  // Options of simulate that have no meaning here: neither listed nor taken.
  std::vector<std::string_view> without = {};
  std::vector<std::string_view> refused = {};  // Those that are always refused, with a reason: taken, not listed.
  std::function<void(CommandLine&)> before_model = {};  // Registers words that stand before MODEL.
};

// Refused, all together: unknown options, values that are no numbers or no labelled sizes, a missing MODEL, topics that
// there are not.
[[nodiscard]] SimulateWords parse_simulate(std::string_view command, const Words& words,
                                           const CommandExtras& extras = {});

// The same words again, for whoever wants to predict the same: without MODEL, files, and what only says what to print.
[[nodiscard]] Words words_of(const SimulateWords& said);

// A command as one would type it, for pages that say what made them.
[[nodiscard]] std::string command_line(std::string_view command, const Words& words);

// Refused at their places, in the words "has no meaning for `what`": options that were given and are not `meaningful`.
void refuse_all_but(std::span<const std::string_view> meaningful, const Request& options, std::string_view what,
                    Diagnostics& diagnostics);

// A whole number, or a fault at `option`.
[[nodiscard]] std::optional<std::int64_t> whole_number(std::string_view option, std::string_view text,
                                                       Diagnostics& diagnostics);
// A size with a unit ("80GiB"), or a fault at `option`: a bare number is refused, as nobody remembers what it counts.
[[nodiscard]] std::optional<Bytes> labelled_size(std::string_view option, std::string_view text,
                                                 Diagnostics& diagnostics);

// --tolerance KIND=N, as several commands have it: "reserved=1%", "process=1048576", "reserved=0.5%": bytes, or percent
// with at most one decimal. Refused, all together: unknown kinds, kinds that stand twice, what is no number of bytes
// and no percentage up to 100.
[[nodiscard]] Tolerances read_tolerances(const std::vector<std::string>& texts);

}  // namespace dsplan
