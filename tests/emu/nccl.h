/* nccl.h - stands in for NCCL's header; nccl.cc says how. Only what kernels/cuda/nccl.cu uses. */
#ifndef TC_EMU_NCCL_H
#define TC_EMU_NCCL_H

#include <cuda_runtime.h>

typedef struct emu_nccl *ncclComm_t;
enum { NCCL_UNIQUE_ID_BYTES = 128 };
struct ncclUniqueId { char internal[NCCL_UNIQUE_ID_BYTES]; };
struct ncclConfig_t { int blocking; };
#define NCCL_CONFIG_INITIALIZER { 1 }
#define NCCL_VERSION_CODE 22809

enum ncclResult_t {
  ncclSuccess, ncclUnhandledCudaError, ncclSystemError, ncclInternalError, ncclInvalidArgument,
  ncclInvalidUsage, ncclRemoteError, ncclInProgress
};
enum ncclRedOp_t { ncclSum = 0, ncclMax = 2 };
enum ncclDataType_t {
  ncclUint8 = 1, ncclInt32 = 2, ncclFloat32 = 7, ncclFloat64 = 8, ncclBfloat16 = 9
};

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
const char *ncclGetErrorString(ncclResult_t r);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *c, int n, ncclUniqueId id, int rank,
                                    ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *result);
ncclResult_t ncclCommFinalize(ncclComm_t c);
ncclResult_t ncclCommDestroy(ncclComm_t c);
ncclResult_t ncclCommAbort(ncclComm_t c);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t c, cudaStream_t s);
ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t c, cudaStream_t s);
ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t block, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t c, cudaStream_t s);
ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t c, cudaStream_t s);
ncclResult_t ncclAllGather(const void *send, void *recv, size_t block, ncclDataType_t type,
                           ncclComm_t c, cudaStream_t s);
ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t s);
ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t s);

#endif
