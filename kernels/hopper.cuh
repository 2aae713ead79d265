// Instructions as small inline functions, Hopper's own and others: barriers, copies, clusters, numbers, products of a warpgroup.
//
// No header of a CUDA toolkit is needed. Facts: PTX ISA 9.0, sections mbarrier, cp.async.bulk, wgmma, setmaxnreg, barrier.cluster.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__  // of a structure

DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// ---- transaction barriers in shared memory (8 bytes, 8-byte aligned) -------------------------------------------------------
DEVICE void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// after barrier_init and before anybody else uses the barriers (then __syncthreads or a cluster barrier)
DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
DEVICE bool barrier_try(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  return done != 0;
}
// waits until the phase with this parity (0 first, then alternating) is complete
DEVICE void barrier_wait(u32 barrier, u32 parity) {
  while (!barrier_try(barrier, parity)) {
  }
}

// ---- bulk copies: addresses and sizes are multiples of 16 bytes --------------------------------------------------------------
DEVICE void bulk_load(u32 to_shared, const void* from_global, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to_shared),
               "l"(from_global), "r"(bytes), "r"(barrier) : "memory");
}
// the same for bytes that are read once: they leave the second-level cache first
DEVICE void bulk_load_once(u32 to_shared, const void* from_global, u32 bytes, u32 barrier) {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to_shared),
      "l"(from_global), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}
// bytes to the second-level cache, for a load that comes soon
DEVICE void bulk_prefetch(const void* from_global, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from_global), "r"(bytes) : "memory");
}
DEVICE void bulk_store(void* to_global, u32 from_shared, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to_global), "r"(from_shared), "r"(bytes) : "memory");
}
DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int PENDING> DEVICE void bulk_wait() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory"); }

// 16 bytes a thread, zero-filled where `bytes` is 0; completion by groups, or as an arrival on an mbarrier
DEVICE void async_copy16(u32 to_shared, const void* from_global, u32 bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from_global), "r"(bytes) : "memory");
}
DEVICE void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> DEVICE void async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }
DEVICE void async_arrive(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// ---- 16 bytes of shared memory a thread ---------------------------------------------------------------------------------------
DEVICE uint4 load_shared16(u32 address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}
DEVICE void store_shared16(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// ---- ordering ------------------------------------------------------------------------------------------------------------------
// ordinary stores to shared memory before this are seen by wgmma and bulk copies issued after the barrier that follows
DEVICE void fence_shared_for_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// `threads` is a multiple of 32; id 0 is __syncthreads
DEVICE void named_sync(u32 id, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
template <int COUNT> DEVICE void registers_more() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> DEVICE void registers_less() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
DEVICE u32 load_acquire(const u32* address) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
DEVICE u32 add_acq_rel(u32* address, u32 value) {
  u32 old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(address), "r"(value) : "memory");
  return old;
}

// ---- clusters ------------------------------------------------------------------------------------------------------------------
DEVICE u32 cluster_rank() { u32 rank; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank)); return rank; }
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// orders nothing: only that the others have come this far
DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// the address of another block's shared memory
DEVICE u32 cluster_address(u32 shared, u32 rank) {
  u32 address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}
DEVICE u32 cluster_load(u32 address) {
  u32 value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
DEVICE uint4 cluster_load16(u32 address) {
  uint4 v;
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address) : "memory");
  return v;
}
DEVICE u64 cluster_load8(u32 address) {
  u64 value;
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(value) : "r"(address) : "memory");
  return value;
}
DEVICE void cluster_store(u32 address, u32 value) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
DEVICE void cluster_store8(u32 address, u64 value) {
  asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(address), "l"(value) : "memory");
}

// ---- numbers -------------------------------------------------------------------------------------------------------------------
#define INFINITY_F __uint_as_float(0x7f800000)
constexpr float LOG2_E = 1.4426950408889634f;
// within 2^-22 of itself; 0 below 2^-126
DEVICE float power_of_two(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
// unlike fminf and fmaxf these keep NaN
DEVICE float min_or_nan(float x, float y) {
  float least;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(x), "f"(y));
  return least;
}
DEVICE float max_or_nan(float x, float y) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(x), "f"(y));
  return most;
}
// two floats as bf16, round to nearest even; `low` in the low half
DEVICE u32 bf16x2(float low, float high) {
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
DEVICE float bf16_low(u32 packed) { return __uint_as_float(packed << 16); }
DEVICE float bf16_high(u32 packed) { return __uint_as_float(packed & 0xffff0000u); }
DEVICE u32 mul_bf16x2(u32 a, u32 b) {
  u32 product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
// 2^exponent as bf16 in both halves, for exponents from -126 to 127
DEVICE u32 power_bf16x2(int exponent) { return (u32)(exponent + 127) * 0x00800080u; }

// ---- matrix products of a warpgroup: see hopper_wgmma.cuh for Wgmma<N> -------------------------------------------------------------
// before the first product that reads registers or accumulators written by ordinary instructions
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// after a wait: accumulators are not read before it, nor copied between products, which would make these wait for each other
template <int N> DEVICE void settle(float (&numbers)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(numbers[i]));
}
template <int N> DEVICE void settle(int (&numbers)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+r"(numbers[i]));
}
template <int PENDING> DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

// Descriptors of a bf16 operand in shared memory with 128-byte swizzle; the tile begins at a multiple of 1024 bytes.
// Swizzle: within every 1024 bytes (8 lines of 128), 16-byte piece c of line r lies at piece c ^ (r % 8).
//   K-major: a line is 64 consecutive k of one row (m or n); 8 rows a kilobyte; `stride_bytes` from one group of 8 rows to the
//   next (1024 where they follow each other). The next 16 k inside the line: add 32 bytes to `address`.
//   MN-major (transposed): a line is 64 consecutive m or n of one k; 8 k a kilobyte; `stride_bytes` between groups of 8 k,
//   `leading_bytes` between groups of 64 m or n. The next 16 k: two groups further.
DEVICE u64 wgmma_descriptor(u32 address, u32 stride_bytes, u32 leading_bytes = 16) {
  return (u64)((address & 0x3ffff) >> 4) | (u64)(leading_bytes >> 4) << 16 | (u64)(stride_bytes >> 4) << 32 | (u64)1 << 62;
}
DEVICE u32 swizzle128(u32 offset) { return offset ^ ((offset >> 3) & 0x70); }
