#include "phase_peaks.h"

#include <algorithm>
#include <nlohmann/json.hpp>

using Json = nlohmann::json;

namespace dsplan::test {

std::map<std::string, std::vector<std::int64_t>> peaks_of(const std::string& prediction) {
  std::map<std::string, std::vector<std::int64_t>> found;
  const Json read = Json::parse(prediction);
  for (const Json& phase : read["memory"]["phases"]) {
    const std::string step = phase["name"] == "first_step" ? "1." : phase["name"] == "steady" ? "2." : "";
    if (step.empty()) continue;
    for (const Json& part : phase["parts"]) {
      const std::string name = part["name"] == "outputs_released" ? "backward" : part["name"].get<std::string>();
      std::vector<std::int64_t>& peaks = found[step + name];
      peaks.resize(3);
      peaks[0] = std::max(peaks[0], part["peak_requested"].get<std::int64_t>());
      peaks[1] = std::max(peaks[1], part["peak_allocated"].get<std::int64_t>());
      peaks[2] = std::max(peaks[2], part["peak_reserved"].get<std::int64_t>());
    }
  }
  return found;
}

}  // namespace dsplan::test
