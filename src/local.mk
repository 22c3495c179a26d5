# The layers of src/ORDER as archives, top first; io/ and kernels/ have their own lists.
bin_PROGRAMS += tercio
tercio_SOURCES = %D%/cmd/main.c
EXTRA_DIST += %D%/ORDER %D%/cmd/completion.bash

noinst_LIBRARIES += libtercio_app.a
libtercio_app_a_CPPFLAGS = $(AM_CPPFLAGS) $(ZSTD_CFLAGS) $(ZLIB_CFLAGS)
libtercio_app_a_SOURCES = \
  %D%/cmd/ckpt/args.c \
  %D%/cmd/ckpt/ckpt.c \
  %D%/cmd/ckpt/ckpt.h \
  %D%/cmd/ckpt/export.c \
  %D%/cmd/ckpt/import.c \
  %D%/cmd/ckpt/import.h \
  %D%/cmd/ckpt/import_save.c \
  %D%/cmd/ckpt/import_weights.c \
  %D%/cmd/ckpt/keep.c \
  %D%/cmd/ckpt/names.c \
  %D%/cmd/ckpt/names.h \
  %D%/cmd/ckpt/plan.c \
  %D%/cmd/ckpt/tensors.c \
  %D%/cmd/cmd.h \
  %D%/cmd/comm.c \
  %D%/cmd/comm_bench.c \
  %D%/cmd/comm_bench.h \
  %D%/cmd/comm_pairs.c \
  %D%/cmd/comm_pairs.h \
  %D%/cmd/completion.c \
  %D%/cmd/completion.h \
  %D%/cmd/data/bytes.c \
  %D%/cmd/data/data.c \
  %D%/cmd/data/data.h \
  %D%/cmd/data/encode.c \
  %D%/cmd/data/input.c \
  %D%/cmd/data/make.c \
  %D%/cmd/data/note.c \
  %D%/cmd/data/shards.c \
  %D%/cmd/data/units.c \
  %D%/cmd/data/view.c \
  %D%/cmd/eval.c \
  %D%/cmd/flags.c \
  %D%/cmd/graph.c \
  %D%/cmd/model.c \
  %D%/cmd/model.h \
  %D%/cmd/place.c \
  %D%/cmd/plan/args.c \
  %D%/cmd/plan/calibrate.c \
  %D%/cmd/plan/checks.c \
  %D%/cmd/plan/emit.c \
  %D%/cmd/plan/head.c \
  %D%/cmd/plan/plan.c \
  %D%/cmd/plan/plan.h \
  %D%/cmd/plan/print.c \
  %D%/cmd/plan/slurm.c \
  %D%/cmd/plan/table.c \
  %D%/cmd/report.c \
  %D%/cmd/sample.c \
  %D%/cmd/save.c \
  %D%/cmd/share.c \
  %D%/cmd/train.c \
  %D%/report/data.c \
  %D%/report/draw.c \
  %D%/report/layouts.c \
  %D%/report/page.c \
  %D%/report/plan.c \
  %D%/report/report.h \
  %D%/report/trace.c \
  %D%/train/batches.c \
  %D%/train/ckpt.c \
  %D%/train/end_of_step.c \
  %D%/train/fault.c \
  %D%/train/guard.c \
  %D%/train/impl.h \
  %D%/train/interval.c \
  %D%/train/loop.c \
  %D%/train/metrics.c \
  %D%/train/plan.c \
  %D%/train/progress.c \
  %D%/train/request.c \
  %D%/train/request.h \
  %D%/train/resume.c \
  %D%/train/rollback.c \
  %D%/train/run_json.c \
  %D%/train/time_limit.c \
  %D%/train/trace.c \
  %D%/train/train.h \
  %D%/forward/answers.c \
  %D%/forward/corpus.c \
  %D%/forward/corpus.h \
  %D%/forward/forward.c \
  %D%/forward/forward.h \
  %D%/forward/impl.h \
  %D%/forward/questions.c \
  %D%/forward/questions.h \
  %D%/forward/sample.c \
  %D%/forward/sample.h

# What runs: the only layer that sees MPI, PMIx and HDF5 (io/local.mk adds its files).
noinst_LIBRARIES += libtercio_run.a
libtercio_run_a_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS) $(PMIX_CFLAGS) $(HDF5_CFLAGS)
libtercio_run_a_SOURCES = $(io_sources) \
  %D%/run/comms.c \
  %D%/run/device.c \
  %D%/run/impl.h \
  %D%/run/memory.c \
  %D%/run/rss.c \
  %D%/run/run.c \
  %D%/run/run.h \
  %D%/run/versions.c \
  %D%/run/versions.h \
  %D%/run/weights.c \
  %D%/run/writer.c \
  %D%/run/writer.h \
  %D%/exec/calls.c \
  %D%/exec/capture.c \
  %D%/exec/exec.c \
  %D%/exec/exec.h \
  %D%/exec/fused.c \
  %D%/exec/impl.h \
  %D%/exec/timing.c \
  %D%/exec/transfer.c \
  %D%/data/ahead.c \
  %D%/data/ahead.h \
  %D%/data/data.c \
  %D%/data/data.h \
  %D%/data/documents.c \
  %D%/data/documents.h \
  %D%/data/file.c \
  %D%/data/format.c \
  %D%/data/impl.h \
  %D%/data/names.c \
  %D%/data/order.c \
  %D%/data/order.h \
  %D%/data/source.c \
  %D%/launch/bind.c \
  %D%/launch/bind.h \
  %D%/launch/cpus.c \
  %D%/launch/gpus.c \
  %D%/launch/gpus.h \
  %D%/launch/launch.c \
  %D%/launch/launch.h \
  %D%/launch/nvml.c \
  %D%/launch/pmix.c \
  %D%/launch/pmix.h \
  %D%/launch/process.c \
  %D%/launch/process.h \
  %D%/launch/ranks.c \
  %D%/launch/ranks.h \
  %D%/launch/server.c \
  %D%/launch/stop.c \
  %D%/launch/stop.h \
  %D%/monitor/event.h \
  %D%/monitor/straggler.c \
  %D%/monitor/straggler.h \
  %D%/monitor/trace.c \
  %D%/monitor/trace.h \
  %D%/comm/comm.c \
  %D%/comm/comm.h \
  %D%/comm/control.c \
  %D%/comm/hub.h \
  %D%/comm/impl.h \
  %D%/comm/link.h \
  %D%/comm/mpi.c \
  %D%/comm/mpi.h \
  %D%/comm/nccl.c \
  %D%/comm/nccl.h \
  %D%/comm/p2p.c \
  %D%/comm/reduce.c \
  %D%/comm/self.c \
  %D%/comm/thread.c \
  %D%/comm/timeout.c

# Programs as data: needs no MPI, no HDF5 and no device.
noinst_LIBRARIES += libtercio_ir.a
libtercio_ir_a_SOURCES = \
  %D%/plan/cost.c \
  %D%/plan/device.c \
  %D%/plan/devices.def \
  %D%/plan/fused.c \
  %D%/plan/guess.c \
  %D%/plan/guess.h \
  %D%/plan/impl.h \
  %D%/plan/json.c \
  %D%/plan/layout.c \
  %D%/plan/links.c \
  %D%/plan/memory.c \
  %D%/plan/plan.h \
  %D%/plan/rates.c \
  %D%/plan/run.c \
  %D%/plan/search.c \
  %D%/plan/sums.c \
  %D%/plan/tables.c \
  %D%/plan/time.c \
  %D%/program/collective.c \
  %D%/program/collective.h \
  %D%/program/of_run.c \
  %D%/program/predict.c \
  %D%/program/predict.h \
  %D%/program/program.c \
  %D%/program/program.h \
  %D%/program/setup.c \
  %D%/program/setup.h \
  %D%/schedule/actions.c \
  %D%/schedule/actions.h \
  %D%/schedule/actions_check.c \
  %D%/schedule/arena.c \
  %D%/schedule/arena.h \
  %D%/schedule/arena_check.c \
  %D%/schedule/arena_place.c \
  %D%/schedule/fusion.c \
  %D%/schedule/fusion.def \
  %D%/schedule/fusion.h \
  %D%/schedule/impl.h \
  %D%/schedule/pipeline.c \
  %D%/schedule/pipeline.h \
  %D%/schedule/simulate.c \
  %D%/schedule/tasks.c \
  %D%/schedule/views.c \
  %D%/passes/annotate.c \
  %D%/passes/bucket.c \
  %D%/passes/fuse_ops.c \
  %D%/passes/grad.c \
  %D%/passes/impl.h \
  %D%/passes/infer.c \
  %D%/passes/loss_chunks.c \
  %D%/passes/offload.c \
  %D%/passes/passes.h \
  %D%/passes/place.c \
  %D%/passes/recompute.c \
  %D%/passes/reshard.c \
  %D%/passes/reshard.h \
  %D%/passes/stages.c \
  %D%/passes/systems.c \
  %D%/passes/systems.h \
  %D%/model/hf.c \
  %D%/model/hf.h \
  %D%/model/model.c \
  %D%/model/transformer.c \
  %D%/model/family.def \
  %D%/model/model.h \
  %D%/model/transformer.h \
  %D%/model/optim.c \
  %D%/model/optim.h \
  %D%/graph/check.c \
  %D%/graph/check.h \
  %D%/graph/check_grad.c \
  %D%/graph/graph.c \
  %D%/graph/graph.h \
  %D%/graph/mesh.c \
  %D%/graph/mesh.h \
  %D%/graph/op.def \
  %D%/graph/placement.c \
  %D%/graph/placement.h \
  %D%/graph/print.c \
  %D%/graph/rule.c \
  %D%/graph/rule.h \
  %D%/graph/shard_box.c \
  %D%/graph/shard_box.h \
  %D%/coll/coll.c \
  %D%/coll/coll.h

# Text to tokens: the only layer that sees PCRE2 and utf8proc.
noinst_LIBRARIES += libtercio_token.a
libtercio_token_a_CPPFLAGS = $(AM_CPPFLAGS) $(PCRE2_CFLAGS) $(UTF8PROC_CFLAGS)
libtercio_token_a_SOURCES = \
  %D%/token/bpe.c \
  %D%/token/config.c \
  %D%/token/encode.c \
  %D%/token/impl.h \
  %D%/token/load.c \
  %D%/token/pattern.c \
  %D%/token/token.h \
  %D%/token/utf8.c \
  %D%/token/words.c

noinst_LIBRARIES += libtercio_base.a
libtercio_base_a_SOURCES = \
  %D%/config/choices.c \
  %D%/config/choices.h \
  %D%/config/config.c \
  %D%/config/config.h \
  %D%/config/impl.h \
  %D%/config/ini.c \
  %D%/config/options.def \
  %D%/config/text.c \
  %D%/watch/impl.h \
  %D%/watch/status.c \
  %D%/watch/watch.h \
  %D%/watch/watchdog.c \
  %D%/base/arith.h \
  %D%/base/base.h \
  %D%/base/clock.c \
  %D%/base/clock.h \
  %D%/base/dtype.c \
  %D%/base/dtype.h \
  %D%/base/err.c \
  %D%/base/err.h \
  %D%/base/hash.h \
  %D%/base/mem.c \
  %D%/base/mem.h \
  %D%/base/random.c \
  %D%/base/random.h \
  %D%/base/sort.c \
  %D%/base/sort.h \
  %D%/base/text.c \
  %D%/base/text.h \
  %D%/base/thread.c \
  %D%/base/thread.h
