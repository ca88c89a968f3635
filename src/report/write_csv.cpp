#include "report/write_csv.h"

#include <algorithm>
#include <map>

#include "core/format.h"
#include "io/json_text.h"
#include "io/text.h"
#include "report/prediction_file.h"
#include "report/write_cells.h"

namespace dsplan {
namespace {

using detail::quoted;

std::string scalar(const Value& value) {
  if (value.is(Value::Kind::Null)) return {};
  return value.is(Value::Kind::String) ? quoted(value.string) : json_text(value);
}

// The keys that name an item of a list, and that its own rows then need not repeat.
const std::vector<std::string>& naming_keys(const std::string& list) {
  static const std::vector<std::string> kTraffic = {"collective", "group", "phase", "dtype", "kind"};
  static const std::vector<std::string> kName = {"name"};
  static const std::vector<std::string> kNone;
  if (list == "communication") return kTraffic;
  if (list == "memory.phases" || list == "time.phases" || list.ends_with(".marks") ||
      list.ends_with(".see_memory_usage") || list.ends_with(".parts") || list == "assumptions")
    return kName;
  return kNone;
}

class Writer {
 public:
  explicit Writer(std::int64_t rank) : rank_(rank) {}

  void write(const std::string& path, const Value& value) {
    if (value.is(Value::Kind::Object)) {
      for (const Member& child : value.members) write(path.empty() ? child.key : path + "." + child.key, child.value);
    } else if (value.is(Value::Kind::Array)) {
      items(path, value);
    } else {
      text_ += formatted("{},{},{}\n", rank_, quoted(path), scalar(value));
    }
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  void items(const std::string& path, const Value& list) {
    // The last part of a path says which list it is, wherever in the tree its parent was named.
    const std::size_t dot = path.rfind('.');
    const std::string kind = path.ends_with(".marks") || path.ends_with(".see_memory_usage") || path.ends_with(".parts")
                                 ? path.substr(dot)
                                 : path;
    const std::vector<std::string>& keys = naming_keys(kind);
    std::map<std::string, int> seen;
    std::size_t index = 0;
    for (const Value& item : list.items) {
      std::string label;
      for (const std::string& key : keys) {
        if (!label.empty()) label += '.';
        label += item.find(key)->string;
      }
      if (keys.empty()) label = std::to_string(index++);
      if (const int again = ++seen[label]; again > 1) label += formatted("#{}", again);
      for (const Member& child : item.members) {
        const bool said = std::find(keys.begin(), keys.end(), child.key) != keys.end();
        if (!said) write(formatted("{}.{}.{}", path, label, child.key), child.value);
      }
    }
  }

  std::int64_t rank_;
  std::string text_;
};

}  // namespace

std::string predictions_csv(const std::vector<Prediction>& predictions, const Job& job) {
  std::string text = "rank,path,value\n";
  for (const Prediction& prediction : predictions) {
    Writer writer(prediction.rank);
    writer.write({}, parse_json({}, prediction_json(prediction, job)).root);  // The rows are the JSON's.
    text += writer.text();
  }
  return text;
}

}  // namespace dsplan
