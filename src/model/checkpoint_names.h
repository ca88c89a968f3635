// Whether a checkpoint and a config.json speak of the same model. The names in a file are not always those of the
// parameters; the rules are transformers 5.17.0's:
//   * a key may have or lack the base model's prefix ("transformer.", "model.", "bert.", ...);
//   * tied parameters are stored once, under any of their names;
//   * experts are stored one by one and stacked into 3-D parameters on loading (mixtral, qwen2_moe, qwen3_moe,
//     deepseek); a file may hold the stacked ones as well;
//   * vit's layers and gpt_neox's head have older names in files; old LayerNorms say gamma and beta;
//   * masks and tables of old versions, the heads of bert and roberta, and deepseek_v3's multi-token-prediction layers
//     are passed over on loading.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model.h"

namespace dsplan {

// A checkpoint as its headers tell it: what a safetensors file says of each tensor, without the data.
struct CheckpointTensor {
  std::string name;
  std::string dtype;                // As safetensors writes it: "F32", "BF16", "F16", "F8_E4M3", ...
  std::vector<std::int64_t> shape;  // In elements, outermost first; empty for a scalar.
  std::string file;                 // For messages; may be empty.
};

// The tensors that `save_pretrained` writes for the model, in registration order of the parameters, then the buffers
// that are saved. dtype: the model's stored dtype, else empty.
[[nodiscard]] std::vector<CheckpointTensor> expected_checkpoint(const ModelSpec& model);

struct CheckpointComparison {
  std::vector<std::string> differences;  // Readable lines with both sides; empty: file and config agree.
  // What agrees but deserves a word: a tensor that the config ties is in the file on its own (transformers leaves it
  // untied if the values differ), tensors that loading passes over.
  std::vector<std::string> notes;
};

// `tensors` are the headers of all files of the checkpoint. Differences: tensors missing or unexpected, shapes, dtypes
// other than the config's (folded into one line per dtype). Of each kind the first 20 are listed, the rest counted.
[[nodiscard]] CheckpointComparison compare_checkpoint(const ModelSpec& model,
                                                      const std::vector<CheckpointTensor>& tensors);

}  // namespace dsplan
