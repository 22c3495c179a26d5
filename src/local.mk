# The rooms. comm_mpi and ranks alone see MPI and PMIx, so they are an archive of their own.
bin_PROGRAMS += tercio
tercio_SOURCES = %D%/main.c

noinst_LIBRARIES += libtercio.a
libtercio_a_SOURCES = \
  %D%/annotate.c \
  %D%/arena.c \
  %D%/arena.h \
  %D%/base.c \
  %D%/base.h \
  %D%/check.c \
  %D%/cmd_ckpt.c \
  %D%/cmd_ckpt.h \
  %D%/cmd_ckpt_args.c \
  %D%/cmd_ckpt_data.c \
  %D%/cmd_ckpt_export.c \
  %D%/cmd_ckpt_gpt.c \
  %D%/cmd_ckpt_gpt.h \
  %D%/cmd_ckpt_import.c \
  %D%/cmd_ckpt_keep.c \
  %D%/cmd_ckpt_plan.c \
  %D%/cmd_comm.c \
  %D%/cmd_data.c \
  %D%/cmd_graph.c \
  %D%/cmd_place.c \
  %D%/cmd_plan.c \
  %D%/cmd_plan.h \
  %D%/cmd_plan_print.c \
  %D%/cmd_report.c \
  %D%/cmd_train.c \
  %D%/comm.c \
  %D%/comm.h \
  %D%/comm_bench.c \
  %D%/comm_bench.h \
  %D%/comm_impl.h \
  %D%/comm_p2p.c \
  %D%/comm_self.c \
  %D%/comm_thread.c \
  %D%/config.c \
  %D%/config.h \
  %D%/data.c \
  %D%/data.h \
  %D%/devices.def \
  %D%/exec.c \
  %D%/exec.h \
  %D%/exec_move.c \
  %D%/fault.c \
  %D%/fault.h \
  %D%/fuse.c \
  %D%/fuse.h \
  %D%/gpt.c \
  %D%/gpt.h \
  %D%/grad.c \
  %D%/graph.c \
  %D%/graph.h \
  %D%/launch.c \
  %D%/launch.h \
  %D%/mesh.c \
  %D%/mesh.h \
  %D%/move.c \
  %D%/op.def \
  %D%/optim.c \
  %D%/optim.h \
  %D%/options.def \
  %D%/pipe.c \
  %D%/pipe.h \
  %D%/plan.h \
  %D%/plan_cost.c \
  %D%/plan_device.c \
  %D%/plan_impl.h \
  %D%/plan_layout.c \
  %D%/plan_memory.c \
  %D%/plan_run.c \
  %D%/plan_sums.c \
  %D%/plan_tables.c \
  %D%/plan_time.c \
  %D%/print.c \
  %D%/program.c \
  %D%/program.h \
  %D%/ranks.h \
  %D%/recompute.c \
  %D%/recompute.h \
  %D%/report.h \
  %D%/report_data.c \
  %D%/report_draw.c \
  %D%/report_page.c \
  %D%/report_trace.c \
  %D%/saver.c \
  %D%/saver.h \
  %D%/sched.c \
  %D%/sched.h \
  %D%/setup.c \
  %D%/setup.h \
  %D%/shard.c \
  %D%/shard.h \
  %D%/shard_impl.h \
  %D%/shard_place.c \
  %D%/slow.c \
  %D%/slow.h \
  %D%/stages.c \
  %D%/stages.h \
  %D%/systems.c \
  %D%/systems.h \
  %D%/trace.c \
  %D%/trace.h \
  %D%/train.c \
  %D%/train.h \
  %D%/train_ckpt.c \
  %D%/train_log.c \
  %D%/train_recover.c \
  %D%/train_slow.c \
  %D%/train_trace.c \
  %D%/transfer.c \
  %D%/transfer.h \
  %D%/watch.c \
  %D%/watch.h \
  %D%/watch_impl.h \
  %D%/watch_lane.c

noinst_LIBRARIES += libtercio_mpi.a
libtercio_mpi_a_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS) $(PMIX_CFLAGS)
libtercio_mpi_a_SOURCES = \
  %D%/comm_mpi.c \
  %D%/ranks.c
