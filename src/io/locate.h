// From what the user typed to files: models, hardware, clusters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/document.h"

namespace dsplan {

enum class Bundled : std::uint8_t { Model, Graph, Hardware, Cluster, DeepSpeed, Training };

// The folder that holds models/ and configs/: $DSPLAN_DATA if set (refused where that is no folder, or holds no
// models/), else ../share/dsplan beside the executable's folder, else the source tree that dsplan was built from.
// `data_dir` refuses where none of them is there, and says where it looked: a binary that was copied alone.
[[nodiscard]] std::optional<std::string> find_data_dir();
[[nodiscard]] std::string data_dir();

// The names of the bundled files of a kind (stems of *.json), sorted; empty where there is no data.
[[nodiscard]] std::vector<std::string> list_bundled(Bundled kind);

// Whether `argument` is such a name (letter case does not matter): it then means dsplan's own file, whatever lies in
// the current folder.
[[nodiscard]] bool is_bundled(Bundled kind, const std::string& argument);

struct ModelFiles {
  enum class Kind : std::uint8_t { Config, OpGraph, Chain, Plan, ModuleGraph };
  std::string name;          // Bundled name, Hugging Face id, or the folder's or file's own name.
  std::string config_path;   // The file that was read, whatever its kind.
  Document document;         // That file, parsed as strict JSON, so that nobody reads it twice.
  Kind kind = Kind::Config;  // By "kind" of a file that carries "dsplan": 1; any other file is a config.json.
  std::vector<std::string> safetensors;  // For `read_safetensors`; only from folders.
};

// In this order: a bundled model or graph (letter case does not matter), an existing file or folder, a bundled model by
// its id on the hub, with its owner or without, an id in the local Hugging Face cache (io/hub/hub.h; the snapshot that
// refs/main names, else the only one), a bundled model by the words of its id, an id that the hub knows, unless the
// network is forbidden. Of ids without an owner that one is asked for those that it had before there were owners.
// Write ./NAME for a folder that is called like a bundled model. Refused: anything else, with the nearest bundled name;
// a "kind" that is no model; a folder without config.json.
[[nodiscard]] ModelFiles locate_model(const std::string& argument);

// The bundled model with this id on a hub, letter case aside: "google-bert/bert-base-uncased", or without its owner
// "bert-base-uncased". Empty: none, or more than one.
[[nodiscard]] std::string model_of_the_hub(const std::string& id);
// What names of one architecture share: "meta-llama/Meta-Llama-3.1-8B-Instruct" and "llama-3.1-8b" are llama3.18b. The
// owner, and what a checkpoint was trained for, are no part of it.
[[nodiscard]] std::string words_of_model(std::string_view name);

// A bundled name (letter case does not matter), a path, or for devices and nodes one of the names in
// configs/*-names.csv: the path of the file. Refused otherwise, with the nearest bundled name.
[[nodiscard]] std::string locate_bundled(Bundled kind, const std::string& argument);
// How many devices a cloud's machine of this name has (configs/node-names.csv); 0: the name is none of these.
[[nodiscard]] std::int64_t devices_of_node(const std::string& argument);
[[nodiscard]] inline std::string locate_hardware(const std::string& argument) {
  return locate_bundled(Bundled::Hardware, argument);
}
[[nodiscard]] inline std::string locate_cluster(const std::string& argument) {
  return locate_bundled(Bundled::Cluster, argument);
}

}  // namespace dsplan
