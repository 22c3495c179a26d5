# Tests: unit/FOLDER/t_X.c makes unit/FOLDER/t_X.t, fuzz/fuzz_X.c makes fuzz/fuzz_X.t, mpi/m_X.c makes
# mpi/m_X.mpi, linked with all archives.
unit_tests = \
  %D%/unit/base/t_amount.t \
  %D%/unit/base/t_base.t \
  %D%/unit/base/t_each.t \
  %D%/unit/base/t_figure.t \
  %D%/unit/base/t_plain.t \
  %D%/unit/base/t_thread.t \
  %D%/unit/bench/t_bench.t \
  %D%/unit/bench/t_pairs.t \
  %D%/unit/calibrate/t_calibrate.t \
  %D%/unit/cmd/t_ckpt.t \
  %D%/unit/cmd/t_cmd_comm.t \
  %D%/unit/cmd/t_cmd_data.t \
  %D%/unit/cmd/t_cmd_place.t \
  %D%/unit/cmd/t_keep.t \
  %D%/unit/cmd/t_main.t \
  %D%/unit/cmd/t_terminal.t \
  %D%/unit/cmd/t_plan_print.t \
  %D%/unit/cmd/t_out.t \
  %D%/unit/cmd/t_read_flags.t \
  %D%/unit/comm/t_comm.t \
  %D%/unit/comm/t_comm_control.t \
  %D%/unit/comm/t_comm_nccl.t \
  %D%/unit/comm/t_comm_calls.t \
  %D%/unit/comm/t_comm_tables.t \
  %D%/unit/comm/t_timeout.t \
  %D%/unit/comm/t_mpi.t \
  %D%/unit/comm/t_nccl.t \
  %D%/unit/comm/t_p2p.t \
  %D%/unit/comm/t_hub.t \
  %D%/unit/config/t_config.t \
  %D%/unit/config/t_expand.t \
  %D%/unit/data/t_bins.t \
  %D%/unit/data/t_data.t \
  %D%/unit/data/t_documents.t \
  %D%/unit/data/t_format.t \
  %D%/unit/data/t_kind.t \
  %D%/unit/data/t_order.t \
  %D%/unit/data/t_packed.t \
  %D%/unit/data/t_prefetch.t \
  %D%/unit/data/t_token_file.t \
  %D%/unit/data/t_data_table.t \
  %D%/unit/data/t_data_stages.t \
  %D%/unit/data/t_data_warn.t \
  %D%/unit/exec/t_documents_alone.t \
  %D%/unit/exec/t_exec.t \
  %D%/unit/exec/t_exec_device.t \
  %D%/unit/exec/t_exec_host.t \
  %D%/unit/exec/t_exec_wait.t \
  %D%/unit/exec/t_frozen.t \
  %D%/unit/exec/t_gradient.t \
  %D%/unit/exec/t_write_barrier.t \
  %D%/unit/exec/t_leaks.t \
  %D%/unit/exec/t_transfer.t \
  %D%/unit/exec/t_mup.t \
  %D%/unit/exec/t_oracle.t \
  %D%/unit/exec/t_program.t \
  %D%/unit/graph/t_check.t \
  %D%/unit/graph/t_check_grad.t \
  %D%/unit/graph/t_mesh.t \
  %D%/unit/graph/t_print.t \
  %D%/unit/coll/t_flow.t \
  %D%/unit/coll/t_selection.t \
  %D%/unit/coll/t_simulate.t \
  %D%/unit/graph/t_row_order.t \
  %D%/unit/io/t_blocks.t \
  %D%/unit/io/t_calls.t \
  %D%/unit/io/t_ckpt.t \
  %D%/unit/io/t_ckpt_faults.t \
  %D%/unit/io/t_ckpt_load.t \
  %D%/unit/io/t_ckpt_node.t \
  %D%/unit/io/t_ckpt_sealed.t \
  %D%/unit/io/t_crc.t \
  %D%/unit/io/t_h5.t \
  %D%/unit/io/t_hf.t \
  %D%/unit/io/t_manifest.t \
  %D%/unit/io/t_model_files.t \
  %D%/unit/io/t_owner.t \
  %D%/unit/io/t_owner_before.t \
  %D%/unit/io/t_owner_take.t \
  %D%/unit/io/t_safetensors.t \
  %D%/unit/io/t_verify.t \
  %D%/unit/foreign/t_foreign.t \
  %D%/unit/forward/t_forward_memory.t \
  %D%/unit/forward/t_questions.t \
  %D%/unit/forward/t_sample_token.t \
  %D%/unit/kernels/t_attention.t \
  %D%/unit/kernels/t_attn_order.t \
  %D%/unit/kernels/t_attn_tiles.t \
  %D%/unit/kernels/t_bf16.t \
  %D%/unit/kernels/t_cache.t \
  %D%/unit/kernels/t_capture.t \
  %D%/unit/kernels/t_cudnn_cut.t \
  %D%/unit/kernels/t_cudnn_plans.t \
  %D%/unit/kernels/t_device.t \
  %D%/unit/kernels/t_dnnl.t \
  %D%/unit/kernels/t_documents.t \
  %D%/unit/kernels/t_kernels.t \
  %D%/unit/kernels/t_kernels_cuda.t \
  %D%/unit/kernels/t_kernels_fd.t \
  %D%/unit/kernels/t_kernels_fused.t \
  %D%/unit/kernels/t_kernels_xent.t \
  %D%/unit/kernels/t_scratch.t \
  %D%/unit/kernels/t_tune.t \
  %D%/unit/launch/t_bind.t \
  %D%/unit/launch/t_gpus.t \
  %D%/unit/launch/t_launch.t \
  %D%/unit/launch/t_launch_calls.t \
  %D%/unit/launch/t_launch_leaks.t \
  %D%/unit/launch/t_nvml.t \
  %D%/unit/launch/t_pmix.t \
  %D%/unit/launch/t_process.t \
  %D%/unit/launch/t_ranks.t \
  %D%/unit/launch/t_server.t \
  %D%/unit/launch/t_slurm_words.t \
  %D%/unit/launch/t_stop.t \
  %D%/unit/launch/t_stop_requests.t \
  %D%/unit/launch/t_warnings.t \
  %D%/unit/metrics/t_metrics.t \
  %D%/unit/metrics/t_metrics_out.t \
  %D%/unit/model/t_hf_config.t \
  %D%/unit/model/t_model.t \
  %D%/unit/monitor/t_straggler.t \
  %D%/unit/monitor/t_straggler_words.t \
  %D%/unit/monitor/t_trace.t \
  %D%/unit/passes/t_accumulate.t \
  %D%/unit/monitor/t_trace_clock.t \
  %D%/unit/passes/t_annotate.t \
  %D%/unit/passes/t_buckets.t \
  %D%/unit/passes/t_grad.t \
  %D%/unit/passes/t_infer.t \
  %D%/unit/passes/t_insert_reshards.t \
  %D%/unit/passes/t_loss_chunks.t \
  %D%/unit/passes/t_merge.t \
  %D%/unit/passes/t_offload.t \
  %D%/unit/passes/t_owners.t \
  %D%/unit/passes/t_param_rows.t \
  %D%/unit/passes/t_recompute.t \
  %D%/unit/passes/t_reshard.t \
  %D%/unit/passes/t_share_init.t \
  %D%/unit/passes/t_stages.t \
  %D%/unit/passes/t_systems.t \
  %D%/unit/prove/t_prove.t \
  %D%/unit/plan/t_plan.t \
  %D%/unit/plan/t_plan_candidates.t \
  %D%/unit/plan/t_plan_cluster.t \
  %D%/unit/plan/t_plan_cost.t \
  %D%/unit/plan/t_plan_guess.t \
  %D%/unit/plan/t_plan_inference.t \
  %D%/unit/plan/t_plan_pipes.t \
  %D%/unit/plan/t_plan_search.t \
  %D%/unit/plan/t_plan_space.t \
  %D%/unit/plan/t_plan_start.t \
  %D%/unit/plan/t_plan_terms.t \
  %D%/unit/program/t_digest.t \
  %D%/unit/program/t_parts.t \
  %D%/unit/program/t_pieces.t \
  %D%/unit/program/t_setup.t \
  %D%/unit/program/t_setup_stages.t \
  %D%/unit/recipe/t_rate.t \
  %D%/unit/recipe/t_stop_if.t \
  %D%/unit/report/t_compare.t \
  %D%/unit/report/t_csv.t \
  %D%/unit/report/t_draw.t \
  %D%/unit/report/t_read_run.t \
  %D%/unit/run/t_attention_choice.t \
  %D%/unit/run/t_fits.t \
  %D%/unit/run/t_head_chunk.t \
  %D%/unit/run/t_reads.t \
  %D%/unit/run/t_run_tune.t \
  %D%/unit/run/t_versions.t \
  %D%/unit/run/t_writer.t \
  %D%/unit/run/t_writer_calls.t \
  %D%/unit/schedule/t_actions.t \
  %D%/unit/schedule/t_actions_check.t \
  %D%/unit/schedule/t_arena.t \
  %D%/unit/schedule/t_fusion.t \
  %D%/unit/schedule/t_memory.t \
  %D%/unit/schedule/t_pipeline.t \
  %D%/unit/schedule/t_simulate.t \
  %D%/unit/shards/t_chat.t \
  %D%/unit/shards/t_check_tokens.t \
  %D%/unit/shards/t_shards.t \
  %D%/unit/shards/t_text_input.t \
  %D%/unit/token/t_places.t \
  %D%/unit/token/t_token.t \
  %D%/unit/token/t_token_cuts.t \
  %D%/unit/token/t_token_hash.t \
  %D%/unit/token/t_token_merges.t \
  %D%/unit/token/t_token_refused.t \
  %D%/unit/token/t_token_steps.t \
  %D%/unit/train/t_batches.t \
  %D%/unit/train/t_end_of_step.t \
  %D%/unit/train/t_end_of_step_calls.t \
  %D%/unit/train/t_end_of_step_ranks.t \
  %D%/unit/train/t_fault.t \
  %D%/unit/train/t_guard.t \
  %D%/unit/train/t_loop_calls.t \
  %D%/unit/train/t_measure.t \
  %D%/unit/train/t_request.t \
  %D%/unit/train/t_request_run.t \
  %D%/unit/train/t_progress.t \
  %D%/unit/train/t_resume.t \
  %D%/unit/train/t_rollback.t \
  %D%/unit/train/t_train.t \
  %D%/unit/train/t_when.t \
  %D%/unit/files/t_input.t \
  %D%/unit/files/t_names.t \
  %D%/unit/files/t_output.t \
  %D%/unit/watch/t_watch.t \
  %D%/unit/watch/t_watchdog.t \
  %D%/unit/watch/t_watch_status.t \
  %D%/unit/watch/t_watch_thread.t

# The last two are linked with the shim, which takes the place of calls of the C library.
fault_tests = \
  %D%/faults/t_corrupt.t \
  %D%/faults/t_every_call.t \
  %D%/faults/t_power_cut.t

# Damaged files, seeded: seconds as a test; fuzz_X.t --seconds 600 --seed N for long.
fuzz_tests = \
  %D%/fuzz/fuzz_adapter.t \
  %D%/fuzz/fuzz_chat.t \
  %D%/fuzz/fuzz_config.t \
  %D%/fuzz/fuzz_data.t \
  %D%/fuzz/fuzz_hf.t \
  %D%/fuzz/fuzz_init.t \
  %D%/fuzz/fuzz_like.t \
  %D%/fuzz/fuzz_manifest.t \
  %D%/fuzz/fuzz_place.t \
  %D%/fuzz/fuzz_safetensors.t \
  %D%/fuzz/fuzz_tokenizer.t

mpi_tests = \
  %D%/mpi/m_files.mpi \
  %D%/mpi/m_comm.mpi

test_headers = \
  %D%/faults/faults.h \
  %D%/faults/counters.h \
  %D%/faults/nfs_shim.c \
  %D%/faults/shim.h \
  %D%/fuzz/data_draw.h \
  %D%/fuzz/fuzz.h \
  %D%/fuzz/place_draw.h \
  %D%/fuzz/place_run.h \
  %D%/unit/box.h \
  %D%/unit/coll/drawn_table.h \
  %D%/unit/coll/flow_model.h \
  %D%/unit/coll_bytes.h \
  %D%/unit/broken.h \
  %D%/unit/schedule/fusion_play.h \
  %D%/unit/kernels/load.h \
  %D%/unit/kernels/scene.h \
  %D%/unit/samples.h \
  %D%/unit/script.h \
  %D%/unit/ckpt_cmd.h \
  %D%/unit/placed.h \
  %D%/unit/io/calls.h \
  %D%/unit/ckpt_fixture.h \
  %D%/unit/chat_fixture.h \
  %D%/unit/data_fixture.h \
  %D%/unit/digest.h \
  %D%/unit/comm/comm_cases.h \
  %D%/unit/comm/comm_check.h \
  %D%/unit/comm/fake_nccl.h \
  %D%/unit/cmd/comm_stubs.h \
  %D%/unit/ranks_fixture.h \
  %D%/unit/exec/exec_fixture.h \
  %D%/unit/exec/layout.h \
  %D%/unit/leak.h \
  %D%/unit/same_tensors.h \
  %D%/unit/locks.h \
  %D%/unit/stderr_text.h \
  %D%/unit/plan_config.h \
  %D%/unit/plan/plan_list.h \
  %D%/unit/plan/plan_rows.h \
  %D%/unit/kernels/kernels_attention.h \
  %D%/unit/kernels/kernels_documents.h \
  %D%/unit/kernels/kernels_llama.h \
  %D%/unit/kernels/kernels_muon.h \
  %D%/unit/kernels/kernels_parts.h \
  %D%/unit/kernels/kernels_row_order.h \
  %D%/unit/kernels/kernels_states.h \
  %D%/unit/kernels/t_kernels.h \
  %D%/unit/random.h \
  %D%/unit/row_list.h \
  %D%/unit/seed.h \
  %D%/unit/kernels/views.h \
  %D%/unit/token_fixture.h \
  %D%/unit/verify_step.h \
  %D%/unit/wakes.h \
  %D%/unit/watch/watchdog.h \
  %D%/unit/named.h \
  %D%/unit/program_read.h \
  %D%/unit/program_text.h \
  %D%/unit/tap.h

# The longest first.
script_tests = \
  %D%/mpi/m_eval \
  %D%/mpi/m_lora \
  %D%/mpi/m_systems \
  %D%/mpi/m_tasks \
  %D%/check-cuda \
  %D%/check-configure \
  %D%/mpi/m_chat \
  %D%/mpi/m_ckpt \
  %D%/mpi/m_train \
  %D%/mpi/m_hang \
  %D%/mpi/m_plan \
  %D%/mpi/m_prove \
  %D%/mpi/m_signals \
  %D%/fuzz/f_signals \
  %D%/mpi/m_start \
  %D%/mpi/m_folder \
  %D%/mpi/m_reshard \
  %D%/mpi/m_order \
  %D%/faults/f_nfs \
  %D%/faults/f_data \
  %D%/fuzz/f_place \
  %D%/check-includes \
  %D%/check-cli \
  %D%/check-completion \
  %D%/check-compdb \
  %D%/check-docs \
  %D%/check-budget \
  %D%/check-fragments \
  %D%/check-names \
  %D%/check-races \
  %D%/check-mutate \
  %D%/check-examples \
  %D%/check-plan \
  %D%/check-srun \
  %D%/check-stacks \
  %D%/mpi/m_bind \
  %D%/mpi/m_calls \
  %D%/faults/f_beside \
  %D%/faults/f_train \
  %D%/fuzz/f_eval \
  %D%/fuzz/f_options \
  %D%/fuzz/f_plan \
  %D%/fuzz/f_limits \
  %D%/fuzz/f_tokens \
  %D%/mpi/m_coll \
  %D%/mpi/m_data \
  %D%/mpi/m_documents \
  %D%/mpi/m_export \
  %D%/mpi/m_finite \
  %D%/mpi/m_plain \
  %D%/mpi/m_from_text \
  %D%/mpi/m_install \
  %D%/mpi/m_metrics \
  %D%/mpi/m_metrics_out \
  %D%/mpi/m_muon \
  %D%/mpi/m_old \
  %D%/mpi/m_inputs \
  %D%/mpi/m_outputs \
  %D%/mpi/m_cuda \
  %D%/mpi/m_pipe \
  %D%/mpi/m_place \
  %D%/mpi/m_report \
  %D%/mpi/m_recipe \
  %D%/mpi/m_stages \
  %D%/mpi/m_states \
  %D%/mpi/m_rows \
  %D%/mpi/m_resume \
  %D%/mpi/m_tokenizer \
  %D%/mpi/m_trace \
  %D%/slurm/f_sbatch

# What commands print, one test a file: tests/check-transcripts compares it.
transcripts = \
  %D%/transcripts/cmd-ckpt-plan.txt \
  %D%/transcripts/cmd-ckpt.txt \
  %D%/transcripts/cmd-comm.txt \
  %D%/transcripts/cmd-convert-errors.txt \
  %D%/transcripts/cmd-convert.txt \
  %D%/transcripts/cmd-data.txt \
  %D%/transcripts/cmd-graph.txt \
  %D%/transcripts/cmd-import.txt \
  %D%/transcripts/cmd-main.txt \
  %D%/transcripts/cmd-place.txt \
  %D%/transcripts/cmd-plan-slurm.txt \
  %D%/transcripts/cmd-plan.txt \
  %D%/transcripts/cmd-report.txt \
  %D%/transcripts/cmd-save.txt \
  %D%/transcripts/cmd-tokens.txt \
  %D%/transcripts/digests.txt \
  %D%/transcripts/errors.txt \
  %D%/transcripts/fusions.txt \
  %D%/transcripts/graph.txt \
  %D%/transcripts/like.txt \
  %D%/transcripts/input.txt \
  %D%/transcripts/place.txt \
  %D%/transcripts/plan-calibrate.txt \
  %D%/transcripts/plan-forward.txt \
  %D%/transcripts/plan.txt \
  %D%/transcripts/planner.txt \
  %D%/transcripts/refused.txt \
  %D%/transcripts/report.txt \
  %D%/transcripts/resume.txt \
  %D%/transcripts/tokenizers.txt \
  %D%/transcripts/train.txt

# What is distributed besides: runners, clusters, oracles.
test_files = \
  %D%/unit/actions_check.txt \
  %D%/unit/check.txt \
  %D%/unit/simulate.txt \
  %D%/unit/calls.txt \
  %D%/unit/data.txt \
  %D%/unit/digests.txt \
  %D%/unit/run.txt \
  %D%/unit/writer.txt \
  %D%/unit/step.txt \
  %D%/bench/coll \
  %D%/bench/mpi_coll.c \
  %D%/bench/ckpt \
  %D%/bench/data \
  %D%/bench/decode \
  %D%/bench/decode_torch.py \
  %D%/bench/fit_plan \
  %D%/bench/plan \
  %D%/bench/plan_size \
  %D%/bench/rates \
  %D%/faults/threads.c \
  %D%/emu/cublasLt.h \
  %D%/emu/cudnn.cc \
  %D%/emu/cutlass.cc \
  %D%/emu/fragments.cc \
  %D%/emu/driver.c \
  %D%/emu/cuda_runtime.h \
  %D%/emu/emu.cc \
  %D%/emu/emu.h \
  %D%/emu/nccl.cc \
  %D%/emu/nccl.h \
  %D%/emu/races.h \
  %D%/emu/runtime.cc \
  %D%/emu/nvml.c \
  %D%/emu/nvtx3/nvToolsExt.h \
  %D%/check-transcripts \
  %D%/compdb.awk \
  %D%/exchange \
  %D%/fresh-seed \
  %D%/figures \
  %D%/stacks \
  %D%/timed \
  %D%/bench/speed \
  %D%/bench/systems \
  %D%/bench/update \
  %D%/bench/update.py \
  %D%/cluster \
  %D%/cuda-budget.txt \
  %D%/sass.awk \
  %D%/bench/peer.py \
  %D%/bench/sdpa.py \
  %D%/gpu \
  %D%/gpu-call \
  %D%/gpu-pack \
  %D%/lib.sh \
  %D%/mpi-run \
  %D%/transcripts/device.ini \
  %D%/transcripts/train.sh \
  %D%/transcripts/full.ini \
  %D%/transcripts/run/metrics.jsonl \
  %D%/transcripts/run/run.json \
  %D%/transcripts/run/trace.json \
  %D%/transcripts/tools/all-values \
  %D%/transcripts/tools/make-llmc \
  %D%/transcripts/tools/make-run \
  %D%/transcripts/tools/scontrol \
  %D%/transcripts/tools/with-tensor \
  %D%/mutate \
  %D%/mutate.awk \
  %D%/mutate.same \
  %D%/mpi/gpu_node.sh \
  %D%/mpi/systems.sh \
  %D%/run \
  %D%/sanitize.supp \
  %D%/oracle/answers.json \
  %D%/oracle/bytes-gpt2/config.json \
  %D%/oracle/bytes-gpt2/model.safetensors \
  %D%/oracle/bytes-llama/config.json \
  %D%/oracle/bytes-llama/model.safetensors \
  %D%/oracle/bytes-qwen3/config.json \
  %D%/oracle/bytes-qwen3/model.safetensors \
  %D%/oracle/chat.jsonl \
  %D%/oracle/chat.py \
  %D%/oracle/chat_templates.py \
  %D%/oracle/chat_templates/llama3.1.jinja \
  %D%/oracle/chat_templates/llama3.2.jinja \
  %D%/oracle/chat_templates/qwen2.5.jinja \
  %D%/oracle/chat_templates/qwen3-2507.jinja \
  %D%/oracle/chat_templates/qwen3.jinja \
  %D%/oracle/chat_train.py \
  %D%/oracle/documents.json \
  %D%/oracle/hf_answers.py \
  %D%/oracle/families.json \
  %D%/oracle/lora.json \
  %D%/oracle/lora.py \
  %D%/oracle/peft-gpt2/adapter_config.json \
  %D%/oracle/peft-gpt2/adapter_model.safetensors \
  %D%/oracle/peft-llama/adapter_config.json \
  %D%/oracle/peft-llama/adapter_model.safetensors \
  %D%/oracle/peft-qwen3/adapter_config.json \
  %D%/oracle/peft-qwen3/adapter_model.safetensors \
  %D%/oracle/hf-llama/config.json \
  %D%/oracle/hf-llama/model-00001-of-00003.safetensors \
  %D%/oracle/hf-llama/model-00002-of-00003.safetensors \
  %D%/oracle/hf-llama/model-00003-of-00003.safetensors \
  %D%/oracle/hf-llama/model.safetensors.index.json \
  %D%/oracle/hf-qwen3/config.json \
  %D%/oracle/hf-qwen3/model.safetensors \
  %D%/oracle/hf_end.py \
  %D%/oracle/hf_cases.py \
  %D%/oracle/hf_config.py \
  %D%/oracle/hf_export.py \
  %D%/oracle/hf_sample.py \
  %D%/oracle/hf_eval.py \
  %D%/oracle/hf_families.py \
  %D%/oracle/hf_folder.py \
  %D%/oracle/hf_loss.py \
  %D%/oracle/muon.json \
  %D%/oracle/questions.jsonl \
  %D%/oracle/tokens64.bin \
  %D%/oracle/old/gpt2/step-00000003/manifest.json \
  %D%/oracle/old/gpt2/step-00000003/rank-00000.h5 \
  %D%/oracle/old/llama/step-00000003/manifest.json \
  %D%/oracle/old/llama/step-00000003/rank-00000.h5 \
  %D%/oracle/tiny.json \
  %D%/oracle/tiny-documents.json \
  %D%/oracle/sampled.py \
  %D%/oracle/torch_gpt.py \
  %D%/oracle/torch_muon.py \
  %D%/oracle/compact.py \
  %D%/oracle/compare_metrics.py \
  %D%/oracle/compare_patterns.py \
  %D%/oracle/compare_tokens.py \
  %D%/oracle/make_tokens.py \
  %D%/oracle/tokens_common.py \
  %D%/oracle/tokens/digits.json \
  %D%/oracle/tokens/gemma.json \
  %D%/oracle/tokens/gpt2.json \
  %D%/oracle/tokens/ids.jsonl \
  %D%/oracle/tokens/llama2-normalized.json \
  %D%/oracle/tokens/llama2.json \
  %D%/oracle/tokens/llama3.json \
  %D%/oracle/tokens/mistral.json \
  %D%/oracle/tokens/nfkc.json \
  %D%/oracle/tokens/parts.json \
  %D%/oracle/tokens/phi3.json \
  %D%/oracle/tokens/qwen.json \
  %D%/oracle/tokens/unknown-apart.json \
  %D%/oracle/tokens/unknown.json \
  %D%/oracle/tokens/whole.json \
  %D%/slurm/campaign \
  %D%/slurm/fake_slurm \
  %D%/slurm/late_init.c \
  %D%/slurm/lib.sh \
  %D%/slurm/s_ask.t \
  %D%/slurm/s_cluster.t \
  %D%/slurm/s_comm.t \
  %D%/slurm/s_first_hour.t \
  %D%/slurm/s_place.t \
  %D%/slurm/s_plan.t \
  %D%/slurm/s_recover.t \
  %D%/slurm/s_save.t \
  %D%/slurm/s_status.t \
  %D%/slurm/s_systems.t \
  %D%/slurm/s_train.t

check_PROGRAMS += $(unit_tests) $(fault_tests) $(fuzz_tests) $(mpi_tests) %D%/bench/ckpt_bench \
  %D%/bench/decode_bench %D%/bench/kernels %D%/bench/windows
dist_check_SCRIPTS += $(script_tests)
# The long ones first, so that the last to end is a short one.
TESTS += $(script_tests) $(transcripts) $(fault_tests) $(fuzz_tests) $(mpi_tests) $(unit_tests)
EXTRA_DIST += $(test_headers) $(test_files) $(transcripts)

# Linked with the two lowest layers alone: what they test needs no MPI, no HDF5 and no device.
pure_libs = libtercio_ir.a libtercio_base.a $(JANSSON_LIBS) $(TC_LIBM) -lpthread
tests_unit_graph_t_check_t_LDADD = $(pure_libs)
tests_unit_graph_t_check_grad_t_LDADD = $(pure_libs)
tests_unit_graph_t_mesh_t_LDADD = $(pure_libs)
tests_unit_graph_t_print_t_LDADD = $(pure_libs)
tests_unit_coll_t_flow_t_LDADD = $(pure_libs)
tests_unit_coll_t_selection_t_LDADD = $(pure_libs)
tests_unit_coll_t_simulate_t_LDADD = $(pure_libs)
tests_unit_model_t_hf_config_t_LDADD = $(pure_libs)
tests_unit_model_t_model_t_LDADD = $(pure_libs)
tests_unit_passes_t_accumulate_t_LDADD = $(pure_libs)
tests_unit_passes_t_annotate_t_LDADD = $(pure_libs)
tests_unit_passes_t_buckets_t_LDADD = $(pure_libs)
tests_unit_passes_t_grad_t_LDADD = $(pure_libs)
tests_unit_passes_t_infer_t_LDADD = $(pure_libs)
tests_unit_passes_t_insert_reshards_t_LDADD = $(pure_libs)
tests_unit_passes_t_loss_chunks_t_LDADD = $(pure_libs)
tests_unit_passes_t_merge_t_LDADD = $(pure_libs)
tests_unit_passes_t_offload_t_LDADD = $(pure_libs)
tests_unit_passes_t_owners_t_LDADD = $(pure_libs)
tests_unit_passes_t_param_rows_t_LDADD = $(pure_libs)
tests_unit_passes_t_recompute_t_LDADD = $(pure_libs)
tests_unit_passes_t_reshard_t_LDADD = $(pure_libs)
tests_unit_passes_t_share_init_t_LDADD = $(pure_libs)
tests_unit_passes_t_stages_t_LDADD = $(pure_libs)
tests_unit_passes_t_systems_t_LDADD = $(pure_libs)
tests_unit_recipe_t_rate_t_LDADD = $(pure_libs)
tests_unit_recipe_t_stop_if_t_LDADD = $(pure_libs)
tests_unit_plan_t_plan_t_LDADD = $(pure_libs)
tests_unit_plan_t_plan_candidates_t_LDADD = $(pure_libs)
tests_unit_plan_t_plan_cluster_t_LDADD = $(pure_libs)
tests_unit_plan_t_plan_cost_t_LDADD = $(pure_libs)
tests_unit_plan_t_plan_guess_t_LDADD = $(pure_libs)
tests_unit_plan_t_plan_inference_t_LDADD = $(pure_libs)
tests_unit_plan_t_plan_pipes_t_LDADD = $(pure_libs)
tests_unit_plan_t_plan_search_t_LDADD = $(pure_libs)
tests_unit_plan_t_plan_space_t_LDADD = $(pure_libs)
tests_unit_plan_t_plan_start_t_LDADD = $(pure_libs)
tests_unit_plan_t_plan_terms_t_LDADD = $(pure_libs)
tests_unit_program_t_digest_t_LDADD = $(pure_libs)
tests_unit_program_t_parts_t_LDADD = $(pure_libs)
tests_unit_program_t_pieces_t_LDADD = $(pure_libs)
tests_unit_program_t_setup_t_LDADD = $(pure_libs)
tests_unit_program_t_setup_stages_t_LDADD = $(pure_libs)
tests_unit_schedule_t_actions_t_LDADD = $(pure_libs)
tests_unit_schedule_t_actions_check_t_LDADD = $(pure_libs)
tests_unit_schedule_t_arena_t_LDADD = $(pure_libs)
tests_unit_schedule_t_fusion_t_LDADD = $(pure_libs)
tests_unit_schedule_t_memory_t_LDADD = $(pure_libs)
tests_unit_schedule_t_pipeline_t_LDADD = $(pure_libs)
tests_unit_schedule_t_simulate_t_LDADD = $(pure_libs)

# The tokenizer's: no more than its layer and the one below.
token_libs = libtercio_token.a libtercio_base.a $(PCRE2_LIBS) $(UTF8PROC_LIBS) $(JANSSON_LIBS) $(TC_LIBM) -lpthread
tests_unit_token_t_places_t_LDADD = $(token_libs)
tests_unit_token_t_token_t_LDADD = $(token_libs)
tests_unit_token_t_token_merges_t_LDADD = $(token_libs)
tests_unit_token_t_token_refused_t_LDADD = $(token_libs)
tests_unit_token_t_token_steps_t_LDADD = $(token_libs)
tests_fuzz_fuzz_tokenizer_t_LDADD = $(token_libs)

# Tests that see a library's header themselves.
tests_unit_io_t_ckpt_t_CPPFLAGS = $(AM_CPPFLAGS) $(HDF5_CFLAGS) $(MPI_CFLAGS)
tests_unit_io_t_ckpt_node_t_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS)
tests_unit_io_t_h5_t_CPPFLAGS = $(AM_CPPFLAGS) $(HDF5_CFLAGS) $(MPI_CFLAGS)
tests_unit_token_t_token_t_CPPFLAGS = $(AM_CPPFLAGS) $(PCRE2_CFLAGS)
tests_unit_token_t_token_steps_t_CPPFLAGS = $(AM_CPPFLAGS) $(PCRE2_CFLAGS) $(UTF8PROC_CFLAGS)
tests_unit_comm_t_mpi_t_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS)
tests_unit_launch_t_pmix_t_CPPFLAGS = $(AM_CPPFLAGS) $(PMIX_CFLAGS)
tests_unit_launch_t_ranks_t_CPPFLAGS = $(AM_CPPFLAGS) $(PMIX_CFLAGS)

# It counts the links that are followed to a tensor's storage.
tests_unit_schedule_t_arena_t_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=tc_tensor_root
# ... and this one the pieces of memory that are taken.
tests_unit_exec_t_leaks_t_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc \
  -Wl,--wrap=free,--wrap=aligned_alloc

tests_faults_t_every_call_t_SOURCES = %D%/faults/t_every_call.c %D%/faults/shim.c
tests_faults_t_power_cut_t_SOURCES = %D%/faults/t_power_cut.c %D%/faults/shim.c

# The shim by itself, to be preloaded into the program.
check_DATA = %D%/faults/shim.so %D%/faults/nfs_shim.so %D%/faults/threads.so %D%/emu/libnvidia-ml.so.1
CLEANFILES += %D%/faults/shim.so
%D%/faults/shim.so: %D%/faults/shim.c %D%/faults/shim.h
	$(AM_V_CC)$(MKDIR_P) %D%/faults && $(CC) -std=c11 $(AM_CPPFLAGS) -O2 -fPIC -shared -o $@ \
	  $(srcdir)/%D%/faults/shim.c -ldl
CLEANFILES += %D%/faults/nfs_shim.so
%D%/faults/nfs_shim.so: %D%/faults/nfs_shim.c
	$(AM_V_CC)$(MKDIR_P) %D%/faults && $(CC) -std=c11 $(AM_CPPFLAGS) -O2 -fPIC -shared -o $@ \
	  $(srcdir)/%D%/faults/nfs_shim.c -ldl
CLEANFILES += %D%/faults/threads.so
%D%/faults/threads.so: %D%/faults/threads.c
	$(AM_V_CC)$(MKDIR_P) %D%/faults && $(CC) -std=c11 -O2 -fPIC -shared -o $@ \
	  $(srcdir)/%D%/faults/threads.c -ldl -pthread
# The driver that cuDNN finds where there is none: found by its name once it is loaded.
check_DATA += %D%/emu/driver.so
CLEANFILES += %D%/emu/driver.so
tc_emu_driver = $(abs_top_builddir)/tests/emu/driver.so
%D%/emu/driver.so: %D%/emu/driver.c
	$(AM_V_CC)$(MKDIR_P) %D%/emu && $(CC) -std=c11 $(TC_WARNINGS) -O1 -fPIC -shared -Wl,-soname,libcuda.so.1 -o $@ \
	  $(srcdir)/%D%/emu/driver.c
CLEANFILES += %D%/emu/libnvidia-ml.so.1
tc_fake_nvml = $(abs_top_builddir)/tests/emu
%D%/emu/libnvidia-ml.so.1: %D%/emu/nvml.c
	$(AM_V_CC)$(MKDIR_P) %D%/emu && $(CC) -std=c11 $(TC_WARNINGS) -O1 -fPIC -shared -o $@ \
	  $(srcdir)/%D%/emu/nvml.c
# The CUDA device on a CPU: the same sources as C++, with headers of ours in place of CUDA's.
if TC_EMU
emu_objects = $(cuda_sources:.cu=.eo) %D%/emu/nccl.eo %D%/emu/runtime.eo %D%/emu/emu.eo
emu_module = %D%/emu/tercio-cuda.so
tc_emu_modules = $(abs_top_builddir)/tests/emu
EMU_FLAGS = -std=c++17 -D_GNU_SOURCE -DTC_EMU -DTC_NCCL -DTC_NVTX -O1 -g1 -fPIC -fvisibility=hidden -fno-math-errno \
  $(TC_WARNINGS) -Wno-pedantic -Wno-unknown-pragmas -Wno-unused-function $(SANITIZE_CFLAGS) \
  -I$(top_srcdir)/tests/emu -I$(top_srcdir)
check_DATA += $(emu_module)
$(emu_objects): $(top_srcdir)/%D%/emu/cuda_runtime.h $(top_srcdir)/%D%/emu/cublasLt.h \
  $(top_srcdir)/%D%/emu/emu.h $(top_srcdir)/%D%/emu/races.h $(top_srcdir)/%D%/emu/nccl.h \
  $(top_srcdir)/%D%/emu/nvtx3/nvToolsExt.h $(top_srcdir)/kernels/cuda/dev.h \
  $(top_srcdir)/kernels/cuda/gemm.h $(top_srcdir)/kernels/cudnn/attention.h \
  $(top_srcdir)/kernels/attn_order.h $(top_srcdir)/kernels/cuda/attn.h $(top_srcdir)/kernels/cuda/ptx.h \
  $(top_srcdir)/kernels/kernel.h $(top_srcdir)/kernels/nccl.h $(top_srcdir)/src/graph/op.def \
  $(top_srcdir)/src/graph/rule.h $(top_srcdir)/src/graph/matrices.h $(top_srcdir)/src/graph/row_order.h
SUFFIXES += .eo .cc
.cu.eo:
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(CXX) $(EMU_FLAGS) -x c++ -c $< -o $@
.cc.eo:
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(CXX) $(EMU_FLAGS) -c $< -o $@
if TC_RACES
# What runs the kernels is no part of them: it tells the thread sanitizer what is (emu/races.h).
%D%/emu/emu.eo: SANITIZE_CFLAGS = -DTC_EMU_RACES
endif
$(emu_module): $(emu_objects)
	$(AM_V_GEN)$(CXX) -shared $(SANITIZE_CFLAGS) -o $@ $(emu_objects)
CLEANFILES += $(emu_module) $(emu_objects)
emu_cudnn = %D%/emu/tercio-cudnn.so
check_DATA += $(emu_cudnn)
CLEANFILES += $(emu_cudnn) %D%/emu/cudnn.eo
%D%/emu/cudnn.eo: $(top_srcdir)/kernels/cudnn/attention.h
$(emu_cudnn): %D%/emu/cudnn.eo
	$(AM_V_GEN)$(CXX) -shared $(SANITIZE_CFLAGS) -o $@ %D%/emu/cudnn.eo -ldl
# tests/check-races: the module with PLANTED.cu and the headers of a changed copy of the kernels.
emu-planted: $(emu_module)
	$(CXX) -I$(PLANTED_IN) $(EMU_FLAGS) -x c++ -c $(PLANTED_IN)/kernels/cuda/$(PLANTED).cu -o $(PLANTED_IN)/planted.eo
	$(CXX) -shared $(SANITIZE_CFLAGS) -o $(PLANTED_IN)/tercio-cuda.so $(PLANTED_IN)/planted.eo \
	  $(filter-out kernels/cuda/$(PLANTED).eo,$(emu_objects))
endif
