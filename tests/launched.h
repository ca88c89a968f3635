// Processes of the real `dsplan` as launchers start them: each with the variables of torchrun, mpirun or srun.
#pragma once

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "paths.h"
#include "ports.h"
#include "run_binary.h"
#include "texts.h"

namespace dsplan::test {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

using Variables = std::map<std::string, std::string>;

inline Variables torchrun(int rank, int ranks, int port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(ranks)},
          {"LOCAL_RANK", std::to_string(rank)},
          {"MASTER_ADDR", "localhost"},
          {"MASTER_PORT", std::to_string(port)}};
}
inline Variables mpirun(int rank, int ranks, int port) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", std::to_string(ranks)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(ranks)},
          {"DSPLAN_PORT", std::to_string(port)}};
}
inline Variables srun(int rank, int ranks, int port) {
  return {{"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_NTASKS", std::to_string(ranks)},
          {"SLURM_LOCALID", std::to_string(rank)},
          {"SLURM_NNODES", "1"},
          {"DSPLAN_PORT", std::to_string(port)}};
}

// One started process, and what it left.
class Process {
 public:
  Process(const Folder& folder, std::string name, const std::string& line, const Variables& variables)
      : out_(folder / (name + ".out")), err_(folder / (name + ".err")) {
    const std::vector<std::string> words = split(line);
    child_ = ::fork();
    if (child_ != 0) return;
    for (const auto& [key, value] : variables) ::setenv(key.c_str(), value.c_str(), 1);
    std::vector<char*> arguments{const_cast<char*>(test_paths::binary())};
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    if (::chdir(folder.path().c_str()) != 0) ::_exit(99);
    ::dup2(::open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
    ::dup2(::open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
    ::execv(test_paths::binary(), arguments.data());
    ::_exit(98);
  }
  ~Process() {
    if (child_ > 0) kill(SIGKILL), (void)end(10s);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void kill(int signal) const { (void)::kill(child_, signal); }
  // Its exit code, 128 + signal; -1: it has not ended in time, and that is what no test forgives.
  int end(std::chrono::milliseconds most = 120s) {
    const Clock::time_point until = Clock::now() + most;
    int status = 0;
    while (::waitpid(child_, &status, WNOHANG) == 0) {
      if (Clock::now() > until) return -1;
      std::this_thread::sleep_for(5ms);
    }
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  [[nodiscard]] std::string out() const { return slurp(out_); }
  [[nodiscard]] std::string err() const { return slurp(err_); }

 private:
  std::string out_;
  std::string err_;
  pid_t child_ = -1;
};

using Launcher = Variables (*)(int, int, int);
// All ranks of one line; `change` may change what one of them is started with.
inline std::vector<std::unique_ptr<Process>> launch(
    const Folder& folder, Launcher launcher, int ranks, const std::string& line,
    const std::function<void(int, std::string&, Variables&)>& change = {}) {
  std::vector<std::unique_ptr<Process>> all;
  const int port = next_port();
  for (int rank = 0; rank < ranks; ++rank) {
    std::string own = line;
    Variables variables = launcher(rank, ranks, port);
    if (change) change(rank, own, variables);
    all.push_back(std::make_unique<Process>(folder, "rank" + std::to_string(rank), own, variables));
  }
  return all;
}

// A run of many steps, which goes on until something ends it. Returns when all ranks are in it: then each has made the
// folder of its files.
inline std::vector<std::unique_ptr<Process>> endless(const Folder& folder, int ranks, const std::string& line,
                                                     const Variables& more = {}) {
  static int runs = 0;
  const auto files = [&, run = ++runs](int rank) {
    return folder / ("files" + std::to_string(run) + "-" + std::to_string(rank));
  };
  auto all = launch(folder, torchrun, ranks, line + " --steps 600 --out receipt.json --ranks " + std::to_string(ranks),
                    [&](int rank, std::string&, Variables& variables) {
                      std::filesystem::create_directory(files(rank));
                      variables["TMPDIR"] = files(rank);
                      for (const auto& [key, value] : more) variables[key] = value;
                    });
  const Clock::time_point until = Clock::now() + 120s;
  for (int rank = 0; rank < ranks; ++rank) {
    while (std::filesystem::is_empty(files(rank)) && Clock::now() < until) std::this_thread::sleep_for(5ms);
  }
  std::this_thread::sleep_for(300ms);
  return all;
}

// The losses as a run's report says them.
inline std::string losses(const std::string& report) {
  const std::size_t at = report.find("loss of rank 0: ");
  return at == std::string::npos ? "none" : report.substr(at, report.find('\n', at) - at);
}

}  // namespace dsplan::test
