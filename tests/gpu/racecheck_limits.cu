#include <cstdio>
// Two warpgroups pass values with bar.sync / bar.arrive. Correct: each write is followed by bar.arrive, each read preceded by bar.sync.
__global__ void pass(float* out, int turns) {
  __shared__ float v[128];
  int wg = threadIdx.x / 128, t = threadIdx.x % 128;
  float x = t;
  for (int n = wg; n < turns; n += 2) {
    if (n > 0) { asm volatile("bar.sync %0, 256;" :: "r"(1 + wg) : "memory"); x += v[t]; }
    v[t] = x;
    if (n + 1 < turns) asm volatile("bar.arrive %0, 256;" :: "r"(2 - wg) : "memory");
  }
  __syncthreads();
  if (wg == 0) out[t] = v[t];
}
__device__ inline unsigned sa(void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ inline void mwait(unsigned b, unsigned par) {
  asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra L; }" :: "r"(b), "r"(par) : "memory");
}
__device__ inline void marrive(unsigned b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(b) : "memory"); }
// warp 0 writes a word, warp 1 reads it in all lanes and passes the stage to warp 2, warp 2 gives it back to warp 0.
__global__ void chain(int* out, int rounds) {
  __shared__ unsigned long long bars[3]; __shared__ int word;
  int w = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) { for (int i = 0; i < 3; i++) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(sa(&bars[i]))); word = 0; }
  __syncthreads();
  int sum = 0;
  for (int n = 0; n < rounds; n++) {
    unsigned par = n & 1;
    if (w == 0 && lane == 0) { if (n) mwait(sa(&bars[2]), par ^ 1); word = n; marrive(sa(&bars[0])); }
    if (w == 1) { mwait(sa(&bars[0]), par); sum += *(volatile int*)&word; __syncwarp(); if (lane == 0) marrive(sa(&bars[1])); }
    if (w == 2 && lane == 0) { mwait(sa(&bars[1]), par); marrive(sa(&bars[2])); }
    __syncwarp();
  }
  if (w == 1) out[lane] = sum;
}
int main() {
  float* a; int* b; cudaMalloc(&a, 4096); cudaMalloc(&b, 4096);
  pass<<<1, 256>>>(a, 7); printf("pass %s\n", cudaGetErrorString(cudaDeviceSynchronize()));
  chain<<<1, 96>>>(b, 6); printf("chain %s\n", cudaGetErrorString(cudaDeviceSynchronize()));
}
