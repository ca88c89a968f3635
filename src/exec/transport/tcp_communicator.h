// One rank's end of a group of processes (exec/transport/tcp.h).
#pragma once

#include <vector>

#include "exec/transport/collective_calls.h"
#include "exec/transport/tcp.h"

namespace dsplan::exec {

class TcpCommunicator : public Communicator {
 public:
  // `members`: ranks among all, in the order of sums; `me`: which of them this is.
  TcpCommunicator(TcpTransport& transport, Group group, std::vector<int> members, int me, Device& device)
      : transport_(transport), group_(group), members_(std::move(members)), me_(me), device_(device) {}

  [[nodiscard]] int rank() const override { return me_; }
  [[nodiscard]] int ranks() const override { return static_cast<int>(members_.size()); }
  CallRecord run(const CollectiveCall& call) override;

 private:
  using Outgoing = TcpTransport::Outgoing;
  using Incoming = TcpTransport::Incoming;

  void agree_with(const CollectiveCall& call, const std::vector<int>& others_out, const std::vector<int>& others_in);
  void carry_out(const CollectiveCall& call);
  void all_reduce(const CollectiveCall& call);
  void all_gather(const CollectiveCall& call, const char* input);
  void all_to_all(const CollectiveCall& call);
  void broadcast(const CollectiveCall& call);
  void reduce(const CollectiveCall& call);
  // Everybody's part of the inputs of all ranks: from each rank what `begins[me]` says comes here and is added up in
  // rank order into `target`, and what `chunks[r]` says of this rank's input goes to rank r.
  void combine_chunks(const CollectiveCall& call, const std::vector<Chunk>& chunks, char* target);

  // Moves, and counts what this rank sends.
  void move(std::vector<Outgoing> out, std::vector<Incoming> in, const CollectiveCall& call);
  void copy(char* to, const char* from, std::int64_t elements, const CollectiveCall& call);
  [[nodiscard]] int member(int at) const { return members_[static_cast<std::size_t>(at)]; }

  TcpTransport& transport_;
  Group group_;
  std::vector<int> members_;
  int me_;
  Device& device_;
  std::int64_t sent_ = 0;
  std::vector<char> pieces_;  // Of others, to be added up.
};

}  // namespace dsplan::exec
