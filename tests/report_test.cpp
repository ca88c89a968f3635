// The writers on predictions made by hand.
#include "cli/report.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cli/screen/first_screen.h"
#include "cli/wrap.h"
#include "core/format.h"
#include "report/prediction_file.h"
#include "report/prediction_tables.h"
#include "run_binary.h"

using namespace dsplan;
using Json = nlohmann::ordered_json;

namespace {

constexpr std::int64_t kMiB = 1 << 20;

// Bytes that no double holds.
constexpr std::int64_t kOdd = (std::int64_t{1} << 53) + 1;

Prediction by_hand() {
  Prediction p;
  p.fingerprint = "sha256:00";
  p.model = "toy";
  p.rank = 1;
  p.world = 4;
  p.parameters_total = Elements(kOdd);
  p.parameters_trainable = Elements(10);
  p.states = {Bytes(kMiB), Bytes(2 * kMiB), Bytes(3 * kMiB)};
  p.persistent.by_role[Role::Parameters] = Bytes(4 * kMiB);
  p.persistent.by_role[Role::RuntimeBuffers] = Bytes(kMiB);
  p.persistent.allocated = Bytes(6 * kMiB);
  p.held_for_backward.emplace();
  p.held_for_backward->by_role[Role::Activations] = Bytes(2 * kMiB);
  p.held_for_backward->by_module = {{"model.layers.0", Bytes(2 * kMiB)}};
  p.peak.emplace();
  p.peak->by_role = p.persistent.by_role;
  p.peak->by_role[Role::Parameters] = Bytes(3 * kMiB);
  p.peak->by_role[Role::Activations] = Bytes(5 * kMiB);
  p.peak->requested = p.peak->by_role.total();
  p.peak->allocated = Bytes(10 * kMiB);
  p.peak->reserved = Bytes(20 * kMiB);
  p.peak->process = Bytes(620 * kMiB);
  p.peak->phase = "first_step";
  p.peak->event = "backward of model.layers.11, recomputing segment 3, with words enough to reach the next line";
  p.peak->live = {{"saved input of linear", "model.layers.3.mlp.a_module_with_a_path_that_is_far_too_long_for_a_line",
                   Role::Activations, Bytes(5 * kMiB), 2}};
  p.peak->active = Bytes(10 * kMiB);
  p.loss_spike = LossSpike{Bytes(2 * kMiB), "forward of the model itself", {}};
  p.phases = {{"steady",
               {{"before forward", Bytes(1), Bytes(512), Bytes(512), Bytes(2 * kMiB), 0},
                {"before forward", Bytes(2), Bytes(512), Bytes(512), Bytes(2 * kMiB), 0}},
               Bytes(9 * kMiB),
               Bytes(10 * kMiB),
               Bytes(10 * kMiB),
               Bytes(20 * kMiB)}};
  p.communication = {{Collective::AllGather, Group::DataParallel, Pass::Forward, DType::BFloat16, TrafficKind::Data, 3,
                      Bytes(8 * kMiB), Bytes(6 * kMiB)},
                     {Collective::AllGather, Group::DataParallel, Pass::Recompute, DType::BFloat16, TrafficKind::Data,
                      1, Bytes(4 * kMiB), Bytes(3 * kMiB)},
                     {Collective::AllReduce, Group::DataParallel, Pass::Step, DType::Float32, TrafficKind::Control, 7,
                      Bytes(4), Bytes(6)}};
  p.capacity = Bytes(1024 * kMiB);
  p.verdict = Verdict::Fits;
  p.verdict_reason = "404 MiB left";
  p.not_modelled = {{"memory.host", "it comes with offload"}};
  return p;
}

Job job_by_hand() {
  Job job;
  job.training.runtime = Runtime::DeepSpeed;
  job.training.zero.stage = 2;
  job.training.seq = 128;
  job.parallelism.world = job.parallelism.dp = 4;
  job.inputs = {{"seq", "128", Origin::Given, "--seq", "--seq"},
                {"loss", "hf, \"upcast\"", Origin::Assumed, "the default", "--loss"}};
  return job;
}

}  // namespace

TEST_CASE("the table says the verdict first, hides empty roles and adds up") {
  const std::string text = report(by_hand(), job_by_hand(), {});
  CHECK(text == R"(FITS  takes 620.00 MiB of 1.00 GiB per GPU, 404.00 MiB to spare (rank 1 of 4)

toy, 9,007,199,254,740,993 parameters, 10 trainable
ZeRO stage 2, 4 GPUs, bf16, adamw (fused), micro-batch 1, accumulation 1,
  seq 128, checkpointing none, attention flash, loss hf, torch 2.11.0,
  transformers 5.17.0

                                        held for      transient
  role                 persistent       backward        at peak        at peak
  parameters             4.00 MiB              -      -1.00 MiB       3.00 MiB
  runtime buffers        1.00 MiB              -              -       1.00 MiB
  activations                   -       2.00 MiB       5.00 MiB       5.00 MiB
  total                  5.00 MiB       2.00 MiB       4.00 MiB       9.00 MiB
  logits and loss                                                     2.00 MiB
  allocated              6.00 MiB                                    10.00 MiB
  reserved                                                           20.00 MiB
  process                                                           620.00 MiB
  states 6.00 MiB: parameters 1.00 MiB, gradients 2.00 MiB, optimizer 3.00 MiB
  peak in first step: backward of model.layers.11, recomputing segment 3, with
    words enough to reach the next line

  traffic of one step        calls               payload                  wire
  all_gather (dp)                4             12.00 MiB              9.00 MiB
  control                        7                   4 B                   6 B

assumed: loss=hf, "upcast"
not modelled: memory.host, needed_bytes, shortfall_bytes, context_bytes,
  communicators_bytes, memory.peak.reserved_low, memory.peak.process_high, time
)");
}

TEST_CASE("colour only paints the verdict") {
  const std::string plain = report(by_hand(), job_by_hand(), {});
  const std::string painted = report(by_hand(), job_by_hand(), {true, {}});
  CHECK(painted.starts_with("\x1b[1;32mFITS\x1b[0m  takes "));
  CHECK(painted.substr(painted.find("\x1b[0m") + 4) == plain.substr(plain.find("FITS") + 4));
}

TEST_CASE("--explain lists buffers and every collective within 80 columns") {
  const std::string text = report(by_hand(), job_by_hand(), {false, {Topic::Peak, Topic::Traffic}});
  CHECK(test::widest_line(text) <= 80);
  CHECK(text.find("saved input of linear") != std::string::npos);
  CHECK(text.find("2.00 MiB  model.layers.0\n") != std::string::npos);
  CHECK(text.find("  all_gather     dp    backward bf16  data           1     4.00 MiB     3.00 MiB\n") !=
        std::string::npos);
}

TEST_CASE("an unknown verdict and a refusal to fit say why") {
  Prediction p = by_hand();
  p.verdict = Verdict::DoesNotFit;
  p.verdict_reason = "tried to allocate 2.00 GiB, 1.00 GiB missing, at forward of lm_head";
  p.failure = "forward of lm_head";
  p.needed = Bytes(3 * 1024 * kMiB);
  p.shortfall = Bytes(2 * 1024 * kMiB);
  CHECK(headline(p, "the-gpu", false) ==
        "DOES NOT FIT  needs at least 3.00 GiB per GPU, the-gpu has 1.00 GiB: 2.00 GiB\n  short (rank 1 of 4)\n");
  CHECK(first_screen(p, job_by_hand(), false).find("first fails at forward of lm_head\n") != std::string::npos);
  // It would fit in one piece.
  p.needed = Bytes(900 * kMiB);
  p.shortfall = Bytes(100 * kMiB);
  CHECK(headline(p, "", false).starts_with("DOES NOT FIT  needs 900.00 MiB of 1.00 GiB, but what is free lies in"));
  p.verdict = Verdict::FitsWithRetries;
  p.retries = p.retries_low = 2;
  p.peak->process = Bytes(2000 * kMiB);
  CHECK(headline(p, "", false).starts_with("FITS WITH RETRIES  fits in 1.00 GiB per GPU, would use 1.95 GiB if it "));
  p.verdict = Verdict::Tight;
  p.retries = 0;
  p.peak->process = Bytes(1000 * kMiB);
  p.doubts = {{"CUDA context", Bytes(300 * kMiB), "nobody measured it"}};
  p.context = Bytes(600 * kMiB);
  const std::string tight = headline(p, "", false);
  CHECK(tight.starts_with("TIGHT  takes 1000.00 MiB of 1.00 GiB per GPU, 24.00 MiB to spare, and this may"));
  CHECK(tight.find("600.00 MiB of CUDA context assumed") != std::string::npos);
  Prediction bigger = by_hand();
  bigger.rank = 0;
  bigger.peak->process = Bytes(700 * kMiB);
  CHECK(worst_of({bigger, p}).rank == 1);
  CHECK(worst_of({by_hand(), bigger}).rank == 0);
}

TEST_CASE("the first screen: the answer in at most sixteen lines, whose bars add up to it") {
  Prediction p = by_hand();
  p.needed = Bytes(610 * kMiB);
  for (const Verdict verdict : {Verdict::Fits, Verdict::Tight, Verdict::DoesNotFit, Verdict::FitsWithRetries}) {
    p.verdict = verdict;
    p.shortfall = Bytes(verdict == Verdict::DoesNotFit ? kMiB : 0);
    p.failure = verdict == Verdict::DoesNotFit ? "a moment" : "";
    p.changes.assign(5, {"--checkpoint full", Verdict::Fits, Bytes(kMiB), true, 0.8, "a note"});
    const std::string screen = first_screen(p, job_by_hand(), false);
    CAPTURE(screen);
    CHECK(static_cast<std::size_t>(std::count(screen.begin(), screen.end(), '\n')) <= kScreenLines);
    CHECK(test::widest_line(screen) <= 80);
    CHECK(screen.starts_with(in_words(verdict)));
    CHECK(screen.find("1.00 MiB  -20 %  --checkpoint full (a note)") != std::string::npos);
    CHECK(screen.find("assumed: ") != std::string::npos);
    CHECK(screen.find("more: --explain ") != std::string::npos);
  }
}

TEST_CASE("JSON keeps integers whole and names each null") {
  const Json value = Json::parse(prediction_json(by_hand(), job_by_hand()));
  CHECK(value["parameters"]["total"].get<std::int64_t>() == kOdd);
  CHECK(value["memory"]["persistent"]["gradients"] == 0);
  CHECK(value["memory"]["persistent"]["total"] == 5 * kMiB);
  CHECK(value["communication"][1]["phase"] == "backward");
  CHECK(value["time"].is_null());
  CHECK(value["fits"] == true);
  CHECK(value["assumptions"].size() == 1);
  CHECK(value["assumptions"][0]["option"] == "--loss");
  std::vector<std::string> missing;
  for (const Json& absence : value["not_modelled"]) missing.push_back(absence["what"]);
  const std::vector<std::string> expected = {"memory.host",
                                             "needed_bytes",
                                             "shortfall_bytes",
                                             "context_bytes",
                                             "communicators_bytes",
                                             "memory.peak.reserved_low",
                                             "memory.peak.process_high",
                                             "time"};
  CHECK(dsplan::formatted("{}", dsplan::joined(missing, " ")) ==
        dsplan::formatted("{}", dsplan::joined(expected, " ")));
}

TEST_CASE("absent parts are null in JSON, empty in CSV, a dash in Markdown") {
  Prediction p = by_hand();
  p.held_for_backward.reset();
  p.peak.reset();
  p.phases.clear();
  p.communication.reset();
  p.capacity.reset();
  p.verdict = Verdict::Unknown;
  p.verdict_reason = "only the states are predicted";
  const Json value = Json::parse(prediction_json(p, job_by_hand()));
  CHECK(value["fits"].is_null());
  CHECK(value["memory"]["peak"].is_null());
  CHECK(value["memory"]["phases"].is_null());
  CHECK(value["communication"].is_null());
  CHECK(predictions_csv({p}, job_by_hand()).find("\n1,memory.peak,\n") != std::string::npos);
  CHECK(predictions_markdown({p}, job_by_hand()).find("| total | 5.00 MiB | - | - |\n") != std::string::npos);
  const std::string table = report(p, job_by_hand(), {});
  CHECK(table.starts_with("UNKNOWN  only the states are predicted (rank 1 of 4)\n"));
  CHECK(test::widest_line(table) <= 80);
}

TEST_CASE("CSV names its rows and quotes what needs it") {
  const std::string csv = predictions_csv({by_hand()}, job_by_hand());
  CHECK(csv.starts_with("rank,path,value\n1,schema,dsplan.prediction/1\n"));
  for (const char* row : {"1,parameters.total,9007199254740993\n", "1,memory.peak.reserved_low,\n",
                          "1,communication.all_gather.dp.forward.bf16.data.calls,3\n",
                          "1,communication.all_reduce.dp.step.fp32.control.wire_bytes,6\n",
                          "1,memory.phases.steady.marks.before forward.requested,1\n",
                          "1,memory.phases.steady.marks.before forward#2.requested,2\n",
                          "1,assumptions.loss.value,\"hf, \"\"upcast\"\"\"\n", "1,memory.peak.live.0.count,2\n"}) {
    CHECK_MESSAGE(csv.find(row) != std::string::npos, row);
  }
}

TEST_CASE("text that is not UTF-8 does not stop the JSON") {
  Job job = job_by_hand();
  job.inputs[1].reason = "\xff.json";
  CHECK(!Json::parse(prediction_json(by_hand(), job), nullptr, false).is_discarded());
}

TEST_CASE("wrapping") {
  CHECK(wrapped("a: ", "b c", 2) == "a: b c\n");
  CHECK(wrapped("", std::string(85, 'x'), 2) == std::string(80, 'x') + "\n  " + std::string(5, 'x') + "\n");
  CHECK(wrapped("", std::string(79, 'x') + " y", 2) == std::string(79, 'x') + "\n  y\n");
  CHECK(wrapped("few words: ", std::string(75, 'x'), 2) == "few words:\n  " + std::string(75, 'x') + "\n");
  CHECK(wrapped("", std::string(78, 'x') + " y", 2) == std::string(78, 'x') + " y\n");
  std::string umlauts;
  for (int i = 0; i < 80; ++i) umlauts += "\xc3\xbc";
  CHECK(wrapped("", umlauts, 0) == umlauts + "\n");
  CHECK(listed("x: ", {}, 2).empty());
  CHECK(listed("x: ", {"a", "b"}, 2) == "x: a, b\n");
}
