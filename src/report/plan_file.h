// Plan files: one job on file, with what decides it, whole, and what dsplan said of it (kind "plan", docs/plans.md).
// Nothing in it points at another file, so that it means the same everywhere and later.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/document.h"
#include "core/inputs.h"
#include "core/job.h"
#include "core/prediction.h"
#include "report/baseline.h"

namespace dsplan {

struct SavedPlan {
  std::string path;    // As the user named it.
  std::string source;  // Who wrote it.
  BaselineVersions written;
  std::string fingerprint;
  Place fingerprint_place;
  std::string model_name;
  // Parts of the plan's own text, so that a fault in one points into the plan.
  Document model;  // A config.json.
  std::optional<Document> deepspeed;
  Document training;  // Kind "training", without names of files.
  std::optional<Document> hardware;
  std::optional<Document> cluster;
  std::optional<Document> calibration;
  std::vector<BaselineRank> ranks;     // What was predicted.
  std::optional<StepTime> time;        // Of the first of them, as far as a plan keeps it: no phases, no rates.
  std::vector<ResolvedInput> assumed;  // What nobody had said when it was written: name, value, reason.
};

// Of which files a plan is made beside what is written anew from the job (its DeepSpeed JSON and training file).
struct PlanParts {
  std::string source;      // Who writes it: "dsplan emit".
  std::string model_name;  // What the model is called in reports.
  Document model;
  std::optional<Document> deepspeed;  // The user's own: what no byte depends on is taken over from it.
  std::optional<Document> hardware;
  std::optional<Document> cluster;
  std::optional<Document> calibration;
  std::vector<ResolvedInput> assumed;  // Of the plan that it is made from: what is still so stays assumed.
};

// Faults, together and with their places: another kind, missing and unknown keys, wrong types, rows that nobody knows
// or that stand twice, no rank at all, a training part that names files. Of another file version nothing but that is
// said. Whether the parts are what they claim to be is for those to say who read them.
[[nodiscard]] SavedPlan read_plan(const Document& document);

[[nodiscard]] bool is_plan(const Document& document);

// The same as text: keys always in the same order, one figure per line.
[[nodiscard]] std::string plan_json(const SavedPlan& plan);

}  // namespace dsplan
