// The options of `simulate` and of the commands that look at the same inputs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command_line.h"
#include "core/error.h"
#include "core/inputs.h"

namespace dsplan {

enum class Topic : std::uint8_t { Peak, Saved, Traffic, Fragmentation, Advice };

struct SimulateWords {
  std::string model;
  Request options;  // What the options say, each at its name.
  Words launch;     // The words after "--".
  std::vector<Topic> explain;
};

// Refused, all together: unknown options, values that are no numbers or no labelled sizes, a missing MODEL, options and
// topics that are not modelled yet and that no later step would see (--diff, --explain fragmentation, ...).
[[nodiscard]] SimulateWords parse_simulate(std::string_view command, const Words& words);

// An option of one command beside those of `simulate`. The value arrives as text.
struct OwnOption {
  const char* name;
  const char* type;
  const char* help;
  std::optional<std::string>* into;
};
// The same, for a command that does `description` and has options of its own.
[[nodiscard]] SimulateWords parse_simulate(std::string_view command, const Words& words, const std::string& description,
                                           std::span<const OwnOption> own);

// The same words again, for whoever wants to predict the same: without MODEL, files, and what only says what to print.
[[nodiscard]] Words words_of(const SimulateWords& said);

// A whole number, or a fault at `option`.
[[nodiscard]] std::optional<std::int64_t> whole_number(std::string_view option, std::string_view text,
                                                       Diagnostics& diagnostics);
// A size with a unit ("80GiB"), or a fault at `option`: a bare number is refused, as nobody remembers what it counts.
[[nodiscard]] std::optional<Bytes> labelled_size(std::string_view option, std::string_view text,
                                                 Diagnostics& diagnostics);

}  // namespace dsplan
