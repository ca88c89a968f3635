// A rank's ends of all the groups that it is in.
#pragma once

#include <array>
#include <memory>

#include "core/error.h"
#include "exec/transport.h"

namespace dsplan::exec {

class Communicators {
 public:
  void add(Group group, std::unique_ptr<Communicator> end) { ends_[static_cast<std::size_t>(group)] = std::move(end); }
  // InternalError where the rank is in no such group.
  [[nodiscard]] Communicator& of(Group group) {
    DSPLAN_CHECK(ends_[static_cast<std::size_t>(group)] != nullptr, "a collective of a group that was not formed");
    return *ends_[static_cast<std::size_t>(group)];
  }

 private:
  std::array<std::unique_ptr<Communicator>, 6> ends_{};  // By Group.
};

}  // namespace dsplan::exec
