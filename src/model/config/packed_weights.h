// What the "quantization_config" of a config.json makes of the weights that are trained (transformers 5.17,
// quantizers/auto.py and the quantizers' is_trainable).
#pragma once

#include <optional>

#include "model/config/config_reader.h"
#include "model/config_remarks.h"

namespace dsplan {

// nullopt where the file has none. Faults: weights that transformers does not know, that it trains in no form, or that
// are not modelled.
[[nodiscard]] std::optional<ConfigRemarks::Packing> read_packing(ConfigReader& config);
// Behind the builder: bitsandbytes packs every Linear but the head; a file that leaves others out is refused.
void check_unpacked(ConfigReader& config, const ModelSpec& model);

}  // namespace dsplan
