// Lets all ranks of a run stand still at one place, so that what the machine counts of their process can be held
// against what they count themselves.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "core/process_bytes.h"
#include "exec/device.h"
#include "exec/transport/transport.h"

namespace dsplan::exec {

class ProcessBarrier {
 public:
  ProcessBarrier(int ranks, const Transport& transport) : ranks_(ranks), transport_(transport) {}

  // Every rank comes, with what its allocator has taken; the last one looks at its device, then all go on. If the run
  // is lost meanwhile, whoever waits goes on, and nothing is noted.
  void at(const std::string& moment, Device& device, Bytes reserved);
  [[nodiscard]] const std::vector<ProcessMoment>& moments() const { return moments_; }

 private:
  int ranks_;
  const Transport& transport_;
  std::mutex mutex_;  // Of the rest.
  std::condition_variable all_here_;
  int here_ = 0;
  std::size_t passed_ = 0;
  Bytes reserved_;
  std::vector<ProcessMoment> moments_;
};

}  // namespace dsplan::exec
