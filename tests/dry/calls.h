// The calls of CUDA and NCCL that the tests make, as a program's own headers would declare them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dry/cuda_abi.h"

using dsplan::dry::Dim3;
using dsplan::dry::FunctionAttributes;
using dsplan::dry::PointerAttributes;

extern "C" {
int cudaGetDeviceCount(int*);
int cudaSetDevice(int);
int cudaDeviceGetAttribute(int*, int, int);
int cudaMalloc(void**, std::size_t);
int cudaFree(void*);
int cudaMallocAsync(void**, std::size_t, void*);
int cudaFreeAsync(void*, void*);
int cudaDeviceGetDefaultMemPool(void**, int);
int cudaMemPoolGetAttribute(void*, int, void*);
int cudaMemPoolTrimTo(void*, std::size_t);
int cudaMemGetInfo(std::size_t*, std::size_t*);
int cudaHostAlloc(void**, std::size_t, unsigned);
int cudaFreeHost(void*);
int cudaHostRegister(void*, std::size_t, unsigned);
int cudaHostUnregister(void*);
int cudaPointerGetAttributes(PointerAttributes*, const void*);
int cudaMemcpy(void*, const void*, std::size_t, int);
int cudaMemset(void*, int, std::size_t);
int cudaGetLastError();
int cudaPeekAtLastError();
const char* cudaGetErrorString(int);
int cudaStreamCreate(void**);
int cudaStreamQuery(void*);
int cudaStreamSynchronize(void*);
int cudaStreamBeginCapture(void*, int);
int cudaStreamEndCapture(void*, void**);
int cudaStreamIsCapturing(void*, int*);
int cudaStreamWaitEvent(void*, void*, unsigned);
int cudaEventCreate(void**);
int cudaEventRecord(void*, void*);
int cudaEventQuery(void*);
int cudaEventSynchronize(void*);
int cudaEventElapsedTime(float*, void*, void*);
int cudaGraphLaunch(void*, void*);
int cudaFuncSetAttribute(const void*, int, int);
int cudaFuncGetAttributes(FunctionAttributes*, const void*);
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int*, const void*, int, std::size_t);
int cudaLaunchKernel(const void*, Dim3, Dim3, void**, std::size_t, void*);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*);
int cudaCtxResetPersistingL2Cache();  // Nobody has written it.

int cuMemAddressReserve(std::uintptr_t*, std::size_t, std::size_t, std::uintptr_t, unsigned long long);
int cuMemAddressFree(std::uintptr_t, std::size_t);
int cuMemCreate(void**, std::size_t, const void*, unsigned long long);
int cuMemMap(std::uintptr_t, std::size_t, std::size_t, void*, unsigned long long);
int cuMemUnmap(std::uintptr_t, std::size_t);
int cuMemRelease(void*);

struct NcclId {
  char bytes[128];
};
int ncclGetUniqueId(NcclId*);
int ncclCommInitRank(void**, int, NcclId, int);
int ncclCommSplit(void*, int, int, void**, void*);
int ncclCommCount(void*, int*);
int ncclCommUserRank(void*, int*);
int ncclCommDestroy(void*);
int ncclAllReduce(const void*, void*, std::size_t, int, int, void*, void*);
int ncclReduceScatter(const void*, void*, std::size_t, int, int, void*, void*);
int ncclAllGather(const void*, void*, std::size_t, int, void*, void*);
int ncclBroadcast(const void*, void*, std::size_t, int, int, void*, void*);
int ncclSend(const void*, std::size_t, int, int, void*, void*);
int ncclRecv(void*, std::size_t, int, int, void*, void*);
int ncclGroupStart();
int ncclGroupEnd();
int ncclRedOpCreatePreMulSum(int*, void*, int, int, void*);

const char* dsplan_dry_ledger();
}

constexpr std::size_t kMiB = 1 << 20;
