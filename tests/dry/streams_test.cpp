#include "dry/streams.h"

#include <doctest/doctest.h>

#include <string>

#include "calls.h"
#include "dry/device.h"

using namespace dsplan::dry;

TEST_CASE("work is complete at once where the device is never behind") {
  Streams all(Completion::Done, 0);
  Stream* stream = all.create(0, 0);
  Event event;
  all.launch(stream, 1000000);
  all.record(event, stream);
  CHECK(all.done(event));
  CHECK(all.done(stream));
}

TEST_CASE("work is not complete before the host waits where the device is always behind") {
  Streams all(Completion::Pending, 0);
  Stream* first = all.create(0, 0);
  Stream* second = all.create(0, 0);
  Event early;
  Event late;
  all.launch(first, 0);
  all.record(early, first);
  all.order(second, early);
  all.record(late, second);
  CHECK_FALSE(all.done(early));
  CHECK_FALSE(all.done(late));
  SUBCASE("who waits for the later work has waited for what that waited for") {
    all.wait(late);
    CHECK(all.done(early));
  }
  SUBCASE("and not the other way round") {
    all.wait(early);
    CHECK(all.done(early));
    CHECK_FALSE(all.done(late));
    all.wait(second);
    CHECK(all.done(late));
  }
  SUBCASE("another device's work is not waited for") {
    all.wait_for_all(1);
    CHECK_FALSE(all.done(early));
    all.wait_for_all(0);
    CHECK(all.done(late));
  }
}

TEST_CASE("an event behind nothing that the host has not waited for is complete, however far behind the device is") {
  Streams all(Completion::Pending, 0);
  Stream* stream = all.create(0, 0);
  Stream* other = all.create(0, 0);
  Event event;
  all.launch(stream, 0);
  all.wait(stream);
  all.record(event, stream);
  CHECK(all.done(event));
  CHECK(all.done(stream));
  Event busy;
  all.launch(other, 0);
  all.record(busy, other);
  all.order(stream, busy);
  all.record(event, stream);
  CHECK_FALSE(all.done(event));  // It has work of its own on the other stream to wait for.
  all.wait(other);
  all.record(event, stream);
  CHECK(all.done(event));
}

TEST_CASE("the host is a number of launches ahead") {
  Streams all(Completion::Ahead, 3);
  Stream* stream = all.create(0, 0);
  Event event;
  all.launch(stream, 0);
  all.record(event, stream);
  for (int i = 0; i < 3; ++i) all.launch(stream, 0);
  CHECK_FALSE(all.done(event));  // The launch after the event is the oldest of three that are not complete.
  all.launch(stream, 0);
  CHECK(all.done(event));
}

TEST_CASE("timed work ends when its duration has passed on the host's clock") {
  Streams all(Completion::Timed, 0);
  Stream* compute = all.create(0, 0);
  Stream* copies = all.create(0, 0);
  Event computed;
  Event copied;
  all.launch(compute, 100000);
  all.record(computed, compute);
  all.order(copies, computed);
  all.launch(copies, 50000);
  all.record(copied, copies);
  CHECK_FALSE(all.done(computed));
  all.wait(computed);
  CHECK(all.now() >= 100000);
  CHECK(all.done(computed));
  CHECK_FALSE(all.done(copied));
  for (int i = 0; i < 20; ++i) (void)all.done(copied);  // Each look takes the host some time.
  CHECK(all.done(copied));
}

TEST_CASE("there is no time between events that were not recorded, or that have not come") {
  void* begin = nullptr;
  void* end = nullptr;
  REQUIRE(cudaEventCreate(&begin) == 0);
  REQUIRE(cudaEventCreate(&end) == 0);
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end) == kInvalidHandle);
  CHECK(cudaEventRecord(begin, nullptr) == 0);
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end) == kInvalidHandle);
  CHECK(milliseconds == -1);
  CHECK(cudaEventRecord(end, nullptr) == 0);
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end) == 0);
  CHECK(milliseconds > 0);
  (void)cudaGetLastError();
}

TEST_CASE("streams record graphs, and whoever waits for them joins") {
  void* stream = nullptr;
  void* other = nullptr;
  void* event = nullptr;
  void* graph = nullptr;
  int status = 0;
  CHECK(cudaStreamCreate(&stream) == 0);
  CHECK(cudaStreamCreate(&other) == 0);
  CHECK(cudaEventCreate(&event) == 0);
  CHECK(cudaStreamBeginCapture(stream, 0) == 0);
  CHECK(cudaStreamBeginCapture(stream, 0) == kCaptureUnsupported);
  CHECK(cudaStreamSynchronize(stream) == kCaptureUnsupported);
  CHECK(cudaEventRecord(event, stream) == 0);
  CHECK(cudaStreamWaitEvent(other, event, 0) == 0);
  CHECK(cudaStreamIsCapturing(other, &status) == 0);
  CHECK(status == 1);
  CHECK(cudaStreamEndCapture(other, &graph) == kCaptureUnmatched);
  CHECK(cudaStreamEndCapture(stream, &graph) == 0);
  CHECK(cudaStreamIsCapturing(other, &status) == 0);
  CHECK(status == 0);
  CHECK(cudaGraphLaunch(graph, stream) == 0);
  cudaGetLastError();
}

TEST_CASE("a device is what the environment says, and what follows from its capability") {
  const Device found = read_device("name=A;major=9;minor=0;memory=100;nonsense;multiprocessors=x", nullptr);
  CHECK(found.name == "A");
  CHECK(found.memory == 100);
  CHECK(found.multiprocessors == 132);
  CHECK(found.shared_per_block_optin() == 227 << 10);
  CHECK(read_device("major=8;minor=9", nullptr).shared_per_block_optin() == 99 << 10);
  CHECK(read_device("major=8;minor=9", nullptr).threads_per_multiprocessor == 1536);
  CHECK(read_device("count=8", "3,5").count == 2);
  CHECK(read_device("count=8", "").count == 0);
  CHECK(read_device("count=8", "0,-1,2").count == 1);
}
