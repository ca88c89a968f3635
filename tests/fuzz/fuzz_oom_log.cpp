// read_oom_log: every printed size is a range, and a message has the sizes that its kind cannot be without.
#include "io/oom_log.h"
#include "property.h"

using namespace dsplan;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::vector<LogMessage> messages;
  if (!fuzz::accepts([&] { messages = read_oom_log("input.log", text); })) return 0;
  fuzz::require(!messages.empty(), "an accepted log has a message");
  for (const LogMessage& message : messages) {
    const bool failed = message.kind == LogMessage::Kind::OutOfMemory;
    fuzz::require(failed == message.request.has_value(), "only a failure asks for something");
    fuzz::require(failed || (message.allocated && message.reserved), "a usage line has both");
    for (const auto& printed : {message.request, message.allocated, message.reserved, message.free}) {
      fuzz::require(!printed || (printed->low >= Bytes(0) && printed->low <= printed->high), "a range is a range");
    }
  }
  return 0;
}
