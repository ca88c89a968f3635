// Connections to a port of a run from somebody who is not of that run.
#pragma once

#include <arpa/inet.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "exec/rendezvous/sockets.h"

namespace dsplan::test {

// Says `bytes` to who listens at `port` of this machine, and stays.
inline exec::Socket knock(int port, const std::string& bytes) {
  const auto end = exec::Clock::now() + std::chrono::seconds(5);
  std::string why;
  exec::Socket socket = exec::connect_to(exec::Reach::Loopback, "", port, end, why);
  if (socket.open()) (void)exec::send_all(socket, bytes.data(), bytes.size(), end);
  return socket;
}

// As a rank says who it is, of a run with another identity.
inline std::string hello_of_another_run(int rank, int ranks) {
  std::string bytes = "dsplan 3" + std::string(64, 'a');
  for (const std::int32_t number : {rank, ranks}) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  return bytes;
}

// Each way not to be of a run: another protocol, an older version, another run with the same and with another number
// of ranks, half a hello, nothing at all, and one that goes away at once.
inline std::vector<exec::Socket> knock_in_all_ways(int port) {
  std::vector<exec::Socket> open;
  const std::string hello = hello_of_another_run(1, 2);
  for (const std::string& bytes : {"GET / HTTP/1.1\r\n\r\n" + std::string(100, 'x'), "dsplan 2" + hello.substr(8),
                                   hello, hello_of_another_run(1, 9), hello.substr(0, 40), std::string()}) {
    open.push_back(knock(port, bytes));
  }
  (void)knock(port, "");
  return open;
}
inline constexpr int kWaysToKnock = 7;

// The addresses at which somebody listens at `port`, as the kernel writes them ("0100007F" is 127.0.0.1, in the order
// of bytes of this machine); waits for the first.
inline std::vector<std::string> listening_at(int port) {
  std::ostringstream wanted;
  wanted << std::uppercase << std::hex << port;
  std::string digits = wanted.str();
  digits.insert(0, 4 - digits.size(), '0');
  std::vector<std::string> addresses;
  const auto until = exec::Clock::now() + std::chrono::seconds(60);
  while (addresses.empty() && exec::Clock::now() < until) {
    for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
      std::ifstream file(table);
      std::string line, number, local, remote, state;
      std::getline(file, line);
      while (std::getline(file, line)) {
        std::istringstream(line) >> number >> local >> remote >> state;
        const std::size_t colon = local.find(':');
        if (state == "0A" && local.substr(colon + 1) == digits) addresses.push_back(local.substr(0, colon));
      }
    }
    if (addresses.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return addresses;
}
inline constexpr const char* kLoopbackInKernel = "0100007F";

}  // namespace dsplan::test
