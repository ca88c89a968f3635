#include "exec/transport/collective_calls.h"

#include "core/format.h"

namespace dsplan::exec {
namespace {

class Alone : public Communicator {
 public:
  Alone(Group group, Device& device) : group_(group), device_(device) {}
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int ranks() const override { return 1; }
  CallRecord run(const CollectiveCall& call) override {
    if (call.kind == Collective::SendRecv) {
      throw RunFailure({DSPLAN_INVALID, device_.rank(), call.event, "send_recv", "a group of one rank"});
    }
    const Bytes payload = storage(Elements(call.elements), call.dtype);
    if (call.output != nullptr && call.output != call.input && call.elements > 0) {
      device_.copy(call.output, Space::Device, call.input, Space::Device, payload, call.stream);
    }
    return {call.kind, group_, call.dtype, call.elements, payload, Bytes(0)};
  }

 private:
  Group group_;
  Device& device_;
};

}  // namespace

void validate(const CollectiveCall& call, int me, int ranks, int rank) {
  const auto refuse = [&](const std::string& text) {
    throw RunFailure({DSPLAN_INVALID, rank, call.event, std::string(dsplan::name(call.kind)), text});
  };
  if (call.elements < 0) refuse("a negative number of elements");
  const bool in_shares =
      call.kind == Collective::ReduceScatter || call.kind == Collective::AllGather || call.kind == Collective::AllToAll;
  if (in_shares && call.elements % ranks != 0) {
    refuse(formatted("{} elements do not divide among {} ranks", call.elements, ranks));
  }
  if (call.root < 0 || call.root >= ranks) refuse(formatted("root {} of {} ranks", call.root, ranks));
  const bool broadcasts = call.kind == Collective::Broadcast;
  const bool point = call.kind == Collective::SendRecv;
  const bool reads = point ? call.to != kNobody : !broadcasts || me == call.root;
  const bool writes = point ? call.from != kNobody
                            : (broadcasts ? me != call.root : call.kind != Collective::Reduce || me == call.root);
  if (call.elements > 0 && ((reads && call.input == nullptr) || (writes && call.output == nullptr))) {
    refuse("a buffer is missing");
  }
  if (call.kind == Collective::AllToAll && call.input == call.output && call.elements > 0) {
    refuse("input and output are the same");
  }
  const auto other = [&](int at) { return at == kNobody || (at >= 0 && at < ranks && at != me); };
  if (point && (!other(call.to) || !other(call.from) || (!reads && !writes))) refuse("no such partner");
}

std::string describe(const CollectiveCall& call, int rank) {
  return formatted("rank {} calls {} of {} {} from root {}{}{}", rank, dsplan::name(call.kind), call.elements,
                   dsplan::name(call.dtype), call.root, call.reduction == DSPLAN_MAX ? ", maximum" : "",
                   call.event == kNoEvent ? "" : formatted(" at event {}", call.event));
}

bool agree(const CollectiveCall& a, const CollectiveCall& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.elements == b.elements && a.root == b.root &&
         a.reduction == b.reduction;
}

std::unique_ptr<Communicator> alone(Group group, Device& device) { return std::make_unique<Alone>(group, device); }

}  // namespace dsplan::exec
