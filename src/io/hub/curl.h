// libcurl, which is loaded at the first request: no program needs it to start.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dsplan {

struct HttpAnswer {
  int status = 0;  // 0: there was no whole answer; `failure` says why.
  std::string failure;
  std::string body;
  // Of all answers on the way, redirections included: names in lower case.
  std::vector<std::pair<std::string, std::string>> headers;

  [[nodiscard]] std::string header(std::string_view name) const;  // The first of that name, or nothing.
};

// A line of an answer's head, as it came, added to `headers`; the status line and others without a colon are none.
void add_header(std::string_view line, HttpAnswer& answer);

struct HttpRequest {
  std::string url;
  std::vector<std::string> headers;  // "name: value"; kept from other hosts than the first.
  std::int64_t patience_ms = 10'000;
  std::size_t most_bytes = 64U << 20U;
};

// Refuses (Refusal) where no libcurl can be loaded.
[[nodiscard]] HttpAnswer http_get(const HttpRequest& request);

}  // namespace dsplan
