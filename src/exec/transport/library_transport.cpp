#include "exec/transport/library_transport.h"

#include <algorithm>

#include "core/error.h"
#include "exec/transport/collective_calls.h"

namespace dsplan::exec {

static_assert(sizeof(std::atomic<std::int32_t>) == sizeof(std::int32_t) &&
                  std::atomic<std::int32_t>::is_always_lock_free,
              "looked at by a library behind the C table");

class LibraryCommunicator : public Communicator {
 public:
  LibraryCommunicator(LibraryTransport& transport, Group group, const dsplan_group& place, Device& device,
                      dsplan_communicator* communicator)
      : transport_(transport), group_(group), place_(place), device_(device), communicator_(communicator) {}
  ~LibraryCommunicator() override {
    transport_.forget(communicator_);
    (void)device_.calls().backend().comm_destroy(device_.calls().handle(), communicator_);
  }
  LibraryCommunicator(const LibraryCommunicator&) = delete;
  LibraryCommunicator& operator=(const LibraryCommunicator&) = delete;

  [[nodiscard]] int rank() const override { return place_.rank; }
  [[nodiscard]] int ranks() const override { return place_.ranks; }
  CallRecord run(const CollectiveCall& call) override {
    validate(call, rank(), ranks(), device_.rank());
    const dsplan_collective what{sizeof(dsplan_collective),
                                 static_cast<std::int32_t>(call.kind),
                                 static_cast<std::int32_t>(call.dtype),
                                 call.reduction,
                                 call.elements,
                                 call.input,
                                 call.output,
                                 call.root,
                                 call.to,
                                 call.from};
    try {
      device_.calls().check(device_.calls().backend().comm_run(device_.calls().handle(), communicator_, &what,
                                                               device_.stream(call.stream)),
                            dsplan::name(call.kind).data());
    } catch (const RunFailure& failure) {
      transport_.lose(failure, call);
    }
    return {call.kind, group_, call.dtype, call.elements, storage(Elements(call.elements), call.dtype), std::nullopt};
  }

 private:
  LibraryTransport& transport_;
  Group group_;
  dsplan_group place_;
  Device& device_;
  dsplan_communicator* communicator_;
};

LibraryTransport::LibraryTransport(Rendezvous& rendezvous, const dsplan_backend& backend, int most_blocks)
    : rendezvous_(rendezvous), backend_(backend), most_blocks_(most_blocks) {
  char text[256] = "";
  if (backend.comm_library == nullptr || backend.comm_library(&backend, text, sizeof text) != DSPLAN_OK) {
    throw RunFailure({DSPLAN_UNAVAILABLE, rendezvous.rank(), kNoEvent, "communicators",
                      backend.comm_library == nullptr ? "this backend has no library for them"
                                                      : backend.last_error(&backend, nullptr)});
  }
  rendezvous_.failure().on_set([this] { break_off(); });
}

LibraryTransport::~LibraryTransport() { rendezvous_.failure().on_set({}); }

void LibraryTransport::divide(Group group, std::vector<std::vector<int>> groups) { groups_[group] = std::move(groups); }

// The first of each group makes its id; all get all of them, and each takes its own group's.
std::unique_ptr<Communicator> LibraryTransport::connect(Group group, Device& device) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return alone(group, device);
  const int me = rendezvous_.rank();
  const auto members = std::find_if(found->second.begin(), found->second.end(), [&](const std::vector<int>& each) {
    return std::find(each.begin(), each.end(), me) != each.end();
  });
  DSPLAN_CHECK(members != found->second.end(), "each rank is in a group of each kind");
  Blob own;
  if (members->size() > 1 && members->front() == me) {
    own.resize(DSPLAN_COMMUNICATOR_ID_BYTES);
    if (const dsplan_status status = backend_.comm_id(&backend_, own.data()); status != DSPLAN_OK) {
      throw RunFailure({status, me, kNoEvent, "comm_id", backend_.last_error(&backend_, nullptr)});
    }
  }
  const std::vector<Blob> ids = rendezvous_.exchange(own, "the id of group " + std::string(dsplan::name(group)));
  if (members->size() == 1) return alone(group, device);
  const Blob& id = ids[static_cast<std::size_t>(members->front())];
  if (id.size() != DSPLAN_COMMUNICATOR_ID_BYTES) throw Garbled();
  const dsplan_group place{
      sizeof(dsplan_group),
      static_cast<std::int32_t>(std::find(members->begin(), members->end(), me) - members->begin()),
      static_cast<std::int32_t>(members->size()),
      most_blocks_,
      std::chrono::duration_cast<std::chrono::nanoseconds>(rendezvous_.timeout()).count(),
      reinterpret_cast<const volatile std::int32_t*>(&give_up_)};
  dsplan_communicator* made = nullptr;
  const dsplan_usage before = device.usage();
  try {
    device.calls().run(&dsplan_backend::comm_create, "comm_create", id.data(), &place, &made);
  } catch (const RunFailure& failure) {
    lose(failure, {});
  }
  const dsplan_usage after = device.usage();
  if (before.device_free >= 0 && after.device_free >= 0) {
    taken_ = taken_.value_or(Bytes(0)) + Bytes(before.device_free - after.device_free);
  }
  {
    const std::lock_guard lock(mutex_);
    open_.push_back(made);
  }
  if (give_up_ != 0) break_off();
  return std::make_unique<LibraryCommunicator>(*this, group, place, device, made);
}

void LibraryTransport::break_off() noexcept {
  give_up_ = 1;
  const std::lock_guard lock(mutex_);
  for (dsplan_communicator* each : open_) (void)backend_.comm_abort(each);
}

void LibraryTransport::forget(dsplan_communicator* communicator) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(open_, communicator);
}

void LibraryTransport::lose(const RunFailure& failure, const CollectiveCall& about) {
  Failure told = failure.failure();
  told.rank = rendezvous_.rank();
  if (about.event != kNoEvent) told.event = about.event;
  // A library notices that another process is gone before that one's word, or its end, has arrived here.
  if (told.status == DSPLAN_ABORTED || told.status == DSPLAN_UNAVAILABLE) rendezvous_.await_failure();
  if (const std::optional<Failure> first = rendezvous_.failure().get()) {
    told.status = DSPLAN_ABORTED;
    told.text = describe(*first);
  } else {
    rendezvous_.abort(told);
  }
  throw RunFailure(std::move(told));
}

}  // namespace dsplan::exec
