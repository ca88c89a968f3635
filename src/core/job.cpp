#include "core/job.h"

#include <algorithm>
#include <iterator>

namespace dsplan {

std::string_view name(StreamFrees frees) { return frees == StreamFrees::AtSync ? "at-sync" : "immediate"; }

std::string_view name(Origin origin) {
  switch (origin) {
    case Origin::Given: return "given";
    case Origin::Derived: return "derived";
    case Origin::Assumed: return "assumed";
  }
  return "?";
}

std::vector<ResolvedInput> Job::assumptions() const {
  std::vector<ResolvedInput> assumed;
  std::copy_if(inputs.begin(), inputs.end(), std::back_inserter(assumed),
               [](const ResolvedInput& input) { return input.origin == Origin::Assumed; });
  return assumed;
}

}  // namespace dsplan
