// How ranks meet: the other ranks of a communicator, and the small messages that they hand each other.
//
// Mirrored: this process is alone, and every other rank holds what it holds (DSPLAN_DRY_PEERS=mirror).
// Real: the ranks are processes or threads of this machine. They meet in shared memory whose name is in the
// communicator's id, and lay what they send into it. Messages above the limit of copies are not sent: nobody would read
// them.
//
// No method waits: each says whether it could be done, and whoever calls tries again. So a group of calls cannot block
// itself, in whatever order its ranks make them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace dsplan::dry {

class Peers {
 public:
  virtual ~Peers() = default;

  // Lays down what this rank gives to all. False: somebody still looks at what lay there.
  virtual bool lay_down(const void* mine, std::size_t bytes) = 0;
  // Everybody has laid down as much as this rank.
  [[nodiscard]] virtual bool all_lie() = 0;
  [[nodiscard]] virtual const char* of(int rank) const = 0;
  // This rank has looked.
  virtual void looked() = 0;

  virtual bool send(int to, const void* message, std::size_t bytes) = 0;
  virtual bool receive(int from, void* message, std::size_t bytes) = 0;
};

constexpr std::size_t kMeetingName = 64;
// A name that no other communicator has.
[[nodiscard]] std::string new_meeting_name();
[[nodiscard]] bool peers_are_mirrored();
// nullptr: the machine gives no shared memory.
[[nodiscard]] std::unique_ptr<Peers> meet(const std::string& name, int ranks, int rank);
[[nodiscard]] std::unique_ptr<Peers> mirrored();

}  // namespace dsplan::dry
