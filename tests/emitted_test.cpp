// What is handed over to frameworks, against what the frameworks made of it: the files that tools/oracles wrote are
// emitted again, byte by byte.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "io/launch_line.h"
#include "io/text.h"
#include "model/families.h"
#include "paths.h"
#include "planner/resolve/checkpointing.h"
#include "run_binary.h"

using namespace dsplan;
using namespace dsplan::test;
using Json = nlohmann::ordered_json;

namespace {

const std::string kRoot = test_paths::source_dir();

Json witness(const std::string& name) { return Json::parse(slurp(kRoot + "/tests/witnesses/" + name)); }

// The small bundled model with six layers.
std::string six_layers(const std::string& name) {
  Json config = Json::parse(slurp(kRoot + "/models/tiny-" + name + ".json"));
  config[name == "gpt2" ? "n_layer" : "num_hidden_layers"] = 6;
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) {
    if (config.contains(key)) config[key] = 0.0;
  }
  return config.dump();
}

// Of `--checkpoint WORDS [--checkpoint-impl KIND]` on six layers.
std::vector<CheckpointGroup> groups_of(const std::string& model, const std::vector<std::string>& words) {
  Request request;
  CheckpointKind kind = CheckpointKind::NonReentrant;
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
    if (words[i] == "--checkpoint") request.checkpoint = {words[i + 1], option("--checkpoint")};
    if (words[i] == "--checkpoint-impl" && words[i + 1] == "reentrant") kind = CheckpointKind::Reentrant;
    if (words[i] == "--checkpoint-impl" && words[i + 1] == "deepspeed") kind = CheckpointKind::DeepSpeed;
  }
  const ModelSpec spec = build_model(parse_json("config.json", six_layers(model)), model);
  return resolve_checkpointing(request, spec, kind).groups;
}

}  // namespace

TEST_CASE("DeepSpeed 0.19.8 read these very files, and held every key as they say") {
  const Json all = witness("deepspeed_emitted.json");
  CHECK(all["versions"]["deepspeed"] == kDeepSpeedVersion);
  REQUIRE(all["cases"].size() >= 26);
  const Folder folder;
  for (const Json& one : all["cases"]) {
    std::string words = one["words"];
    CAPTURE(words);
    if (!one["deepspeed"].is_null()) {
      spill(folder / "ds.json", one["deepspeed"].dump());
      words += " --deepspeed ds.json";
    }
    const Ran ran = run_binary(folder, split("emit " + words + " --format deepspeed"));
    CHECK_MESSAGE(ran.code == 0, ran.err);
    CHECK(ran.out == one["emitted"].get<std::string>());
    CHECK(one["keys"].get<int>() >= 16);
  }
}

TEST_CASE("the lines that transformers and torch ran checkpoint the layers of the job") {
  const Json all = witness("checkpointing_calls.json");
  CHECK(all["versions"]["torch"] == kTorchVersion);
  CHECK(all["versions"]["transformers"] == kTransformersVersion);
  REQUIRE(all["cases"].size() >= 19);
  const Folder folder;
  for (const char* name : {"llama", "gpt2"}) {
    std::filesystem::create_directory(folder / (std::string("six-") + name));
    spill(folder / (std::string("six-") + name + "/config.json"), six_layers(name));
  }
  spill(folder / "factory.json", R"({"dsplan": 1, "kind": "training", "source": "a test", "checkpoint": "full",
                                     "checkpoint_impl": "reentrant", "layers_require_grads": true})");
  const Ran factory =
      run_binary(folder, split("emit six-llama --training factory.json --seq 32 --dtype fp32 --format checkpointing"));
  CHECK(factory.code == 2);
  CHECK(factory.err.find("LLaMA-Factory makes them itself") != std::string::npos);
  for (const Json& one : all["cases"]) {
    const std::string words = one["words"];
    const std::string model = one["model"];
    CAPTURE(model);
    CAPTURE(words);
    const Ran ran =
        run_binary(folder, split("emit six-" + model + " " + words + " --seq 32 --dtype fp32 --format checkpointing"));
    CHECK_MESSAGE(ran.code == 0, ran.err);
    CHECK(ran.out == one["emitted"].get<std::string>());
    if (words.find("modules:") != std::string::npos) continue;
    const std::vector<CheckpointGroup> groups = groups_of(model, split(words));
    std::vector<int> again(6, 0);
    for (const CheckpointGroup& group : groups) {
      for (std::int32_t layer = group.first; layer <= group.last; ++layer) again[static_cast<std::size_t>(layer)] = 1;
    }
    CHECK(one["checkpoints"].get<std::size_t>() == groups.size());
    CHECK(one["again"].get<std::vector<int>>() == again);
    if (words == "--checkpoint keep:linear") CHECK(one["products_again"] == 0);
  }
}

TEST_CASE("a launch line says the ranks, nodes and allocator of its job") {
  const Folder folder;
  const auto line = [&](const std::string& words) {
    const Ran ran = run_binary(folder, split("emit tiny-llama " + words + " --format launch"));
    CHECK_MESSAGE(ran.code == 0, ran.err);
    return ran.out;
  };
  CHECK(line("") == "python train.py\n");
  CHECK(line("--gpus 4") == "torchrun --standalone --nproc-per-node 4 train.py\n");
  CHECK(line("--gpus 16 --alloc-conf expandable_segments:True") ==
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint "
        "$HEAD_NODE:29500 --nproc-per-node 8 train.py\n");
  CHECK(line("--gpus 8 --zero-stage 3") == "deepspeed --num_gpus 8 train.py --deepspeed ds_config.json\n");
  CHECK(line("--gpus 32 --gpus-per-node 4 --zero-stage 3") ==
        "deepspeed --hostfile hostfile --num_nodes 8 --num_gpus 4 train.py --deepspeed ds_config.json\n");
  for (const char* words : {"--gpus 16 --gpus-per-node 4", "--gpus 2", "--gpus 32 --zero-stage 1",
                            "--gpus 4 --zero-stage 2 --alloc-conf max_split_size_mb:128"}) {
    CAPTURE(words);
    std::string text = line(words);
    text.pop_back();
    const Request read = read_launch_line(split(text));
    const Ran plan = run_binary(folder, split(std::string("emit tiny-llama ") + words + " --format plan"));
    const Json training = Json::parse(plan.out)["training"];
    CHECK(*read.gpus == training["gpus"].get<std::int64_t>());
    CHECK(*read.gpus_per_node == training["gpus_per_node"].get<std::int64_t>());
    CHECK(read.alloc_conf.given() == training.contains("allocator_conf"));
  }
  const Ran accelerate = run_binary(
      folder,
      split("emit --format launch tiny-llama -- accelerate launch --mixed_precision bf16 --num_processes 2 a.py"));
  CHECK(accelerate.out == "accelerate launch --mixed_precision bf16 --num_processes 2 --num_machines 1 train.py\n");
}

TEST_CASE("accelerate's YAML and torchtitan's TOML of a job under fully_shard are read back as that job") {
  const Folder folder;
  const auto fingerprint = [&](const std::string& words) {
    const Ran ran = run_binary(folder, split("simulate " + words + " --format json"));
    CHECK_MESSAGE(ran.code == 0, ran.err);
    return Json::parse(ran.out).at("fingerprint").get<std::string>();
  };
  const auto read_back = [&](const std::string& format, const std::string& file, const std::string& job,
                             const std::string& beside) {
    CAPTURE(job);
    const Ran ran = run_binary(folder, split("emit " + job + " --format " + format + " --out " + file));
    CHECK_MESSAGE(ran.code == 0, ran.err);
    const std::string mine = fingerprint(job);
    CHECK(mine == fingerprint(beside + " --training " + file));
    return mine;
  };
  std::set<std::string> jobs;
  const std::string policy = " --set fsdp.param_dtype=bf16 --set fsdp.reduce_dtype=bf16 --set fsdp.output_dtype=bf16";
  const std::string llama = "tiny-llama --seq 64 --grad-accum 2 --dtype fp32";
  for (const char* wrap : {"layers+ends", "root+ends", "LlamaMLP+ends"}) {
    for (const std::string& more : {policy, std::string(), policy + " --set fsdp.reshard_after_forward=false"}) {
      const std::string job = llama + more + " --runtime fsdp2 --gpus 4 --set fsdp.wrap=" + wrap;
      jobs.insert(read_back("accelerate", "acc.yaml", job + " --set model_init=rank0", llama));
      jobs.insert(read_back("accelerate", "acc.yaml", job + "+held --set model_init=host", llama));
      if (wrap != std::string("layers+ends")) continue;
      const std::string replicas = job + "+held --set fsdp.replicate=2 --set model_init=host";
      jobs.insert(read_back("accelerate", "acc.yaml", replicas, llama));
    }
  }
  std::ofstream(folder / "clip.json") << R"({"dsplan": 1, "kind": "training", "source": "a test", "max_grad_norm": 1})";
  const std::string titan =
      "llama-3.1-8b --training clip.json --runtime hsdp --gpus 16 --dtype fp32 --model-code torchtitan --micro-batch 2 "
      "--grad-accum 3 "
      "--seq 64 --set fsdp.wrap=ends --set fsdp.gradient_sync=every --set fsdp.reduce_dtype=fp32";
  for (const char* checkpoint : {"none", "full", "groups:7,15,23,31"}) {
    for (const char* more : {" --set fsdp.param_dtype=bf16", " --set fsdp.param_dtype=fp32",
                             " --set fsdp.param_dtype=bf16 --set fsdp.reshard_after_forward=false",
                             " --set fsdp.param_dtype=bf16 --set fsdp.reshard_tail=true"}) {
      jobs.insert(read_back("torchtitan", "t.toml", titan + " --checkpoint " + checkpoint + more, "--gpus 16"));
    }
  }
  CHECK(jobs.size() == 33);
}

TEST_CASE("a file that cannot say what is checkpointed is written with a note") {
  const Folder folder;
  const auto noted = [&](const std::string& words) {
    const Ran ran = run_binary(folder, split("emit " + words));
    REQUIRE_MESSAGE(ran.code == 0, ran.err);
    return ran.err.find("does not say what is checkpointed") != std::string::npos;
  };
  const std::string sharded =
      "--format accelerate tiny-llama --runtime fsdp2 --gpus 4 --seq 64 --dtype fp32 --set "
      "fsdp.wrap=layers+ends --set model_init=rank0 ";
  CHECK(noted(sharded + "--checkpoint every:2"));
  CHECK(noted(sharded + "--checkpoint full"));  // It keeps the states of random numbers, which accelerate does not.
  std::ofstream(folder / "all.json")
      << R"({"dsplan": 1, "kind": "training", "source": "a test", "checkpoint": "full", "preserve_rng_state": false})";
  CHECK_FALSE(noted(sharded + "--training all.json"));
  CHECK_FALSE(noted(sharded));
  const std::string zero = "--format deepspeed tiny-llama --zero-stage 2 --gpus 2 --seq 64 ";
  CHECK(noted(zero + "--checkpoint full"));
  CHECK_FALSE(noted(zero));
}

TEST_CASE("what no line, no call and no file of a framework says is refused by name") {
  const Folder folder;
  const auto refused = [&](const std::string& words, const std::string& part) {
    const Ran ran = run_binary(folder, split("emit " + words));
    CHECK(ran.code == 2);
    CHECK_MESSAGE(ran.err.find(part) != std::string::npos, ran.err);
    CHECK(ran.out.empty());
  };
  refused("tiny-llama --gpus 6 --gpus-per-node 4 --format launch", "6 ranks are no whole nodes of 4");
  refused("tiny-llama --gpus 4 --tp 2 --format launch", "tensor parallelism is started by the script's own arguments");
  refused("tiny-llama --placement planned --format launch", "PyTorch lays out no arena beforehand");
  refused("tiny-llama --checkpoint keep:mul --format checkpointing",
          "kept \"mul\": no operator of ATen stands for it alone");
  refused("tiny-llama --checkpoint modules:mlp --checkpoint-impl reentrant --format checkpointing",
          "checkpoints around modules in the reentrant form");
  refused("gemma-2-2b --checkpoint every:2 --format checkpointing", "runs of layers whose masks differ");
  refused("tiny-llama --gpus 2 --format accelerate", "no fully_shard");
  refused("tiny-llama --gpus 2 --runtime fsdp2 --format accelerate", "--set fsdp.wrap=layers+ends");
  refused("tiny-llama --gpus 2 --runtime fsdp2 --format accelerate", "model_init meta: accelerate is given");
  refused("tiny-llama --gpus 2 --runtime fsdp2 --format torchtitan", "torchtitan has no flavor of tiny-llama");
  refused("llama-3.1-8b --gpus 2 --runtime fsdp2 --format torchtitan", "--set fsdp.gradient_sync=every");
  refused("llama-3.1-8b --gpus 2 --runtime fsdp2 --format torchtitan", "torchtitan always clips");
  refused("llama-3.1-8b --gpus 2 --runtime fsdp2 --format torchtitan", "--model-code torchtitan");
}

namespace {

// Every tag is closed by its own, in order, and what is no tag is escaped.
bool well_formed(const std::string& page) {
  std::vector<std::string> open;
  std::size_t at = page.find('\n');  // After the document type.
  while ((at = page.find_first_of("<>&", at)) != std::string::npos) {
    if (page[at] == '>') return false;
    if (page[at] == '&') {
      const std::size_t end = page.find(';', at);
      if (end == std::string::npos || end - at > 6) return false;
      at = end;
      continue;
    }
    const std::size_t end = page.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = page.substr(at + 1, end - at - 1);
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    at = end + 1;
  }
  return open.empty();
}

// What stands between `begin` and `end`; taken out of the page.
std::string cut_out(std::string& page, const std::string& begin, const std::string& end) {
  const std::size_t from = page.find(begin);
  REQUIRE_MESSAGE(from != std::string::npos, begin);
  const std::size_t to = page.find(end, from);
  REQUIRE_MESSAGE(to != std::string::npos, end);
  std::string inside = page.substr(from + begin.size(), to - from - begin.size());
  page.erase(from, to + end.size() - from);
  return inside;
}

// The moments of the page's data, one by one, as its script adds them up.
void check_moments(const Json& data, const Json& peak) {
  std::vector<std::int64_t> frames, groups, by_role(9);
  for (const Json& one : data["frames"]) frames.push_back(one.get<std::int64_t>());
  for (const Json& one : data["groups"]) groups.push_back(one.get<std::int64_t>());
  std::vector<std::int64_t> live(groups.size() / 3), at_peak;
  std::int64_t event = 0, total = 0, most = 0, when = 0;
  for (std::size_t at = 0; at < frames.size();) {
    event += frames[at];
    const auto changes = static_cast<std::size_t>(frames[at + 1]);
    for (std::size_t i = 0; i < changes; ++i) {
      const auto group = static_cast<std::size_t>(frames[at + 2 + 2 * i]);
      const std::int64_t bytes = frames[at + 3 + 2 * i];
      live[group] += bytes;
      by_role[static_cast<std::size_t>(groups[3 * group + 2])] += bytes;
      total += bytes;
      CHECK(live[group] >= 0);
    }
    if (total > most) {
      most = total;
      when = event;
      at_peak = by_role;
    }
    at += 3 + 2 * changes;
  }
  CHECK(most == peak["requested"].get<std::int64_t>());
  CHECK(when == peak["event_index"].get<std::int64_t>());
  std::size_t role = 0;
  for (const auto& [name, bytes] : peak["by_role"].items()) {
    CHECK(data["roles"][role].get<std::string>() == name);
    CHECK(at_peak[role] == bytes.get<std::int64_t>());
    ++role;
  }
}

}  // namespace

TEST_CASE("the page is whole, loads nothing, and says what the prediction says") {
  const Folder folder;
  for (const char* words : {"tiny-llama --zero-stage 3 --gpus 4 --hardware h100-sxm --checkpoint full", "tiny-gpt2",
                            "tiny-llama --zero-stage 2 --gpus 2 --capacity 1MiB --seq-list 32,64"}) {
    CAPTURE(words);
    const Ran ran = run_binary(folder, split(std::string("emit --format html ") + words));
    REQUIRE_MESSAGE(ran.code == 0, ran.err);
    for (const char* outside : {"http", "src=", "href=", "url(", "@import", "fetch(", "XMLHttpRequest", "WebSocket",
                                "sendBeacon", "import(", "eval("}) {
      CHECK(ran.out.find(outside) == std::string::npos);
    }
    const Json prediction = Json::parse(run_binary(folder, split(std::string("simulate --format json ") + words)).out);
    std::string markup = ran.out;
    check_moments(Json::parse(cut_out(markup, "<script type=\"application/json\" id=\"data\">", "</script>")),
                  prediction["memory"]["peak"]);
    cut_out(markup, "<script type=\"application/json\" id=\"views\">", "</script>");
    cut_out(markup, "<script>", "</script>");
    cut_out(markup, "<style>", "</style>");
    CHECK(markup.find("<script") == std::string::npos);
    CHECK(well_formed(markup));
    for (const Json& one : prediction["assumptions"])
      CHECK(markup.find(one["name"].get<std::string>()) != std::string::npos);
    CHECK(ran.out.find(prediction["fingerprint"].get<std::string>()) != std::string::npos);
    CHECK(ran.out.find(human(Bytes(prediction["memory"]["peak"]["requested"].get<std::int64_t>()))) !=
          std::string::npos);
    CHECK(ran.out.size() < 400'000);
  }
}

TEST_CASE("the trace's counters peak where the prediction does, and its slices nest") {
  const Folder folder;
  const std::string words = "tiny-llama --zero-stage 3 --gpus 4 --checkpoint every:2 --grad-accum 2";
  const Ran ran = run_binary(folder, split("emit --format perfetto " + words));
  REQUIRE_MESSAGE(ran.code == 0, ran.err);
  const Json trace = Json::parse(ran.out);
  const Json peak = Json::parse(run_binary(folder, split("simulate --format json " + words)).out)["memory"]["peak"];
  std::int64_t requested = 0, allocated = 0, reserved = 0;
  std::map<int, std::vector<std::pair<std::int64_t, std::int64_t>>> tracks;
  for (const Json& event : trace["traceEvents"]) {
    const std::string name = event["name"];
    if (event["ph"] == "C" && name == "requested bytes") {
      std::int64_t sum = 0;
      for (const auto& [role, bytes] : event["args"].items()) sum += bytes.get<std::int64_t>();
      if (sum > requested) CHECK((event["ts"] <= peak["event_index"]));
      requested = std::max(requested, sum);
    } else if (event["ph"] == "C") {
      std::int64_t& most = name == "allocated bytes" ? allocated : reserved;
      most = std::max(most, event["args"]["bytes"].get<std::int64_t>());
    } else if (event["ph"] == "X") {
      tracks[event["tid"]].emplace_back(event["ts"].get<std::int64_t>(), event["dur"].get<std::int64_t>());
    }
  }
  CHECK(requested == peak["requested"].get<std::int64_t>());
  CHECK(allocated == peak["allocated"].get<std::int64_t>());
  CHECK(reserved == peak["reserved"].get<std::int64_t>());
  CHECK(tracks.size() == 10);  // Phases, passes, modules, recomputation; kernels and collectives by stream.
  for (auto& [track, slices] : tracks) {
    std::sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    std::vector<std::int64_t> ends;
    for (const auto& [begin, length] : slices) {
      while (!ends.empty() && ends.back() <= begin) ends.pop_back();
      CHECK((ends.empty() || begin + length <= ends.back()));
      ends.push_back(begin + length);
    }
  }
}

TEST_CASE(
    "with a device the trace is in estimated time: passes take what the prediction says, no stream does two things at "
    "once") {
  const Folder folder;
  const std::string words = "tiny-llama --zero-stage 3 --gpus 4 --hardware h100-sxm --checkpoint full --grad-accum 2";
  const Ran ran = run_binary(folder, split("emit --format perfetto " + words));
  REQUIRE_MESSAGE(ran.code == 0, ran.err);
  const Json trace = Json::parse(ran.out);
  CHECK(trace["otherData"]["axis"].get<std::string>().starts_with("estimated microseconds"));
  const Json time = Json::parse(run_binary(folder, split("simulate --format json " + words)).out)["time"];
  std::map<int, std::string> tracks;
  std::map<std::string, double> passes;
  std::map<int, std::vector<std::pair<double, double>>> streams;
  double steady = 0, last = 0;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "M" && event["name"] == "thread_name") tracks[event["tid"]] = event["args"]["name"];
  }
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "C") {
      CHECK(event["ts"].get<double>() >= last);
      last = event["ts"].get<double>();
    }
    if (event["ph"] != "X") continue;
    const std::string name = event["name"], track = tracks[event["tid"]];
    const double begin = event["ts"], length = event["dur"];
    if (track == "phase" && name == "steady") steady = length;
    if (track == "pass" && begin >= 0) passes[name.substr(0, name.find(','))] += length;
    if (track.starts_with("kernels") || track.starts_with("collectives"))
      streams[event["tid"]].emplace_back(begin, begin + length);
  }
  // Two steps are in the trace, each as long as the estimate.
  CHECK(steady == doctest::Approx(1e6 * time["seconds"].get<double>()).epsilon(1e-3));
  for (const Json& phase : time["phases"]) {
    const std::string name = phase["name"];
    CHECK(passes[name] <= 2e6 * phase["seconds"].get<double>() * 1.001);
    CHECK(passes[name] >= 2e6 * phase["seconds"].get<double>() * 0.8);
  }
  CHECK(streams.size() > 2);
  for (auto& [track, slices] : streams) {
    std::sort(slices.begin(), slices.end());
    for (std::size_t i = 1; i < slices.size(); ++i) CHECK(slices[i].first >= slices[i - 1].second - 0.01);
  }
}

TEST_CASE("each switch of the page shows what simulate says of that change") {
  const Folder folder;
  const std::string words = "tiny-llama --zero-stage 2 --gpus 4 --hardware h100-sxm";
  std::string markup = run_binary(folder, split("emit --format html " + words)).out;
  const Json views = Json::parse(cut_out(markup, "<script type=\"application/json\" id=\"views\">", "</script>"));
  for (const char* change : {"--checkpoint full", "--zero-stage 0", "--zero-stage 3", "--micro-batch 2"}) {
    CAPTURE(change);
    const std::size_t button = markup.find(std::string("<code>") + change + "</code>");
    REQUIRE(button != std::string::npos);
    const std::string key = "data-view=\"";
    const std::size_t at = markup.rfind(key, button) + key.size();
    const Json& view = views.at(static_cast<std::size_t>(std::stoi(markup.substr(at))));
    std::string base = words;  // A stage is said once.
    if (std::string(change).starts_with("--zero-stage")) base.erase(base.find(" --zero-stage 2"), 15);
    const Json changed = Json::parse(run_binary(folder, split("simulate --format json " + base + " " + change)).out);
    std::vector<std::int64_t> now(11);
    std::int64_t most = 0;
    const Json& levels = view["levels"];
    for (std::size_t i = 0; i < levels.size(); i += 11) {
      std::int64_t sum = 0;
      for (std::size_t k = 0; k < 11; ++k) now[k] += levels[i + k].get<std::int64_t>();
      for (std::size_t k = 1; k < 10; ++k) sum += now[k];
      most = std::max(most, sum);
    }
    CHECK(most == changed["memory"]["peak"]["requested"].get<std::int64_t>());
    CHECK(view["clock"].size() == levels.size() / 11 + 1);
  }
  CHECK(markup.find("offload_optimizer") != std::string::npos);
}

TEST_CASE("the slide is one picture that says the verdict; pixels need a file and librsvg") {
  const Folder folder;
  const std::string words = "llama-3-8b --zero-stage 3 --gpus 4 --hardware a100-40gb";
  const Ran svg = run_binary(folder, split("emit --format svg " + words));
  REQUIRE_MESSAGE(svg.code == 0, svg.err);
  CHECK(well_formed(svg.out));
  for (const char* part :
       {"does not fit", "9.69 GiB short", "out of memory", "may reserve", "optimizer", "estimated time"}) {
    CHECK_MESSAGE(svg.out.find(part) != std::string::npos, part);
  }
  CHECK(svg.out.find("href") == std::string::npos);
  CHECK(svg.out.size() < 400'000);
  CHECK(run_binary(folder, split("emit --format png " + words)).code == 2);  // Binary: a file must be named.
  const Ran png = run_binary(folder, split("emit --format png --out " + (folder / "memory.png") + " " + words));
  if (png.code == 0) {
    CHECK(slurp(folder / "memory.png").starts_with("\x89PNG\r\n"));
  } else {
    CHECK(png.code == 2);
    CHECK(png.err.find("--format svg") != std::string::npos);
  }
}

TEST_CASE("PyTorch's own viewer read these snapshots, and counted what they hold") {
  const Json seen = witness("snapshot_viewer.json");
  REQUIRE(seen["cases"].size() >= 3);
  const Folder folder;
  for (const Json& one : seen["cases"]) {
    const std::string words = one["words"];
    CAPTURE(words);
    const std::string path = folder / "predicted.pickle";
    const Ran ran = run_binary(folder, split("emit --format snapshot --out " + path + " " + words));
    REQUIRE_MESSAGE(ran.code == 0, ran.err);
    const std::string counted = std::to_string(one["entries"].get<int>()) + " entries, " +
                                std::to_string(one["segments"].get<int>()) + " segments";
    CHECK_MESSAGE(ran.err.find(counted) != std::string::npos, ran.err,
                  "tools/oracles/snapshot_viewer.py asks it again");
    CHECK(one["pages"].size() == 2);
  }
}
