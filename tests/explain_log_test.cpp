// Out-of-memory messages of every version and see_memory_usage lines: what is read of them, and which events of a
// schedule they are about.
#include <doctest/doctest.h>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/format.h"
#include "io/oom_log.h"
#include "lowered.h"
#include "planner/advise/explain_log.h"
#include "run_binary.h"
#include "schema.h"
#include "sim/allocation_log.h"
#include "sim/placement.h"

using namespace dsplan;
using namespace dsplan::test;
using Json = nlohmann::ordered_json;

namespace {

std::string text_of(const std::optional<PrintedSize>& size) { return size ? size->text : "-"; }

// request, capacity, free, process, allocated, reserved, unallocated, pools, allowed
std::string fields(const LogMessage& m) {
  return dsplan::formatted("{} | {} | {} | {} | {} | {} | {} | {} | {}", text_of(m.request), text_of(m.capacity),
                           text_of(m.free), text_of(m.process), text_of(m.allocated), text_of(m.reserved),
                           text_of(m.unallocated), text_of(m.pools), text_of(m.allowed));
}

std::string only(const std::string& log) {
  const std::vector<LogMessage> messages = read_oom_log("log", log);
  REQUIRE(messages.size() == 1);
  return fields(messages.front());
}

// As PyTorch's format_size prints it.
std::string printed(Bytes bytes) {
  const auto value = static_cast<double>(bytes.value());
  if (bytes.value() <= 1024) return dsplan::formatted("{} bytes", bytes.value());
  if (bytes.value() <= 1024 * 1024) return dsplan::formatted("{:.2f} KiB", value / 1024);
  if (bytes.value() <= 1024 * 1024 * 1024) return dsplan::formatted("{:.2f} MiB", value / 1048576);
  return dsplan::formatted("{:.2f} GiB", value / 1073741824);
}

struct Wording {
  std::string log;
  std::string expected;
};

const std::vector<Wording> kWordings = {
    // PyTorch 1.1.
    {"RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 GiB already "
     "allocated; 9.28 MiB free; 4.68 MiB cached)",
     "12.50 MiB | 10.92 GiB | 9.28 MiB | - | 8.57 GiB | 4.68 MiB | - | - | -"},
    // 1.6 to 1.9.
    {"RuntimeError: CUDA out of memory. Tried to allocate 376.00 MiB (GPU 0; 3.95 GiB total capacity; 1.72 GiB already "
     "allocated; 354.88 MiB free; 2.46 GiB reserved in total by PyTorch)",
     "376.00 MiB | 3.95 GiB | 354.88 MiB | - | 1.72 GiB | 2.46 GiB | - | - | -"},
    // With a memory fraction.
    {"RuntimeError: CUDA out of memory. Tried to allocate 37.25 GiB (GPU 0; 23.68 GiB total capacity; 192.29 MiB "
     "already allocated; 15.79 GiB free; 2.37 GiB allowed; 5.05 GiB reserved in total by PyTorch)",
     "37.25 GiB | 23.68 GiB | 15.79 GiB | - | 192.29 MiB | 5.05 GiB | - | - | 2.37 GiB"},
    // 1.10 to 2.0, wrapped and commented out, with nothing free.
    {"# torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n# (GPU 0; 3.81 GiB total "
     "capacity; "
     "1.92 GiB already allocated; 0 bytes free;\n# 2.02 GiB reserved in total by PyTorch) If reserved memory is >> "
     "allocated\n# memory try setting max_split_size_mb to avoid fragmentation. See\n# documentation for Memory "
     "Management and PYTORCH_CUDA_ALLOC_CONF",
     "2.00 GiB | 3.81 GiB | 0 bytes | - | 1.92 GiB | 2.02 GiB | - | - | -"},
    // 2.1: a word is misspelt; other processes are listed.
    {"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.09 GiB. GPU 0 has a total capacty of 23.69 "
     "GiB of which 541.00 MiB is free. Process 2006998 has 256.00 MiB memory in use. Including non-PyTorch memory, "
     "this "
     "process has 22.89 GiB memory in use. Of the allocated memory 21.48 GiB is allocated by PyTorch, and 1.11 GiB is "
     "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb",
     "2.09 GiB | 23.69 GiB | 541.00 MiB | 22.89 GiB | 21.48 GiB | - | 1.11 GiB | - | -"},
    // 2.2 and later; the driver cannot tell which process is this one.
    {"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 362.00 MiB. GPU 0 has a total capacity of 47.53 "
     "GiB "
     "of which 94.88 MiB is free. Process 939959 has 47.42 GiB memory in use. Of the allocated memory 46.76 GiB is "
     "allocated by PyTorch, and 355.84 MiB is reserved by PyTorch but unallocated.",
     "362.00 MiB | 47.53 GiB | 94.88 MiB | - | 46.76 GiB | - | 355.84 MiB | - | -"},
    // MIG: no process is listed.
    {"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 90.00 MiB. GPU 0 has a total capacity of 9.75 GiB "
     "of which 0 bytes is free. Of the allocated memory 8.16 GiB is allocated by PyTorch, and 1.59 GiB is reserved by "
     "PyTorch but unallocated.",
     "90.00 MiB | 9.75 GiB | 0 bytes | - | 8.16 GiB | - | 1.59 GiB | - | -"},
    // Fraction and private pools, on ROCm.
    {"torch.OutOfMemoryError: HIP out of memory. Tried to allocate 76.00 MiB. GPU 0 has a total capacity of 255.69 GiB "
     "of which 252.82 GiB is free. 1.20 GiB allowed; Of the allocated memory 1.14 GiB is allocated by PyTorch, with "
     "17.00 MiB allocated in private pools (e.g., HIP Graphs), and 18.63 MiB is reserved by PyTorch but unallocated.",
     "76.00 MiB | 255.69 GiB | 252.82 GiB | - | 1.14 GiB | - | 18.63 MiB | 17.00 MiB | 1.20 GiB"},
    // A driver that answers nonsense: what this process holds is left out.
    {"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.74 GiB. GPU 0 has a total capacity of 23.99 GiB "
     "of which 5.05 GiB is free. Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. Of "
     "the allocated memory 17.60 GiB is allocated by PyTorch, and 34.80 MiB is reserved by PyTorch but unallocated.",
     "1.74 GiB | 23.99 GiB | 5.05 GiB | - | 17.60 GiB | - | 34.80 MiB | - | -"},
    // Shortened by whoever pasted it; what follows belongs to nobody.
    {"CUDA out of memory. Tried to allocate 2.40 GiB (GPU 0; 23.69 GiB total capacity; 21.8 GiB already allocated)\n\n"
     "we saw 3.00 GiB free before",
     "2.40 GiB | 23.69 GiB | - | - | 21.8 GiB | - | - | - | -"},
};

}  // namespace

TEST_CASE("every wording of PyTorch's message") {
  for (const Wording& wording : kWordings) {
    CAPTURE(wording.log);
    CHECK(only("noise 1.00 GiB free\n" + wording.log + "\nmore noise 7.00 GiB is free\n") == wording.expected);
  }
}

TEST_CASE("a printed size stands for all that prints the same") {
  const auto request = [](const std::string& size) {
    return *read_oom_log("log", "Tried to allocate " + size + " (").front().request;
  };
  for (const std::int64_t bytes : {1LL, 1000LL, 1024LL, 1025LL, 1'047'000LL, 1'048'577LL, 2'147'483'648LL,
                                   102'926'336LL, 85'899'345'920LL, 123'456'789'012LL}) {
    const std::string text = printed(Bytes(bytes));
    CAPTURE(text);
    const PrintedSize size = request(text);
    CHECK(size.text == text);
    CHECK(size.holds(Bytes(bytes)));
    CHECK(printed(size.low) == text);
    CHECK(printed(size.high) == text);
    CHECK(printed(size.low - Bytes(bytes < 1025 ? 1 : 2)) != text);
    CHECK(printed(size.high + Bytes(bytes < 1025 ? 1 : 2)) != text);
    CHECK(size.distance(size.low - Bytes(5)) == Bytes(5));
    CHECK(size.distance(size.high + Bytes(7)) == Bytes(7));
    CHECK(size.distance(Bytes(bytes)) == Bytes(0));
  }
  // Fewer digits leave more room.
  CHECK(request("2.0 GiB").holds(Bytes(2'147'483'648 + 50'000'000)));
  CHECK_FALSE(request("2.00 GiB").holds(Bytes(2'147'483'648 + 50'000'000)));
}

TEST_CASE("see_memory_usage: title, precision, repeats") {
  const std::string line =
      "[2024-01-01 10:00:00,001] [INFO] [utils.py:786:see_memory_usage] MA 15.0 GB         Max_MA 15.17 GB         "
      "CA 15.2 GB         Max_CA 15 GB \n";
  const std::string title =
      "[2024-01-01 10:00:00,000] [INFO] [utils.py:785:see_memory_usage] After initializing ZeRO\n";
  const std::vector<LogMessage> messages = read_oom_log("log", title + line + "x\n" + title + line + "end\n" + line);
  REQUIRE(messages.size() == 2);
  const LogMessage& first = messages.front();
  CHECK(first.kind == LogMessage::Kind::MemoryUsage);
  CHECK(first.title == "After initializing ZeRO");
  CHECK(first.line == 2);
  CHECK(first.times == 2);
  CHECK(messages[1].title == "end");
  // "15.0" is 15.00: Python drops the zero, not the precision. The last one is rounded to whole GiB.
  CHECK_FALSE(first.allocated->holds(Bytes((std::int64_t{15} << 30) + 6'000'000)));
  CHECK(first.allocated->holds(Bytes((std::int64_t{15} << 30) + 5'000'000)));
  CHECK(first.peak_reserved->holds(Bytes((std::int64_t{15} << 30) + 500'000'000)));
  CHECK(text_of(first.reserved) == "15.2 GiB");
  CHECK_FALSE(first.request.has_value());
}

TEST_CASE("a log without a message is refused, and says what was looked for") {
  for (const std::string log : {"", "all went well\n", "Tried to allocate a lot\n", "MA 15.0 GB Max_MA\n"}) {
    CAPTURE(log);
    try {
      (void)read_oom_log("train.log", log);
      CHECK(false);
    } catch (const Refusal& refusal) {
      const std::string said = refusal.what();
      CHECK(said.starts_with("train.log: error: no message about memory is in this log; looked for PyTorch's"));
    }
  }
}

TEST_CASE("an event is found again by what PyTorch would print of it") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const Schedule schedule = lowered::all_ranks(model, lowered::job(2, 4)).front();
  const AllocatorConfig config;
  const AllocationLog log = allocation_log(schedule, config);
  REQUIRE(log.allocations.size() > 100);
  for (std::size_t at = 0; at < log.allocations.size(); at += 37) {
    const AllocationMoment& moment = log.allocations[at];
    const Bytes reserved = reserved_when_emptied(schedule, config, moment.event);
    const std::string text = dsplan::formatted(
        "Tried to allocate {}. GPU 0 has a total capacity of 1.00 GiB of which 0 bytes is free. Of the allocated "
        "memory "
        "{} is allocated by PyTorch, and {} is reserved by PyTorch but unallocated.",
        printed(moment.request), printed(moment.allocated), printed(reserved - moment.allocated));
    CAPTURE(text);
    const LogFinding finding = find_in_schedule(read_oom_log("log", text), schedule, model, config).front();
    CHECK(finding.matches);
    REQUIRE_FALSE(finding.candidates.empty());
    CHECK(finding.candidates.size() <= kMostCandidates);
    bool found = false;
    for (const LogCandidate& candidate : finding.candidates) {
      CHECK(candidate.prints_the_same);
      CHECK_FALSE(candidate.moment.empty());
      found = found || (candidate.request == moment.request && candidate.allocated == moment.allocated);
    }
    // Many moments may print the same; only so many are named.
    CHECK((found || finding.candidates.size() == kMostCandidates));
  }
}

TEST_CASE("what matches nothing is told the nearest, and how far it is") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const Schedule schedule = lowered::all_ranks(model, lowered::job(-1, 1)).front();
  const LogFinding finding =
      find_in_schedule(read_oom_log("log",
                                    "Tried to allocate 3.00 GiB (GPU 0; 1.00 GiB total capacity; 1.00 GiB "
                                    "already allocated; 0 bytes free; 1.00 GiB reserved in total by PyTorch)"),
                       schedule, model, {})
          .front();
  CHECK_FALSE(finding.matches);
  REQUIRE(finding.candidates.size() == 1);
  CHECK(finding.candidates[0].apart.size() == 3);
  CHECK(finding.candidates[0].apart[0].starts_with("request 3.00 GiB, predicted "));
  CHECK_FALSE(finding.candidates[0].live.empty());
}

TEST_CASE("the limit that a message implies") {
  const auto limit = [](const std::string& log) { return limit_in(read_oom_log("log", log).front()); };
  const auto near = [](std::optional<Bytes> bytes, double expected) {
    return bytes && std::abs(static_cast<double>(bytes->value()) - expected) <= 2;
  };
  CHECK(near(limit(kWordings[1].log), 2.46 * 0x1p30 + 354.88 * 0x1p20));  // Reserved and free.
  CHECK(near(limit(kWordings[2].log), 2.37 * 0x1p30));                    // Less is allowed than is there.
  CHECK(near(limit(kWordings[6].log), (8.16 + 1.59) * 0x1p30));           // Allocated, unallocated, nothing free.
  CHECK(limit(kWordings[9].log) == std::nullopt);
}

TEST_CASE("a change is judged under the limit") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = lowered::job(-1, 1);
  job.training.seq = 256;
  job.training.micro_batch = 8;
  const Remedy free = judge({"as it is", job, {}}, model, 0, CachingAllocator::kUnlimited);
  CHECK(free.outcome == Remedy::Outcome::Fits);
  REQUIRE(free.reserved.has_value());
  CHECK(judge({"as it is", job, {}}, model, 0, *free.reserved).outcome == Remedy::Outcome::Fits);
  const Remedy tight = judge({"as it is", job, {}}, model, 0, Bytes(8 * kMebibyte));
  CHECK(tight.outcome == Remedy::Outcome::DoesNotFit);
  CHECK(tight.note.find(" missing at ") != std::string::npos);
  job.training.micro_batch = 1;
  CHECK(*judge({"smaller", job, {}}, model, 0, Bytes(8 * kMebibyte)).reserved < *free.reserved);
}

TEST_CASE("explain as a command") {
  const Folder folder;
  const auto runs = [&](const std::string& line) { return run_binary(folder, split(line)); };
  spill(folder / "train.log",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 98.16 MiB. GPU 0 has a total capacity of 2.00 "
        "GiB of which 30.00 MiB is free. Of the allocated memory 1.19 GiB is allocated by PyTorch, and 19.41 MiB is "
        "reserved by PyTorch but unallocated.\n[INFO] before\nMA 0.1 GB Max_MA 0.1 GB CA 0.1 GB Max_CA 0 GB\n");
  const std::string line = "explain gpt2 --seq 256 --micro-batch 4 --gpus 4 --log train.log";
  const Ran table = runs(line);
  CHECK(table.code == 0);
  CHECK(widest_line(table.out) <= 80);
  CHECK(table.out.find("what would avoid it") != std::string::npos);
  CHECK(table.out.find("as it is: does not fit") != std::string::npos);
  CHECK(table.out.find("--micro-batch 1 --grad-accum 4:") != std::string::npos);
  const Json report = Json::parse(runs(line + " --format json").out);
  CHECK(report.at("schema") == "dsplan.explain/1");
  check_schema(folder, "explain", report.dump());
  REQUIRE(report.at("findings").size() == 2);
  CHECK(report["findings"][0]["message"]["kind"] == "out_of_memory");
  CHECK(report["findings"][0]["candidates"][0]["request"] == 102'926'336);
  CHECK(report["findings"][1]["message"]["kind"] == "see_memory_usage");
  CHECK(report["findings"][1]["message"]["title"] == "before");
  CHECK(report.at("remedies").size() >= 5);
  // Without a log, the topics of the prediction.
  const Ran peak = runs("explain tiny-llama --capacity 1GiB");
  CHECK(peak.code == 0);
  CHECK(peak.out == runs("simulate tiny-llama --capacity 1GiB --explain peak").out);
  CHECK(runs("explain tiny-llama --explain traffic").out == runs("simulate tiny-llama --explain traffic").out);
  CHECK(runs("explain tiny-llama --capacity 1MiB").code == 0);

  spill(folder / "calm.log", "all went well\n");
  for (const auto& [words, expected] : std::vector<std::pair<std::string, std::string>>{
           {"explain tiny-llama --log calm.log", "calm.log: error: no message about memory is in this log"},
           {"explain tiny-llama --log none.log", "none.log: error: no such file"},
           {"explain tiny-llama --log", "--log: error: needs a value"},
           {"explain tiny-llama --log a --log=b", "--log: error: is given more than once"},
           {"explain --log calm.log", "MODEL is missing"},
           {"explain tiny-llama --log train.log --format csv", "--format: error: no format \"csv\" of explain"},
           {"explain t5-small --dtype fp16 --log train.log", "--log: error: needs a schedule"},
       }) {
    CAPTURE(words);
    const Ran ran = runs(words);
    CHECK(ran.code == 2);
    CHECK_MESSAGE(ran.err.find(expected) != std::string::npos, ran.err);
  }
}
