// No test asks the network but the hub's own, which has a server on the loopback.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  ::setenv("HF_HUB_OFFLINE", "1", 1);
  return doctest::Context(argc, argv).run();
}
