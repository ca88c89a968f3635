#include "report/prediction_file.h"

#include <algorithm>

#include "io/fields.h"
#include "io/own_file.h"
#include "report/compare.h"
#include "report/prediction_fields.h"

namespace dsplan {
namespace {

constexpr const char* kSchemaOfRanks = "dsplan.predictions/1";

bool covers(const std::string& what, const std::string& path) {
  return path == what || (path.size() > what.size() && path.starts_with(what) && path[what.size()] == '.');
}

std::string why_absent(const std::string& path, const Prediction& prediction) {
  if (path == "capacity_bytes" || path == "context_bytes") return "no --hardware, --cluster or --capacity";
  if (path == "fits") return prediction.verdict_reason.empty() ? "the verdict is unknown" : prediction.verdict_reason;
  return "not modelled yet";
}

BesidePrediction beside(const Prediction& prediction, const Job& job) {
  return {job.assumptions(), all_absences(prediction)};
}

}  // namespace

std::vector<Absence> all_absences(const Prediction& prediction) {
  BesidePrediction none;
  std::vector<Absence> all = prediction.not_modelled;
  for (const std::string& path :
       nulls_of([&](Fields& fields) { describe_prediction(fields, described(prediction), none); })) {
    const bool said = std::any_of(all.begin(), all.end(), [&](const Absence& absence) {
      return covers(absence.what, path) || covers(path, absence.what);
    });
    if (!said) all.push_back({path, why_absent(path, prediction)});
  }
  return all;
}

std::string prediction_json(const Prediction& prediction, const Job& job) {
  BesidePrediction known = beside(prediction, job);
  return written([&](Fields& fields) { describe_prediction(fields, described(prediction), known); });
}

std::string predictions_json(const std::vector<Prediction>& predictions, const Job& job) {
  return written([&](Fields& fields) {
    fields.constant("schema", kSchemaOfRanks);
    fields.list("ranks", described(predictions), {"a prediction"}, [&](Prediction& prediction) {
      BesidePrediction known = beside(prediction, job);
      describe_prediction(fields, prediction, known);
    });
  });
}

std::string prediction_schema() {
  return schema_of(kPredictionSchema,
                   "What `dsplan simulate --format json` prints; with --rank all these are the items of \"ranks\" in "
                   "{\"schema\": \"dsplan.predictions/1\", \"ranks\": [...]}. All sizes are bytes of one rank.",
                   [](Fields& fields) {
                     Prediction any;
                     BesidePrediction known;
                     describe_prediction(fields, any, known);
                   });
}

std::vector<PredictedRank> read_predictions(const Document& document) {
  expect_object(document, "a prediction");
  Diagnostics faults;
  ObjectReader reader(document, document.root, faults);
  const std::string schema = reader.choice("schema", {kPredictionSchema, kSchemaOfRanks}).value_or("");
  if (schema.empty() && !faults.any()) reader.fault("schema", "\"schema\" is missing: is this a prediction?");
  faults.throw_if_any();
  std::vector<PredictedRank> ranks;
  const auto read = [&](Fields& fields, Prediction& prediction) {
    BesidePrediction known;
    describe_prediction(fields, prediction, known);
    prediction.not_modelled = std::move(known.absences);
    ranks.push_back(figures_of(prediction));
  };
  read_fields(document, "a prediction", [&](Fields& fields) {
    std::vector<Prediction> all(1);
    if (schema == kPredictionSchema) return read(fields, all.front());
    fields.constant("schema", kSchemaOfRanks);
    fields.list("ranks", all, {"a prediction"}, [&](Prediction& prediction) { read(fields, prediction); });
  });
  return ranks;
}

}  // namespace dsplan
