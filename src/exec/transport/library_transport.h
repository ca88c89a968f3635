// Transport between ranks that are processes, each with a device, over the communicators of the backend's own library
// (comm_* of exec/backend.h: NCCL). Each group is a communicator of its own. The order of sums and what goes over the
// wire are the library's; what was sent is therefore not counted.
//
// A failure anywhere breaks all communicators off (exec/rendezvous/rendezvous.h), so that whoever waits on its device
// gets it back.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "exec/rendezvous/rendezvous.h"
#include "exec/transport/transport.h"

namespace dsplan::exec {

class LibraryTransport : public Transport {
 public:
  // `most_blocks`: of a GPU that one call may occupy; 0: as the library likes. Throws RunFailure
  // (DSPLAN_UNAVAILABLE) where the backend has no such library.
  LibraryTransport(Rendezvous& rendezvous, const dsplan_backend& backend, int most_blocks);
  ~LibraryTransport() override;

  void divide(Group group, std::vector<std::vector<int>> groups) override;
  // Collective over all ranks, in the same order on each.
  [[nodiscard]] std::unique_ptr<Communicator> connect(Group group, Device& device) override;
  void abort(const Failure& failure) noexcept override { rendezvous_.abort(failure); }
  [[nodiscard]] std::optional<Failure> first_failure() const override { return rendezvous_.failure().get(); }
  void leave(int) noexcept override { rendezvous_.leave(); }
  [[nodiscard]] std::optional<Bytes> communicator_bytes() const override { return taken_; }

 private:
  friend class LibraryCommunicator;
  void break_off() noexcept;
  // What failed here may be the trace of what failed elsewhere: then that is told.
  [[noreturn]] void lose(const RunFailure& failure, const CollectiveCall& about);
  void forget(dsplan_communicator* communicator) noexcept;

  Rendezvous& rendezvous_;
  const dsplan_backend& backend_;
  int most_blocks_;
  std::map<Group, std::vector<std::vector<int>>> groups_;
  std::optional<Bytes> taken_;
  std::atomic<std::int32_t> give_up_{0};
  std::mutex mutex_;  // Of the next.
  std::vector<dsplan_communicator*> open_;
};

}  // namespace dsplan::exec
