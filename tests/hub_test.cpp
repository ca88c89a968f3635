// Models by their ids: bundled ones, and what a hub answers. The hub is a small server on the loopback.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/format.h"
#include "io/dialects/model_name.h"
#include "io/locate.h"
#include "run_binary.h"

using namespace dsplan;
using namespace dsplan::test;
namespace fs = std::filesystem;

namespace {

const std::string kConfig = R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
 "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 512, "max_position_embeddings": 256})";
const std::string kCommit(40, 'a');
const std::string kEtag(40, 'b');

std::string answer(const std::string& status, const std::string& headers, const std::string& body) {
  return "HTTP/1.1 " + status + "\r\ncontent-length: " + std::to_string(body.size()) + "\r\n" + headers +
         "connection: close\r\n\r\n" + body;
}

std::string file(const std::string& body, const std::string& etag = kEtag) {
  return answer("200 OK", "x-repo-commit: " + kCommit + "\r\netag: \"" + etag + "\"\r\ncontent-type: text/plain\r\n",
                body);
}

// Answers each request by what `script` makes of its text; nothing where that is empty.
class Server {
 public:
  explicit Server(std::function<std::string(const std::string&)> script) : script_(std::move(script)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(listener_, 8) == 0);
    socklen_t size = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() {
    stop_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  [[nodiscard]] std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }
  [[nodiscard]] int requests() const { return requests_; }

 private:
  void serve() {
    while (!stop_) {
      const int peer = ::accept(listener_, nullptr, nullptr);
      if (peer < 0) return;
      std::string request;
      char buffer[4096];
      while (request.find("\r\n\r\n") == std::string::npos) {
        const ssize_t got = ::recv(peer, buffer, sizeof buffer, 0);
        if (got <= 0) break;
        request.append(buffer, static_cast<std::size_t>(got));
      }
      ++requests_;
      const std::string text = script_(request);
      if (text == "silence") {
        while (!stop_ && ::recv(peer, buffer, sizeof buffer, 0) > 0) continue;
      } else if (!text.empty()) {
        (void)::send(peer, text.data(), text.size(), MSG_NOSIGNAL);
      }
      ::close(peer);
    }
  }

  std::function<std::string(const std::string&)> script_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<int> requests_{0};
  std::thread thread_;
};

// The environment of a program that may ask `endpoint`, with a cache of its own.
class Asking {
 public:
  Asking(const Folder& folder, const std::string& endpoint) {
    set("HF_HUB_OFFLINE", "0");
    set("HF_ENDPOINT", endpoint);
    set("HF_HOME", folder / "hf");
    set("HF_HUB_CACHE", "");
    set("HF_TOKEN", "secret");
    set("HF_HUB_DOWNLOAD_TIMEOUT", "2");
  }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;
  ~Asking() {
    for (; !before_.empty(); before_.pop_back()) {  // Last first: one that is set twice has its own value again.
      const auto& [name, old] = before_.back();
      if (old) {
        ::setenv(name.c_str(), old->c_str(), 1);
      } else {
        ::unsetenv(name.c_str());
      }
    }
  }
  void set(const std::string& name, const std::string& value) {
    const char* old = std::getenv(name.c_str());
    before_.emplace_back(name, old == nullptr ? std::nullopt : std::optional<std::string>(old));
    ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

bool has_curl() {
  for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4"}) {
    if (void* library = ::dlopen(name, RTLD_NOW); library != nullptr) {
      ::dlclose(library);
      return true;
    }
  }
  MESSAGE("no libcurl here: nothing was asked");
  return false;
}

Ran simulate(const Folder& folder, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"simulate", "some-org/some-model"};
  words.insert(words.end(), more.begin(), more.end());
  return run_binary(folder, words);
}

std::string plain_fetch(const std::string& request) {
  if (request.starts_with("GET /some-org/some-model/resolve/main/config.json ")) return file(kConfig);
  return answer("404 Not Found", "", "");
}

}  // namespace

TEST_CASE("hub: the id of a bundled model finds it, without asking anybody") {
  CHECK(locate_model("meta-llama/Llama-3.1-8B").name == "llama-3.1-8b");
  CHECK(locate_model("META-LLAMA/meta-llama-3.1-8b").name == "llama-3.1-8b");
  CHECK(locate_model("Qwen/Qwen2.5-7B").name == "qwen2.5-7b");
  CHECK(locate_model("bert-base-uncased").name == "bert-base");
  CHECK(locate_model("Llama-3.3-70B-Instruct").name == "llama-3.1-70b");
  CHECK(locate_model("llama-3.3-70b").name == "llama-3.1-70b");
}

TEST_CASE("hub: every id that is known finds its own bundled model, in a file too") {
  const std::string folder = data_dir();
  for (const auto& [file, id, own] : {std::tuple("/models/index.csv", 1U, 0U), {"/configs/model-names.csv", 0U, 1U}}) {
    std::istringstream rows(slurp(folder + file));
    std::string row;
    std::getline(rows, row);
    while (std::getline(rows, row)) {
      std::istringstream cells(row);
      std::vector<std::string> cell(2);
      for (std::string& one : cell) std::getline(cells, one, ',');
      if (cell[id].empty()) continue;
      CAPTURE(row);
      CHECK(model_of_the_hub(cell[id]) == cell[own]);
      std::vector<Notice> notices;
      CHECK(agreed_model("", {cell[id], {}}, notices) == cell[own]);
    }
  }
  // 1.3 and 13 billion.
  CHECK(words_of_model("facebook/opt-1.3b") != words_of_model("facebook/opt-13b"));
  CHECK(words_of_model("meta-llama/Meta-Llama-3.1-8B-Instruct") == words_of_model("llama-3.1-8b"));
}

TEST_CASE("hub: of ids without an owner the old ones are asked for") {
  if (!has_curl()) return;
  const Folder folder;
  Server server([](const std::string& request) {
    return request.starts_with("GET /bert-of-old/resolve/main/config.json ") ? file(kConfig)
                                                                             : answer("404 Not Found", "", "");
  });
  const Asking asking(folder, server.endpoint());
  CHECK(run_binary(folder, {"simulate", "bert-of-old"}).code == 0);
  const int asked = server.requests();
  CHECK(asked > 0);
  CHECK(run_binary(folder, {"simulate", "no-such-model"}).code == 2);
  CHECK(server.requests() == asked);
}

TEST_CASE("hub: devices and nodes by the names that people read") {
  const auto stem = [](const std::string& path) { return fs::path(path).stem().string(); };
  CHECK(stem(locate_hardware("NVIDIA GeForce RTX 4090")) == "rtx4090");
  CHECK(stem(locate_hardware("RTX 4090")) == "rtx4090");
  CHECK(stem(locate_hardware("A100-SXM4-40GB")) == "a100-sxm-40");
  CHECK(stem(locate_hardware("a100-40gb")) == "a100-sxm-40");
  CHECK(stem(locate_hardware("NVIDIA A100-SXM4-80GB")) == "a100-sxm-80");
  CHECK(stem(locate_hardware("H100 PCIe")) == "h100-pcie");
  CHECK(stem(locate_hardware("NVIDIA H100 80GB HBM3")) == "h100-sxm");
  CHECK(stem(locate_hardware("p5.48xlarge")) == "h100-sxm");
  CHECK(stem(locate_cluster("p5.48xlarge")) == "8xh100");
  CHECK(stem(locate_cluster("Standard_ND96amsr_A100_v4")) == "8xa100-80g");
  CHECK_THROWS_AS((void)locate_hardware("h100"), Refusal);  // Two cards are called so.
  for (const auto& [kind, folder] :
       {std::pair("hardware", "/configs/hardware/"), {"cluster", "/configs/clusters/"}, {"model", "/models/"}}) {
    std::istringstream rows(slurp(data_dir() + "/configs/" + kind + "-names.csv"));
    std::string row;
    std::getline(rows, row);
    std::size_t count = 0;
    for (; std::getline(rows, row); ++count) {
      const std::size_t first = row.find(',');
      const std::string means = row.substr(first + 1, row.find(',', first + 1) - first - 1);
      CAPTURE(row);
      CHECK(fs::exists(data_dir() + folder + means + ".json"));
    }
    CHECK(count > 5);
  }
}

TEST_CASE("hub: a config is fetched once, and kept as huggingface_hub keeps it") {
  if (!has_curl()) return;
  const Folder folder;
  std::string seen;
  Server server([&seen](const std::string& request) {
    seen += request;
    if (request.find("/model.safetensors.index.json ") != std::string::npos) {
      return file(R"({"metadata": {"total_size": 1}, "weight_map": {}})", std::string(40, 'c'));
    }
    return plain_fetch(request);
  });
  const Asking asking(folder, server.endpoint());
  const Ran ran = simulate(folder);
  CHECK_MESSAGE(ran.code == 0, ran.err);
  CHECK(seen.find("authorization: Bearer secret\r\n") != std::string::npos);
  const std::string kept = folder / "hf/hub/models--some-org--some-model";
  CHECK(slurp(kept + "/refs/main") == kCommit);
  CHECK(slurp(kept + "/blobs/" + kEtag) == kConfig);
  const fs::path link = kept + "/snapshots/" + kCommit + "/config.json";
  CHECK(fs::is_symlink(link));
  CHECK(fs::read_symlink(link) == "../../blobs/" + kEtag);
  CHECK(fs::exists(kept + "/snapshots/" + kCommit + "/model.safetensors.index.json"));
  const int before = server.requests();
  CHECK(simulate(folder).code == 0);
  CHECK(server.requests() == before);
}

TEST_CASE("hub: nobody is asked offline, nor for a name without its publisher") {
  if (!has_curl()) return;
  const Folder folder;
  Server server(plain_fetch);
  Asking asking(folder, server.endpoint());
  CHECK(simulate(folder, {"--offline"}).code == 2);
  CHECK(run_binary(folder, {"simulate", "lama-3-8b"}).code == 2);
  asking.set("HF_HUB_OFFLINE", "ON");
  CHECK(simulate(folder).code == 2);
  CHECK(server.requests() == 0);
}

TEST_CASE("hub: what it refuses, cuts off or never says is refused with the reason, and nothing is kept") {
  if (!has_curl()) return;
  struct Case {
    std::string said;
    std::string expected;
  };
  const std::string cut = file(kConfig).substr(0, file(kConfig).size() - 40);
  const std::string shorter = kConfig.substr(0, kConfig.size() / 2);
  const Case cases[] = {
      {answer("401 Unauthorized", "", "no"), "answers 401: the token does not open it"},
      {answer("403 Forbidden", "", "no"), "answers 403: the token does not open it"},
      {answer("404 Not Found", "", "no"), "answers 404: there is no such model"},
      {answer("429 Too Many Requests", "retry-after: 30\r\n", "no"),
       "answers 429: too many requests; try again in 30 s"},
      {answer("500 Internal Server Error", "", "no"), "answers 500"},
      {file("<!doctype html><html></html>"), "answers a page of HTML for config.json"},
      {file(""), "answers nothing for config.json"},
      {file("[1]"), "answers no JSON object for config.json"},
      {file(shorter), "answers no whole JSON for config.json"},
      {cut, "gives no answer for config.json"},
      {"", "gives no answer for config.json"},
      {"silence", "gives no answer for config.json: no whole answer within 2 s"},
      {answer("200 OK", "", kConfig), "answers without the commit or the ETag of config.json"},
  };
  for (const Case& one : cases) {
    CAPTURE(one.expected);
    const Folder folder;
    Server server([&one](const std::string&) { return one.said; });
    const Asking asking(folder, server.endpoint());
    const Ran ran = simulate(folder);
    CHECK(ran.code == 2);
    CHECK_MESSAGE(ran.err.find(one.expected) != std::string::npos, ran.err);
    CHECK(server.requests() == 1);  // Nobody waits for one refusal twice.
    CHECK(ran.err.find("secret") == std::string::npos);
    CHECK(!fs::exists(folder / "hf/hub"));
  }
  const Folder folder;
  Asking asking(folder, "http://127.0.0.1:1");
  CHECK(simulate(folder).err.find("gives no answer for config.json") != std::string::npos);
  asking.set("HF_ENDPOINT", "ftp://127.0.0.1");
  CHECK(simulate(folder).err.find("is no http address") != std::string::npos);
}
