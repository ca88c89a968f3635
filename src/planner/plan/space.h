// The space of a search: what the user's own configuration pins, what a space file or options list, and dsplan's own
// lists for the rest.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/inputs.h"
#include "core/job.h"
#include "core/model.h"
#include "core/search.h"

namespace dsplan {

namespace detail {
struct SharedGraphs;
}  // namespace detail

// Everything that `resolve` takes, before any choice.
struct SearchInputs {
  const ModelSpec& model;
  const Request& request;
  const DeepSpeedInput* deepspeed = nullptr;  // Null: no DeepSpeed JSON.
  const Hardware* hardware = nullptr;
  const Cluster* cluster = nullptr;
  detail::SharedGraphs* graphs = nullptr;  // The search's own: what all its walks over this model share.
};

// Refuses, all together: an axis that is listed twice or without values, values that an axis does not take (with the
// nearest), and an axis that is both listed and pinned by an option or a file.
[[nodiscard]] SearchSpace space_of(const SearchInputs& inputs, const ListedSpace& listed, Objective objective);

// dsplan's own list for an axis, whatever pins it.
[[nodiscard]] std::vector<std::string> own_values(Axis axis, const SearchInputs& inputs, Objective objective);

// One candidate as inputs to `resolve`. `checkpoint` may be a listed recompute plan, then `entries` are its groups.
struct CandidateInputs {
  Request request;
  DeepSpeedInput deepspeed;
  bool has_deepspeed = true;

  [[nodiscard]] const DeepSpeedInput* file() const { return has_deepspeed ? &deepspeed : nullptr; }
};
// A file of dsplan's own where the user has none. Without one DeepSpeed would train in fp32, where dsplan's default is
// bf16.
[[nodiscard]] DeepSpeedInput own_deepspeed_file(const Request& request);
[[nodiscard]] CandidateInputs inputs_of(const SearchInputs& inputs, const Settings& settings, const SearchSpace& space);

}  // namespace dsplan
