// Where each gradient lies in DistributedDataParallel's buckets, and which `.grad` is a view there
// (gradient_as_bucket_view).
#pragma once

#include <vector>

#include "planner/lower/eager.h"

namespace dsplan {

class BucketViews {
 public:
  // `parameters`: the number of ParameterIds.
  explicit BucketViews(std::size_t parameters) : places_(parameters) {}

  // A gradient's bucket is another one from here on; what was a view stays one.
  void place(ParameterId parameter, std::size_t bucket, Part part) {
    Place& place = of(parameter);
    place = {bucket, part, place.viewed};
  }
  [[nodiscard]] std::size_t bucket(ParameterId parameter) const { return of(parameter).bucket; }
  [[nodiscard]] const Part& part(ParameterId parameter) const { return of(parameter).part; }

  [[nodiscard]] bool is_view(ParameterId parameter) const { return of(parameter).viewed; }
  void make_view(ParameterId parameter) { of(parameter).viewed = true; }
  // zero_grad(set_to_none=True)
  void drop() {
    for (Place& place : places_) place.viewed = false;
  }

 private:
  struct Place {
    std::size_t bucket = 0;
    Part part;
    bool viewed = false;
  };
  [[nodiscard]] Place& of(ParameterId parameter) { return places_[static_cast<std::size_t>(parameter)]; }
  [[nodiscard]] const Place& of(ParameterId parameter) const { return places_[static_cast<std::size_t>(parameter)]; }

  std::vector<Place> places_;
};

}  // namespace dsplan
