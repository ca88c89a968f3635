// What shells and pipelines see: completions, the manual page, --version, --help, standard input, the CI step.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "paths.h"
#include "run_binary.h"
#include "texts.h"

using namespace dsplan::test;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

const std::string kRoot = test_paths::source_dir();

Ran dsplan_runs(const Folder& folder, const std::string& line) { return run_binary(folder, split(line)); }

struct Shell {
  int code = 0;
  std::string out;
};

// A line of bash in the folder, with `dsplan` on the path.
Shell bash(const Folder& folder, const std::string& line) {
  const std::string path = fs::path(test_paths::binary()).parent_path().string();
  spill(folder / ".line", line);
  const std::string command = "cd '" + folder.path() + "' && PATH='" + path + "':\"$PATH\" bash .line > .said 2>&1";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, slurp(folder / ".said")};
}

const std::vector<std::string> kCommands = {"simulate", "sweep",  "diff",    "show",      "explain",
                                            "emit",     "replay", "compare", "check",     "plan",
                                            "doctor",   "run",    "measure", "calibrate", "completion"};

}  // namespace

TEST_CASE("show models: a name, a family and a number of parameters, none of which runs into the next") {
  const Folder folder;
  std::istringstream lines(dsplan_runs(folder, "show models").out);
  std::size_t models = 0;
  for (std::string line; std::getline(lines, line); ++models) {
    CHECK_MESSAGE(split(line).size() >= 3, line);
  }
  CHECK(models > 300);
}

TEST_CASE("completions and the manual page that are installed are those of the program") {
  const Folder folder;
  const bool update = std::getenv("DSPLAN_UPDATE_DOCS") != nullptr;
  for (const auto& [shell, file] : {std::pair{"bash", "share/completions/dsplan.bash"},
                                    {"zsh", "share/completions/_dsplan"},
                                    {"fish", "share/completions/dsplan.fish"},
                                    {"man", "share/man/dsplan.1"}}) {
    const Ran ran = dsplan_runs(folder, std::string("completion ") + shell);
    REQUIRE_MESSAGE(ran.code == 0, ran.err);
    const std::string path = kRoot + "/" + file;
    if (update) {
      fs::create_directories(fs::path(path).parent_path());
      spill(path, ran.out);
    }
    CHECK_MESSAGE(ran.out == slurp(path), path, ": DSPLAN_UPDATE_DOCS=1 writes it");
    for (const std::string& command : kCommands) CHECK_MESSAGE(has(ran.out, command), command);
  }
  CHECK(dsplan_runs(folder, "completion tcsh").code == 2);
}

TEST_CASE("bash completes commands, options, values and names") {
  const Folder folder;
  const auto completed = [&](const std::string& words, int at) {
    return bash(folder, "source <(dsplan completion bash)\nCOMP_WORDS=(" + words +
                            ")\nCOMP_CWORD=" + std::to_string(at) + "\n_dsplan\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n")
        .out;
  };
  CHECK(completed("dsplan sim", 1) == "simulate\n");
  CHECK(has(completed("dsplan simulate llama --zero-", 3), "--zero-stage\n"));
  CHECK(!has(completed("dsplan emit llama --expl", 3), "--explain"));
  CHECK(completed("dsplan simulate x --dtype bf", 4) == "bf16\n");
  CHECK(completed("dsplan simulate llama-3-8", 2) == "llama-3-8b\n");
  CHECK(completed("dsplan simulate x --hardware h100-sxm-", 4) == "h100-sxm-96\n");
}

TEST_CASE("the scripts for zsh and fish are read without complaint where there is such a shell") {
  const Folder folder;
  spill(folder / "z", dsplan_runs(folder, "completion zsh").out);
  spill(folder / "f", dsplan_runs(folder, "completion fish").out);
  CHECK(bash(folder, "command -v zsh > /dev/null || exit 0; zsh -n z").code == 0);
  CHECK(bash(folder, "command -v fish > /dev/null || exit 0; fish -n f").code == 0);
  CHECK(bash(folder,
             "command -v man > /dev/null || exit 0; dsplan completion man > m.1; man -l --warnings m.1 2>&1 "
             ">/dev/null | grep . && exit 1; exit 0")
            .code == 0);
}

TEST_CASE("--help of a command lists its own options, an example, and nothing that is always refused") {
  const Folder folder;
  for (const std::string& command : kCommands) {
    if (command == "show") continue;  // Its topics have their own.
    const Ran help = dsplan_runs(folder, command + " --help");
    CAPTURE(command);
    CHECK(help.code == 0);
    CHECK(has(help.out, "dsplan " + command));
    CHECK_MESSAGE((has(help.out, "Example") || command == "doctor"), help.out);
    for (const char* never : {"--sp ", "--ep ", "--env "}) CHECK(!has(help.out, never));
  }
  CHECK(has(dsplan_runs(folder, "explain --help").out, "--log FILE"));
  CHECK(!has(dsplan_runs(folder, "emit --help").out, "--explain"));
  CHECK(!has(dsplan_runs(folder, "plan --help").out, "--phase"));
  const Ran env = dsplan_runs(folder, "simulate tiny-llama --env pip.txt");
  CHECK(env.code == 2);
  CHECK(has(env.err, "not modelled yet"));
}

TEST_CASE("--version says what it was built with, the number first") {
  const Folder folder;
  const std::string text = dsplan_runs(folder, "--version").out;
  CHECK(text.starts_with("dsplan "));
  CHECK(has(text, "\nbuilt with "));
  CHECK(has(text, "\nmodels torch "));
}

TEST_CASE("- is standard input wherever a file goes in") {
  const Folder folder;
  fs::copy(kRoot + "/models/tiny-llama.json", folder / "config.json");
  spill(folder / "ds.json",
        R"({"bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, })");
  spill(folder / "train.yaml", "per_device_train_batch_size: 2\nbf16: true\n");
  const auto fingerprint = [&](const std::string& line) {
    const Shell ran = bash(folder, line);
    CHECK_MESSAGE(ran.code == 0, ran.out);
    const std::size_t at = ran.out.find("sha256:");
    return at == std::string::npos ? ran.out : ran.out.substr(at, 71);
  };
  const std::string json = " --format json";
  CHECK(fingerprint("dsplan simulate -" + json + " < config.json") ==
        fingerprint("dsplan simulate config.json" + json));
  CHECK(fingerprint("dsplan simulate config.json --gpus 2 --deepspeed -" + json + " < ds.json") ==
        fingerprint("dsplan simulate config.json --gpus 2 --deepspeed ds.json" + json));
  CHECK(fingerprint("dsplan simulate config.json --training -" + json + " < train.yaml") ==
        fingerprint("dsplan simulate config.json --training train.yaml" + json));
  spill(folder / "oom",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity "
        "of 10.00 GiB of which 1.00 MiB is free. Including non-PyTorch memory, this process has 9.99 GiB "
        "memory in use. Of the allocated memory 9.00 GiB is allocated by PyTorch, and 1.00 MiB is reserved "
        "by PyTorch but unallocated.\n");
  const Shell log = bash(folder, "dsplan explain tiny-llama --log - < oom");
  CHECK_MESSAGE(log.code == 0, log.out);
  CHECK(has(log.out, "out of memory, asked for 2.00 MiB"));
  CHECK(bash(folder, "dsplan simulate - < /dev/null").code == 2);
}

TEST_CASE("the step of action.yml: annotations, a summary, JUnit and a comment, with check's exit code") {
  const Folder folder;
  fs::copy(kRoot + "/docs/examples/ci", folder.path(), fs::copy_options::recursive);
  const std::string made =
      "dsplan check --init baselines/llama.json llama-3-8b --deepspeed ds.json --training train.json "
      "--gpus 8 --hardware gpu.json\n";
  REQUIRE(bash(folder, made).code == 0);
  const std::string step = "export GITHUB_OUTPUT=out GITHUB_STEP_SUMMARY=summary DSPLAN=dsplan\n";
  const std::string run = "bash '" + kRoot + "/tools/check_action'\n";
  CHECK(bash(folder, step + run).code == 0);
  const Shell above = bash(folder, step + "export AT_MOST=8GiB\n" + run);
  CHECK(above.code == 4);
  CHECK(has(above.out, "::error file=baselines/llama.json"));
  CHECK(has(above.out, "Memory above its threshold"));
  CHECK(has(slurp(folder / "summary"), "at most 8.00 GiB are allowed"));
  const std::string outputs = slurp(folder / "out");
  const std::size_t junit = outputs.rfind("junit=");
  REQUIRE(junit != std::string::npos);
  CHECK(has(slurp(outputs.substr(junit + 6, outputs.find('\n', junit) - junit - 6)), "<failure message="));
  const std::string action = slurp(kRoot + "/action.yml");
  for (const char* name : {"BASELINES", "AT_MOST", "TOLERANCE", "DSPLAN", "VERSION"}) CHECK(has(action, name));
  CHECK(has(slurp(kRoot + "/.pre-commit-hooks.yaml"), "entry: dsplan check"));
}
