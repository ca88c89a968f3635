// From words to a job: the files that the options name are read, laid over each other and resolved.
#pragma once

#include <optional>
#include <string>

#include "cli/options.h"
#include "core/cluster.h"
#include "core/document.h"
#include "core/inputs.h"
#include "core/job.h"
#include "core/model.h"
#include "report/baseline.h"

namespace dsplan {

// Everything read, nothing decided.
struct Inputs {
  ModelSpec model;
  Request request;
  std::optional<DeepSpeedInput> deepspeed;
  std::optional<Hardware> hardware;
  std::optional<Cluster> cluster;
};

// Faults of all files are reported together. A checkpoint folder whose headers differ from its config.json is refused
// with the list of differences.
[[nodiscard]] Inputs gather(const SimulateWords& words);
[[nodiscard]] ModelSpec load_model(const std::string& argument, std::vector<Notice>& notices);

// Our own training file, or TrainingArguments.
[[nodiscard]] Request read_training(const Document& document);
// Whether --checkpoint names a file rather than a mode.
[[nodiscard]] bool is_checkpoint_file(const std::string& text);

// The files that a request names beside model, training file and DeepSpeed JSON: checkpointed groups, hardware,
// cluster, calibration, unless they are there already; and the model's adapters.
void read_what_it_names(Inputs& inputs, Diagnostics& diagnostics);
// A hardware file, and what `dsplan calibrate` measured of it unless --calibration says something else.
void lay_hardware(const Document& document, const Place& place, Inputs& into);

// Runs one reader; its faults join those of the others.
template <class Read>
void attempt(Diagnostics& diagnostics, Read&& read) {
  try {
    read();
  } catch (const Refusal& refusal) {
    for (const Diagnostic& diagnostic : refusal.diagnostics()) diagnostics.add(diagnostic);
  }
}

[[nodiscard]] Job resolve(const Inputs& inputs);

// Notices as lines for standard error.
[[nodiscard]] std::string render(const std::vector<Notice>& notices);

// What a prediction is made from, read once and kept whole: for whoever predicts the same again later, or with one
// part changed.

// The words after `simulate`, which stand at `place`: what is wrong with them is refused there.
[[nodiscard]] SimulateWords words_at(const Words& command, const Place& place);

// Every file that the words name; relative paths are seen from `folder` (empty: the current one), bundled names are
// dsplan's own. Faults of all files are reported together, as `gather` does; so are safetensors headers that differ.
[[nodiscard]] Sources read_sources(const Words& command, const SimulateWords& said, const std::string& folder);

// Contents of bundled files, which a baseline names and does not hold. Refused: names that this dsplan does not have.
void read_bundled(Sources& sources);

// From sources to inputs; no file is opened beyond those that a file names in its turn.
[[nodiscard]] Inputs gather(const Sources& sources, const SimulateWords& said);

// Each option with its value, and the launch line as one: what two commands differ in.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> options_in(const SimulateWords& said);

}  // namespace dsplan
