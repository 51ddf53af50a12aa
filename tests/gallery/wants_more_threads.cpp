/*---
contract: function
idea: asks for more threads than it is given
---*/
#include <math.h>
#include <stdint.h>

static void softmax_row(const float* x, float* y, int64_t cols) {
  float top = -INFINITY;
  for (int64_t j = 0; j < cols; j++) top = x[j] > top ? x[j] : top;
  float total = 0;
  for (int64_t j = 0; j < cols; j++) total += y[j] = expf(x[j] - top);
  for (int64_t j = 0; j < cols; j++) y[j] /= total;
}

extern "C" int launch(const float* x, float* y, int64_t rows, int64_t cols) {
#pragma omp parallel for num_threads(16)
  for (int64_t i = 0; i < rows; i++) softmax_row(x + i * cols, y + i * cols, cols);
  return 0;
}
