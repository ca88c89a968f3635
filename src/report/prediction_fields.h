// What a file of a prediction holds, key by key: the one description behind writer, reader and schema.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/prediction.h"
#include "io/fields.h"

namespace dsplan {

inline constexpr const char* kPredictionSchema = "dsplan.prediction/1";

// What a file has beside the prediction: of its job, and of its own nulls.
struct BesidePrediction {
  std::vector<ResolvedInput> assumptions;  // Name, value, reason, option.
  std::vector<Absence> absences;
};

void describe_prediction(Fields& fields, Prediction& prediction, BesidePrediction& beside);

}  // namespace dsplan
