// `dsplan measure` as users see it, without Python: a launcher of our own stands where python3 would be found.
#include <doctest/doctest.h>

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include <cstdlib>

#include "paths.h"
#include "run_binary.h"

using namespace dsplan::test;
using Json = nlohmann::ordered_json;

namespace {

const std::string kGolden = test_paths::source_dir() + "/tests/golden/receipts/v1/";

// A folder with a `python3` that is a shell script, first on the PATH as long as this lives.
class Launcher {
 public:
  Launcher(const Folder& folder, const std::string& script) : before_(std::getenv("PATH")) {
    const std::string bin = folder / "bin";
    std::filesystem::create_directory(bin);
    spill(bin + "/python3", "#!/bin/sh\n" + script);
    ::chmod((bin + "/python3").c_str(), 0700);
    ::setenv("PATH", (bin + ":" + before_).c_str(), 1);
  }
  ~Launcher() { ::setenv("PATH", before_.c_str(), 1); }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

 private:
  std::string before_;
};

// A receipt as the launcher would have left it: of a device, with an outcome.
Json measured(const std::string& outcome, std::int64_t rank, std::int64_t reserved) {
  Json receipt = Json::parse(slurp(kGolden + "made-ddp.json"));
  receipt["outcome"] = outcome;
  receipt["complete"] = outcome == "ran";
  receipt["message"] = outcome == "ran" ? Json(nullptr) : Json("as it was told");
  receipt["ranks"][0]["rank"] = rank;
  receipt["ranks"][0]["memory"]["peak"]["reserved"] = reserved;
  if (receipt["world_size"].get<std::int64_t>() <= rank) receipt["world_size"] = rank + 1;
  return receipt;
}

Ran measure(const Folder& folder, const std::string& words) { return run_binary(folder, split("measure " + words)); }

}  // namespace

TEST_CASE("measure hands the command on, with its options, and prints what the receipt says") {
  const Folder folder;
  spill(folder / "made.json", measured("ran", 0, 1'000'000'000'000).dump());
  const Launcher launcher(folder, "echo \"$@\" > words\ncp made.json r.json\n");
  const Ran ran = measure(
      folder,
      "--device a100-sxm-80 --capacity 40GiB --events pending --routing worst --out r.json -- python train.py --lr 1");
  CHECK_MESSAGE(ran.code == 0, ran.out, ran.err);
  const std::string words = slurp(folder / "words");
  CHECK(
      words.find("/tools/dry/run --receipt r.json --quiet --device a100-sxm-80 --capacity 42949672960 --events pending "
                 "--routing worst -- python train.py --lr 1\n") != std::string::npos);
  CHECK(ran.out.starts_with("fits: peak 931.32 GiB reserved of "));
  CHECK(ran.out.find("peak bytes") != std::string::npos);
  CHECK(ran.out.find("1,000,000,000,000") != std::string::npos);
  CHECK(ran.out.find("receipt: r.json\n") != std::string::npos);
  CHECK(widest_line(ran.out) <= 80);
}

TEST_CASE("measure's exit codes: the command's own, 3 out of memory, 2 without a receipt") {
  const Folder folder;
  spill(folder / "full.json", measured("out_of_memory", 0, 5).dump());
  spill(folder / "failed.json", measured("error", 0, 5).dump());
  {
    const Launcher launcher(folder, "cp full.json receipt.json\nexit 1\n");
    const Ran ran = measure(folder, "-- python train.py");
    CHECK(ran.code == 3);
    CHECK(ran.out.starts_with("out of memory: 5 B was reserved of "));
  }
  {
    const Launcher launcher(folder, "cp failed.json receipt.json\nexit 7\n");
    const Ran ran = measure(folder, "-- python train.py");
    CHECK(ran.code == 7);
    CHECK(ran.out.starts_with("failed: as it was told ("));
  }
  std::filesystem::remove(folder / "receipt.json");
  {
    const Launcher launcher(folder, "exit 0\n");
    CHECK(measure(folder, "-- ls").code == 2);
  }
  {
    const Launcher launcher(folder, "kill -TERM $$\n");
    CHECK(measure(folder, "-- ls").code == 128 + SIGTERM);
  }
}

TEST_CASE("measure shows every rank's headline, and all receipts as JSON") {
  const Folder folder;
  for (const int rank : {0, 1, 2}) {
    spill(folder / ("made" + std::to_string(rank)), measured("ran", rank, 1 << (20 + rank)).dump());
  }
  const Launcher launcher(
      folder, "cp made0 r.json; cp made1 r.rank1.json; cp made2 r.rank2.json; echo '{}' > r.rank1.dry.json\n");
  const Ran table = measure(folder, "--out r.json -- torchrun train.py");
  CHECK_MESSAGE(table.code == 0, table.err);
  for (const char* line : {"peak 1.00 MiB reserved", "peak 2.00 MiB reserved", "peak 4.00 MiB reserved"}) {
    CHECK(table.out.find(line) != std::string::npos);
  }
  const Ran json = measure(folder, "--out r.json --format json -- torchrun train.py");
  const Json value = Json::parse(json.out);
  CHECK(value["schema"] == "dsplan.receipts/1");
  CHECK(value["receipts"].size() == 3);
  CHECK(value["receipts"][2]["ranks"][0]["rank"] == 2);
}

TEST_CASE("what stands beside a receipt is told: retries, guesses, growth after the second step") {
  const Folder folder;
  spill(folder / "made.json", measured("ran", 0, 100).dump());
  spill(folder / "made.dry",
        R"({"steps": [{"step": 1, "retries": 0, "mallocs": 3}, {"step": 3, "retries": 2, "mallocs": 9,
    "peak_reserved": 200}], "answered": [{"call": "asked"}, {"call": "transformers.masking_utils.find_packed_sequence_indices"}],
    "reads": [{"what": "item", "where": "/home/me/train.py:9", "count": 3}, {"what": "bool", "where": "a.py:1"},
              {"what": "bool", "where": "a.py:2"}, {"what": "bool", "where": "a.py:3"}], "libraries": {"guesses": [{"call": "guessed"}], "stubs": []}})");
  const Launcher launcher(folder, "cp made.json r.json; cp made.dry r.dry.json\n");
  const Ran ran = measure(folder, "--out r.json -- python train.py");
  CHECK(ran.out.find("3 optimizer steps, 9 cudaMalloc calls, 2 retries\n") != std::string::npos);
  CHECK(ran.out.find("reserved grew after the second step, to 200 bytes\n") != std::string::npos);
  CHECK(ran.out.find("answered by name, as no kernel ran: asked,\n    transformers.masking_utils.find_packed_seq") !=
        std::string::npos);
  CHECK(ran.out.find("answered by a guess: guessed\n") != std::string::npos);
  CHECK(ran.out.find("nobody has written") == std::string::npos);
  CHECK(ran.out.starts_with("fits: peak 200 B reserved of "));
  CHECK(ran.out.find("read from the device, where nothing was computed: train.py:9 (item)") != std::string::npos);
  CHECK(ran.out.find("1 more in") != std::string::npos);
}

TEST_CASE("what a run before has left is not this run's, where the launcher refuses to start") {
  const Folder folder;
  spill(folder / "r.json", measured("ran", 0, 100).dump());
  spill(folder / "r.rank1.json", measured("ran", 1, 100).dump());
  const Launcher launcher(folder, "echo refused >&2; exit 2\n");
  const Ran ran = measure(folder, "--out r.json -- python train.py");
  CHECK(ran.code == 2);
  CHECK_MESSAGE(ran.out.empty(), ran.out);
}

TEST_CASE("measure refuses in its own words, before anything runs") {
  const Folder folder;
  const Launcher launcher(folder, "echo ran > ran\n");
  for (const auto& [words, text] :
       {std::pair{"python train.py", "COMMAND is missing; write it after --"},
        std::pair{"--device cuda --capacity 3GiB -- true", "--capacity: error: is the dry device's, and --device cuda"},
        std::pair{"--device cuda --events pending -- true", "--events: error: is the dry device's, and --device cuda"},
        std::pair{"--device cuda --world 2 -- true", "--world: error: is the dry device's, and --device cuda"},
        std::pair{"--capacity 80 -- true", "--capacity: error: \"80\" is a size without a unit"},
        std::pair{"--capacity 0GiB -- true", "--capacity: error: a device without memory"},
        std::pair{"--capacity 39.4GiB -- true", "is no whole number of bytes; write 42305427865B"}}) {
    const Ran ran = measure(folder, words);
    CHECK_MESSAGE(ran.code == 2, words);
    CHECK_MESSAGE(ran.err.find(text) != std::string::npos, ran.err);
  }
  CHECK(!std::filesystem::exists(folder / "ran"));
}

TEST_CASE("measure knows a device by each of its names") {
  const Folder folder;
  const Launcher launcher(folder, "echo \"$@\" > words\n");
  const auto device = [&](const std::string& name) {
    (void)measure(folder, "--device " + name + " -- true");
    return slurp(folder / "words");
  };
  CHECK(device("a100-sxm4-40gb").find("--device a100-sxm-40 ") != std::string::npos);
  CHECK(device("H100-SXM").find("--device h100-sxm ") != std::string::npos);
  CHECK(device("cuda").find("--device cuda ") != std::string::npos);
  spill(folder / "mine.json", slurp(test_paths::source_dir() + "/configs/hardware/l4.json"));
  CHECK(device("mine.json").find("--device mine.json ") != std::string::npos);
}

TEST_CASE("a step that ran out of memory is none") {
  const Folder folder;
  spill(folder / "made.json", measured("out_of_memory", 0, 100).dump());
  const std::string first = R"({"steps": [{"step": 1, "at": "end"}, {"step": 1, "at": "before forward", "mallocs": 3})";
  const std::string more = R"(, {"step": 2, "at": "end"}, {"step": 2, "at": "after forward"})";
  spill(folder / "none.dry", first + "]}");
  spill(folder / "one.dry", first + more + "]}");
  const auto told = [&](const std::string& name) {
    const Launcher launcher(folder, "cp made.json r.json; cp " + name + " r.dry.json\n");
    return measure(folder, "--out r.json -- python train.py").out;
  };
  CHECK(told("none.dry").find("  0 optimizer steps, 3 cudaMalloc calls") != std::string::npos);
  CHECK(told("one.dry").find("  1 optimizer step, 3 cudaMalloc calls") != std::string::npos);
}

TEST_CASE("a command that trains without the device is told so, and does not fit by doing nothing") {
  const Folder folder;
  spill(folder / "made.json", measured("ran", 0, 0).dump());
  const Launcher launcher(folder, "cp made.json r.json\n");
  const Ran ran = measure(folder, "--out r.json -- python train.py");
  CHECK(ran.code == 2);
  CHECK(ran.out.find("nothing to tell: the command trained without the device") != std::string::npos);
  CHECK(ran.out.find("fits") == std::string::npos);
}

TEST_CASE("measure refuses by name") {
  const Folder folder;
  const Launcher launcher(folder, "echo started > started\n");
  const auto refused = [&](const std::string& words, const std::string& text) {
    const Ran ran = measure(folder, words);
    CHECK(ran.code == 2);
    CHECK_MESSAGE(ran.err.find(text) != std::string::npos, ran.err);
  };
  refused("--device h100-sxm", "COMMAND is missing");
  refused("--capacity much -- true", "\"much\" is not a size");
  refused("--format csv -- true", "formats are table, json");
  refused("--evnts done -- true", "--events");
  refused("--events bogus -- true", "say done, pending, timed, or a number of launches from 1 on");
  refused("--events 0 -- true", "--events");
  refused("--routing wrst -- true", "routing \"wrst\" is not known");
  refused("--device h100-sx -- true", "did you mean \"h100-sxm\"?");
  refused("--world 4 --rank 4 -- true", "there is no rank 4 of 4");
  refused("--rank 1 -- true", "a rank of how many?");
  refused("--world two -- true", "\"two\" is no whole number from 1 on");
  refused("--cuda 11 -- true", "there are 12 and 13");
  CHECK(!std::filesystem::exists(folder / "started"));
  ::setenv("PATH", (folder / "nowhere").c_str(), 1);
  CHECK(measure(folder, "-- true").code == 6);
}
