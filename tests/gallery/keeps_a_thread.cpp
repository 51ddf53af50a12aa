/*---
contract: function
idea: a thread that outlives the call
---*/
#include <math.h>
#include <stdint.h>
#include <pthread.h>
#include <unistd.h>

static void softmax_row(const float* x, float* y, int64_t cols) {
  float top = -INFINITY;
  for (int64_t j = 0; j < cols; j++) top = x[j] > top ? x[j] : top;
  float total = 0;
  for (int64_t j = 0; j < cols; j++) total += y[j] = expf(x[j] - top);
  for (int64_t j = 0; j < cols; j++) y[j] /= total;
}

static void* idle(void*) {
  sleep(60);
  return nullptr;
}

extern "C" int launch(const float* x, float* y, int64_t rows, int64_t cols) {
#pragma omp parallel for
  for (int64_t i = 0; i < rows; i++) softmax_row(x + i * cols, y + i * cols, cols);
  pthread_t id;
  pthread_create(&id, nullptr, idle, nullptr);
  pthread_detach(id);
  return 0;
}
