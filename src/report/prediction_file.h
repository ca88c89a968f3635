// Predictions as JSON (interface.md, "JSON of simulate"): written, read back, and the schema of that JSON.
#pragma once

#include <string>
#include <vector>

#include "core/document.h"
#include "core/job.h"
#include "core/prediction.h"
#include "report/comparison.h"

namespace dsplan {

inline constexpr const char* kPredictionSchema = "dsplan.prediction/1";

// "dsplan.prediction/1". Bytes are integers; an absent value is null and has an entry in "not_modelled".
[[nodiscard]] std::string prediction_json(const Prediction& prediction, const Job& job);
// "dsplan.predictions/1": {"schema", "ranks": [prediction, ...]}.
[[nodiscard]] std::string predictions_json(const std::vector<Prediction>& predictions, const Job& job);

// What the JSON's nulls are missing: the prediction's own entries, and one for every other null, so that none is
// silent.
[[nodiscard]] std::vector<Absence> all_absences(const Prediction& prediction);

// The JSON Schema (draft 2020-12) that every "dsplan.prediction/1" obeys: each object lists all its keys.
[[nodiscard]] std::string prediction_schema();

// "dsplan.prediction/1", or the ranks of "dsplan.predictions/1": what a receipt can be held against. Faults: another
// schema, missing and unknown keys, wrong types, negative bytes.
[[nodiscard]] std::vector<PredictedRank> read_predictions(const Document& document);

// The same whole, with what each assumes.
struct SavedPrediction {
  Prediction prediction;
  std::vector<ResolvedInput> assumptions;
};
[[nodiscard]] std::vector<SavedPrediction> read_saved_predictions(const Document& document);

}  // namespace dsplan
