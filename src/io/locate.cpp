#include "io/locate.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "core/document.h"
#include "core/format.h"
#include "core/text/letters.h"
#include "io/dialects/slots.h"
#include "io/hub/hub.h"
#include "io/json_parse.h"
#include "io/safetensors.h"
#include "io/text.h"

namespace dsplan {
namespace {

namespace fs = std::filesystem;

bool is_folder(const std::string& path) {
  std::error_code failed;
  return fs::is_directory(path, failed);
}

bool exists(const std::string& path) {
  std::error_code failed;
  return fs::exists(path, failed);
}

struct BundledPlace {
  std::string_view folder;  // Below data_dir().
  std::string_view noun;
  std::string_view listing;  // `dsplan show ...`.
};

BundledPlace place(Bundled kind) {
  switch (kind) {
    case Bundled::Model: return {"models", "model", "models"};
    case Bundled::Graph: return {"models/graphs", "op-graph", "models"};
    case Bundled::Hardware: return {"configs/hardware", "hardware", "hardware"};
    case Bundled::Cluster: return {"configs/clusters", "cluster", "clusters"};
    case Bundled::DeepSpeed: return {"configs/deepspeed", "DeepSpeed file", "deepspeed"};
    case Bundled::Training: return {"configs/training", "training file", "training"};
  }
  return {};
}

std::string folder_of(Bundled kind) {
  const std::optional<std::string> data = find_data_dir();
  return data ? formatted("{}/{}", *data, place(kind).folder) : std::string();
}

// Where the data may lie, the first choice first.
std::vector<std::string> data_dirs() {
  std::vector<std::string> folders;
  std::error_code failed;
  const fs::path executable = fs::read_symlink("/proc/self/exe", failed);
  if (!failed) folders.push_back((executable.parent_path().parent_path() / "share" / "dsplan").string());
  if (const std::string_view sources = DSPLAN_SOURCE_DIR; !sources.empty()) folders.emplace_back(sources);
  return folders;
}

// The bundled name that `argument` means, or "".
std::string bundled_name(Bundled kind, const std::string& argument) {
  // The usual case needs no look into the folder.
  const bool plain = !argument.empty() && argument.find('/') == std::string::npos;
  const std::string folder = folder_of(kind);
  if (folder.empty()) return {};
  if (plain && exists(formatted("{}/{}.json", folder, argument))) return argument;
  const std::string wanted = in_lower_case(argument);
  for (std::string& name : list_bundled(kind)) {
    if (in_lower_case(name) == wanted) return std::move(name);
  }
  return {};
}

// Rows of a table beside the bundled files: the other names of one, and the file's own.
std::vector<std::pair<std::string, std::string>> other_names(const std::string& path, std::size_t own_column) {
  std::vector<std::pair<std::string, std::string>> rows;
  if (!exists(path)) return rows;
  const std::string text = read_file(path);
  for (std::size_t at = text.find('\n'); at != std::string::npos && at + 1 < text.size();) {
    const std::size_t end = std::min(text.find('\n', at + 1), text.size());
    const std::string line = text.substr(at + 1, end - at - 1);
    const std::size_t first = line.find(',');
    const std::size_t second = std::min(line.find(',', first + 1), line.size());
    at = end;
    if (first == std::string::npos) continue;
    const std::string left = line.substr(0, first);
    const std::string right = line.substr(first + 1, second - first - 1);
    rows.emplace_back(own_column == 0 ? right : left, own_column == 0 ? left : right);
  }
  return rows;
}

// As people write names of devices: without case, maker and punctuation.
std::string plain(std::string_view text) {
  std::string words = " ";
  for (const char c : in_lower_case(text)) {
    const bool kept = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    words += kept ? c : ' ';
  }
  words += ' ';
  for (const std::string_view maker : {"nvidia", "geforce", "amd", "instinct", "tesla", "radeon", "gpu"}) {
    const std::string word = formatted(" {} ", maker);
    for (std::size_t at = words.find(word); at != std::string::npos; at = words.find(word)) {
      words.replace(at, word.size(), " ");
    }
  }
  std::erase(words, ' ');
  return words;
}

// Other names of bundled files, beside their folders.
std::string names_file(std::string_view kind) {
  const std::optional<std::string> data = find_data_dir();
  return data ? formatted("{}/configs/{}-names.csv", *data, kind) : std::string();
}

// The one bundled model among those whose ids (models/index.csv, and others of their publishers' ids) satisfy `is`.
template <class Is>
std::string model_whose_id(Is&& is) {
  const std::string folder = folder_of(Bundled::Model);
  std::string found;
  if (folder.empty()) return found;
  for (const auto& [file, column] : {std::pair(folder + "/index.csv", std::size_t{0}), {names_file("model"), 1}}) {
    for (auto& [other, own] : other_names(file, column)) {
      if (other.empty() || own == found || !is(other) || !exists(formatted("{}/{}.json", folder, own))) continue;
      if (!found.empty()) return {};
      found = std::move(own);
    }
  }
  return found;
}

std::string_view without_owner(std::string_view id) { return id.substr(id.rfind('/') + 1); }

// "llama-3.3-70b", whose id ends in Llama-3.3-70B-Instruct.
std::string model_by_words(const std::string& argument) {
  const std::string words = words_of_model(argument);
  if (argument.find('/') != std::string::npos || words.empty()) return {};
  return model_whose_id([&](const std::string& other) { return words_of_model(other) == words; });
}

// Ids of the time before owners, which the hub answers with those that have one. No more of them are given.
bool is_of_old(const std::string& id) {
  constexpr std::string_view kFirst[] = {"albert",     "bert",    "camembert", "ctrl",          "distilbert",
                                         "distilgpt2", "gpt2",    "openai",    "distilroberta", "roberta",
                                         "t5",         "transfo", "xlm",       "xlnet"};
  const std::string first = in_lower_case(id.substr(0, id.find('-')));
  return is_hub_id(id) && id.find('/') == std::string::npos &&
         std::find(std::begin(kFirst), std::end(kFirst), first) != std::end(kFirst);
}

// A device or a node as nvidia-smi, data sheets and clouds call it (configs/hardware-names.csv,
// configs/cluster-names.csv); or the file's own name in another spelling.
std::string machine_named(Bundled kind, const std::string& argument) {
  const std::string folder = folder_of(kind);
  const std::string wanted = plain(argument);
  if (folder.empty() || wanted.empty()) return {};
  for (auto& [other, own] : other_names(names_file(kind == Bundled::Hardware ? "hardware" : "cluster"), 1)) {
    if (plain(other) == wanted && exists(formatted("{}/{}.json", folder, own))) return std::move(own);
  }
  for (std::string& name : list_bundled(kind)) {
    if (plain(name) == wanted) return std::move(name);
  }
  return {};
}

// How else bundled files are called: hubs' ids of models, what nvidia-smi and clouds call a machine.
std::vector<std::string> called_otherwise(Bundled kind) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& file, std::size_t column) {
    for (auto& [other, own] : other_names(file, column)) names.push_back(std::move(other));
  };
  if (kind == Bundled::Hardware) add(names_file("hardware"), 1);
  if (kind == Bundled::Cluster) add(names_file("cluster"), 1);
  if (kind == Bundled::Model) {
    add(folder_of(kind) + "/index.csv", 0);
    add(names_file("model"), 1);
  }
  return names;
}

// The one of `names` that is nearest, whatever the case of its letters; empty: none is near.
std::string nearest_name(const std::string& argument, const std::vector<std::string>& names) {
  std::vector<std::string> lowered;
  for (const std::string& name : names) lowered.push_back(in_lower_case(name));
  const std::string_view near = nearest(in_lower_case(argument), {lowered.begin(), lowered.end()});
  if (near.empty()) return {};
  return names[static_cast<std::size_t>(std::find(lowered.begin(), lowered.end(), near) - lowered.begin())];
}

// "did you mean ...?" if something is near, and how to list them all.
std::string suggestion(const std::string& argument, const std::vector<std::string>& names, Bundled kind) {
  std::string list = formatted("`dsplan show {}` lists them", place(kind).listing);
  std::string longer;  // "h100" is nearer to "h100-sxm" than to "a10", whatever the edit distance says.
  for (const std::string& name : names) {
    if (argument.size() <= 2 || !in_lower_case(name).starts_with(in_lower_case(argument) + "-")) continue;
    longer += formatted("{}{}", longer.empty() ? "" : ", ", name);
  }
  if (!longer.empty()) return formatted("there are {}; {}", longer, list);
  std::string near = nearest_name(argument, names);
  if (near.empty()) near = nearest_name(argument, called_otherwise(kind));
  return near.empty() ? list : formatted("{} {}", did_you_mean(near), list);
}

bool looks_like_a_path(const std::string& argument) {
  return argument.starts_with('/') || argument.starts_with("./") || argument.starts_with("../") ||
         argument.ends_with(".json") || argument.ends_with('/') ||
         std::count(argument.begin(), argument.end(), '/') > 1;
}

ModelFiles::Kind judge_kind(const Document& document) {
  const Value* kind = document.root.find("kind");
  if (document.root.find("dsplan") == nullptr || kind == nullptr) return ModelFiles::Kind::Config;
  if (kind->string == "graph") return ModelFiles::Kind::OpGraph;
  if (kind->string == "chain") return ModelFiles::Kind::Chain;
  if (kind->string == "plan") return ModelFiles::Kind::Plan;
  if (kind->string == "module_graph") return ModelFiles::Kind::ModuleGraph;
  const std::string shown =
      kind->is(Value::Kind::String) ? detail::in_quotes(kind->string) : std::string(describe(kind->kind));
  throw Refusal(
      {document.at(kind->offset, formatted("{} is no kind of model", shown),
                   "a model is a config.json, or of kind \"graph\", \"module_graph\", \"chain\" or \"plan\"")});
}

// Python's json writes infinite bounds of values (mamba2's time_step_limit) as no JSON has them; the largest number of
// as many characters keeps every place.
std::string with_bounds(std::string text) {
  constexpr std::string_view kInfinity = "Infinity";
  bool quoted = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\\' && quoted) {
      ++at;
    } else if (text[at] == '"') {
      quoted = !quoted;
    } else if (!quoted && text.compare(at, kInfinity.size(), kInfinity) == 0) {
      text.replace(at, kInfinity.size(), "1.7e+308");
    }
  }
  return text;
}

bool is_printed_by_a_run(std::string_view text) {
  return !text.starts_with('{') && text.find("CUDA out of memory") != std::string_view::npos;
}

ModelFiles from_file(std::string name, const std::string& path) {
  ModelFiles files;
  files.name = std::move(name);
  files.config_path = path;
  const std::string text = read_file(path);
  if (is_printed_by_a_run(text)) {
    throw Refusal(path, "is what a run printed, and no model", "name the model, and this file by --log");
  }
  try {
    files.document = parse_json(path, with_bounds(text));
  } catch (const Refusal&) {
    refuse_other_slot(path, text, FileSlot::Model);
    throw;
  }
  refuse_other_slot(files.document, FileSlot::Model);
  files.kind = judge_kind(files.document);
  return files;
}

ModelFiles from_folder(std::string name, const std::string& folder) {
  const std::string config = folder.ends_with('/') ? folder + "config.json" : folder + "/config.json";
  if (!exists(config)) throw Refusal(folder, "holds no config.json");
  ModelFiles files = from_file(std::move(name), config);
  files.safetensors = safetensors_files(folder);
  return files;
}

// What a path is called: a folder's own name, and for a config.json that of its folder.
std::string name_of(const std::string& path) {
  std::error_code failed;
  fs::path whole = fs::absolute(path, failed).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  if (whole.filename() == "config.json") whole = whole.parent_path();
  return whole.extension() == ".json" ? whole.stem().string() : whole.filename().string();
}

std::string main_snapshot(const std::string& repository) {
  const std::string reference = repository + "/refs/main";
  if (!exists(reference)) return {};
  std::string commit = read_file(reference, 4096);
  while (!commit.empty() && (commit.back() == '\n' || commit.back() == ' ')) commit.pop_back();
  const bool hexadecimal = !commit.empty() && commit.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!hexadecimal) throw Refusal(reference, "does not hold a commit");
  const std::string folder = repository + "/snapshots/" + commit;
  return is_folder(folder) ? folder : std::string();
}

std::optional<ModelFiles> from_cache(const std::string& argument) {
  if (!is_hub_id(argument)) return std::nullopt;
  const std::string repository = hub_folder(argument);
  if (!is_folder(repository)) return std::nullopt;
  std::string snapshot = main_snapshot(repository);
  if (snapshot.empty()) {
    std::vector<std::string> snapshots;
    std::error_code failed;
    for (fs::directory_iterator it(repository + "/snapshots", failed), end; !failed && it != end;
         it.increment(failed)) {
      if (exists(it->path().string() + "/config.json")) snapshots.push_back(it->path().string());
    }
    if (snapshots.empty()) throw Refusal(repository, "is in the Hugging Face cache without a config.json");
    std::sort(snapshots.begin(), snapshots.end());
    if (snapshots.size() > 1) {
      throw Refusal(repository, formatted("holds {} snapshots and no refs/main", snapshots.size()),
                    formatted("name one by its path, such as {}", snapshots.front()));
    }
    snapshot = snapshots.front();
  }
  return from_folder(argument, snapshot);
}

}  // namespace

std::optional<std::string> find_data_dir() {
  if (std::string chosen = environment("DSPLAN_DATA"); !chosen.empty()) {
    if (!is_folder(chosen)) throw Refusal("DSPLAN_DATA", formatted("\"{}\" is not a folder", chosen));
    if (!is_folder(chosen + "/models")) throw Refusal("DSPLAN_DATA", formatted("\"{}\" holds no models/", chosen));
    return chosen;
  }
  for (std::string& folder : data_dirs()) {
    if (is_folder(folder + "/models")) return std::move(folder);
  }
  return std::nullopt;
}

std::string data_dir() {
  if (std::optional<std::string> found = find_data_dir()) return *std::move(found);
  throw Refusal("dsplan", formatted("its models/ and configs/ are missing; looked in {}", joined(data_dirs(), " and ")),
                "copy them to the first of these, or name their folder in DSPLAN_DATA");
}

std::vector<std::string> list_bundled(Bundled kind) {
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator it(folder_of(kind), failed), end; !failed && it != end; it.increment(failed)) {
    const fs::path& path = it->path();
    // The entry knows its type from the folder, without a look at each file.
    std::error_code unknown;
    if (path.extension() == ".json" && !it->is_directory(unknown)) names.push_back(path.stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool is_bundled(Bundled kind, const std::string& argument) { return !bundled_name(kind, argument).empty(); }

ModelFiles locate_model(const std::string& argument) {
  for (const Bundled kind : {Bundled::Model, Bundled::Graph}) {
    const std::string name = bundled_name(kind, argument);
    if (!name.empty()) return from_file(name, formatted("{}/{}.json", folder_of(kind), name));
  }
  if (argument == kStandardInput) return from_file("standard input", argument);
  if (is_folder(argument)) return from_folder(name_of(argument), argument);
  if (exists(argument)) return from_file(name_of(argument), argument);
  if (looks_like_a_path(argument)) throw Refusal(argument, "no such file or folder");
  const auto bundled = [](const std::string& name) {
    return from_file(name, formatted("{}/{}.json", folder_of(Bundled::Model), name));
  };
  if (const std::string name = model_of_the_hub(argument); !name.empty()) return bundled(name);
  if (std::optional<ModelFiles> cached = from_cache(argument)) return std::move(*cached);
  if (const std::string name = model_by_words(argument); !name.empty()) return bundled(name);
  // Any other name without its publisher is misspelt: nobody is asked for it.
  const bool whole_id = is_hub_id(argument) && argument.find('/') != std::string::npos && !argument.starts_with('/');
  if ((whole_id || is_of_old(argument)) && !network_forbidden()) {
    return from_folder(argument, fetch_from_hub(argument));
  }
  (void)data_dir();  // Without data no name is bundled, and that is the news.
  std::vector<std::string> names = list_bundled(Bundled::Model);
  for (std::string& graph : list_bundled(Bundled::Graph)) names.push_back(std::move(graph));
  throw Refusal(argument, "no bundled model, file, folder, or model in the local Hugging Face cache has this name",
                suggestion(argument, names, Bundled::Model));
}

std::string model_of_the_hub(const std::string& id) {
  if (!is_hub_id(id)) return {};
  const std::string wanted = in_lower_case(id);
  std::string whole = model_whose_id([&](const std::string& other) { return in_lower_case(other) == wanted; });
  if (!whole.empty() || wanted.find('/') != std::string::npos) return whole;
  return model_whose_id([&](const std::string& other) { return in_lower_case(without_owner(other)) == wanted; });
}

std::string words_of_model(std::string_view name) {
  constexpr std::string_view kAside[] = {"meta", "hf", "instruct", "chat", "it", "base", "json"};
  while (name.ends_with('/')) name.remove_suffix(1);
  std::string all;
  std::string word;
  for (const char c : std::string(without_owner(name)) + "-") {
    const char lower = in_lower_case(c);
    const bool kept = (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9') || lower == '.';
    if (kept) {
      word += lower;
      continue;
    }
    if (word.ends_with(".json")) word.resize(word.size() - std::string_view(".json").size());
    if (std::find(std::begin(kAside), std::end(kAside), word) == std::end(kAside)) all += word;
    word.clear();
  }
  return all;
}

std::int64_t devices_of_node(const std::string& argument) {
  for (const auto& [name, devices] : other_names(names_file("node"), 1)) {
    if (plain(name) == plain(argument)) return std::stoll(devices);
  }
  return 0;
}

std::string locate_bundled(Bundled kind, const std::string& argument) {
  const std::string name = bundled_name(kind, argument);
  if (!name.empty()) return formatted("{}/{}.json", folder_of(kind), name);
  if (argument == kStandardInput) return argument;
  if (is_folder(argument)) throw Refusal(argument, "is a folder", "name a file in it");
  if (exists(argument)) return argument;
  if (kind == Bundled::Hardware || kind == Bundled::Cluster) {
    if (const std::string known = machine_named(kind, argument); !known.empty()) {
      return formatted("{}/{}.json", folder_of(kind), known);
    }
  }
  (void)data_dir();
  throw Refusal(argument, formatted("no bundled {} and no file has this name", place(kind).noun),
                suggestion(argument, list_bundled(kind), kind));
}

}  // namespace dsplan
