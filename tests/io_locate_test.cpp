#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "io/locate.h"

#include "core/format.h"
#include "paths.h"
#include "run_binary.h"

using namespace dsplan;
namespace fs = std::filesystem;

namespace {

// A folder of files that is gone when the test ends.
struct Tree {
  std::string path;
  Tree() : path((fs::temp_directory_path() / dsplan::formatted("dsplan-locate-{}", ::getpid())).string()) {
    fs::remove_all(path);
    fs::create_directory(path);
  }
  ~Tree() { fs::remove_all(path); }
  std::string write(const std::string& name, const std::string& text) const {
    const std::string whole = path + "/" + name;
    fs::create_directories(fs::path(whole).parent_path());
    std::FILE* file = std::fopen(whole.c_str(), "wb");
    REQUIRE(file != nullptr);
    std::fwrite(text.data(), 1, text.size(), file);
    std::fclose(file);
    return whole;
  }
};

// An environment variable, put back when the test ends.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    if (value.empty()) {
      ::unsetenv(name);
    } else {
      ::setenv(name, value.c_str(), 1);
    }
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() {
    if (old_) {
      ::setenv(name_, old_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

std::string refusal(const std::string& argument) {
  try {
    const ModelFiles files = locate_model(argument);
    return "found " + files.config_path;
  } catch (const Refusal& refused) {
    return refused.what();
  }
}

// A data folder with two models, a graph and a piece of hardware.
struct Data : Tree {
  Variable data{"DSPLAN_DATA", path + "/data"};
  Data() {
    write("data/models/gpt2.json", R"({"model_type": "gpt2"})");
    write("data/models/Llama-3-8B.json", R"({"model_type": "llama"})");
    write("data/models/index.csv", "");
    write("data/models/graphs/t1.json", R"({"dsplan": 1, "kind": "graph"})");
    write("data/configs/hardware/h100.json", "{}");
    write("data/configs/clusters/8xh100.json", "{}");
  }
};

}  // namespace

TEST_CASE("bundled names, in any letter case") {
  const Data data;
  CHECK(list_bundled(Bundled::Model) == std::vector<std::string>{"Llama-3-8B", "gpt2"});
  CHECK(list_bundled(Bundled::Training).empty());
  const ModelFiles files = locate_model("LLAMA-3-8b");
  CHECK(files.name == "Llama-3-8B");
  CHECK(files.config_path == data.path + "/data/models/Llama-3-8B.json");
  CHECK(files.kind == ModelFiles::Kind::Config);
  CHECK(files.document.root.find("model_type")->string == "llama");
  CHECK(locate_model("t1").kind == ModelFiles::Kind::OpGraph);
  CHECK(locate_hardware("H100") == data.path + "/data/configs/hardware/h100.json");
  CHECK(locate_cluster("8xH100") == data.path + "/data/configs/clusters/8xh100.json");
}

TEST_CASE("unknown names are refused with the nearest one and how to list them") {
  const Data data;
  const Variable hub("HF_HUB_CACHE", data.path + "/nothing");
  CHECK(
      refusal("llama-3-9b") ==
      "llama-3-9b: error: no bundled model, file, folder, or model in the local Hugging Face cache has this name; did "
      "you mean \"Llama-3-8B\"? `dsplan show models` lists them\n");
  CHECK(
      refusal("something-else") ==
      "something-else: error: no bundled model, file, folder, or model in the local Hugging Face cache has this name; "
      "`dsplan show models` lists them\n");
  CHECK(refusal("./gpt2") == "./gpt2: error: no such file or folder\n");
  CHECK(refusal("../../no-such-folder") == "../../no-such-folder: error: no such file or folder\n");
  CHECK(refusal("gpt3.json") == "gpt3.json: error: no such file or folder\n");
  CHECK(refusal("") ==
        "error: no bundled model, file, folder, or model in the local Hugging Face cache has this name; `dsplan show "
        "models` lists them\n");
  try {
    (void)locate_hardware("h10");
    FAIL("accepted");
  } catch (const Refusal& refused) {
    CHECK(std::string(refused.what()) ==
          "h10: error: no bundled hardware and no file has this name; did you mean \"h100\"? `dsplan show hardware` "
          "lists them\n");
  }
  // What hubs and clouds call them is near as well.
  data.write("data/models/index.csv", "name,hub_id,source\nLlama-3-8B,meta-llama/Meta-Llama-3-8B,x\n");
  data.write("data/configs/hardware-names.csv", "name,means,source\nNVIDIA H100 NVL,h100,x\n");
  CHECK(refusal("meta-lama/Meta-Llama-3-8B").find("did you mean \"meta-llama/Meta-Llama-3-8B\"?") != std::string::npos);
  try {
    (void)locate_hardware("nvidia h100 nvll");
    FAIL("accepted");
  } catch (const Refusal& refused) {
    CHECK(std::string(refused.what()).find("did you mean \"NVIDIA H100 NVL\"?") != std::string::npos);
  }
  const Variable wrong("DSPLAN_DATA", data.path + "/missing");
  CHECK(refusal("gpt2") == "DSPLAN_DATA: error: \"" + data.path + "/missing\" is not a folder\n");
  const Variable empty("DSPLAN_DATA", data.path + "/data/configs");
  CHECK(refusal("gpt2") == "DSPLAN_DATA: error: \"" + data.path + "/data/configs\" holds no models/\n");
}

TEST_CASE("files and folders") {
  const Data data;
  const std::string config = data.write("my-model/config.json", R"({"model_type": "gpt2"})");
  const std::string weights = data.write("my-model/model.safetensors", "");
  data.write("my-model/notes.txt", "");
  const ModelFiles folder = locate_model(data.path + "/my-model");
  CHECK(folder.name == "my-model");
  CHECK(folder.config_path == config);
  CHECK(folder.safetensors == std::vector<std::string>{weights});
  CHECK(locate_model(data.path + "/my-model/").config_path == data.path + "/my-model/config.json");
  const ModelFiles file = locate_model(config);
  CHECK(file.name == "my-model");
  CHECK(file.safetensors.empty());

  const std::pair<const char*, ModelFiles::Kind> kinds[] = {
      {"graph", ModelFiles::Kind::OpGraph}, {"chain", ModelFiles::Kind::Chain}, {"plan", ModelFiles::Kind::Plan}};
  for (const auto& [kind, expected] : kinds) {
    const ModelFiles ours =
        locate_model(data.write("x.json", dsplan::formatted(R"({{"dsplan": 1, "kind": "{}"}})", kind)));
    CHECK(ours.name == "x");
    CHECK(ours.kind == expected);
  }
  // "kind" without "dsplan" is anyone's key.
  CHECK(locate_model(data.write("x.json", R"({"kind": "graph"})")).kind == ModelFiles::Kind::Config);
  const std::string training = data.write("x.json", R"({"dsplan": 1, "kind": "training"})");
  CHECK(refusal(training) == training +
                                 ":1:23: error: \"training\" is no kind of model; a model is a config.json, or of kind "
                                 "\"graph\", \"module_graph\", \"chain\" or \"plan\"\n"
                                 "    1 | {\"dsplan\": 1, \"kind\": \"training\"}\n"
                                 "      |                       ^\n");
  CHECK(refusal(data.path) == data.path + ": error: holds no config.json\n");
}

TEST_CASE("the local Hugging Face cache") {
  const Data data;
  const Variable hub("HF_HUB_CACHE", "");
  const Variable home("HF_HOME", data.path + "/hf");
  const std::string repository = "hf/hub/models--org--name/";
  const std::string old = data.write(repository + "snapshots/0a/config.json", "{}");
  CHECK(refusal("org/name") == "found " + old);
  CHECK(locate_model("org/name").name == "org/name");
  const std::string current = data.write(repository + "snapshots/1b/config.json", "{}");
  CHECK(refusal("org/name") == data.path + "/" + repository.substr(0, repository.size() - 1) +
                                   ": error: holds 2 snapshots and no refs/main; name one by its path, such as " +
                                   data.path + "/" + repository + "snapshots/0a\n");
  data.write(repository + "refs/main", "1b\n");
  CHECK(refusal("org/name") == "found " + current);
  data.write(repository + "refs/main", "../../..");
  CHECK(refusal("org/name") == data.path + "/" + repository + "refs/main: error: does not hold a commit\n");
  {
    const Variable direct("HF_HUB_CACHE", data.path + "/hub2");
    const std::string other = data.write("hub2/models--solo/snapshots/ab/config.json", "{}");
    CHECK(refusal("solo") == "found " + other);
    fs::remove(other);
    CHECK(refusal("solo") ==
          data.path + "/hub2/models--solo: error: is in the Hugging Face cache without a config.json\n");
  }
  const Variable no_home("HF_HOME", "");
  const Variable xdg("XDG_CACHE_HOME", data.path + "/xdg");
  const std::string third = data.write("xdg/huggingface/hub/models--solo/snapshots/ab/config.json", "{}");
  CHECK(refusal("solo") == "found " + third);
}

TEST_CASE("without DSPLAN_DATA the source tree is found") {
  const Variable none("DSPLAN_DATA", "");
  CHECK(data_dir() == test_paths::source_dir());
}

TEST_CASE("locate: infinite bounds, as Python's json writes them, are numbers; strings stay as they are") {
  const Tree tree;
  const std::string path =
      tree.write("mamba/config.json", R"({"time_step_limit": [-Infinity, Infinity], "name": "\"Infinity\" Infinity"})");
  const ModelFiles files = locate_model(path);
  const Value* limits = files.document.root.find("time_step_limit");
  REQUIRE(limits != nullptr);
  CHECK(limits->items.at(0).real < -1e308);
  CHECK(limits->items.at(1).real > 1e308);
  CHECK(files.document.root.find("name")->string == "\"Infinity\" Infinity");
}

TEST_CASE("a cloud's machine says how many devices it has, where nothing else counts ranks") {
  CHECK(devices_of_node("p5.48xlarge") == 8);
  CHECK(devices_of_node("P5-48xlarge") == 8);
  CHECK(devices_of_node("g5.12xlarge") == 4);
  CHECK(devices_of_node("g4dn.12xlarge") == 4);
  CHECK(devices_of_node("Standard_ND96asr_v4") == 8);
  CHECK(devices_of_node("h100-sxm") == 0);
  const test::Folder folder;
  const auto told = [&](const std::string& words) {
    std::vector<std::string> line{"simulate", "llama-3.2-1b", "--hardware", "p5.48xlarge"};
    std::istringstream text(words);
    for (std::string word; text >> word;) line.push_back(word);
    const test::Ran ran = test::run_binary(folder, line);
    REQUIRE_MESSAGE(ran.code == 0, ran.err);
    return ran.out;
  };
  CHECK(told("--zero-stage 3").find("ZeRO-3 on 8 GPUs") != std::string::npos);
  CHECK(told("--runtime fsdp2").find("FSDP2 on 8 GPUs") != std::string::npos);
  CHECK(told("--zero-stage 1 --gpus 2").find("ZeRO-1 on 2 GPUs") != std::string::npos);
  CHECK(told("").find("PyTorch on 1 GPU,") != std::string::npos);
}
