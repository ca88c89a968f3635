// Chains as files.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/chain.h"
#include "core/format.h"
#include "io/json_text.h"

namespace dsplan::test {

// One that `read_chain` reads back.
inline std::string chain_json(const Chain& chain) {
  // Whole times without a point, as the file has them.
  const auto time = [&chain](Ticks ticks) {
    const double real = chain.time(ticks);
    const auto whole = static_cast<std::int64_t>(real);
    return static_cast<double>(whole) == real ? Json(whole) : Json(real);
  };
  Json stages = Json::array();
  for (const ChainStage& stage : chain.stages) {
    Json row = {{"output", stage.output.value()},
                {"saved", stage.saved.value()},
                {"gradient", stage.gradient.value()},
                {"forward_time", time(stage.forward_time)},
                {"backward_time", time(stage.backward_time)},
                {"forward_temporary", stage.forward_temporary.value()},
                {"backward_temporary", stage.backward_temporary.value()}};
    if (stage.gathered > Bytes(0)) row.set("gathered", stage.gathered);
    if (stage.gather_time > Ticks(0)) row.set("gather_time", time(stage.gather_time));
    Json options = Json::array();
    for (const ChainOption& option : stage.options) {
      options.push_back({{"name", option.name},
                         {"saved", option.saved.value()},
                         {"time", time(option.time)},
                         {"forward_temporary", option.forward_temporary.value()},
                         {"backward_temporary", option.backward_temporary.value()}});
    }
    if (!stage.options.empty()) row.set("options", std::move(options));
    stages.push_back(std::move(row));
  }
  std::string text = formatted(
      "{{\n  \"dsplan\": 1, \"kind\": \"chain\", \"source\": {},\n  \"input_bytes\": {}, \"input_gradient\": {},\n"
      "  \"stages\": [",
      json_text(Json(chain.source)), chain.input.value(), chain.input_gradient.value());
  const std::vector<Value>& rows = stages.value().items;
  for (std::size_t i = 0; i < rows.size(); ++i) text += formatted("{}\n    {}", i == 0 ? "" : ",", json_text(rows[i]));
  return text + "\n  ]\n}\n";
}

}  // namespace dsplan::test
