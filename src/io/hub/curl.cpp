#include "io/hub/curl.h"

#include <dlfcn.h>

#include "core/error.h"
#include "core/format.h"
#include "core/text/letters.h"

namespace dsplan {
namespace {

// The numbers of curl/curl.h, which its interface fixes for good.
enum Option : int {
  kWriteData = 10001,
  kUrl = 10002,
  kUserAgent = 10018,
  kHttpHeader = 10023,
  kHeaderData = 10029,
  kFollowLocation = 52,
  kMaxRedirects = 68,
  kNoSignal = 99,
  kProtocols = 181,
  kRedirectProtocols = 182,
  kTimeoutMs = 155,
  kConnectTimeoutMs = 156,
  kWriteFunction = 20011,
  kHeaderFunction = 20079,
};
constexpr int kResponseCode = 0x200002;
constexpr int kTimedOut = 28;
constexpr long kHttpAndHttps = 3;

struct Curl {
  void* (*init)();
  int (*set)(void* handle, int option, ...);
  int (*perform)(void* handle);
  int (*info)(void* handle, int what, ...);
  void (*cleanup)(void* handle);
  const char* (*error)(int code);
  void* (*append)(void* list, const char* text);
  void (*free_list)(void* list);
};

template <class Function>
void find(void* library, const char* name, Function& into) {
  into = reinterpret_cast<Function>(::dlsym(library, name));
  if (into == nullptr) throw Refusal("libcurl", formatted("has no {}", name));
}

Curl load() {
  void* library = nullptr;
  for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4"}) {
    library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    throw Refusal("libcurl", "cannot be loaded, and the hub is asked through it",
                  "install libcurl (libcurl4), or put the model's config.json into a folder and name that");
  }
  Curl curl{};
  find(library, "curl_easy_init", curl.init);
  find(library, "curl_easy_setopt", curl.set);
  find(library, "curl_easy_perform", curl.perform);
  find(library, "curl_easy_getinfo", curl.info);
  find(library, "curl_easy_cleanup", curl.cleanup);
  find(library, "curl_easy_strerror", curl.error);
  find(library, "curl_slist_append", curl.append);
  find(library, "curl_slist_free_all", curl.free_list);
  return curl;
}

struct Receiving {
  HttpAnswer* answer;
  std::size_t most_bytes;
};

// Less than it was given: libcurl stops.
std::size_t take_body(const char* data, std::size_t size, std::size_t count, void* into) {
  auto& receiving = *static_cast<Receiving*>(into);
  const std::size_t bytes = size * count;
  if (receiving.answer->body.size() + bytes > receiving.most_bytes) return 0;
  receiving.answer->body.append(data, bytes);
  return bytes;
}

std::size_t take_header(const char* data, std::size_t size, std::size_t count, void* into) {
  add_header({data, size * count}, *static_cast<HttpAnswer*>(into));
  return size * count;
}

}  // namespace

std::string HttpAnswer::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

void add_header(std::string_view line, HttpAnswer& answer) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  std::string name = in_lower_case(line.substr(0, colon));
  std::string_view value = line.substr(colon + 1);
  const auto blank = [](char c) { return c == ' ' || c == '\r' || c == '\n' || c == '\t'; };
  while (!value.empty() && blank(value.front())) value.remove_prefix(1);
  while (!value.empty() && blank(value.back())) value.remove_suffix(1);
  answer.headers.emplace_back(std::move(name), value);
}

HttpAnswer http_get(const HttpRequest& request) {
  static const Curl kCurl = load();
  HttpAnswer answer;
  Receiving receiving{&answer, request.most_bytes};
  void* const handle = kCurl.init();
  if (handle == nullptr) throw Refusal("libcurl", "cannot be initialised");
  void* list = nullptr;
  for (const std::string& header : request.headers) list = kCurl.append(list, header.c_str());
  kCurl.set(handle, kUrl, request.url.c_str());
  kCurl.set(handle, kUserAgent, "dsplan");
  kCurl.set(handle, kHttpHeader, list);
  kCurl.set(handle, kFollowLocation, 1L);
  kCurl.set(handle, kMaxRedirects, 5L);
  kCurl.set(handle, kProtocols, kHttpAndHttps);
  kCurl.set(handle, kRedirectProtocols, kHttpAndHttps);
  kCurl.set(handle, kNoSignal, 1L);
  kCurl.set(handle, kTimeoutMs, static_cast<long>(request.patience_ms));
  kCurl.set(handle, kConnectTimeoutMs, static_cast<long>(request.patience_ms));
  kCurl.set(handle, kWriteFunction, &take_body);
  kCurl.set(handle, kWriteData, &receiving);
  kCurl.set(handle, kHeaderFunction, &take_header);
  kCurl.set(handle, kHeaderData, &answer);
  const int code = kCurl.perform(handle);
  long status = 0;
  kCurl.info(handle, kResponseCode, &status);
  if (code == 0) {
    answer.status = static_cast<int>(status);
  } else if (code == kTimedOut) {
    answer.failure = formatted("no whole answer within {:g} s", static_cast<double>(request.patience_ms) / 1000);
  } else if (answer.body.size() + 16384 > request.most_bytes) {
    answer.failure = formatted("more than {} bytes", request.most_bytes);
  } else {
    answer.failure = kCurl.error(code);
  }
  if (list != nullptr) kCurl.free_list(list);
  kCurl.cleanup(handle);
  return answer;
}

}  // namespace dsplan
