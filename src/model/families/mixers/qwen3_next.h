// The text of qwen3_5 and qwen3_5_moe, for whoever shows it pictures.
#pragma once

#include <string_view>

#include "core/model.h"
#include "model/config/config_reader.h"
#include "model/families/decoder.h"

namespace dsplan {

// Positions along three axes are modelled: what the reader holds against them goes.
void take_axes(ConfigReader& config);
[[nodiscard]] Decoder read_qwen3_5(ConfigReader& config, std::string_view prefix);
[[nodiscard]] Decoder read_qwen3_5_moe(ConfigReader& config, std::string_view prefix);
// Throws the collected faults first.
[[nodiscard]] ModelSpec finish_hybrid(const ConfigReader& config, const Decoder& decoder);

}  // namespace dsplan
