#include "exec/message.h"

#include <algorithm>
#include <cstring>

namespace dsplan::exec {
namespace {

constexpr std::uint64_t kMostMessageBytes = 64ULL << 20;

struct MessageHeader {
  std::uint32_t kind = 0;
  std::int32_t rank = 0;
  std::uint64_t bytes = 0;
};

}  // namespace

bool send_message(const Socket& socket, const Message& message, Clock::time_point end) {
  const MessageHeader header{static_cast<std::uint32_t>(message.kind), message.rank, message.bytes.size()};
  Blob bytes(sizeof header + message.bytes.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  std::copy(message.bytes.begin(), message.bytes.end(), bytes.begin() + sizeof header);
  return send_all(socket, bytes.data(), bytes.size(), end);
}

bool receive_message(const Socket& socket, Message& message, Clock::time_point end) {
  MessageHeader header;
  if (!receive(socket, &header, sizeof header, end) || header.bytes > kMostMessageBytes ||
      header.kind > static_cast<std::uint32_t>(Message::Kind::Bye)) {
    return false;
  }
  message.kind = static_cast<Message::Kind>(header.kind);
  message.rank = header.rank;
  message.bytes.resize(header.bytes);
  return receive(socket, message.bytes.data(), message.bytes.size(), end);
}

}  // namespace dsplan::exec
