# systems.sh - what m_systems and m_pipe share: runs, their metrics and counts read, one row of the
# table. Sourced, with $layers set; TERCIO is the program.
TERCIO=${TERCIO:-./tercio}
src=${srcdir:-.}
count=0 failed=0 full=no
[ "$1" = --full ] && full=yes
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cp "$src/LICENSE.md" "$dir/text"
: > "$dir/table"

check() {                        # WHAT COMMAND...
  what=$1
  shift
  count=$((count + 1))
  if "$@" > "$dir/check" 2>&1; then
    echo "ok $count - $what"
  else
    failed=1
    echo "not ok $count - $what"
    sed 's/^/#   /' "$dir/check" "$dir/err" 2> /dev/null | head -40
  fi
}

hidden=64 context=32 vocab=256 batch=16
tiny="--model.layers=$layers --model.hidden=$hidden --model.heads=4 --model.context=$context
  --model.vocab=$vocab --data.train=$dir/text --train.global_batch=$batch --train.steps=30
  --train.eval_batches=1 --run.all_ranks=yes"

# sizes SYSTEM RANKS ACC: $tp, $pp, $dp, $flags. A pipeline is named "pp2-1f1b+zero1+tp2+params".
sizes() {
  tp=1 pp=1
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
      case $rest in *+near) flags="$flags --mesh.order=tp-pp-dp" ;; esac
      flags="$flags --mesh.pp=$pp --parallel.schedule=${rest%%+*}" ;;
    tensor)   tp=2 flags="--mesh.tp=2" ;;
    sequence) tp=2 flags="--mesh.tp=2 --parallel.sequence=yes" ;;
    zero3+*)  flags="--parallel.data=zero3 --parallel.offload=${1#zero3+}" ;;
    *)        flags="--parallel.data=$1" ;;
  esac
  dp=$(($2 / tp / pp))
  flags="$flags --train.micro_batch=$((batch / dp / $3))"
}

# train LINK RANKS ARGS...
train() {
  link=$1 n=$2
  shift 2
  case $link in
    threads) timeout --kill-after=10 600 "$TERCIO" train $tiny --run.ranks="$n" "$@" ;;
    mpi)     timeout --kill-after=10 600 mpirun -n "$n" --oversubscribe --allow-run-as-root \
               $monitor "$TERCIO" train $tiny "$@" ;;
  esac > "$dir/out" 2> "$dir/err"
}
monitor=

# ---- reading JSON ----

# Each number of the JSON that is read, as a line: its path and the value, "ranks 0 dp 1".
leaves() {
  awk '{
    s = $0
    while (s != "") {
      c = substr(s, 1, 1)
      if (c ~ /[ \t:]/) s = substr(s, 2)
      else if (c ~ /[[{]/) { kind[++d] = c; key[d] = 0; s = substr(s, 2) }
      else if (c ~ /[]}]/) { d--; s = substr(s, 2) }
      else if (c == ",") { if (kind[d] == "[") key[d]++; s = substr(s, 2) }
      else if (match(s, /^"([^"\\]|\\.)*"/)) {
        v = substr(s, 2, RLENGTH - 2)
        s = substr(s, RLENGTH + 1)
        if (s ~ /^ *:/) key[d] = v
      } else {
        match(s, /^[^],} ]+/)
        for (i = 1; i <= d; i++) printf "%s ", key[i]
        print substr(s, 1, RLENGTH)
        s = substr(s, RLENGTH + 1)
      }
    }
  }'
}

# calls: of lines "AXIS KIND calls|bytes N", lines "AXIS KIND CALLS BYTES" in order.
calls() { sort | awk '$3 == "bytes" { b = $4 } $3 == "calls" { print $1, $2, $4, b }'; }

metrics() { if [ "$2" = 0 ]; then echo "$1/metrics.jsonl"; else echo "$1/metrics.$2.jsonl"; fi; }

# counted RUN RANK STEP RANKS: what a rank sent in a step, without the loop's own agreement on
# stopping and saving (one all-gather over the world of five int64).
counted() {
  sed -n "$3p" "$(metrics "$1" "$2")" | leaves | sed -n 's/^comm //p' | calls |
    awk -v n="$4" '$1 == "ctl" && $2 == "all_gather" { $3 -= 1; $4 -= 5 * 8 * (n - 1) }
      $3 || $4 { print }'
}

# predicted RUN RANK
predicted() { leaves < "$1/run.json" | sed -n "s/^ranks $2 predicted_comm //p" | calls; }

# kinds AXIS FILE: "all_gather reduce_scatter".
kinds() { awk -v a="$1" '$1 == a { printf "%s%s", sep, $2; sep = " " }' "$2"; }
# get AXIS KIND COLUMN FILE (COLUMN 3: calls, 4: bytes).
get() { awk -v a="$1" -v k="$2" -v c="$3" '$1 == a && $2 == k { x = $c } END { print x + 0 }' "$4"; }

column() { sed -n "s/.*\"$1\": \([^,}]*\).*/\1/p" "$2/metrics.jsonl"; }

# worst KEY A B: the largest relative difference of 20 values; "none" where some are missing.
worst() {
  column "$1" "$2" > "$dir/a"
  column "$1" "$3" > "$dir/b"
  paste "$dir/a" "$dir/b" | awk 'NF != 2 || $1 !~ /^[0-9]/ || $2 !~ /^[0-9]/ { bad = 1 }
    { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > w) w = d }
    END { if (bad || NR != 20) print "none"; else printf "%.1e\n", w }'
}
# most X LIMIT
most() { awk -v x="$1" -v l="$2" 'BEGIN { exit !(x != "none" && x + 0 <= l + 0) }'; }

# ---- what a row must show ----

# own SYSTEM RANKS: rank 0's kinds on dp, and on tp.
own() {
  on_dp= on_tp=
  [ "$2" = 1 ] && return
  case $1 in
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

same() { [ "$1" = "$2" ] || { echo "got '$1', want '$2'"; return 1; }; }

own_kinds() {                    # SYSTEM RANKS ACC ROW; counted of each rank are in rank0, rank1...
  own "$1" "$2"
  for r in $(seq 0 $(($2 - 1))); do
    case $1 in pp*) same "$(kinds pp "$dir/rank$r")" "recv send" || return 1; continue ;; esac
    same "$(kinds dp "$dir/rank$r")" "$on_dp" || return 1
    same "$(kinds tp "$dir/rank$r")" "$on_tp" || return 1
  done
  cp "$dir/rank0" "$dir/$4"
  [ "$2" -gt 1 ] || return 0
  link=${4##*-} type=fp32        # zero1 with the same ranks, accumulation, precision and link
  case $4 in *-bf16-*) type=bf16 ;; esac
  base=$dir/zero1-$2-$3-$type-$link
  case $1 in zero[23]*) [ -f "$base" ] || { echo "no row $base"; return 1; } ;; esac
  case $1 in
    zero2) same "$(get dp reduce_scatter 3 "$dir/$4")" \
             $(($3 * $(get dp reduce_scatter 3 "$base"))) ;;
    zero3*) [ "$(get dp all_gather 4 "$dir/$4")" -gt "$(get dp all_gather 4 "$base")" ] ;;
  esac
}

own_bytes() {                    # RANKS: each rank's calls and bytes are the program's
  for r in $(seq 0 $(($1 - 1))); do
    predicted "$dir/run" "$r" > "$dir/want"
    [ "$1" = 1 ] || [ -s "$dir/want" ] || return 1
    diff "$dir/want" "$dir/rank$r" || return 1
  done
}

own_memory() {                   # RANKS: allocated is what was predicted, on each rank
  leaves < "$dir/run/run.json" | awk -v n="$1" '
    $1 == "ranks" && $3 == "memory" {
      if ($4 == "predicted_bytes" || $4 == "predicted_host_bytes") by[$2, $4] += $6
      if ($4 == "predicted_bytes" && $5 == "staging") staging[$2] = $6
      if ($4 == "allocated_bytes") got[$2, $5] = $6
      if ($4 == "predicted_total_bytes") dev[$2] = $5
      if ($4 == "predicted_host_total_bytes") host[$2] = $5
    }
    END {
      for (r = 0; r < n; r++) {
        d = got[r, "state"] + got[r, "scratch"] + got[r, "staging"]
        h = got[r, "host_state"] + got[r, "host_scratch"] + got[r, "host_staging"]
        if (!(d > 0) || d != dev[r] || h != host[r] || got[r, "staging"] != staging[r] ||
            by[r, "predicted_bytes"] > d || by[r, "predicted_host_bytes"] > h) {
          print "rank", r, "device", d, "predicted", dev[r], "host", h, host[r], "staging",
            got[r, "staging"], staging[r], "classes", by[r, "predicted_bytes"]
          bad = 1
        }
      }
      exit bad
    }'
}

# model PRECISION: what a run of that precision needs besides.
model() {
  more=
  [ "$1" = bf16 ] && more="--train.precision=bf16 $bf16"
  return 0
}

# reference PRECISION: the one-rank run without accumulation, once.
reference() {
  [ -d "$dir/one-$1" ] && return
  model "$1"
  train threads 1 $more $(optimizer "$1") --train.stop_at=20 --run.out="$dir/one-$1"
  check "one rank, $1" [ $? -eq 0 ]
  [ "$1" = sgd ] && return
  train threads 1 $more --train.stop_at=1 --run.out="$dir/first-$1"
  check "one rank, $1, one step" [ $? -eq 0 ]
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
  timeout 600 "$TERCIO" ckpt diff "$dir/first-$p/ckpt" "$dir/first/ckpt" --rtol 1e-5 \
    --only 'optim.m.*' > "$dir/diff"
  got=$?
  m=$(awk '/^optim.m./ { n++; if ($3 + 0 > w) w = $3 + 0 }
    END { if (n != '$((12 * layers + 4))') print "none"; else printf "%.1e\n", w }' "$dir/diff")
  return $got
}

# row SYSTEM RANKS ACC PRECISION LINK; PRECISION sgd: fp32 with SGD and no clipping, which shows
# gradients that are wrong by a factor.
row() {
  sizes "$1" "$2" "$3"
  reference "$4"
  model "$4"
  name=$1-$2-$3-$4-$5
  label="$1, $2 ranks, accumulation $3, $4, $5"
  rm -rf "$dir/run"
  train "$5" "$2" $flags $more $(optimizer "$4") --train.stop_at=20 --run.out="$dir/run"
  got=$?
  check "$label: runs (status $got)" [ $got = 0 ]
  [ $got = 0 ] || return
  loss_tol=5e-6 norm_tol=1e-5 m=-
  [ "$4" = bf16 ] && loss_tol=1e-2 norm_tol=1e9
  loss=$(worst loss "$dir/one-$4" "$dir/run") norm=$(worst grad_norm "$dir/one-$4" "$dir/run")
  check "$label: losses within $loss_tol (worst $loss)" most "$loss" $loss_tol
  check "$label: gradient norms within $norm_tol (worst $norm)" most "$norm" $norm_tol
  if [ "$4" != sgd ] && [ $full-$2 != no-4 ]; then         # the short form: m at 2 ranks alone
    adam_m "$4" "$5" "$2" $flags $more
    got=$?
    [ "$4" = fp32 ] || got=0                     # bf16: only shown
    check "$label: Adam's m after step 1 (worst $m)" [ $got = 0 -a "$m" != none ]
  fi
  for r in $(seq 0 $(($2 - 1))); do counted "$dir/run" "$r" 10 "$2" > "$dir/rank$r"; done
  check "$label: its own collectives and no others" own_kinds "$1" "$2" "$3" "$name"
  check "$label: calls and bytes of each rank as predicted" own_bytes "$2"
  check "$label: memory of each rank as predicted" own_memory "$2"
  show=
  for a in pp dp tp; do
    k=$(awk -v a=$a '$1 == a { printf "%s%s x%s", sep, $2, $3; sep = ", " }' "$dir/rank0")
    [ -n "$k" ] && show="$show $a: $k"
  done
  printf '# %-34s %5s %3s  %-4s  %-7s  %-8s %-8s %-8s%s\n' "$1" "$2" "$3" "$4" "$5" "$loss" \
    "$norm" "$m" "${show:- none}" >> "$dir/table"
}
