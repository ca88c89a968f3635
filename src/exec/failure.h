// How a run ends when the machine fails it. What is wrong with the input or with dsplan itself is told as everywhere
// (core/error.h); this is for what happens while a plan is carried out: memory that is not there, a disk that is full,
// a device that is lost, another rank that gave up.
#pragma once

#include <cstddef>
#include <exception>
#include <limits>
#include <string>
#include <string_view>

#include "core/units.h"
#include "exec/backend.h"

namespace dsplan::exec {

inline constexpr std::size_t kNoEvent = std::numeric_limits<std::size_t>::max();

struct Failure {
  dsplan_status status = DSPLAN_DEVICE;
  int rank = -1;                 // -1: not known where it was thrown; the keeper of the ranks fills it in.
  std::size_t event = kNoEvent;  // Of the schedule, likewise.
  std::string call;              // "copy", "all_gather"
  std::string text;              // What the backend said.
  Bytes requested{};             // Device memory that was not there: what was asked for,
  Bytes missing{};               // and how far what it needed exceeded what was left.
};

// As bytes for another process (exec/rendezvous/packing.h).
template <class Archive>
void fields(Archive& archive, Failure& failure) {
  archive(failure.status, failure.rank, failure.event, failure.call, failure.text, failure.requested, failure.missing);
}

[[nodiscard]] std::string_view name(dsplan_status status);  // "out of memory"
// "rank 1, event 17: copy: out of memory: ..."
[[nodiscard]] std::string describe(const Failure& failure);

class RunFailure : public std::exception {
 public:
  explicit RunFailure(Failure failure) : failure_(std::move(failure)), text_(describe(failure_)) {}
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] const Failure& failure() const noexcept { return failure_; }

 private:
  Failure failure_;
  std::string text_;
};

}  // namespace dsplan::exec
