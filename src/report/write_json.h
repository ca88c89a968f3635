// Predictions as JSON (interface.md, "JSON of simulate"), and the schema of that JSON.
#pragma once

#include <string>
#include <vector>

#include "core/job.h"
#include "core/prediction.h"

namespace dsplan {

// "dsplan.prediction/1". Bytes are integers; an absent value is null and has an entry in "not_modelled".
[[nodiscard]] std::string prediction_json(const Prediction& prediction, const Job& job);
// "dsplan.predictions/1": {"schema", "ranks": [prediction, ...]}.
[[nodiscard]] std::string predictions_json(const std::vector<Prediction>& predictions, const Job& job);

// What the JSON's nulls are missing: the prediction's own entries, and one for every other null, so that none is
// silent.
[[nodiscard]] std::vector<Absence> all_absences(const Prediction& prediction, const Job& job);

// The JSON Schema (draft 2020-12) that every "dsplan.prediction/1" obeys: each object lists all its keys.
[[nodiscard]] std::string prediction_schema();

}  // namespace dsplan
