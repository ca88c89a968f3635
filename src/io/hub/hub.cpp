#include "io/hub/hub.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "core/error.h"
#include "core/format.h"
#include "core/text/letters.h"
#include "io/hub/curl.h"
#include "io/text.h"

namespace dsplan {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kIndex = "model.safetensors.index.json";

bool forbidden = false;

std::string expanded(const std::string& path) {
  return path.starts_with("~/") ? environment("HOME") + path.substr(1) : path;
}

bool says_yes(std::string_view said) {
  const std::string text = in_lower_case(said);
  return text == "1" || text == "true" || text == "yes" || text == "on";
}

std::string stripped(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.pop_back();
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.erase(0, 1);
  return text;
}

std::string token() {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (std::string said = stripped(environment(name)); !said.empty()) return said;
  }
  std::string path = expanded(environment("HF_TOKEN_PATH"));
  if (path.empty()) path = hub_home() + "/token";
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::getline(file, text);
  return stripped(text);
}

std::string endpoint() {
  std::string said = environment("HF_ENDPOINT");
  if (said.empty()) said = "https://huggingface.co";
  while (said.ends_with('/')) said.pop_back();
  if (!said.starts_with("http://") && !said.starts_with("https://")) {
    throw Refusal("HF_ENDPOINT", formatted("\"{}\" is no http address", said));
  }
  return said;
}

std::int64_t patience_ms() {
  const std::string said = environment("HF_HUB_DOWNLOAD_TIMEOUT");
  if (said.empty()) return 10'000;
  const bool number = said.size() <= 6 && said.find_first_not_of("0123456789") == std::string::npos;
  if (!number || said == "0")
    throw Refusal("HF_HUB_DOWNLOAD_TIMEOUT", formatted("\"{}\" is no number of seconds", said));
  return std::int64_t{1000} * std::stoi(said);
}

bool plain_name(const std::string& text) {
  return !text.empty() && text.size() <= 128 && text.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
}

// "\"abc\"" and "W/\"abc\"" are abc.
std::string etag_of(const HttpAnswer& answer) {
  std::string etag = answer.header("x-linked-etag");
  if (etag.empty()) etag = answer.header("etag");
  if (etag.starts_with("W/")) etag.erase(0, 2);
  std::erase(etag, '"');
  return etag;
}

[[noreturn]] void refuse(const std::string& id, const std::string& message, const std::string& hint = {}) {
  throw Refusal(id, formatted("{} {}", endpoint(), message), hint);
}

void judge_status(const std::string& id, const HttpAnswer& answer, bool with_token) {
  switch (answer.status) {
    case 200: return;
    case 401:
    case 403:
      refuse(id,
             formatted("answers {}: {}", answer.status, with_token ? "the token does not open it" : "it wants a token"),
             with_token ? "ask for access on the model's page" : "log in with `hf auth login`, or set HF_TOKEN");
    case 404: refuse(id, "answers 404: there is no such model, or it has no config.json", "check the id's spelling");
    case 429: {
      const std::string after = answer.header("retry-after");
      refuse(id, "answers 429: too many requests",
             after.empty() ? "wait, and try again" : formatted("try again in {} s", after));
    }
    default: refuse(id, formatted("answers {}", answer.status), "try again later, or name a config.json");
  }
}

// A JSON object, whole. What is no JSON is shown by its beginning.
void judge_text(const std::string& id, std::string_view name, const HttpAnswer& answer) {
  const std::string type = answer.header("content-type");
  const std::size_t first = answer.body.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) refuse(id, formatted("answers nothing for {}", name));
  if (answer.body[first] == '<')
    refuse(id, formatted("answers a page of HTML for {}, no JSON", name), "a proxy or a login page may stand between");
  try {
    const Document document = parse_json(std::string(name), answer.body);
    if (document.root.is(Value::Kind::Object)) return;
  } catch (const Refusal& fault) {
    refuse(id, formatted("answers no whole JSON for {}: {}", name, fault.diagnostics().front().message));
  }
  refuse(id, formatted("answers no JSON object for {}", name));
}

// nullopt: there is no such file.
std::optional<HubFile> fetch(const std::string& id, std::string_view name, bool must_be_there) {
  HttpRequest request{formatted("{}/{}/resolve/main/{}", endpoint(), id, name), {}, patience_ms()};
  const std::string secret = token();
  if (!secret.empty()) request.headers.push_back(formatted("authorization: Bearer {}", secret));
  const HttpAnswer answer = http_get(request);
  if (!answer.failure.empty()) {
    refuse(id, formatted("gives no answer for {}: {}", name, answer.failure),
           id.ends_with("bnb-4bit") ? "its weights are packed: name the model that they are of, and --quantization nf4 "
                                      "--lora r=16"
                                    : "--offline, or HF_HUB_OFFLINE=1, asks nobody");
  }
  if (answer.status == 404 && !must_be_there) return std::nullopt;
  return hub_file(id, name, answer, !secret.empty());
}

// Appears whole or not at all.
void write_file(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  const fs::path new_one = path.string() + formatted(".{}.incomplete", ::getpid());
  {
    std::ofstream file(new_one, std::ios::binary);
    file << text;
    if (!file.flush()) throw Refusal(path.string(), "cannot be written");
  }
  fs::rename(new_one, path);
}

void keep(const fs::path& folder, std::string_view name, const HubFile& file) {
  const fs::path blob = folder / "blobs" / file.etag;
  if (!fs::exists(blob)) write_file(blob, file.text);
  const fs::path link = folder / "snapshots" / file.commit / name;
  fs::create_directories(link.parent_path());
  if (fs::exists(fs::symlink_status(link))) fs::remove(link);
  fs::create_symlink(fs::path("../../blobs") / file.etag, link);
}

}  // namespace

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::string hub_home() {
  if (const std::string home = environment("HF_HOME"); !home.empty()) return expanded(home);
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty()) return expanded(cache) + "/huggingface";
  return environment("HOME") + "/.cache/huggingface";
}

bool is_hub_id(std::string_view text) {
  const bool allowed = std::all_of(text.begin(), text.end(),
                                   [](char c) { return is_word_character(c) || c == '-' || c == '.' || c == '/'; });
  return allowed && !text.empty() && std::count(text.begin(), text.end(), '/') <= 1 &&
         text.find("..") == std::string_view::npos;
}

std::string hub_cache() {
  if (const std::string hub = environment("HF_HUB_CACHE"); !hub.empty()) return expanded(hub);
  return hub_home() + "/hub";
}

std::string hub_folder(std::string_view id) {
  std::string escaped(id);
  if (const std::size_t slash = escaped.find('/'); slash != std::string::npos) escaped.replace(slash, 1, "--");
  return hub_cache() + "/models--" + escaped;
}

void forbid_network() { forbidden = true; }

bool network_forbidden() {
  return forbidden || says_yes(environment("HF_HUB_OFFLINE")) || says_yes(environment("TRANSFORMERS_OFFLINE"));
}

HubFile hub_file(const std::string& id, std::string_view name, const HttpAnswer& answer, bool with_token) {
  judge_status(id, answer, with_token);
  judge_text(id, name, answer);
  HubFile file{answer.body, etag_of(answer), answer.header("x-repo-commit")};
  if (!plain_name(file.commit) || !plain_name(file.etag)) {
    refuse(id, formatted("answers without the commit or the ETag of {}", name), "is HF_ENDPOINT a hub?");
  }
  return file;
}

namespace {

std::string fetched(const std::string& id) {
  const HubFile config = *fetch(id, kConfig, true);
  const std::optional<HubFile> index = fetch(id, kIndex, false);
  const fs::path folder = hub_folder(id);
  try {
    keep(folder, kConfig, config);
    // A push between both requests leaves the index of another commit.
    if (index && index->commit == config.commit) keep(folder, kIndex, *index);
    write_file(folder / "refs" / "main", config.commit);
  } catch (const fs::filesystem_error& fault) {
    throw Refusal(folder.string(), formatted("cannot be written: {}", fault.code().message()),
                  "set HF_HUB_CACHE to a folder of your own");
  }
  return (folder / "snapshots" / config.commit).string();
}

}  // namespace

// A command looks for its model several times, and nobody waits for one refusal more than once.
std::string fetch_from_hub(const std::string& id) {
  static std::map<std::string, Refusal> refused;
  if (const auto known = refused.find(id); known != refused.end()) throw Refusal(known->second);
  try {
    return fetched(id);
  } catch (const Refusal& refusal) {
    refused.emplace(id, refusal);
    throw;
  }
}

}  // namespace dsplan
