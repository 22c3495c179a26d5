/* emu.h - what the parts of the emulated GPU have in common: emu.cc runs kernels, runtime.cc has
 * memory, devices, streams and events, nccl.cc the collectives.
 *
 * A stream is a list of tasks, deferred: when a thread waits for the stream or an event, those
 * before it in its stream run, and what these wait for in others; nothing else does. So work that
 * was not ordered behind what it needs finds old data. One lock for everything. */
#ifndef TC_EMU_H
#define TC_EMU_H

#include "cuda_runtime.h"

#include <mutex>

std::recursive_mutex &emu_lock(void);
[[noreturn]] void emu_stop(const char *what);
cudaError_t emu_fail(cudaError_t e);             /* kept for cudaGetLastError */

/* All with the lock held. A task returns false if it can't be done yet; it is called again, always
 * first in its stream. */
void emu_push(cudaStream_t s, std::function<void()> body);
void emu_push_task(cudaStream_t s, std::function<bool()> task);
uint64_t emu_pushed(cudaStream_t s);             /* tasks so far */
bool emu_advance(cudaStream_t s, uint64_t to);   /* does tasks until `to` are done; false: can't */
void emu_changed(void);                          /* a task may be possible now that was not */
bool emu_is_current(cudaStream_t s);             /* of the calling thread's device */
int emu_stream_device(cudaStream_t s);
int emu_current_device(void);
int emu_device_of(const void *p);                /* whose memory it is; -1: the host's */

/* The device's memory can be touched while one of these is there. */
struct emu_access { emu_access(); ~emu_access(); };

#endif
