# sass.awk - figures of compiled kernels, from the output of `cuobjdump -res-usage` followed by that of
# `cuobjdump -sass` of the same file. A line for each kernel:
#
#   NAME registers=N stack=N loop=N mma=N loads=N
#
# registers, stack: of a thread; a stack (bytes) is where registers are spilled to, or an array.
# loop:  instructions of the largest loop, or of the whole kernel if it has none.
# mma:   of these on tensor cores.
# loads: the most loads of 16 bytes from global memory in the loop, one after the other, before a result is
#        used: 1 means that each waits for the memory alone.

/^ Function .*:$/ { name = $2; sub(/:$/, "", name); next }
/^ +REG:[0-9]/ {
  for (i = 1; i <= NF; i++) if (split($i, f, ":") == 2) usage[name, f[1]] = f[2]
  next
}
/Function : / { finish(); kernel = $3; n = 0; next }
kernel != "" && match($0, /^ +\/\*[0-9a-f]+\*\/ /) {
  at[n] = hex($1)
  text = substr($0, RSTART + RLENGTH)
  sub(/;.*/, "", text)
  sub(/^ +/, "", text)
  jump[n] = text ~ /^(BRA|BRX|EXIT|RET)/         # always, without a predicate
  sub(/^@!?U?P[0-9T]+ +/, "", text)
  code[n++] = text
}
END { finish() }

function hex(s,    i, v) {
  gsub(/^\/\*|\*\/$|^0x/, "", s)
  for (i = 1; i <= length(s); i++) v = v * 16 + index("0123456789abcdef", substr(s, i, 1)) - 1
  return v
}

function finish(    i, first, last, size, target, mma, m) {
  if (kernel == "") return
  first = 0; last = n - 1; size = -1
  for (i = 0; i < n; i++) {
    if (code[i] !~ /^BRA/ || !match(code[i], /0x[0-9a-f]+/)) continue
    target = hex(substr(code[i], RSTART, RLENGTH))
    if (target < at[i] && at[i] - target > size) {
      size = at[i] - target
      last = i
      for (first = i; first > 0 && at[first] > target; first--);
    }
  }
  for (i = first; i <= last; i++) if (code[i] ~ /^HMMA/) mma++
  printf "%s registers=%d stack=%d loop=%d mma=%d loads=%d\n", kernel, usage[kernel, "REG"],
    usage[kernel, "STACK"], last - first + 1, mma, loads(first, last)
  kernel = ""
}

# A load of 16 bytes has its result in four registers, of which it names the first.
function loads(first, last,    i, k, most, open, reg, pending, used, rest, width) {
  for (i = first; i <= last; i++) {
    used = 0
    rest = code[i]
    while (match(rest, /R[0-9]+(\.64)?/)) {
      reg = substr(rest, RSTART + 1, RLENGTH - 1)
      width = sub(/\.64$/, "", reg) ? 2 : 1
      for (k = 0; k < width; k++) if ((reg + k) in pending) used = 1
      rest = substr(rest, RSTART + RLENGTH)
    }
    if (used || jump[i]) { split("", pending); open = 0 }
    if (code[i] !~ /^LDG[.A-Z0-9]*\.128/ || !match(code[i], / R[0-9]+/)) continue
    reg = substr(code[i], RSTART + 2, RLENGTH - 2) + 0
    for (k = 0; k < 4; k++) pending[reg + k] = 1
    if (++open > most) most = open
  }
  return most + 0
}
