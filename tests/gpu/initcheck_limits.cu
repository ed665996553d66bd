// compute-sanitizer's initcheck does not see bulk copies to global memory: it reports every word that `get` reads. The program is
// correct. On an H200 with CUDA 13.0: 248 reports.
#include <cstdio>
__global__ void put(float* out) {
  __shared__ alignas(128) float v[256];
  v[threadIdx.x] = threadIdx.x;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned from = (unsigned)__cvta_generic_to_shared(v);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;" :: "l"(out), "r"(from) : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}
__global__ void get(const float* in, float* out) { out[threadIdx.x] = in[threadIdx.x] + 1; }
int main() {
  float *a, *b, x[256];
  cudaMalloc(&a, 1024); cudaMalloc(&b, 1024);
  put<<<1, 256>>>(a); get<<<1, 256>>>(a, b);
  cudaMemcpy(x, b, 1024, cudaMemcpyDeviceToHost);
  printf("%g %s\n", x[255], cudaGetErrorString(cudaDeviceSynchronize()));
}
