// From words to a job: the files that the options name are read, laid over each other and resolved.
#pragma once

#include <optional>
#include <string>

#include "cli/options.h"
#include "core/cluster.h"
#include "core/dialects/dialects.h"
#include "core/document.h"
#include "core/inputs.h"
#include "core/job.h"
#include "core/model.h"
#include "planner/plan/space.h"
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
// What the model's files make of a request goes to `said`: notices, and what is not modelled.
[[nodiscard]] ModelSpec load_model(const std::string& argument, Request& said, bool rewards = false);

// Whether --checkpoint names a file rather than a mode.
[[nodiscard]] bool is_checkpoint_file(const std::string& text);
// Whether --routing does, rather than a rule.
[[nodiscard]] bool is_routing_file(const std::string& text);

// Makes the request of what files, launch line and options say, by the rules of the program that is launched; the
// model and the DeepSpeed JSON must be there.
void complete(Said& said, Inputs& inputs, Diagnostics& diagnostics);
// The files that a request names beside model, training file and DeepSpeed JSON: checkpointed groups, tokens of
// experts, hardware, cluster, calibration, unless they are there already; and the model's adapters.
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
// The same for a search; it points into `inputs`.
[[nodiscard]] SearchInputs search_inputs(const Inputs& inputs);

// Prediction::changes, where the job does not fit, or barely; no more than the `screen` shows, or all.
void add_changes(const Inputs& inputs, const Job& job, Prediction& prediction, bool screen);
// Where no plan fits: other ways to train, with their bytes.
[[nodiscard]] std::vector<FittingChange> other_ways_of(const Inputs& inputs, const SearchSpace& space);

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
// Of these; "" where it is not among them.
[[nodiscard]] std::string value_in(const std::vector<std::pair<std::string, std::string>>& options,
                                   const std::string& name);

}  // namespace dsplan
