#include "io/safetensors.h"

#include <algorithm>
#include <filesystem>
#include <unordered_map>

#include "core/document.h"
#include "core/format.h"
#include "io/json_parse.h"
#include "io/text.h"

namespace dsplan {
namespace {

constexpr std::uint64_t kLargestHeader = 100'000'000;
constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

struct Extent {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  const Member* member = nullptr;
  std::size_t tensor = 0;  // Index into the tensors as the header lists them.
};

// Bytes of `shape` in `bits` per element; -1 if they overflow or are not whole.
std::int64_t bytes_of(const std::vector<std::int64_t>& shape, std::int64_t bits) {
  // A zero anywhere makes the tensor empty, however large the other dimensions are.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t total = bits;
  for (const std::int64_t dimension : shape) {
    if (__builtin_mul_overflow(total, dimension, &total)) return -1;
  }
  return total % 8 == 0 ? total / 8 : -1;
}

Document read_header(const std::string& path, std::int64_t& data_bytes) {
  const detail::File file(path);
  unsigned char prefix[8] = {};
  if (file.size() < 8 || file.read(0, reinterpret_cast<char*>(prefix), 8) != 8) {
    throw Refusal(path, "too short for a safetensors file");
  }
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | prefix[i];
  if (length > kLargestHeader) {
    throw Refusal(path, formatted("its header claims {} bytes; safetensors allows {}", length, kLargestHeader));
  }
  if (length > file.size() - 8) {
    throw Refusal(path, formatted("its header claims {} bytes, but only {} follow", length, file.size() - 8));
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  for (std::size_t used = 0; used < text.size();) {
    const std::size_t got = file.read(8 + used, text.data() + used, text.size() - used);
    if (got == 0) throw Refusal(path, "ends inside its header");
    used += got;
  }
  data_bytes = static_cast<std::int64_t>(file.size() - 8 - length);
  return parse_json(path, std::move(text));
}

class HeaderReader {
 public:
  HeaderReader(const Document& document, std::int64_t data_bytes) : document_(document), data_bytes_(data_bytes) {}

  std::vector<TensorHeader> run() {
    if (!document_.root.is(Value::Kind::Object)) {
      throw Refusal({document_.at(document_.root.offset, "a safetensors header must be an object")});
    }
    for (const Member& member : document_.root.members) {
      if (member.key == "__metadata__") {
        judge_metadata(member.value);
      } else {
        tensor(member);
      }
    }
    // Judging the tiling of faulty tensors would only repeat their faults.
    if (!diagnostics_.any()) judge_tiling();
    diagnostics_.throw_if_any();
    std::vector<TensorHeader> ordered;
    ordered.reserve(tensors_.size());
    for (const Extent& span : spans_) ordered.push_back(std::move(tensors_[span.tensor]));
    return ordered;
  }

 private:
  void fault(std::size_t offset, std::string message) { diagnostics_.add(document_.at(offset, std::move(message))); }

  void judge_metadata(const Value& metadata) {
    if (metadata.is(Value::Kind::Null)) return;
    bool strings = metadata.is(Value::Kind::Object);
    for (const Member& entry : metadata.members) strings = strings && entry.value.is(Value::Kind::String);
    if (!strings) fault(metadata.offset, "\"__metadata__\" must be an object of strings");
  }

  void tensor(const Member& member) {
    if (!member.value.is(Value::Kind::Object)) {
      return fault(member.value.offset, formatted("tensor {} must be an object", detail::in_quotes(member.key)));
    }
    const std::size_t before = diagnostics_.count();
    ObjectReader reader(document_, member.value, diagnostics_);
    TensorHeader header;
    header.name = member.key;
    header.file = document_.path;
    header.dtype = required(reader, "dtype", Value::Kind::String) ? reader.string("dtype").value_or("") : "";
    const std::int64_t bits = safetensors_bits(header.dtype);
    if (bits == 0 && diagnostics_.count() == before) {
      reader.fault("dtype", formatted("unknown safetensors type {}", detail::in_quotes(header.dtype)));
    }
    if (required(reader, "shape", Value::Kind::Array)) header.shape = integers(*reader.array("shape"), "a dimension");
    std::vector<std::int64_t> offsets;
    if (required(reader, "data_offsets", Value::Kind::Array)) {
      offsets = integers(*reader.array("data_offsets"), "a data offset");
      if (offsets.size() != 2) reader.fault("data_offsets", "\"data_offsets\" must be [begin, end]");
    }
    reader.refuse_unread("a tensor");
    if (diagnostics_.count() > before) return;
    header.bytes = bytes_of(header.shape, bits);
    judge_size(reader, header, offsets);
    spans_.push_back({offsets[0], offsets[1], &member, tensors_.size()});
    tensors_.push_back(std::move(header));
  }

  bool required(ObjectReader& reader, std::string_view key, Value::Kind kind) {
    const Value* value = reader.find(key);
    if (value != nullptr && value->is(kind)) return true;
    if (value == nullptr) {
      reader.fault(reader.value(), formatted("\"{}\" is missing", key));
    } else {
      reader.fault(*value, formatted("\"{}\" must be {}, not {}", key, describe(kind), describe(value->kind)));
    }
    return false;
  }

  std::vector<std::int64_t> integers(const Value& array, std::string_view what) {
    std::vector<std::int64_t> list;
    list.reserve(array.items.size());
    for (const Value& item : array.items) {
      if (!item.is(Value::Kind::Integer) || item.integer < 0) {
        fault(item.offset, formatted("{} must be an integer of 63 bits, not negative", what));
        break;
      }
      list.push_back(item.integer);
    }
    return list;
  }

  void judge_size(ObjectReader& reader, const TensorHeader& header, const std::vector<std::int64_t>& offsets) {
    if (header.bytes < 0) {
      reader.fault("shape", "the tensor's size overflows, or is not whole bytes");
    } else if (offsets[0] > offsets[1] || offsets[1] > data_bytes_) {
      reader.fault("data_offsets",
                   formatted("data offsets must ascend and lie within the file's {} bytes of data", data_bytes_));
    } else if (offsets[1] - offsets[0] != header.bytes) {
      reader.fault("data_offsets",
                   formatted("{} bytes of data, but type and shape make {}", offsets[1] - offsets[0], header.bytes));
    }
  }

  void judge_tiling() {
    std::stable_sort(spans_.begin(), spans_.end(), [](const Extent& a, const Extent& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
    std::int64_t covered = 0;
    for (const Extent& span : spans_) {
      if (span.begin != covered) {
        fault(span.member->value.find("data_offsets")->offset,
              formatted("data of {} starts at {}, but the data before it ends at {}",
                        detail::in_quotes(span.member->key), span.begin, covered));
      }
      covered = span.end;
    }
    if (!diagnostics_.any() && covered != data_bytes_) {
      diagnostics_.add({document_.path,
                        0,
                        0,
                        {},
                        formatted("{} bytes follow the data of the last tensor", data_bytes_ - covered),
                        {}});
    }
  }

  const Document& document_;
  std::int64_t data_bytes_;
  Diagnostics diagnostics_;
  std::vector<TensorHeader> tensors_;
  std::vector<Extent> spans_;
};

// The shards that an index names, each once, in order of name; the tensors that each must hold.
struct Index {
  Document document;
  std::unordered_map<std::string_view, const Member*> tensors;
  std::vector<std::string> shards;
};

void read_index(const std::string& path, Index& index) {
  index.document = parse_json(path, read_file(path));
  Diagnostics diagnostics;
  const Value& root = index.document.root;
  const Value* map = root.find("weight_map");
  if (map == nullptr || !map->is(Value::Kind::Object)) {
    throw Refusal({index.document.at(root.offset, "\"weight_map\" must be an object of file names")});
  }
  for (const Member& member : map->members) {
    const std::string& shard = member.value.string;
    // Only files beside the index: a name from elsewhere must not lead out of the folder.
    if (shard.empty() || shard.find('/') != std::string::npos || shard.find('\0') != std::string::npos ||
        !shard.ends_with(".safetensors")) {
      diagnostics.add(index.document.at(member.value.offset, "must name a .safetensors file beside the index"));
      continue;
    }
    index.tensors.emplace(member.key, &member);
    index.shards.push_back(shard);
  }
  diagnostics.throw_if_any();
  std::sort(index.shards.begin(), index.shards.end());
  index.shards.erase(std::unique(index.shards.begin(), index.shards.end()), index.shards.end());
}

std::vector<TensorHeader> read_sharded(const std::string& path) {
  Index index;
  read_index(path, index);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  Diagnostics diagnostics;
  std::vector<TensorHeader> all;
  for (const std::string& shard : index.shards) {
    const std::string file = folder.empty() ? shard : folder + "/" + shard;
    std::error_code failed;
    if (!std::filesystem::exists(file, failed)) {
      diagnostics.add({file, 0, 0, {}, formatted("no such file, but {} names it", path), {}});
      for (auto it = index.tensors.begin(); it != index.tensors.end();) {
        it = it->second->value.string == shard ? index.tensors.erase(it) : std::next(it);
      }
      continue;
    }
    for (TensorHeader& header : read_safetensors_file(file)) {
      const auto named = index.tensors.find(header.name);
      if (named == index.tensors.end() || named->second->value.string != shard) {
        diagnostics.add(
            {file,
             0,
             0,
             {},
             formatted("tensor {} is not in the index's weight_map for this file", detail::in_quotes(header.name)),
             {}});
      } else {
        index.tensors.erase(named);
      }
      all.push_back(std::move(header));
    }
  }
  std::vector<const Member*> lacking;
  for (const auto& [name, member] : index.tensors) lacking.push_back(member);
  std::sort(lacking.begin(), lacking.end());  // All in one array: the order of the file.
  for (const Member* member : lacking) {
    diagnostics.add(index.document.at(
        member->key_offset,
        formatted("tensor {} is not in {}", detail::in_quotes(member->key), detail::in_quotes(member->value.string))));
  }
  diagnostics.throw_if_any();
  return all;
}

}  // namespace

std::int64_t safetensors_bits(std::string_view dtype) {
  struct Row {
    std::string_view name;
    std::int64_t bits;
  };
  static constexpr Row kRows[] = {{"BOOL", 8},        {"U8", 8},         {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8},
                                  {"F8_E8M0", 8},     {"I16", 16},       {"U16", 16}, {"F16", 16},    {"BF16", 16},
                                  {"I32", 32},        {"U32", 32},       {"F32", 32}, {"F64", 64},    {"I64", 64},
                                  {"U64", 64},        {"C64", 64},       {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6},
                                  {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}};
  for (const Row& row : kRows) {
    if (row.name == dtype) return row.bits;
  }
  return 0;
}

std::vector<TensorHeader> read_safetensors_file(const std::string& path) {
  std::int64_t data_bytes = 0;
  const Document document = read_header(path, data_bytes);
  return HeaderReader(document, data_bytes).run();
}

std::vector<TensorHeader> read_safetensors(const std::vector<std::string>& paths) {
  if (paths.size() == 1 && paths.front().ends_with(kIndexSuffix)) return read_sharded(paths.front());
  Diagnostics diagnostics;
  std::vector<TensorHeader> all;
  for (const std::string& path : paths) {
    std::vector<TensorHeader> headers = read_safetensors_file(path);
    std::move(headers.begin(), headers.end(), std::back_inserter(all));
  }
  std::unordered_map<std::string_view, const TensorHeader*> seen;
  for (const TensorHeader& header : all) {
    const auto [other, fresh] = seen.emplace(header.name, &header);
    if (fresh) continue;
    diagnostics.add({header.file,
                     0,
                     0,
                     {},
                     formatted("tensor {} is in {} too", detail::in_quotes(header.name), other->second->file),
                     {}});
  }
  diagnostics.throw_if_any();
  return all;
}

std::vector<std::string> safetensors_files(const std::string& folder) {
  std::vector<std::string> files;
  std::vector<std::string> indices;
  std::error_code failed;
  for (std::filesystem::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed)) {
    const std::string path = it->path().string();
    if (path.ends_with(".safetensors")) files.push_back(path);
    if (path.ends_with(kIndexSuffix)) indices.push_back(path);
  }
  if (failed) throw Refusal(folder, formatted("cannot be read: {}", failed.message()));
  std::sort(files.begin(), files.end());
  if (files.empty() || indices.empty()) return files;
  if (indices.size() == 1) return indices;
  const std::string usual = folder + "/model.safetensors.index.json";
  for (const std::string& index : indices) {
    if (index == usual) return {usual};
  }
  throw Refusal(folder, "holds several safetensors indices and none is model.safetensors.index.json");
}

}  // namespace dsplan
