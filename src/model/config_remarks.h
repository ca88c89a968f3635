// What build_model (model/families.h) has to say of a config.json besides the model.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "core/document.h"
#include "core/model.h"
#include "model/families.h"

namespace dsplan {

struct ConfigRemarks {
  struct Key {
    std::string key;
    std::size_t offset;   // In the document: of the key, or of the value that makes the gap.
    std::string message;  // The nearest key that is known, or nothing; what no graph models; what depends on chance.
  };
  std::vector<Key> unknown;  // That neither builder nor configuration class knows.
  std::vector<Key> gaps;     // Of a family with a graph, which is another one for such a value.
  std::vector<Key> chances;  // By which some steps take less than the graph does.
  // The attention that transformers takes where nobody asks for another one; `message` is its name.
  std::optional<Key> attention;
  // Weights that are quantized in the checkpoint.
  struct Packing {
    std::size_t offset = 0;  // Of its value.
    std::string method;      // quant_method.
    // "nf4", "fp4", "int8": trained as bitsandbytes packs them. Empty: unpacked when they are loaded.
    std::string kind;
    bool nested = false;
    std::string compute;  // dtypes; of four bits alone.
    std::string storage;
  };
  std::optional<Packing> packing;
};
// As build_model(config, name), and fills `remarks`. Keys that make another model than the one that is built are
// refused there as well, and `architectures` of another class.
[[nodiscard]] ModelSpec build_model(const Document& config, std::string name, ConfigRemarks& remarks);

}  // namespace dsplan
