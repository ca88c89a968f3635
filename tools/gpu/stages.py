"""The stages of tools/gpu/validate, as data: change them here.

A stage is a list of command lines for bash, run from the root of the tree. A line that begins with "-" may fail without
failing its stage. In a line: {python} the interpreter that holds torch, {dsplan} the program, {here} the stage's own
folder, {work} the folder of all stages, {device} cuda, cpu or fake, {measurer} the same without fake, for tools that need
numbers, {sizer} the same without cpu, {seconds} what a tool may take before the stage's limit comes, {pick} what the
stage picks: all of its part on a GPU, very little without one.

A command says how it went by its exit code: 0 well, 4 a comparison came out unequal, 77 skipped, 124 out of time,
anything else failed. The last line of its output that begins with "finding:", else its last line, is shown in the table.
"""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Stage:
    number: int
    name: str
    what: str
    expected: int  # seconds on an H100 or H200, guessed until measured
    limit: int  # seconds after which it is ended; under ten minutes
    priority: int  # lower runs first when time is short
    commands: tuple
    pick: str = ""  # what {pick} stands for on a GPU
    dry_pick: str = ""  # ... and without one: as little as shows that the stage works
    needs_dsplan: bool = False
    environment: tuple = ()  # ("NAME", "value") pairs, exported around the commands


# Exit code 3 of these tools: their time was over, and the same command goes on where they stopped.
GOES_ON = "; code=$?; exit $((code == 3 ? 124 : code))"
OPS = "{python} tools/frameworks/ops --out {here} --device {sizer} --seconds {seconds} "
OPERATORS = (OPS + "--part {pick}" + GOES_ON, "{dsplan} compare {here}/operators-?of?.json")
OPTIMIZERS = (OPS + "--optimizers" + GOES_ON, "{dsplan} compare {here}/operators-optimizers.json",
              "{python} tools/frameworks/ops/optimizer_check.py {here}/operators-optimizers.json")
SNAPSHOTS = ("{python} tools/frameworks/snapshots --out {here} --device {measurer} --seconds {seconds} --dsplan {dsplan} "
             "--kind {pick}" + GOES_ON,)
TRACES = ("[ {device} = cuda ] || {{ echo finding: traces are driven on a GPU only; exit 77; }}; " + SNAPSHOTS[0],)
STEPS = ("{python} tools/frameworks/matrix.py --out {here} --budget-s {seconds} {pick}" + GOES_ON,)
# Compiles DeepSpeed's fused optimizers once, if they can be compiled; all later stages find them.
ZERO = ("-[ {device} = cuda ] || exit 77; {python} tools/frameworks/zero/ops.py",
        "{python} -c 'import importlib.util as u; exit(u.find_spec(\"deepspeed\") is None)' || "
        "{{ echo finding: deepspeed is not installed; exit 77; }}; " + STEPS[0])
PYTORCH = "--device cuda --rows tools/frameworks/matrix_pytorch.json --only "
DEEPSPEED = "--device cuda --rows tools/frameworks/matrix_deepspeed.json --only "
DRY_PYTORCH = "--timeout-s 400 --device fake --rows tools/frameworks/matrix_pytorch.json --only "
DRY_DEEPSPEED = "--timeout-s 400 --device cpu --rows tools/frameworks/tiny_deepspeed.json --only "
VERDICTS = "{python} tools/frameworks/verdicts.py --plan {here}/plan.json --dsplan {dsplan} --rows {pick}"
EDGES = (VERDICTS,
         "[ {device} = cuda ] || exit 77; " + VERDICTS + " --out {here} --budget-s {seconds}" + GOES_ON,
         "[ {device} = cuda ] || exit 77; {dsplan} compare {here}/verdicts.json")
CONSTANTS = ("{python} tools/frameworks/constants --out {here} --device {measurer} --seconds {seconds} {pick} --part ")
# dsplan's own executor: its plugin lies beside the program, its tests too where they were packed or built.
PLUGIN = "$(dirname {dsplan})/libdsplan_cuda.so"
DEVICE_TESTS = ("$(ls $(dirname {dsplan})/dsplan_device_tests $(dirname {dsplan})/tests/dsplan_device_tests 2>/dev/null "
                "| head -1)")
# cuBLASLt lies with the toolkit, or among the wheels that torch brought.
LIBRARIES = ("export LD_LIBRARY_PATH=${{LD_LIBRARY_PATH:-}}:/usr/local/cuda/lib64:$({python} -c 'import glob, sysconfig; "
             "print(*glob.glob(sysconfig.get_paths()[\"purelib\"] + \"/nvidia/*/lib\"), sep=\":\")'); ")
ON_GPU = "[ {device} = cuda ] || {{ echo finding: on a GPU only; exit 77; }}; "
KERNELS = (ON_GPU + LIBRARIES + "[ -f " + PLUGIN + " ] || {{ echo finding: no CUDA plugin beside dsplan; exit 77; }}; "
           "DSPLAN_TEST_BACKEND=" + PLUGIN + " " + DEVICE_TESTS + " --no-intro",)
SANITIZED = (ON_GPU + LIBRARIES + "command -v compute-sanitizer || {{ echo finding: no compute-sanitizer here; exit 77; }}; "
             "for tool in memcheck initcheck racecheck; do DSPLAN_TEST_BACKEND=" + PLUGIN + " compute-sanitizer --tool $tool "
             "--error-exitcode 9 " + DEVICE_TESTS + " --no-intro --test-case='*operator by operator' || exit; done",)

STAGES = (
    Stage(1, "environment", "GPU, driver, versions, tools, what dsplan finds", 20, 120, 1, (
        "-nvidia-smi",
        "-nvcc --version; cmake --version; c++ --version; nproc; free -g; df -h .; uname -r; ulimit -l",
        "-{python} -m pip list --disable-pip-version-check",
        "-{dsplan} doctor",
        "{python} tools/gpu/probe.py --device {device}")),
    Stage(2, "dsplan", "the program: packed, or built from source here", 15, 590, 2, (
        "[ -x {dsplan} ] || {{ cmake -S . -B build/gpu -DCMAKE_BUILD_TYPE=Release -DDSPLAN_TESTS=OFF && "
        "cmake --build build/gpu --target dsplan -j $(nproc); cmake --build build/gpu --target dsplan_cuda -j $(nproc); }}",
        "{dsplan} simulate llama-3-8b --zero-stage 3 --gpus 8 --hardware h200-sxm",
        "echo finding: $({dsplan} --version)")),
    Stage(3, "ops-1", "a quarter of the catalogue's cases: what they allocate, in order", 60, 400, 5, OPERATORS,
          "1/4", "1/4 --tiny"),
    Stage(4, "ops-2", "the second quarter", 60, 400, 11, OPERATORS, "2/4", "2/4 --tiny"),
    Stage(5, "ops-3", "the third quarter", 60, 400, 18, OPERATORS, "3/4", "3/4 --tiny"),
    Stage(6, "ops-4", "the last quarter; and optimizer steps", 90, 500, 12, OPERATORS + OPTIMIZERS, "4/4",
          "4/4 --tiny"),
    Stage(7, "allocator-traces", "traces with known placements, driven through PyTorch's own allocator", 60, 300, 19,
          TRACES, "allocator"),
    Stage(8, "snapshots-plain", "whole histories of training steps, replayed block for block", 60, 400, 13, SNAPSHOTS,
          "plain", "plain --tiny"),
    Stage(9, "snapshots-streams", "histories on several streams", 45, 300, 20, SNAPSHOTS, "streams", "streams --tiny"),
    Stage(10, "snapshots-expandable", "histories with expandable segments", 45, 300, 21, SNAPSHOTS, "expandable",
          "expandable --tiny"),
    Stage(11, "snapshots-full", "histories with retries, garbage collection and out of memory", 60, 400, 14, SNAPSHOTS,
          "retries", "retries --tiny"),
    Stage(12, "steps-gpt2", "steps of PyTorch: gpt2 and tinyllama", 100, 500, 3, STEPS,
          PYTORCH + "'^(gpt2|tinyllama)-'", DRY_PYTORCH + "'^gpt2-b8-s1024$'"),
    Stage(13, "steps-qwen", "steps of PyTorch: qwen", 120, 500, 17, STEPS,
          PYTORCH + "'^qwen'", DRY_PYTORCH + "'^qwen2-0.5b-b2-s2048$'"),
    Stage(14, "steps-llama-1b", "steps of PyTorch: llama of 1 B, LoRA, frozen, expandable", 90, 500, 9, STEPS,
          PYTORCH + "'^llama-1b-'", DRY_PYTORCH + "'^llama-1b-b2-s3000-lora$'"),
    Stage(15, "steps-3b-to-8b", "steps of PyTorch: 3 to 8 B", 150, 550, 22, STEPS,
          PYTORCH + "'^(llama-[38]b|mistral)-'", DRY_PYTORCH + "'^mistral-4l-b2-s4096-accum2$'"),
    Stage(16, "zero-1", "steps of DeepSpeed, ZeRO-1", 100, 500, 10, ZERO,
          DEEPSPEED + "'^z1-'", DRY_DEEPSPEED + "'^cpu-z1-w1$'"),
    Stage(17, "zero-2", "steps of DeepSpeed, ZeRO-2", 120, 500, 8, ZERO,
          DEEPSPEED + "'^z2-'", DRY_DEEPSPEED + "'^cpu-z2-w4-accum2$'"),
    Stage(18, "zero-3", "steps of DeepSpeed, ZeRO-3", 180, 500, 4, ZERO,
          DEEPSPEED + "'^z3-(gpt2|llama-[18]b|mistral)'", DRY_DEEPSPEED + "'^cpu-z3-w4$'"),
    Stage(19, "zero-3-settings", "ZeRO-3: prefetch, reuse, persistence, groups", 100, 500, 23, ZERO,
          DEEPSPEED + "'^z3-(qwen|llama-3b)'", DRY_DEEPSPEED + "'^cpu-z3-w8-accum2-full$'"),
    Stage(20, "zero-offload", "optimizer and parameters in host memory or on NVMe", 150, 550, 15, ZERO,
          DEEPSPEED + "'^offload-'", DRY_DEEPSPEED + "'^cpu-z3-w1$'"),
    Stage(21, "verdicts-pytorch", "1 % above the predicted need it runs, 1 % below it fails", 150, 550, 7, EDGES,
          "tools/frameworks/matrix_pytorch.json", "tools/frameworks/matrix_pytorch.json --only '^gpt2'", True),
    Stage(22, "verdicts-deepspeed", "the same of DeepSpeed", 150, 550, 16, EDGES,
          "tools/frameworks/matrix_deepspeed.json", "tools/frameworks/matrix_deepspeed.json --only ^z1-llama-1b", True),
    Stage(23, "constants-memory", "context, handles, workspaces, communicator, pinned memory", 120, 500, 6,
          (CONSTANTS + "memory",), "", "--tiny --groups pinned,communicator_1"),
    Stage(24, "constants-rates", "copies, products, and questions about this machine", 200, 590, 24, (
        CONSTANTS.replace("{seconds}", "220") + "rates", CONSTANTS + "questions"),
          "", "--tiny --groups copies,gemms,nccl_library"),
    Stage(26, "executor-kernels", "the plugin's table, and each of its kernels against the host's", 60, 400, 26,
          KERNELS, needs_dsplan=True),
    Stage(27, "executor-sanitized", "the same operators under compute-sanitizer", 200, 590, 28, SANITIZED,
          needs_dsplan=True),
    Stage(28, "executor-runs", "plans carried out on the GPU by virtual ranks, against prediction and host", 300, 590, 27,
          (LIBRARIES + "{python} tools/gpu/execute.py --dsplan {dsplan} --seconds {seconds} --backend {pick}",),
          "cuda", "host --tiny", True),
    Stage(29, "executor-nccl", "ranks as processes: NCCL with one rank, two ranks on one GPU by its own tricks, several GPUs",
          200, 400, 29, (LIBRARIES + "{python} tools/gpu/nccl.py --dsplan {dsplan} --seconds {seconds} --backend {pick}",),
          "cuda", "host", True),
    Stage(30, "executor-calibration", "dsplan's own calibration of this machine, and a receipt explained by it", 150, 400, 30,
          (LIBRARIES + "{dsplan} calibrate --backend {pick} --out {here}/calibrated.json; code=$?; "
           "[ $code = 6 ] && {{ echo finding: no device for dsplan; exit 77; }}; exit $code",
           LIBRARIES + "{dsplan} run gpt2 --micro-batch 1 --seq 256 --dtype bf16 --hardware {here}/calibrated.json "
           "--backend $(echo {pick} | cut -d' ' -f1) --out {here}/gpt2-calibrated.json"),
          "cuda", "host --quick", True),
    Stage(31, "planner-regret", "plans of one search carried out: is the chosen one the fastest?", 300, 590, 31,
          (LIBRARIES + "{python} tools/gpu/regret.py --dsplan {dsplan} --seconds {seconds} --calibrate --out "
           "{here}/regret.json --backend {pick}",),
          "cuda -- gpt2 --dtype bf16 --seq 512 --gpus 2 --global-batch 32 --vary zero_stage=0,1,2,3 "
          "--vary micro_batch=1,2,4,8,16 --vary checkpoint=none,full,every:2,every:4 --vary tp=1,2 --vary offload=none "
          "--vary reduce_bucket_size=500000000", "host --quick --top 2 --random 1 --repeats 1", True),
    Stage(25, "compare", "all receipts against what dsplan predicts now; the recorder around a Trainer", 60, 400, 25, (
        "{python} tools/gpu/trainer_job.py --out {here} --device {measurer}",
        "{dsplan} compare --re-predict {work} --format json --out {here}/comparison.json",
        "f={work}/23-constants-memory/memory.json; [ {device} = cuda ] && [ -f $f ] || f=; "
        "{dsplan} compare --re-predict {work} ${{f:+--calibration $f}}"), needs_dsplan=True),
)
