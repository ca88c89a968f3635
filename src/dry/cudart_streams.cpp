// The CUDA runtime: streams, events, and graphs, which record nothing and launch nothing.
#include "dry/capture.h"
#include "dry/cudart.h"
#include "dry/kernels.h"
#include "dry/ledger.h"

using namespace dsplan::dry;

namespace {

Event* event_of(void* handle) { return static_cast<Event*>(handle); }

}  // namespace

DSPLAN_DRY_CALL Result cudaStreamCreateWithPriority(void** stream, unsigned, int priority) {
  *stream = streams().create(current_device(), priority);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaStreamCreateWithFlags(void** stream, unsigned) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}
DSPLAN_DRY_CALL Result cudaStreamCreate(void** stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
DSPLAN_DRY_CALL Result cudaStreamDestroy(void*) { return kSuccess; }
DSPLAN_DRY_CALL Result cudaStreamGetPriority(void* stream, int* priority) {
  *priority = stream_of(stream)->priority;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaStreamGetFlags(void*, unsigned* flags) {
  *flags = 1;  // Non-blocking.
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaStreamGetDevice(void* stream, int* ordinal) {
  *ordinal = stream_of(stream)->device;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaStreamGetId(void* stream, unsigned long long* id) {
  *id = stream_of(stream)->id;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaStreamQuery(void* stream) {
  return streams().done(stream_of(stream)) ? kSuccess : say(kNotReady);
}
DSPLAN_DRY_CALL Result cudaStreamSynchronize(void* stream) {
  if (captures().of(stream_of(stream)) != nullptr) return say(kCaptureUnsupported);
  streams().wait(stream_of(stream));
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaStreamWaitEvent(void* stream, void* event, unsigned) {
  captures().join(stream_of(stream), *event_of(event));
  streams().order(stream_of(stream), *event_of(event));
  return kSuccess;
}
// Work that is issued is complete for the host's own functions, whatever DSPLAN_DRY_EVENTS says.
DSPLAN_DRY_CALL Result cudaStreamAddCallback(void* stream, void (*call)(void*, Result, void*), void* user, unsigned) {
  call(stream, kSuccess, user);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaLaunchHostFunc(void*, void (*call)(void*), void* user) {
  call(user);
  return kSuccess;
}

DSPLAN_DRY_CALL Result cudaEventCreateWithFlags(void** event, unsigned) {
  *event = new Event;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaEventCreate(void** event) { return cudaEventCreateWithFlags(event, 0); }
DSPLAN_DRY_CALL Result cudaEventDestroy(void* event) {
  delete event_of(event);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaEventRecord(void* event, void* stream) {
  streams().record(*event_of(event), stream_of(stream));
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaEventRecordWithFlags(void* event, void* stream, unsigned) {
  return cudaEventRecord(event, stream);
}
DSPLAN_DRY_CALL Result cudaEventQuery(void* event) {
  return streams().done(*event_of(event)) ? kSuccess : say(kNotReady);
}
DSPLAN_DRY_CALL Result cudaEventSynchronize(void* event) {
  streams().wait(*event_of(event));
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaEventElapsedTime(float* milliseconds, void* from, void* to) {
  for (const void* each : {from, to}) {
    const auto& event = *static_cast<const Event*>(each);
    if (event.on == nullptr) return say(kInvalidHandle);  // Never recorded.
    if (!streams().done(event)) return say(kNotReady);
  }
  DSPLAN_DRY_GUESS("cudaEventElapsedTime", "estimated durations, or one millisecond");
  const Nanoseconds first = event_of(from)->recorded;
  const Nanoseconds last = event_of(to)->recorded;
  *milliseconds = last > first ? static_cast<float>(last - first) / 1e6F : 1.0F;
  return kSuccess;
}
#if DSPLAN_DRY_CUDA == 12
DSPLAN_DRY_CALL Result cudaEventElapsedTime_v2(float* milliseconds, void* from, void* to) {
  return cudaEventElapsedTime(milliseconds, from, to);
}
#endif

// ---- graphs

DSPLAN_DRY_CALL Result cudaStreamBeginCapture(void* stream, int) {
  return captures().begin(stream_of(stream)) ? kSuccess : say(kCaptureUnsupported);
}
DSPLAN_DRY_CALL Result cudaStreamEndCapture(void* stream, void** graph) {
  *graph = captures().end(stream_of(stream));
  return *graph != nullptr ? kSuccess : say(kCaptureUnmatched);
}
DSPLAN_DRY_CALL Result cudaStreamIsCapturing(void* stream, int* status) {
  *status = captures().of(stream_of(stream)) != nullptr ? 1 : 0;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaThreadExchangeStreamCaptureMode(int* mode) {
  thread_local int now = 0;
  std::swap(now, *mode);
  return kSuccess;
}

namespace {

Result capture_info(void* stream, int* status, unsigned long long* id, void** graph, const void*** dependencies,
                    std::size_t* count) {
  Graph* const recorded = captures().of(stream_of(stream));
  *status = recorded != nullptr ? 1 : 0;
  if (id != nullptr) *id = recorded != nullptr ? recorded->id : 0;
  if (graph != nullptr) *graph = recorded;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (count != nullptr) *count = 0;
  return kSuccess;
}

}  // namespace

#if DSPLAN_DRY_CUDA >= 13
DSPLAN_DRY_CALL Result cudaStreamGetCaptureInfo(void* stream, int* status, unsigned long long* id, void** graph,
                                                const void*** dependencies, const void** edges, std::size_t* count) {
  if (edges != nullptr) *edges = nullptr;
  return capture_info(stream, status, id, graph, dependencies, count);
}
#else
DSPLAN_DRY_CALL Result cudaStreamGetCaptureInfo(void* stream, int* status, unsigned long long* id) {
  return capture_info(stream, status, id, nullptr, nullptr, nullptr);
}
DSPLAN_DRY_CALL Result cudaStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id, void** graph,
                                                   const void*** dependencies, std::size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, count);
}
DSPLAN_DRY_CALL Result cudaStreamGetCaptureInfo_v3(void* stream, int* status, unsigned long long* id, void** graph,
                                                   const void*** dependencies, const void** edges, std::size_t* count) {
  if (edges != nullptr) *edges = nullptr;
  return capture_info(stream, status, id, graph, dependencies, count);
}
#endif

// An executable graph is the graph itself; both are kept, as streams are.
DSPLAN_DRY_CALL Result cudaGraphInstantiate(void** executable, void* graph, unsigned long long) {
  *executable = graph;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  return cudaGraphInstantiate(executable, graph, 0);
}
DSPLAN_DRY_CALL Result cudaGraphLaunch(void*, void* stream) {
  DSPLAN_DRY_GUESS("cudaGraphLaunch", "takes as long as one small kernel");
  streams().launch(stream_of(stream), kernel_time(1));
  return kSuccess;
}
// Torch asks how many nodes a graph has and warns of an empty one.
DSPLAN_DRY_CALL Result cudaGraphGetNodes(void*, void** nodes, std::size_t* count) {
  if (nodes == nullptr) *count = 1;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaGraphDestroy(void*) { return kSuccess; }
DSPLAN_DRY_CALL Result cudaGraphExecDestroy(void*) { return kSuccess; }
