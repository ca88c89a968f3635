// Names, types and shapes of a checkpoint from the headers of its safetensors files; no tensor data is read.
//
// Format (huggingface/safetensors README): 8 bytes little-endian N, then N bytes of JSON
// {"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}, then the data. Refused: N beyond
// 100,000,000 or the file; a header that is not strict JSON; unknown types or keys; data that does not tile the rest
// of the file exactly, without gap or overlap, each tensor taking the bytes that its type and shape say.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dsplan {

struct TensorHeader {
  std::string name;
  std::string dtype;                // As the format writes it: "F32", "BF16", "F8_E4M3", ...
  std::vector<std::int64_t> shape;  // Outermost first; any rank.
  std::int64_t bytes = 0;
  std::string file;
};

// One file's tensors, in the order of their data.
[[nodiscard]] std::vector<TensorHeader> read_safetensors_file(const std::string& path);

// A checkpoint: one or several .safetensors files, or the one *.safetensors.index.json that names the shards beside
// it. Refused besides: the same tensor in two files; a shard that is missing or lies elsewhere; tensors that the index
// names and its shard lacks, and the reverse.
[[nodiscard]] std::vector<TensorHeader> read_safetensors(const std::vector<std::string>& paths);

// The bits of one element of a safetensors type, or 0 for an unknown one.
[[nodiscard]] std::int64_t safetensors_bits(std::string_view dtype);

// What to give `read_safetensors` for a folder: the index if there is one, else all *.safetensors in order of name.
// Empty if the folder holds no *.safetensors file.
[[nodiscard]] std::vector<std::string> safetensors_files(const std::string& folder);

}  // namespace dsplan
