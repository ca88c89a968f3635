// A prediction as an ordered JSON value: what the JSON and the CSV writers share. Only for io's .cpp files, as it shows
// nlohmann/json.
#pragma once

#include <nlohmann/json.hpp>

#include "core/job.h"
#include "core/prediction.h"

namespace dsplan::detail {

using Json = nlohmann::ordered_json;

[[nodiscard]] Json prediction_value(const Prediction& prediction, const Job& job);

}  // namespace dsplan::detail
