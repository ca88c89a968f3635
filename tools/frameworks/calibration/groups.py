"""Which measurements there are, by part and group. Each group is a process of its own."""
import dataclasses

from calibration import memory, questions, rates


@dataclasses.dataclass(frozen=True)
class Group:
    part: str
    name: str
    function: object
    limit: int  # seconds
    argument: str = None
    environment: tuple = ()
    gpu_only: bool = False


LAZY, EAGER = (("CUDA_MODULE_LOADING", "LAZY"),), (("CUDA_MODULE_LOADING", "EAGER"),)
GROUPS = (
    Group("memory", "context", memory.context, 60, "context", LAZY),
    Group("memory", "context_eager_modules", memory.context, 120, "context_eager_modules", EAGER),
    Group("memory", "workspaces", memory.workspaces, 60),
    Group("memory", "communicator_1", memory.communicator, 90, "communicator_1"),
    Group("memory", "communicator_1_max_ctas_1", memory.communicator, 90, "communicator_1_max_ctas_1"),
    Group("memory", "cublas_handle", memory.handle, 60, "cublas_handle", gpu_only=True),
    Group("memory", "cublaslt_handle", memory.handle, 60, "cublaslt_handle", gpu_only=True),
    Group("memory", "cudnn_handle", memory.handle, 60, "cudnn_handle", gpu_only=True),
    Group("memory", "first_uses", memory.first_uses, 90),
    Group("memory", "pinned", memory.pinned, 90),
    Group("rates", "copies", rates.copies, 120),
    Group("rates", "gemms", rates.gemms, 150),
    Group("questions", "nvml_process", questions.nvml_process, 60),
    Group("questions", "context_drift", questions.context_drift, 120),
    Group("questions", "nccl_library", questions.nccl_library, 60),
    Group("questions", "gemm_bit_equality", questions.bit_equality, 90),
    Group("questions", "nccl_hostid", questions.two_ranks, 90, "nccl_hostid"),
    Group("questions", "nccl_multi_rank_switch", questions.two_ranks, 90, "nccl_multi_rank_switch"),
    Group("questions", "profiler", questions.profiler, 90),
    Group("questions", "cupti_memory", questions.cupti_memory, 60, gpu_only=True),
    Group("questions", "mapping_granularity", questions.mapping_granularity, 30, gpu_only=True),
)
