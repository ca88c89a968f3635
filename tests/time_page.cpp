// docs/time.md: its tables from data, its words from here.
#include <algorithm>
#include <map>
#include <set>

#include "time_accuracy.h"

#include "core/format.h"

namespace time_accuracy {
namespace {

constexpr const char* kHead = R"(# Step times

`dsplan simulate` estimates how long one optimizer step takes, `dsplan plan` chooses by it. The estimate needs a device
(`--hardware` or `--cluster`); without one `time` is `null`, and `not_modelled` says why.

```
$ dsplan simulate llama-3-8b --cluster 8xh100 --zero-stage 3 --micro-batch 2
...
{}```

Bytes are exact, seconds are not. The report says **estimated** until rates were measured on your own machine, and gives the
interval in which eight of ten steps of sources lay that were left out of the fit. Time is no part of the fingerprint, and
neither `check` nor `compare` looks at it.

## What is counted

Of rank 0, one optimizer step in steady state, all micro-batches:

| part | from |
|---|---|
| matrix products | operations by the shape; tiles of 128 x 256 down to 32 x 32 and waves over the multiprocessors, split along k where that fills them; so many operations more for each tile as 150 steps of k take; rows that do not begin on 16 bytes run at 0.68 of the rate; never less than their bytes take |
| attention | operations of the fused kernel, causal ones counted as what they compute; backward computes the scores once more |
| all other operators | bytes read and written, and 2 us for each kernel |
| launches | where the host needs longer to launch a layer's operators than the device to run them, the host decides: 15 us for each operator (eager PyTorch under Python), 0.3 of that for views |
| recomputation | the forward of each checkpoint; a non-reentrant one stops before the last product, a selective one leaves out what it kept |
| collectives | by size, ranks and nodes (below), in the calls that the runtime makes: DDP's buckets of 25 MiB, `reduce_bucket_size`, one gather for each module of ZeRO-3 or for what `stage3_prefetch_bucket_size` joins |
| overlap | DDP, `overlap_comm` and ZeRO-3's prefetching hide collectives under {:.0f} % of the computation beside them; the first gather and the last bucket stay exposed; tensor parallelism hides nothing |
| the optimizer | bytes of masters, states, gradients and weights; on the host 1.6e9 elements per second and node (DeepSpeedCPUAdam on a DGX-2), then the copy back |
| offloading | pinned copies at the host link's rate, shared by the ranks behind one uplink (`host_links` of configs/clusters); pageable ones at 6 GB/s at most; files by `nvme_read_gb_per_s` and `nvme_write_gb_per_s` |
| each step | 2 ms of the host's own |

A ring of n ranks inside a node takes 8.4 us, 2.2 us for each step (PCIe 5.7), and (S + sqrt(3.5 MiB S)) f / B for S
bytes; f is 2 (n - 1) / n for all-reduces and (n - 1) / n for gathers and scatters. B is what rings reach of the data
sheet's link: 0.78 on A100 (measured 235 of 300 GB/s), 0.81 on H100 and H200, 0.76 on B200, 0.15 to 0.89 on V100's
mesh by the number of ranks; where the switch adds (H100, B200, more than four ranks, one node), 1.05 and 0.93. A
bridge joins two cards; more of them go over PCIe. Between nodes the group's part of the node's network counts at 0.93,
and 33 us f for each node; trees replace rings for small all-reduces.
Sources: NCCL's tuning tables, nccl-tests results as its users reported them, SimAI's ratio table
(`tests/time_rates_test.cpp`).

## Where the efficiencies are from

{} steps that others have published stand in `tests/data/step-times.csv`, each with its source: dense decoders whose
dimensions, batch and parallelism are stated, in 16-bit, without pipelines, experts or fp8. Sources, not rows, are
divided. **Fitted to:** {}. **Held out:** {}.

`tools/fit_time` fits one number for each architecture, the part of the peak rate that large products reach, and one for
all, the overlap. It minimises the squared logarithm of estimate over step; sources weigh as the roots of their rows.
Attention and memory are not fitted: FlashAttention-2's published rates, 0.85 of the memory's.

{}
The interval is from the same fit with each source left out in turn: the tenth and the ninetieth percentile of step over
estimate on what was left out. On the held-out part fewer steps lie inside than eight of ten (below).

## How far it is off

Median and ninetieth percentile of |estimate / step - 1|; *bias* is the median of estimate / step; *constant* the median
error of one utilisation for each GPU (hardware operations over peak rate), fitted to the same rows: the estimate that
one makes on an envelope. *Inside*: steps within the stated interval. Under ten rows: insufficient evidence.

)";

constexpr const char* kTail = R"(
What the held-out rows teach, and nothing was changed for: DeepSpeed's ZeRO-3 of 2021 on 128 to 1024 A100 hid less
than half of its gathers (DS); torchtitan's H100 are 96 GB parts capped at 500 W, which the data sheet's peak does not
know (ISSUES, TITAN); small micro-batches of Hugging Face's Trainer wait for Python longer than 15 us for each operator
(QWEN); no B200 step was fitted (SIMUMAX).

## Measure your own

`dsplan calibrate` measures this machine into a hardware file, in under two minutes:

```
dsplan calibrate --backend cuda --out mine.json
dsplan simulate llama-3-8b --zero-stage 3 --gpus 8 --hardware mine.json
```

The file holds every measurement with its samples ([receipts.md](receipts.md), `dsplan.calibration/1`); `--calibration`
puts them, or those of `tools/frameworks/constants`, beside another `--hardware`. Of them an estimate takes

- `gemm:DTYPE:MxNxK` of the job's dtype, from 512 on each side: the rate of products is the median over these shapes;
- `elementwise:OP:DTYPE:N` of the largest size, the median over operators, else `copy_d2d:N`: the memory's rate;
- `attention:DTYPE:BxHxSxD` and `attention_backward:...`, the fastest;
- `kernel`, what any kernel takes on the device, and `launch`, what the host takes to enqueue one;
- `copy_h2d_pinned:N`, `copy_d2h_pinned:N`, and the same pageable: the slower of both;
- `host_adam:N`, of all cores together, `file_read:N` and `file_write:N`: shared by the ranks of a node.

With products and memory measured the report says **calibrated**; the rest, collectives among it, stays as it was, and
`basis` says which is which. `collective_virtual:...` is between ranks that share one GPU, and says nothing of links.

`--backend host` measures the machine as `dsplan run --backend host` uses it: a rank is a thread that does one thing
after the other. Products then take the measured rate of as many operations, collectives between threads theirs.

## What is missing

Rates that a job needs and configs/hardware or configs/clusters do not have are named: `configs/hardware: v100-sxm2-32
has no "bf16" rate (matrix products)`. Op-graphs have no time: a step also has an optimizer, ranks and micro-batches.
Not modelled: torch.compile, CUDA graphs, tf32, the first step, evaluation, saving, data loading, other jobs on the network,
clocks that fall under load.
)";

std::string percent(double part) { return dsplan::formatted("{:.1f} %", 100 * part); }

std::string joined(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string row_of(const std::string& label, const std::vector<const Judged*>& rows) {
  const Summary s = summary(rows);
  if (s.n < kEvidence) return dsplan::formatted("| {} | {} | insufficient evidence | | | | |\n", label, s.n);
  return dsplan::formatted("| {} | {} | {} | {} | {:.2f} | {} | {:.0f} % |\n", label, s.n, percent(s.median),
                           percent(s.p90), s.bias, s.constant > 0 ? percent(s.constant) : "none fitted",
                           100 * s.inside);
}

std::string table(const std::vector<Judged>& judged, bool train) {
  std::map<std::string, std::vector<const Judged*>> by_gpu;
  std::map<std::string, std::vector<const Judged*>> by_source;
  for (const Judged& one : judged) {
    if (one.one->row.train != train) continue;
    by_gpu[one.gpu].push_back(&one);
    by_source[one.one->row.source + ", " + one.gpu].push_back(&one);
  }
  std::string text =
      dsplan::formatted("| {} | n | median | p90 | bias | constant | inside |\n|:--|--:|--:|--:|--:|--:|--:|\n",
                        train ? "fitted to" : "held out");
  for (const auto& [gpu, rows] : by_gpu) text += row_of("**" + gpu + "**", rows);
  for (const auto& [source, rows] : by_source) text += row_of(source, rows);
  return text + "\n";
}

std::string constants() {
  std::string text = "| architecture | products | attention | in backward | memory | overlap | interval | |\n";
  text += "|:--|--:|--:|--:|--:|--:|:--|:--|\n";
  for (const std::string_view architecture : dsplan::known_architectures()) {
    const dsplan::TimeConstants c = dsplan::time_constants(architecture);
    text += dsplan::formatted("| {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} to {:.2f} | {} |\n",
                              architecture, c.product, c.attention, c.attention_backward, c.memory, c.overlap, c.low,
                              c.high, c.fitted ? "fitted" : "not fitted");
  }
  return text;
}

}  // namespace

std::string page(const std::vector<Judged>& judged, const std::string& example) {
  std::set<std::string> train;
  std::set<std::string> held;
  for (const Judged& one : judged) (one.one->row.train ? train : held).insert(one.one->row.source);
  const double overlap = dsplan::time_constants("sm_80").overlap;
  return dsplan::formatted_as(kHead, std::array<dsplan::FormatArgument, 6>{example, 100 * overlap, judged.size(),
                                                                           joined(train), joined(held), constants()}) +
         table(judged, false) + table(judged, true) + kTail;
}

}  // namespace time_accuracy
