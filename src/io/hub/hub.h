// A model's config.json from the Hugging Face hub, kept in the local cache as huggingface_hub keeps it. Nothing else is
// fetched: the config, and the index of its safetensors files where there is one.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dsplan {

struct HttpAnswer;

// A variable of the environment; "" where it is not set.
[[nodiscard]] std::string environment(const char* name);

// Where Hugging Face's libraries keep what they keep: $HF_HOME, $XDG_CACHE_HOME/huggingface, ~/.cache/huggingface.
[[nodiscard]] std::string hub_home();

// `org/name`, of the characters that the hub allows: a part of paths and addresses.
[[nodiscard]] bool is_hub_id(std::string_view text);

// $HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub.
[[nodiscard]] std::string hub_cache();
// The folder of a model in the cache: models--org--name.
[[nodiscard]] std::string hub_folder(std::string_view id);

// Whether nobody may be asked: --offline, or one of HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE is 1, true, yes or on.
void forbid_network();
[[nodiscard]] bool network_forbidden();

// A file that a hub gave, with the names under which the cache keeps it: hexadecimal digits, so parts of paths.
struct HubFile {
  std::string text;
  std::string etag;
  std::string commit;
};

// What an answer for `name` holds: a JSON object, whole. Refuses any other (Refusal at `id`): its status, a page, half
// a file, no commit or ETag. `with_token`: the request had one.
[[nodiscard]] HubFile hub_file(const std::string& id, std::string_view name, const HttpAnswer& answer, bool with_token);

// Asks HF_ENDPOINT (https://huggingface.co) for the files of `id` at the revision main, with the token of HF_TOKEN, of
// HUGGING_FACE_HUB_TOKEN or of the file that `hf auth login` leaves, and writes them into the cache: blobs named by
// ETag, links in the snapshot of the commit, refs/main. Returns the snapshot. libcurl is loaded here and nowhere else;
// the patience is that of HF_HUB_DOWNLOAD_TIMEOUT, ten seconds. Refuses (Refusal at `id`) what the hub refuses, what
// is no config.json, and a hub that does not answer; then nothing is left in the cache.
[[nodiscard]] std::string fetch_from_hub(const std::string& id);

}  // namespace dsplan
