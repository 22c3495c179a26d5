# systems.sh - what m_systems and m_pipe share: models of each family, runs, their metrics and counts read,
# one row of the table. Sourced, with $layers set; TERCIO is the program.
. "$(dirname "$0")/../lib.sh"
full=no
[ "$1" = --full ] && full=yes
cp "$src/LICENSE.md" "$dir/text"
: > "$dir/table"

heads=4 hidden=64 context=32 vocab=256 batch=16

# model FAMILY: rows are of it from now on. $tiny: options; $tensors: how many parameters it has; and their
# elements: $wte of an embedding, $matrices of the layers, $gains of all norms, $psi of all. $untied: whether
# the head has a matrix of its own. What layers are made of: heads of keys and values, their size, the MLP's
# width, its first products (2: with a gate), tensors of a norm (2: with a bias), whether there are
# biases, norms of queries and keys, and learned positions, and how many norms else. $keys and $outputs: elements of a token's keys, of
# which it has $kv_heads, or of all its heads' outputs. $norm_within: of norms of the gradient after 20 steps;
# norms of queries make attention sharp from the start, and rounding comes back 20 times as large as without
# them, on one rank with more micro-batches, too. Losses and the first gradient have one tolerance for all.
model() {
  local kv d ffn up norm bias qk learned norms qkv c=$hidden
  family=$1
  norm_within=1e-5
  case $family in
    gpt2)    set -- 4 16 256 1 2 1 0 1 0 2 ;;
    llama)   set -- 2 16 192 2 1 0 0 0 1 2 ;;
    mistral) set -- 2 16 192 2 1 0 0 0 1 2 ;;
    qwen3)   set -- 2 32 192 2 1 0 1 0 0 2 ;;
    gemma3)  set -- 2 32 192 2 1 0 1 0 0 4 ;;
  esac
  kv=$1 d=$2 ffn=$3 up=$4 norm=$5 bias=$6 qk=$7 learned=$8 untied=$9
  shift 9
  norms=$1
  [ $qk = 0 ] || norm_within=1e-4
  qkv=$(((heads + 2 * kv) * d)) kv_heads=$kv keys=$((kv * d)) outputs=$((heads * d))
  tiny="$(small_model $layers $hidden $heads $context $vocab) $(family_options $family)
    --data.train=$dir/text --train.global_batch=$batch --train.steps=30 --train.eval_batches=1 --run.all_ranks=yes"
  tensors=$((layers * (4 + 4 * bias + norms * norm + 2 * qk) + norm + 1 + learned + untied))
  wte=$((vocab * c)) qk_gains=$((layers * qk * 2 * d))
  matrices=$((layers * (c * qkv + heads * d * c + (up + 1) * ffn * c)))
  gains=$(((norms * layers + 1) * c + qk_gains))
  # Biases after products that are split by rows, and norms, are whole on each rank of tp.
  whole=$(((norms * layers + 1) * norm * c + layers * bias * 2 * c + learned * context * c))
  psi=$(((1 + untied) * wte + matrices + layers * bias * (qkv + up * ffn) + whole + qk_gains))
}
model gpt2

# sizes SYSTEM RANKS ACC: $tp, $pp, $dp, $cp, $flags. A pipeline is named "pp2-1f1b+zero1+tp2+params".
sizes() {
  tp=1 pp=1 cp=1
  case $1 in
    pp*)
      rest=${1#pp} flags=
      pp=${rest%%-*} rest=${rest#*-}
      case $rest in *+tp2*) tp=2 flags="--mesh.tp=2 --parallel.sequence=yes" ;; esac
      for part in $(echo "$rest" | tr + ' '); do
        case $part in
          zero[123]|server|dataparallel) flags="$flags --parallel.data=$part" ;;
          params|update) flags="$flags --parallel.offload=$part" ;;
        esac
      done
      case $rest in *+keys|*+heads) cp=2 flags="$flags --mesh.cp=2 --parallel.context=${rest##*+}" ;; esac
      case $rest in *+near) flags="$flags --mesh.order=tp-pp-dp" ;; esac
      flags="$flags --mesh.pp=$pp --parallel.schedule=${rest%%+*}" ;;
    tensor)   tp=2 flags="--mesh.tp=2" ;;
    sequence) tp=2 flags="--mesh.tp=2 --parallel.sequence=yes" ;;
    *+hsdp)   flags="--parallel.data=${1%+hsdp} --mesh.shard=2" ;;
    *+keys|*+heads) cp=2 flags="--parallel.data=${1%+*} --mesh.cp=2 --parallel.context=${1#*+}" ;;
    *+heads4) cp=4 flags="--parallel.data=${1%+*} --mesh.cp=4 --parallel.context=heads" ;;
    zero3+*)  flags="--parallel.data=zero3 --parallel.offload=${1#zero3+}" ;;
    *)        flags="--parallel.data=$1" ;;
  esac
  dp=$(($2 / tp / pp / cp))
  flags="$flags --train.micro_batch=$((batch / dp / $3))"
}

# train LINK RANKS ARGS...
train() {
  link=$1 n=$2
  shift 2
  case $link in
    threads) limited "$TERCIO" train $tiny --ckpt.every_minutes=0 --run.ranks="$n" "$@" ;;
    mpi)     mpi "$n" "$TERCIO" train $tiny --ckpt.every_minutes=0 "$@" ;;
  esac > "$dir/out" 2> "$dir/err"
}

# ---- reading JSON ----

# Of a list of JSONs of axes, one a rank: their collectives and what these count, lines "RANK AXIS KIND CALLS BYTES".
calls='to_entries[] | .key as $rank | .value | to_entries[] | .key as $axis | .value | to_entries[] |
  "\($rank) \($axis) \(.key) \(.value.calls) \(.value.bytes)"'
# A call of jq takes as long as some steps of a run: one for all ranks. A rank's lines without its number, in order, into
# PREFIX and its number.
by_rank() {                      # PREFIX RANKS
  for r in $(seq 0 $(($2 - 1))); do : > "$1$r"; done
  sort | awk -v prefix="$1" '{ file = prefix $1; sub(/^[0-9]+ /, ""); print > file }'
}

metrics() { if [ "$2" = 0 ]; then echo "$1/metrics.jsonl"; else echo "$1/metrics.$2.jsonl"; fi; }

# sent_in_step RUN STEP RANKS: lines of $calls.
sent_in_step() {
  for r in $(seq 0 $(($3 - 1))); do sed -n "$2p" "$(metrics "$1" "$r")"; done | jq -nr "[inputs.comm] | $calls"
}

# counted RUN STEP RANKS: what each rank sent in a step, into $dir/rank0, rank1..., without the loop's own agreement on
# stopping and saving (one all-gather over the world of five int64).
counted() {
  sent_in_step "$@" |
    awk -v n="$3" '$2 == "ctl" && $3 == "all_gather" { $4 -= 1; $5 -= 5 * 8 * (n - 1) }
      $4 || $5 { print }' | by_rank "$dir/rank" "$3"
}

# predicted RUN RANKS: what each rank was to send in a step, into $dir/want0, want1...
predicted() { jq -r "[.ranks[].predicted_comm] | $calls" "$1/run.json" | by_rank "$dir/want" "$2"; }

# kinds AXIS FILE: "all_gather reduce_scatter".
kinds() { awk -v a="$1" '$1 == a { printf "%s%s", sep, $2; sep = " " }' "$2"; }
# get AXIS KIND COLUMN FILE (COLUMN 3: calls, 4: bytes).
get() { awk -v a="$1" -v k="$2" -v c="$3" '$1 == a && $2 == k { x = $c } END { print x + 0 }' "$4"; }

# ---- what a row must show ----

# own SYSTEM RANKS: rank 0's kinds on dp, on tp, where dp is two copies of shards, on cp, and on dp and cp together.
own() {
  on_dp= on_tp= on_shard= on_copies= on_cp= on_both=
  [ "$2" = 1 ] && return
  case $1 in
    *+keys|*+heads*)
      case $1 in *+keys) on_cp="all_gather reduce_scatter" ;; *) on_cp="all_to_all" ;; esac
      case $1 in ddp+*) on_both="all_reduce" ;; *) on_both="all_gather reduce_scatter" ;; esac
      if [ "$dp" = 1 ]; then on_cp=$(echo $on_cp $on_both | tr ' ' '\n' | sort -u | paste -sd' ') on_both=; fi ;;
    *+hsdp)            on_shard="all_gather reduce_scatter" on_copies="all_reduce" ;;
    ddp)               on_dp="all_reduce" ;;
    zero1|zero2|zero3*) on_dp="all_gather reduce_scatter" ;;
    server)            on_dp="broadcast reduce" ;;
    dataparallel)      on_dp="broadcast gather reduce scatter" ;;
    tensor)            on_tp="all_reduce" ;;
    sequence)          on_tp="all_gather all_reduce reduce_scatter" ;;
  esac
  [ "$tp" = 2 ] && [ "$dp" -gt 1 ] && on_dp="all_reduce"
  return 0
}

own_kinds() {                    # SYSTEM RANKS ACC ROW; counted of each rank are in rank0, rank1...
  own "$1" "$2"
  for r in $(seq 0 $(($2 - 1))); do
    case $1 in pp*) is "$(kinds pp "$dir/rank$r")" "recv send" || return 1; continue ;; esac
    is "$(kinds dp "$dir/rank$r")" "$on_dp" || return 1
    is "$(kinds tp "$dir/rank$r")" "$on_tp" || return 1
    is "$(kinds shard "$dir/rank$r")" "$on_shard" || return 1
    is "$(kinds replicate "$dir/rank$r")" "$on_copies" || return 1
    is "$(kinds cp "$dir/rank$r")" "$on_cp" || return 1
    is "$(kinds dp+cp "$dir/rank$r")" "$on_both" || return 1
  done
  cp "$dir/rank0" "$dir/$4"
  [ "$2" -gt 1 ] || return 0
  link=${4##*-} type=fp32        # zero1 with the same ranks, accumulation, precision and link
  case $4 in *-bf16-*) type=bf16 ;; esac
  base=$dir/$family-zero1-$2-$3-$type-$link
  case $1 in *+hsdp|*+keys|*+heads*) return ;; zero[23]*) [ -f "$base" ] || { echo "no row $base"; return 1; } ;; esac
  case $1 in
    zero2) is "$(get dp reduce_scatter 3 "$dir/$4")" \
             $(($3 * $(get dp reduce_scatter 3 "$base"))) ;;
    zero3*) [ "$(get dp all_gather 4 "$dir/$4")" -gt "$(get dp all_gather 4 "$base")" ] ;;
  esac
}

own_bytes() {                    # RANKS: each rank's calls and bytes are the program's
  predicted "$dir/run" "$1"
  for r in $(seq 0 $(($1 - 1))); do
    [ "$1" = 1 ] || [ -s "$dir/want$r" ] || return 1
    diff "$dir/want$r" "$dir/rank$r" || return 1
  done
}

own_memory() {                   # RANKS: allocated is what was predicted, on each rank
  jq -e --argjson n "$1" '[.ranks[] | .memory | .allocated_bytes as $got | {
      device: ($got.state + $got.scratch + $got.staging), predicted: .predicted_total_bytes,
      host: ($got.host_state + $got.host_scratch + $got.host_staging), predicted_host: .predicted_host_total_bytes,
      staging: $got.staging, predicted_staging: .predicted_bytes.staging,
      classes: (.predicted_bytes | add), host_classes: (.predicted_host_bytes | add) }] |
    (.[] | tojson), (length == $n and all(.device > 0 and .device == .predicted and
      .host == .predicted_host and .staging == .predicted_staging and .classes <= .device and
      .host_classes <= .host))' "$dir/run/run.json"
}

# precision NAME: $more, what a run of that precision needs besides.
precision() {
  more=
  [ "$1" = bf16 ] && more="--train.precision=bf16 $bf16"
  return 0
}

# reference PRECISION: the one-rank run of the family without accumulation, once.
reference() {
  [ -d "$dir/one-$family-$1" ] && return
  precision "$1"
  train threads 1 $more $(optimizer "$1") --train.stop_at=20 --run.out="$dir/one-$family-$1"
  check "$family, one rank, $1" [ $? -eq 0 ]
  [ "$1" = sgd ] && return
  train threads 1 $more --train.stop_at=1 --run.out="$dir/first-$family-$1"
  check "$family, one rank, $1, one step" [ $? -eq 0 ]
}
optimizer() { [ "$1" != sgd ] || echo "--train.optimizer=sgd --train.clip=0 --train.lr=0.1"; }

# adam_m PRECISION LINK RANKS FLAGS...: Adam's m is (1 - beta1) times the clipped gradient after
# one step; the worst tensor's difference into $m, and 0 if all are there and within 1e-5.
adam_m() {
  p=$1 l=$2 n=$3
  shift 3
  m=none
  rm -rf "$dir/first"
  train "$l" "$n" "$@" --train.stop_at=1 --run.out="$dir/first" || return 1
  limited "$TERCIO" ckpt diff "$dir/first-$family-$p/ckpt" "$dir/first/ckpt" --rtol 1e-5 \
    --only 'optim.m.*' > "$dir/diff"
  got=$?
  m=$(awk '/^optim.m./ { n++; if ($3 + 0 > w) w = $3 + 0 }
    END { if (n != '$tensors') print "none"; else printf "%.1e\n", w }' "$dir/diff")
  return $got
}

# row SYSTEM RANKS ACC PRECISION LINK; PRECISION sgd: fp32 with SGD and no clipping, which shows
# gradients that are wrong by a factor.
row() {
  sizes "$1" "$2" "$3"
  reference "$4"
  precision "$4"
  name=$family-$1-$2-$3-$4-$5
  label="$family, $1, $2 ranks, accumulation $3, $4, $5"
  rm -rf "$dir/run"
  train "$5" "$2" $flags $more $(optimizer "$4") --train.stop_at=20 --run.out="$dir/run"
  got=$?
  check "$label: runs (status $got)" [ $got = 0 ]
  [ $got = 0 ] || return
  loss_tol=5e-6 norm_tol=$norm_within m=-
  [ "$4" = bf16 ] && loss_tol=1e-2 norm_tol=1e9
  loss=$(worst loss "$dir/one-$family-$4" "$dir/run" 20) norm=$(worst grad_norm "$dir/one-$family-$4" "$dir/run" 20)
  check "$label: losses within $loss_tol (worst $loss)" below "$loss" $loss_tol
  check "$label: gradient norms within $norm_tol (worst $norm)" below "$norm" $norm_tol
  case $1 in *+hsdp|*+keys|*+heads*) few=no ;; *) few=$full-$2 ;; esac
  if [ "$4" != sgd ] && [ $few != no-4 ]; then             # the short form: m at 2 ranks alone, or where it takes 4
    adam_m "$4" "$5" "$2" $flags $more
    got=$?
    [ "$4" = fp32 ] || got=0                     # bf16: only shown
    check "$label: Adam's m after step 1 (worst $m)" [ $got = 0 -a "$m" != none ]
  fi
  counted "$dir/run" 10 "$2"
  check "$label: its own collectives and no others" own_kinds "$1" "$2" "$3" "$name"
  check "$label: calls and bytes of each rank as predicted" own_bytes "$2"
  check "$label: memory of each rank as predicted" own_memory "$2"
  show=
  for a in pp dp shard replicate cp dp+cp tp; do
    k=$(awk -v a=$a '$1 == a { printf "%s%s x%s", sep, $2, $3; sep = ", " }' "$dir/rank0")
    [ -n "$k" ] && show="$show $a: $k"
  done
  printf '# %-5s  %-34s %5s %3s  %-4s  %-7s  %-8s %-8s %-8s%s\n' $family "$1" "$2" "$3" "$4" "$5" "$loss" \
    "$norm" "$m" "${show:- none}" >> "$dir/table"
}

print_table() {
  echo "# Worst relative differences from the one-rank run; calls of rank 0 in a step."
  printf '# %-5s  %-34s %5s %3s  %-4s  %-7s  %-8s %-8s %-8s %s\n' model system ranks acc type link loss norm \
    "Adam's m" kinds
  cat "$dir/table"
}
