// read_pickle, read_snapshot and replay_snapshot: an accepted pickle has its nodes within its text; an accepted
// snapshot that can be written is read back the same; a replay ends with as many bytes as the segments of the file
// have, if it agrees.
#include "io/pickle.h"
#include "io/snapshot.h"
#include "property.h"
#include "sim/snapshot_replay.h"

using namespace dsplan;

namespace {

void judge(const Pickle& pickle) {
  fuzz::require(pickle.root < pickle.nodes.size(), "the root is a node");
  for (PickleId id = 0; id < pickle.nodes.size(); ++id) {
    const PickleNode& node = pickle.node(id);
    fuzz::require(node.offset < pickle.text.size(), "a node has a place");
    switch (node.kind) {
      case PickleNode::Kind::String:
      case PickleNode::Kind::Binary:
        fuzz::require(pickle.string(id).size() == node.length, "a string lies in the text");
        break;
      case PickleNode::Kind::List:
      case PickleNode::Kind::Tuple:
      case PickleNode::Kind::Dict:
        for (const PickleId item : pickle.items(id)) fuzz::require(item < pickle.nodes.size(), "an item is a node");
        fuzz::require(node.kind != PickleNode::Kind::Dict || pickle.items(id).size() % 2 == 0, "keys have values");
        break;
      default: break;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  Pickle pickle;
  if (!fuzz::accepts([&] { pickle = read_pickle("input.pickle", text); })) return 0;
  judge(pickle);
  Snapshot snapshot;
  if (!fuzz::accepts([&] { snapshot = read_snapshot("input.pickle", text); })) return 0;
  std::string written;
  if (fuzz::accepts([&] { written = write_snapshot(snapshot); })) {
    const Snapshot again = read_snapshot("written", written);
    fuzz::require(again.segments.size() == snapshot.segments.size() && again.traces.size() == snapshot.traces.size(),
                  "what is written is read back");
  }
  std::vector<DeviceReplay> devices;
  if (!fuzz::accepts([&] { devices = replay_snapshot(snapshot, "input.pickle"); })) return 0;
  for (const DeviceReplay& device : devices) {
    if (device.difference) continue;
    Bytes reserved;
    for (const SnapshotSegment& segment : snapshot.segments) {
      if (segment.device == device.device) reserved += segment.size;
    }
    fuzz::require(reserved == device.end.reserved, "the segments add up");
  }
  return 0;
}
