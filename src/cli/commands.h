// The commands of dsplan. Each gets the words after its name and answers with an exit code; refusals are thrown.
#pragma once

#include <functional>
#include <string>

#include "cli/command_line.h"

namespace dsplan {

// interface.md, "Exit codes"; the others come with the commands that need them.
inline constexpr int kDone = 0;
inline constexpr int kBug = 1;
inline constexpr int kRefused = 2;
inline constexpr int kDoesNotFit = 3;
inline constexpr int kDiffers = 4;
inline constexpr int kNoPlanFits = 5;
inline constexpr int kUnavailable = 6;
inline constexpr int kInterrupted = 130;

[[nodiscard]] int simulate_command(const Words& words);
[[nodiscard]] int sweep_command(const Words& words);
[[nodiscard]] int diff_command(const Words& words);
[[nodiscard]] int show_command(const Words& words);
[[nodiscard]] int replay_command(const Words& words);
[[nodiscard]] int explain_command(const Words& words);
[[nodiscard]] int emit_command(const Words& words);
[[nodiscard]] int compare_command(const Words& words);
[[nodiscard]] int check_command(const Words& words);
[[nodiscard]] int plan_command(const Words& words);
[[nodiscard]] int run_command(const Words& words);
[[nodiscard]] int measure_command(const Words& words);
[[nodiscard]] int calibrate_command(const Words& words);
[[nodiscard]] int doctor_command(const Words& words);
[[nodiscard]] int completion_command(const Words& words);

// The JSON Schemas of what commands print with --format json: `dsplan show schema KIND`, without words a prediction's.
// Refuses a kind that there is not.
[[nodiscard]] std::string show_schema(const Words& words);
// Those whose descriptions stand in this room.
[[nodiscard]] std::string sweep_schema();
[[nodiscard]] std::string diff_schema();

// `dsplan WORDS...`: finds the command and runs it.
[[nodiscard]] int run(const Words& words);

// The only place that turns refusals into exit codes: does the work, and says on standard error what stopped it.
[[nodiscard]] int exit_code_of(const std::function<int()>& work);

}  // namespace dsplan
