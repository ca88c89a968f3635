/* The boundary between the runner and whatever executes: a versioned C table of functions, so that the backend of a
 * device can be a library that is loaded at run time. Everything on this side of it is plain data; no exception, no C++
 * type and no ownership crosses it.
 *
 * One `dsplan_device` belongs to one rank and is used by one thread at a time. Several may be open at once, also on one
 * GPU (virtual ranks): memory and events of one may then be named in calls on another, as far as each function says.
 * Byte counts and offsets are int64 and not negative; times are nanoseconds. Whatever returns `dsplan_status` says more
 * in `last_error`; what it was to make is then not there, and nothing has to be given back. */
#ifndef DSPLAN_EXEC_BACKEND_H
#define DSPLAN_EXEC_BACKEND_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever a struct or a function below changes, or what an operator's kernels are given. A runner refuses any
 * other version. */
#define DSPLAN_BACKEND_VERSION 4
#define DSPLAN_MOST_DIMS 8
/* What a library exports, by this name: const dsplan_backend* dsplan_backend_table(void). */
#define DSPLAN_BACKEND_SYMBOL "dsplan_backend_table"

typedef int32_t dsplan_status;
enum {
  DSPLAN_OK = 0,
  DSPLAN_OUT_OF_MEMORY = 1, /* Of the space that was asked. An allocator may give back what it cached, and try again. */
  DSPLAN_INVALID = 2,       /* The caller broke a rule stated here. */
  DSPLAN_UNSUPPORTED = 3,   /* This backend does not do that. */
  DSPLAN_IO = 4,            /* A file could not be made, written or read; a full disk too. */
  DSPLAN_DEVICE = 5,        /* The device or its driver failed; the device is lost. */
  DSPLAN_UNAVAILABLE = 6,   /* There is no such device, driver or library here. */
  DSPLAN_ABORTED = 7,       /* Broken off because another rank failed. */
  DSPLAN_TIMEOUT = 8        /* Another rank did not come. */
};

/* Where memory lies. Pinned: the device may read and write it at its own speed. */
typedef int32_t dsplan_space;
enum { DSPLAN_SPACE_DEVICE = 0, DSPLAN_SPACE_PINNED = 1, DSPLAN_SPACE_PAGEABLE = 2 };

/* How pieces become one. */
typedef int32_t dsplan_reduction;
enum { DSPLAN_SUM = 0, DSPLAN_MAX = 1 };

typedef struct dsplan_device dsplan_device;
typedef struct dsplan_stream dsplan_stream;
typedef struct dsplan_event dsplan_event;
typedef struct dsplan_file dsplan_file;
typedef struct dsplan_communicator dsplan_communicator;

/* A strided tensor. `dtype` numbers core's DType; dims and strides are in elements, outermost first. */
typedef struct dsplan_tensor {
  void* data; /* Its first element. */
  int32_t dtype;
  int32_t rank;
  int64_t dims[DSPLAN_MOST_DIMS];
  int64_t strides[DSPLAN_MOST_DIMS];
} dsplan_tensor;

/* Random numbers do not depend on ranks, call order or recomputation: element e of sample s draws from the counter
 * (s, e) under `key`, which the runner makes from seed, step, layer and operator. */
typedef struct dsplan_random {
  uint64_t key;
  int64_t first_sample; /* Of this rank and micro-batch, among all samples of the optimizer step. */
  int64_t samples;      /* That the tensor is cut into along its first dimension. */
} dsplan_random;

/* One kernel. `body` numbers core's Body; for graph nodes `op` numbers core's Op and `part` the kernel among those of
 * the operator. What `inputs`, `made` and the numbers are is stated beside each operator (exec/operators/operators.h).
 */
typedef struct dsplan_launch {
  uint32_t size; /* sizeof(dsplan_launch). */
  uint32_t body;
  uint32_t op;
  uint32_t part;
  const dsplan_tensor* inputs; /* data == NULL: that input is not there. */
  uint32_t input_count;
  const dsplan_tensor* made; /* Likewise. */
  uint32_t made_count;
  const int64_t* integers;
  uint32_t integer_count;
  const double* numbers;
  uint32_t number_count;
  dsplan_random random;
  void* workspace;         /* Device memory that libraries may use while this kernel runs; NULL: none. */
  int64_t workspace_bytes; /* At least what `workspace` answered. */
} dsplan_launch;

typedef struct dsplan_open {
  uint32_t size;         /* sizeof(dsplan_open). */
  int32_t ordinal;       /* Of the device among those of its kind; 0 on a host. */
  int32_t rank;          /* Of the rank that opens it, for messages and file names. */
  const char* directory; /* Where files are made; it must exist. NULL: none can be made. */
} dsplan_open;

enum {
  DSPLAN_HOST_READABLE = 1, /* The host may read and write device memory through its pointers. */
  DSPLAN_SYNCHRONOUS = 2,   /* Every call has done its work when it returns. */
  DSPLAN_NO_NUMBERS = 4     /* A stand-in: work is enqueued and nothing computes. Numbers and times mean nothing. */
};
typedef struct dsplan_device_info {
  uint32_t size;        /* sizeof(dsplan_device_info), set by the caller. */
  uint32_t flags;       /* DSPLAN_HOST_READABLE, ... */
  char name[96];        /* "NVIDIA H200"; ends with a zero. */
  int64_t memory_bytes; /* All that the device has. */
  int64_t granularity;  /* Offsets and sizes of `map` are multiples of it; 2 MiB is one of its multiples. */
  int64_t alignment;    /* Of what `allocate` returns, at least; 512 or more in device memory. */
  int32_t driver;       /* Versions as the driver numbers them; 0: there is none. */
  int32_t runtime;
} dsplan_device_info;

/* What the machine itself counts, to stand beside our own counts. -1: not known here. */
typedef struct dsplan_usage {
  uint32_t size;         /* sizeof(dsplan_usage), set by the caller. */
  int64_t device_free;   /* Of all of the device, whoever uses it. */
  int64_t device_total;  /* Likewise. */
  int64_t process_bytes; /* Of this process on the device; on a host its resident set. */
} dsplan_usage;

/* One call of a collective, for backends that have their own transport. As in exec/transport/transport.h. */
typedef struct dsplan_collective {
  uint32_t size;     /* sizeof(dsplan_collective). */
  int32_t kind;      /* Numbers core's Collective. */
  int32_t dtype;     /* Numbers core's DType. */
  int32_t reduction; /* dsplan_reduction. */
  int64_t elements;  /* Of the full logical buffer. */
  const void* input;
  void* output;
  int32_t root; /* Broadcast and reduce. */
  int32_t to;   /* SendRecv; -1: nobody. */
  int32_t from; /* Likewise. */
} dsplan_collective;

#define DSPLAN_COMMUNICATOR_ID_BYTES 128
/* A group of ranks as one of them joins it. */
typedef struct dsplan_group {
  uint32_t size;       /* sizeof(dsplan_group). */
  int32_t rank;        /* Within the group. */
  int32_t ranks;       /* Of the group. */
  int32_t most_blocks; /* Of a GPU that one call may occupy, and with them the library's channels; 0: as it likes. */
  int64_t timeout;     /* Nanoseconds that a rank waits for another, in a call or for its work: DSPLAN_TIMEOUT. */
  const volatile int32_t* give_up; /* Looked at while others are waited for; not 0: DSPLAN_ABORTED. */
} dsplan_group;

/* Device memory is contiguous, and pointers into it may be offset by the caller (on a device too). Streams run in
 * parallel to each other and in order within; NULL stands for the device's own first stream. "Enqueues" means that the
 * work happens in the order of the stream, at the latest when it is synchronised with, and that failures may show only
 * then. A backend whose `flags` say so does everything at once. */
typedef struct dsplan_backend {
  uint32_t version; /* DSPLAN_BACKEND_VERSION. */
  uint32_t size;    /* sizeof(dsplan_backend). */
  const char* name; /* "host", "cuda". */
  void* state;      /* The backend's own; nobody else looks at it. */

  /* Opening. `close` ends what is still open on the device; a NULL device is let pass. */
  dsplan_status (*open)(const struct dsplan_backend* self, const dsplan_open* how, dsplan_device** device);
  void (*close)(dsplan_device* device);
  /* How many devices of this kind the process sees. */
  dsplan_status (*devices)(const struct dsplan_backend* self, int32_t* count);
  /* Text of the last failure on the device; with NULL, of the last call without one that failed in this thread. Never
   * NULL; valid until the next call on the device. */
  const char* (*last_error)(const struct dsplan_backend* self, const dsplan_device* device);
  dsplan_status (*info)(dsplan_device* device, dsplan_device_info* info);
  dsplan_status (*usage)(dsplan_device* device, dsplan_usage* usage);

  /* Raw memory; bytes > 0. `release` names the same space and bytes. What is released must no longer be in use by any
   * stream. Other devices of this backend may name device memory and host memory in copies, collectives and `combine`.
   */
  dsplan_status (*allocate)(dsplan_device* device, dsplan_space space, int64_t bytes, void** memory);
  dsplan_status (*release)(dsplan_device* device, dsplan_space space, void* memory, int64_t bytes);
  /* A range of addresses without memory; pages are mapped into it, all or nothing, and unmapped. Only what is mapped
   * may be touched. `unreserve` wants everything unmapped before. */
  dsplan_status (*reserve)(dsplan_device* device, int64_t bytes, void** range);
  dsplan_status (*unreserve)(dsplan_device* device, void* range, int64_t bytes);
  dsplan_status (*map)(dsplan_device* device, void* range, int64_t offset, int64_t bytes);
  dsplan_status (*unmap)(dsplan_device* device, void* range, int64_t offset, int64_t bytes);

  /* Files of `bytes` bytes, all of them taken from the disk at once; `name` is relative to the directory of `open`, and
   * there must be no such file yet. The memory is the host's, pinned or pageable; reads and writes have happened when
   * the call returns. `file_remove` closes and deletes. */
  dsplan_status (*file_create)(dsplan_device* device, const char* name, int64_t bytes, dsplan_file** file);
  dsplan_status (*file_write)(dsplan_device* device, dsplan_file* file, int64_t offset, const void* from,
                              int64_t bytes);
  dsplan_status (*file_read)(dsplan_device* device, dsplan_file* file, int64_t offset, void* to, int64_t bytes);
  dsplan_status (*file_remove)(dsplan_device* device, dsplan_file* file);

  /* Enqueue. The ranges of a copy may be the same, and must not overlap otherwise. */
  dsplan_status (*copy)(dsplan_device* device, void* to, dsplan_space to_space, const void* from,
                        dsplan_space from_space, int64_t bytes, dsplan_stream* stream);
  dsplan_status (*fill)(dsplan_device* device, void* memory, dsplan_space space, uint8_t value, int64_t bytes,
                        dsplan_stream* stream);
  /* target[e] = pieces[0][e] + pieces[1][e] + ..., in that order, or their maximum. 16-bit floats add up in fp32, fp32
   * and fp64 in fp64, integers wrap around; one rounding at the end. A maximum is NaN where a piece is. `target` may be
   * one of the pieces. Pieces may lie in memory of other devices of this backend. */
  dsplan_status (*combine)(dsplan_device* device, dsplan_reduction how, int32_t dtype, void* target,
                           const void* const* pieces, uint32_t piece_count, int64_t elements, dsplan_stream* stream);

  dsplan_status (*stream_create)(dsplan_device* device, dsplan_stream** stream);
  dsplan_status (*stream_destroy)(dsplan_device* device, dsplan_stream* stream);
  dsplan_status (*stream_synchronize)(dsplan_device* device, dsplan_stream* stream);
  /* `event_wait`: what is enqueued on the stream from now on waits for the last record of the event, which may be one
   * of another device of this backend, recorded by its thread before. An event that was never recorded holds nobody up.
   */
  dsplan_status (*event_create)(dsplan_device* device, dsplan_event** event);
  dsplan_status (*event_destroy)(dsplan_device* device, dsplan_event* event);
  dsplan_status (*event_record)(dsplan_device* device, dsplan_event* event, dsplan_stream* stream);
  dsplan_status (*event_wait)(dsplan_device* device, dsplan_stream* stream, dsplan_event* event);
  dsplan_status (*event_synchronize)(dsplan_device* device, dsplan_event* event);
  dsplan_status (*event_query)(dsplan_device* device, dsplan_event* event, int32_t* done);
  /* Both recorded and done. */
  dsplan_status (*event_elapsed)(dsplan_device* device, dsplan_event* start, dsplan_event* end, int64_t* nanoseconds);

  /* Enqueues; the struct and its arrays may go when the call returns, tensors may not. `workspace`: how many bytes of
   * device memory the libraries want beside what the operator makes (`workspace` and data pointers are not looked at).
   */
  dsplan_status (*launch)(dsplan_device* device, const dsplan_launch* what, dsplan_stream* stream);
  dsplan_status (*workspace)(dsplan_device* device, const dsplan_launch* what, int64_t* bytes);

  /* Communicators between devices of several processes, of a library of the backend's own (NCCL). All NULL where there
   * is none: then ranks that share an address space use `copy` and `combine` (exec/transport/transport.h).
   * `comm_library` says which library it is, in `bytes` bytes with a zero at the end ("NCCL 2.28.9"), or
   * DSPLAN_UNAVAILABLE where it is not there. `comm_id` is called by one rank, its answer (DSPLAN_COMMUNICATOR_ID_BYTES
   * bytes) given to all of the group; `comm_create` returns when all have called it. Neither of the first two needs a
   * device.
   *
   * `comm_run` enqueues. While a device has communicators, `stream_synchronize` and `event_synchronize` wait no longer
   * than their timeout, and return DSPLAN_ABORTED after `comm_abort`, which any thread may call. `comm_destroy` also
   * takes what was aborted. `comm_memory`: what the library says that it has taken on the device for it, or -1. */
  dsplan_status (*comm_library)(const struct dsplan_backend* self, char* text, uint32_t bytes);
  dsplan_status (*comm_id)(const struct dsplan_backend* self, void* id);
  dsplan_status (*comm_create)(dsplan_device* device, const void* id, const dsplan_group* group,
                               dsplan_communicator** communicator);
  dsplan_status (*comm_destroy)(dsplan_device* device, dsplan_communicator* communicator);
  dsplan_status (*comm_abort)(dsplan_communicator* communicator);
  dsplan_status (*comm_run)(dsplan_device* device, dsplan_communicator* communicator, const dsplan_collective* call,
                            dsplan_stream* stream);
  dsplan_status (*comm_memory)(dsplan_device* device, dsplan_communicator* communicator, int64_t* bytes);
} dsplan_backend;

#ifdef __cplusplus
}
#endif

#endif
