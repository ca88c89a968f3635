// What the tests of the search share: a model on eight GPUs, small spaces, and an oracle that simulates every
// candidate.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/locate.h"
#include "io/machine_files.h"
#include "model/families.h"
#include "model/with_layers.h"
#include "planner/plan/search.h"
#include "planner/predict/predict.h"
#include "planner/resolve/resolve.h"

namespace dsplan::test {

inline const Cluster& eight_h100() {
  static const Cluster cluster = load_cluster("8xh100");
  return cluster;
}
inline const Hardware& h100() {
  static const Hardware hardware = load_hardware("h100-sxm");
  return hardware;
}

// A question about a bundled model.
struct Asked {
  explicit Asked(const std::string& name) : files(locate_model(name)), model(build_model(files.document, name)) {
    request.gpus = {8, option("--gpus")};
    request.seq = {1024, option("--seq")};
  }

  // The capacity at which `bytes` are left beside the context and the communicators of one group of ranks.
  Asked& with_capacity(Bytes capacity) {
    request.capacity = {capacity, option("--capacity")};
    return *this;
  }
  Asked& vary(Axis axis, const std::vector<std::string>& values) {
    ListedAxis listed{axis, {}, option("--vary")};
    for (const std::string& value : values) listed.values.push_back({value, option("--vary")});
    space.axes.push_back(std::move(listed));
    return *this;
  }
  [[nodiscard]] SearchInputs inputs() const {
    return {model, request, deepspeed ? &*deepspeed : nullptr, &h100(), &eight_h100()};
  }
  [[nodiscard]] PlanAnswer answer(SearchOptions options = {}) const {
    options.with_layers = [this](std::int64_t layers) {
      return build_model(with_layers(files.document, layers), files.name);
    };
    return search(inputs(), space, options);
  }

  ModelFiles files;
  ModelSpec model;
  Request request;
  std::optional<DeepSpeedInput> deepspeed;
  ListedSpace space;
};

// One stage, one micro-batch, ...: by the road that `simulate` takes, without the search's own code but its inputs.
inline Prediction simulated(const Asked& asked, const PlanRow& row) {
  SearchSpace space;
  space.grad_accum = row.grad_accum;
  const CandidateInputs made = inputs_of(asked.inputs(), row.settings, space);
  Job job = resolve(asked.model, made.request, made.file(), &h100(), &eight_h100());
  job.rank = "worst";
  return predict_asked(asked.model, job).front();
}

inline bool fits(const Prediction& prediction) {
  return prediction.verdict == Verdict::Fits || prediction.verdict == Verdict::FitsWithRetries;
}
// Or less is to spare than the prediction may be wrong by.
inline bool runs(const Prediction& prediction) { return fits(prediction) || prediction.verdict == Verdict::Tight; }

inline const std::string& setting(const PlanRow& row, Axis axis) {
  return row.settings[static_cast<std::size_t>(axis)];
}

}  // namespace dsplan::test
