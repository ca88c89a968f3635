/* The boundary between the runner and whatever executes: a versioned C table of functions, so that the backend of a
 * device can be a library that is loaded at run time. Everything on this side of it is plain data; no exception, no C++
 * type and no ownership crosses it. One `dsplan_device` belongs to one rank and is used by one thread at a time. */
#ifndef DSPLAN_EXEC_BACKEND_H
#define DSPLAN_EXEC_BACKEND_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever a struct or a function below changes. A runner refuses any other version. */
#define DSPLAN_BACKEND_VERSION 1
#define DSPLAN_MOST_DIMS 8

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
 * the operator. What `inputs`, `made` and the numbers are is stated beside each operator (exec/operators.h). */
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
} dsplan_launch;

#ifdef __cplusplus
}
#endif

#endif
