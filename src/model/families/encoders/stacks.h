// The sizes of an encoder and of a decoder beside it, as whisper and bart's relatives name them.
#pragma once

#include <cstdint>

#include "core/model.h"
#include "model/config/config_reader.h"

namespace dsplan {

struct BothStacks {
  std::int64_t encoder_layers = 0;
  std::int64_t decoder_ffn = 0;
};
// A class's own values where keys are absent.
struct UsualStacks {
  std::int64_t ffn = 4096;
  std::int64_t heads = 16;
  std::int64_t layers = 12;
  std::int64_t encoder_layers = 0;  // 0: as many.
};
// Feed-forward widths, heads, of which both have as many, and layers.
[[nodiscard]] BothStacks read_both_stacks(ConfigReader& config, const UsualStacks& usual, Dimensions& dims);
// What follows from them, once nothing is at fault: the width of a head, and layers that count through, the encoder's
// first.
void conclude_both_stacks(const ConfigReader& config, const BothStacks& stacks, Dimensions& dims);

}  // namespace dsplan
