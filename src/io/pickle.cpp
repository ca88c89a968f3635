#include "io/pickle.h"

#include <array>
#include <cstring>
#include <limits>
#include <optional>

#include "core/error.h"
#include "core/format.h"
#include "io/json_parse.h"

namespace dsplan {
namespace {

// std::bit_cast, which Emscripten's C++ library of Debian 12 lacks.
template <class To, class From>
To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to{};
  std::memcpy(&to, &from, sizeof to);
  return to;
}

using Kind = PickleNode::Kind;

// The opcodes by their letters in Lib/pickletools.py.
enum Opcode : unsigned char {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone_ = 'N',
  kBinUnicode = 'X',
  kAppend = 'a',
  kDict = 'd',
  kEmptyDict = '}',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kList = 'l',
  kEmptyList = ']',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kEmptyTuple = ')',
  kSetItems = 'u',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProto = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

// What is refused, with its name, because it calls, names or leaves the file, or is of an older protocol.
struct RefusedOpcode {
  unsigned char code;
  const char* name;
  const char* why;
};
constexpr const char* kCode = "it would run code";
constexpr const char* kOld = "it is of protocol 0 or 1";
constexpr const char* kOther = "no snapshot holds it";
constexpr std::array kRefused = {
    RefusedOpcode{'c', "GLOBAL", kCode},
    RefusedOpcode{0x93, "STACK_GLOBAL", kCode},
    RefusedOpcode{'R', "REDUCE", kCode},
    RefusedOpcode{'b', "BUILD", kCode},
    RefusedOpcode{'i', "INST", kCode},
    RefusedOpcode{'o', "OBJ", kCode},
    RefusedOpcode{0x81, "NEWOBJ", kCode},
    RefusedOpcode{0x92, "NEWOBJ_EX", kCode},
    RefusedOpcode{'P', "PERSID", kCode},
    RefusedOpcode{'Q', "BINPERSID", kCode},
    RefusedOpcode{0x82, "EXT1", kCode},
    RefusedOpcode{0x83, "EXT2", kCode},
    RefusedOpcode{0x84, "EXT4", kCode},
    RefusedOpcode{'I', "INT", kOld},
    RefusedOpcode{'L', "LONG", kOld},
    RefusedOpcode{'F', "FLOAT", kOld},
    RefusedOpcode{'S', "STRING", kOld},
    RefusedOpcode{'T', "BINSTRING", kOld},
    RefusedOpcode{'U', "SHORT_BINSTRING", kOld},
    RefusedOpcode{'V', "UNICODE", kOld},
    RefusedOpcode{'p', "PUT", kOld},
    RefusedOpcode{'g', "GET", kOld},
    RefusedOpcode{0x8f, "EMPTY_SET", kOther},
    RefusedOpcode{0x90, "ADDITEMS", kOther},
    RefusedOpcode{0x91, "FROZENSET", kOther},
    RefusedOpcode{0x97, "NEXT_BUFFER", kOther},
    RefusedOpcode{0x98, "READONLY_BUFFER", kOther},
};

// A stack machine without recursion. What stands on the stack is the number of a node.
class Unpickler {
 public:
  explicit Unpickler(Pickle pickle) : pickle_(std::move(pickle)) {}

  Pickle read() {
    if (!looks_like_pickle(pickle_.text)) {
      throw pickle_.at(0, "not a pickle of protocol 2 to 5", "torch.cuda.memory._dump_snapshot writes one");
    }
    for (;;) {
      opcode_ = at_;
      const auto code = static_cast<unsigned char>(fixed(1)[0]);
      if (code == kStop) break;
      if (!scalar(code) && !container(code) && !bookkeeping(code)) refuse(code);
    }
    if (stack_.size() != 1 || !marks_.empty()) fault("STOP where not exactly one value is left");
    pickle_.root = stack_.back();
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void fault(const std::string& message) const { throw pickle_.at(opcode_, message); }

  [[noreturn]] void refuse(unsigned char code) const {
    for (const RefusedOpcode& refused : kRefused) {
      if (refused.code != code) continue;
      throw pickle_.at(opcode_, formatted("opcode {} is refused: {}", refused.name, refused.why),
                       "dsplan reads None, numbers, strings, lists, tuples and dicts");
    }
    fault(formatted("0x{:02x} is no opcode", code));
  }

  // Reading.
  std::string_view fixed(std::size_t bytes) {
    if (bytes > pickle_.text.size() - at_) fault("the file ends in the middle of a value");
    const std::string_view got = std::string_view(pickle_.text).substr(at_, bytes);
    at_ += bytes;
    return got;
  }

  std::uint64_t little_endian(std::size_t bytes) {
    std::uint64_t value = 0;
    const std::string_view text = fixed(bytes);
    for (std::size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(text[i]);
    return value;
  }

  PickleId add(Kind kind, std::int64_t number, std::uint32_t length = 0) {
    if (pickle_.nodes.size() >= kMostPickleValues) fault(formatted("more than {} values", kMostPickleValues));
    pickle_.nodes.push_back({number, opcode_, length, kind});
    return static_cast<PickleId>(pickle_.nodes.size() - 1);
  }

  void push(PickleId id) {
    // References cost less in the file than here; twice as many as values are plenty.
    if (stack_.size() >= 2 * kMostPickleValues) fault("too many values wait on the stack");
    stack_.push_back(id);
  }

  PickleId top() const {
    if (stack_.size() <= floor()) fault("a value is missing on the stack");
    return stack_.back();
  }
  PickleId pop() {
    const PickleId id = top();
    stack_.pop_back();
    return id;
  }
  // Values below the innermost mark belong to somebody else.
  [[nodiscard]] std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  std::size_t pop_mark() {
    if (marks_.empty()) fault("there is no mark");
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    return mark;
  }

  void text(Kind kind, std::uint64_t length) {
    const std::size_t begin = at_;
    if (length > std::numeric_limits<std::uint32_t>::max()) fault("the file ends in the middle of a value");
    const std::string_view got = fixed(static_cast<std::size_t>(length));
    if (kind == Kind::String && detail::bad_utf8(got) != std::string_view::npos) fault("a string that is not UTF-8");
    push(add(kind, static_cast<std::int64_t>(begin), static_cast<std::uint32_t>(length)));
  }

  // Two's complement of any width; what needs more than 64 bits is kept as Huge.
  void long_integer(std::uint64_t bytes) {
    const std::string_view text = fixed(static_cast<std::size_t>(bytes));
    const bool negative = !text.empty() && static_cast<unsigned char>(text.back()) >= 0x80;
    const char fill = negative ? '\xff' : '\0';
    std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
    bool huge = false;
    for (std::size_t i = text.size(); i-- > 0;) {
      if (i >= 8)
        huge = huge || text[i] != fill;
      else
        value = value << 8 | static_cast<unsigned char>(text[i]);
    }
    const auto number = static_cast<std::int64_t>(value);
    if (text.size() >= 8 && (number < 0) != negative) huge = true;
    push(add(huge ? Kind::Huge : Kind::Integer, huge ? 0 : number));
  }

  bool scalar(unsigned char code) {
    switch (code) {
      case kNone_: push(add(Kind::None, 0)); return true;
      case kNewTrue: push(add(Kind::Bool, 1)); return true;
      case kNewFalse: push(add(Kind::Bool, 0)); return true;
      case kBinInt: push(add(Kind::Integer, static_cast<std::int32_t>(little_endian(4)))); return true;
      case kBinInt1: push(add(Kind::Integer, static_cast<std::int64_t>(little_endian(1)))); return true;
      case kBinInt2: push(add(Kind::Integer, static_cast<std::int64_t>(little_endian(2)))); return true;
      case kLong1: long_integer(little_endian(1)); return true;
      case kLong4: {
        const auto bytes = static_cast<std::int32_t>(little_endian(4));
        if (bytes < 0) fault("a LONG4 of negative length");
        long_integer(static_cast<std::uint64_t>(bytes));
        return true;
      }
      case kBinFloat: {
        std::uint64_t bits = 0;
        for (const char c : fixed(8)) bits = bits << 8 | static_cast<unsigned char>(c);
        push(add(Kind::Real, same_bits<std::int64_t>(bits)));
        return true;
      }
      case kShortBinUnicode: text(Kind::String, little_endian(1)); return true;
      case kBinUnicode: text(Kind::String, little_endian(4)); return true;
      case kBinUnicode8: text(Kind::String, little_endian(8)); return true;
      case kShortBinBytes: text(Kind::Binary, little_endian(1)); return true;
      case kBinBytes: text(Kind::Binary, little_endian(4)); return true;
      case kBinBytes8:
      case kByteArray8: text(Kind::Binary, little_endian(8)); return true;
      default: return false;
    }
  }

  PickleId new_container(Kind kind, std::size_t first) {
    pickle_.containers.emplace_back(stack_.begin() + static_cast<std::ptrdiff_t>(first), stack_.end());
    stack_.resize(first);
    const std::vector<PickleId>& items = pickle_.containers.back();
    if (kind == Kind::Dict) keys_are_strings(items);
    return add(kind, static_cast<std::int64_t>(pickle_.containers.size() - 1));
  }

  void keys_are_strings(std::span<const PickleId> items) const {
    if (items.size() % 2 != 0) fault("a key without its value");
    for (std::size_t i = 0; i < items.size(); i += 2) {
      const Kind kind = pickle_.nodes[items[i]].kind;
      const bool hashable = kind != Kind::List && kind != Kind::Dict;
      if (!hashable) fault(formatted("{} is no key of a dict", describe(kind)));
    }
  }

  // Appends what stands above `first` to the container right below it.
  void extend(Kind kind, std::size_t first) {
    if (first <= floor()) fault("a container is missing on the stack");
    const PickleNode& into = pickle_.nodes[stack_[first - 1]];
    if (into.kind != kind) fault(formatted("{} where {} is needed", describe(into.kind), describe(kind)));
    const std::span<const PickleId> items = std::span(stack_).subspan(first);
    if (kind == Kind::Dict) keys_are_strings(items);
    references_ += items.size();
    if (references_ > 4 * kMostPickleValues) fault("too many values in its lists");
    std::vector<PickleId>& list = pickle_.containers[static_cast<std::size_t>(into.number)];
    list.insert(list.end(), items.begin(), items.end());
    stack_.resize(first);
  }

  bool container(unsigned char code) {
    switch (code) {
      case kEmptyList: push(new_container(Kind::List, stack_.size())); return true;
      case kEmptyDict: push(new_container(Kind::Dict, stack_.size())); return true;
      case kEmptyTuple: push(new_container(Kind::Tuple, stack_.size())); return true;
      case kList: push(new_container(Kind::List, pop_mark())); return true;
      case kDict: push(new_container(Kind::Dict, pop_mark())); return true;
      case kTuple: push(new_container(Kind::Tuple, pop_mark())); return true;
      case kTuple1:
      case kTuple2:
      case kTuple3: {
        const auto count = static_cast<std::size_t>(code - kTuple1 + 1);
        if (stack_.size() - floor() < count) fault("a value is missing on the stack");
        push(new_container(Kind::Tuple, stack_.size() - count));
        return true;
      }
      case kAppend:
      case kSetItem: {
        const std::size_t count = code == kAppend ? 1 : 2;
        if (stack_.size() - floor() < count) fault("a value is missing on the stack");
        extend(code == kAppend ? Kind::List : Kind::Dict, stack_.size() - count);
        return true;
      }
      case kAppends: extend(Kind::List, pop_mark()); return true;
      case kSetItems: extend(Kind::Dict, pop_mark()); return true;
      default: return false;
    }
  }

  void put(std::uint64_t index) {
    // A writer numbers them one by one, and each takes at least two bytes of the file.
    if (index >= pickle_.text.size()) fault("a memo number beyond what the file could hold");
    if (index >= memo_.size()) memo_.resize(static_cast<std::size_t>(index) + 1, kAbsent);
    memo_[static_cast<std::size_t>(index)] = top();
  }

  void get(std::uint64_t index) {
    if (index >= memo_.size() || memo_[static_cast<std::size_t>(index)] == kAbsent) fault("an unknown memo number");
    push(memo_[static_cast<std::size_t>(index)]);
  }

  bool bookkeeping(unsigned char code) {
    switch (code) {
      case kProto: {
        const std::uint64_t protocol = little_endian(1);
        if (protocol > 5) fault(formatted("protocol {}: dsplan reads 2 to 5", protocol));
        return true;
      }
      case kFrame: {
        // A hint for readers from a pipe; only its truth is checked.
        const std::uint64_t length = little_endian(8);
        if (length > pickle_.text.size() - at_) fault("the file ends in the middle of a frame");
        return true;
      }
      case kMark:
        if (marks_.size() >= kDeepestMarks) fault("too many containers are open at once");
        marks_.push_back(stack_.size());
        return true;
      case kPop:
        // On an empty stretch it takes the mark away, as Python's own does.
        if (stack_.size() <= floor() && !marks_.empty())
          marks_.pop_back();
        else
          (void)pop();
        return true;
      case kPopMark: stack_.resize(pop_mark()); return true;
      case kDup: push(top()); return true;
      case kMemoize: put(memo_.size()); return true;
      case kBinPut: put(little_endian(1)); return true;
      case kLongBinPut: put(little_endian(4)); return true;
      case kBinGet: get(little_endian(1)); return true;
      case kLongBinGet: get(little_endian(4)); return true;
      default: return false;
    }
  }

  static constexpr std::size_t kDeepestMarks = 100'000;  // Far more than any value nests.
  static constexpr PickleId kAbsent = std::numeric_limits<PickleId>::max();

  Pickle pickle_;
  std::size_t at_ = 0;
  std::size_t opcode_ = 0;
  std::size_t references_ = 0;
  std::vector<PickleId> stack_;
  std::vector<std::size_t> marks_;
  std::vector<PickleId> memo_;
};

}  // namespace

std::span<const PickleId> Pickle::items(PickleId id) const {
  return containers[static_cast<std::size_t>(nodes[id].number)];
}

std::string_view Pickle::string(PickleId id) const {
  return std::string_view(text).substr(static_cast<std::size_t>(nodes[id].number), nodes[id].length);
}

double Pickle::real(PickleId id) const { return same_bits<double>(nodes[id].number); }

Refusal Pickle::at(std::size_t offset, std::string message, std::string hint) const {
  return {path, formatted("at byte {}: {}", offset, message), std::move(hint)};
}

std::string_view describe(PickleNode::Kind kind) {
  switch (kind) {
    case Kind::None: return "None";
    case Kind::Bool: return "a boolean";
    case Kind::Integer: return "an integer";
    case Kind::Huge: return "an integer beyond 63 bits";
    case Kind::Real: return "a float";
    case Kind::String: return "a string";
    case Kind::Binary: return "bytes";
    case Kind::List: return "a list";
    case Kind::Tuple: return "a tuple";
    case Kind::Dict: return "a dict";
  }
  return "?";
}

bool looks_like_pickle(std::string_view text) {
  return text.size() >= 2 && static_cast<unsigned char>(text[0]) == kProto && text[1] >= 2;
}

Pickle read_pickle(std::string path, std::string text) {
  Pickle pickle;
  pickle.path = std::move(path);
  pickle.text = std::move(text);
  return Unpickler(std::move(pickle)).read();
}

namespace {

// Python's own writer appends a thousand at a time, and the viewer has never seen more.
constexpr std::size_t kBatch = 1000;

}  // namespace

PickleWriter::PickleWriter() : text_("\x80\x02") {}

void PickleWriter::little_endian(std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) text_ += static_cast<char>(value >> (8 * i) & 0xff);
}

// Called before each value: in a list, a full batch is handed over first.
void PickleWriter::next() {
  if (open_.empty()) return;
  Open& inner = open_.back();
  if (inner.list && inner.count == kBatch) {
    text_ += "e(";
    inner.count = 0;
  }
  ++inner.count;
}

void PickleWriter::begin_dict() {
  next();
  text_ += "}(";
  open_.push_back({false, 0});
}

void PickleWriter::begin_list() {
  next();
  text_ += "](";
  open_.push_back({true, 0});
}

void PickleWriter::end() {
  DSPLAN_CHECK(!open_.empty(), "no container is open");
  text_ += open_.back().list ? 'e' : 'u';
  open_.pop_back();
}

void PickleWriter::string(std::string_view text) {
  const auto [at, added] = strings_.try_emplace(std::string(text), memos_);
  if (!added) return share(at->second);
  next();
  text_ += 'X';
  little_endian(text.size(), 4);
  text_ += text;
  (void)remember();
}

void PickleWriter::integer(std::int64_t value) {
  next();
  if (value >= 0 && value < 0x100) {
    text_ += 'K';
    little_endian(static_cast<std::uint64_t>(value), 1);
  } else if (value >= 0 && value < 0x10000) {
    text_ += 'M';
    little_endian(static_cast<std::uint64_t>(value), 2);
  } else if (value == static_cast<std::int32_t>(value)) {
    text_ += 'J';
    little_endian(static_cast<std::uint64_t>(value), 4);
  } else {
    // As few bytes as keep the sign.
    int bytes = 8;
    while (bytes > 1 && (value >> (8 * (bytes - 1) - 1) == 0 || value >> (8 * (bytes - 1) - 1) == -1)) --bytes;
    text_ += '\x8a';
    little_endian(static_cast<std::uint64_t>(bytes), 1);
    little_endian(static_cast<std::uint64_t>(value), bytes);
  }
}

void PickleWriter::boolean(bool value) {
  next();
  text_ += value ? '\x88' : '\x89';
}

void PickleWriter::real(double value) {
  next();
  const auto bits = same_bits<std::uint64_t>(value);
  text_ += 'G';
  for (int i = 7; i >= 0; --i) text_ += static_cast<char>(bits >> (8 * i) & 0xff);
}

void PickleWriter::pair(std::int64_t first, std::int64_t second) {
  next();
  open_.push_back({false, 0});  // What stands in the tuple is no item of the list around it.
  integer(first);
  integer(second);
  open_.pop_back();
  text_ += '\x86';
}

std::uint32_t PickleWriter::remember() {
  if (memos_ < 0x100) {
    text_ += 'q';
    little_endian(memos_, 1);
  } else {
    text_ += 'r';
    little_endian(memos_, 4);
  }
  return memos_++;
}

void PickleWriter::share(std::uint32_t memo) {
  next();
  if (memo < 0x100) {
    text_ += 'h';
    little_endian(memo, 1);
  } else {
    text_ += 'j';
    little_endian(memo, 4);
  }
}

std::string PickleWriter::finish() {
  DSPLAN_CHECK(open_.empty(), "a container is still open");
  return std::move(text_) + ".";
}

}  // namespace dsplan
