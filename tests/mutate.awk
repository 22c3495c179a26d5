# mutate.awk - the places at which tests/mutate may change C sources, one a line:
#
#   KIND <tab> FILE <tab> LINE <tab> COLUMN <tab> LENGTH <tab> FUNCTION <tab> REPLACEMENT
#
# It knows the layout of this tree rather than C: operators have spaces around them, a function's
# name stands in a line that begins at column 1. Comments, strings, preprocessor lines and
# assertions are left alone, as is what only frees memory: no test sees that without a sanitizer.

function fill(n,    s) { s = sprintf("%" n "s", ""); gsub(/ /, "$", s); return s }

# The line with comments and the insides of strings as "$".
function mask(s,    out, p) {
  out = ""
  while (s != "") {
    if (comment) {
      p = index(s, "*/")
      if (!p) return out fill(length(s))
      out = out fill(p + 1)
      s = substr(s, p + 2)
      comment = 0
      continue
    }
    if (!match(s, /["']|\/\*|\/\//)) return out s
    out = out substr(s, 1, RSTART - 1)
    s = substr(s, RSTART)
    if (s ~ /^\/\//) return out fill(length(s))
    if (s ~ /^\/\*/) {
      comment = 1
      out = out "$$"
      s = substr(s, 3)
    } else if (match(s, /^"([^"\\]|\\.)*"/) || match(s, /^'([^'\\]|\\.)*'/)) {
      out = out fill(RLENGTH)
      s = substr(s, RLENGTH + 1)
    } else {
      out = out "$"
      s = substr(s, 2)
    }
  }
  return out
}

function emit(kind, col, len, new) {
  if (substr(line, col, len) == new) return
  printf "%s\t%s\t%d\t%d\t%d\t%s\t%s\n", kind, FILENAME, FNR, col, len, func_name, new
}

# Each " OP " of the line becomes each word of `new`.
function operator(kind, op, new,    at, p, n, w, i) {
  n = split(new, w, " ")
  for (at = 1; (p = index(substr(masked, at), " " op " ")) > 0; at += p)
    for (i = 1; i <= n; i++) emit(kind, at + p, length(op), w[i])
}

# Where the parenthesis that opens at column `open` is closed; 0: in another line.
function closing(open,    i, c, depth) {
  for (i = open; i <= length(masked); i++) {
    c = substr(masked, i, 1)
    if (c == "(" || c == "[" || c == "{") depth++
    if (c == ")" || c == "]" || c == "}") depth--
    if (depth == 0) return i
  }
  return 0
}

function constants(    at, s, before, after, n) {
  for (at = 1; match(substr(masked, at), /[0-9]+/); at += RSTART + RLENGTH - 1) {
    s = at + RSTART - 1
    before = s > 1 ? substr(masked, s - 1, 1) : " "
    after = substr(masked, s + RLENGTH, 1)
    if (before ~ /[A-Za-z0-9_.]/ || after ~ /[.xXA-Za-z_]/) continue
    # The length of an array is room, which may as well be more.
    if (before == "[" && masked ~ /^ *(static )?(const )?(char|struct [a-z_]+|[a-z0-9_]+_t|int|double|float|bool) /)
      continue
    if (masked ~ /\? -1 : 1[;,]/) continue        # a comparison's sign
    n = substr(line, s, RLENGTH)
    if (length(n) > 15) continue
    # More memory than is used is no difference.
    if (masked !~ /alloc\(/ || masked !~ /\+ 1\)/) emit("constant", s, RLENGTH, sprintf("%.0f", n + 1))
    if (n > 0) emit("constant", s, RLENGTH, sprintf("%.0f", n - 1))
  }
}

function conditions(    at, open, end) {
  if (masked ~ /(free|_destroy|_close)\(/) return
  for (at = 1; match(substr(masked, at), /(if|while) \(/); at += RSTART + RLENGTH - 1) {
    open = at + RSTART + RLENGTH - 2
    end = closing(open)
    if (end) emit("negation", open, end - open + 1, "(!" substr(line, open, end - open + 1) ")")
  }
}

# Whether the call whose parentheses stand at `open` and `end` gives the same with its first two arguments
# the other way round: a maximum, or a comparison of which only equality is asked.
function symmetric(open, end,    before, after) {
  before = substr(masked, 1, open)
  after = substr(masked, end + 1)
  if (before ~ /(^|[^A-Za-z_])(TC_MAX|TC_MIN|fmax|fmin)\($/) return 1
  if (before !~ /(^|[^A-Za-z_])(strcmp|strncmp|strcasecmp|memcmp|json_equal)\($/) return 0
  return after ~ /^ [!=]= 0[^0-9]/ || before ~ /!(strcmp|strncmp|strcasecmp|memcmp|json_equal)\($/ ||
         (after ~ /^\)* ?(&&|\|\||\)|\?|$)/ && before !~ /return [a-z]*\($/ && after !~ /^\)* ?[<>]/)
}

# Neighbouring arguments of a call change places.
function arguments(    at, open, end, i, c, depth, n, from, to, a, b) {
  for (at = 1; match(substr(masked, at), /[a-z0-9_]\(/); at += RSTART) {
    open = at + RSTART
    end = closing(open)
    if (!end || substr(masked, 1, open) ~ /calloc\($/) continue    # these two are multiplied
    n = 1
    from[1] = open + 1
    depth = 0
    for (i = open + 1; i < end; i++) {
      c = substr(masked, i, 1)
      if (c == "(" || c == "[" || c == "{") depth++
      if (c == ")" || c == "]" || c == "}") depth--
      if (c == "," && depth == 0 && substr(masked, i + 1, 1) == " ") {
        to[n] = i - 1
        from[++n] = i + 2
      }
    }
    to[n] = end - 1
    for (i = symmetric(open, end) ? 2 : 1; i < n; i++) {
      a = substr(line, from[i], to[i] - from[i] + 1)
      b = substr(line, from[i + 1], to[i + 1] - from[i + 1] + 1)
      emit("arguments", from[i], to[i + 1] - from[i] + 1, b ", " a)
    }
  }
}

function statements(    s, start) {
  if (masked !~ /;$/ || previous !~ /([;{}:)]|else|\$)$/) return
  s = masked
  sub(/^ +/, "", s)
  start = length(masked) - length(s) + 1
  if (s ~ /^(return|goto|if|for|while|do|switch|case|else|break|continue|sizeof|free|fclose)[^a-z_]/) return
  if (s ~ /^[a-z_0-9]*(_free|_destroy|_decref|_close)\(/) return
  if (s ~ /^pthread_(mutex|cond)_init\(.*, NULL\);$/) return      # zeroed memory is one
  if (s ~ /^([a-z_][A-Za-z0-9_>.-]*|TC_TRY)\(.*\);$/ ||
      s ~ /^\*?[A-Za-z_][][A-Za-z0-9_>.()+-]* [-+*\/|&]?= .*;$/ || s ~ /^[a-z_][][A-Za-z0-9_>.-]*(\+\+|--);$/)
    if (closing(start) || s !~ /^[^(]*\)/) emit("statement", start, length(s), ";")
}

function statuses(    at) {
  if (match(masked, /return 0;/)) emit("status", RSTART, RLENGTH, "return -1;")
  if (match(masked, /return -1;/)) emit("status", RSTART, RLENGTH, "return 0;")
  if (match(masked, /return 1;/)) emit("status", RSTART, RLENGTH, "return 0;")
  if (match(masked, /return rc;/)) emit("status", RSTART, RLENGTH, "return 0;")
  if (match(masked, /return true;/)) emit("status", RSTART, RLENGTH, "return false;")
  if (match(masked, /return false;/)) emit("status", RSTART, RLENGTH, "return true;")
  for (at = 1; match(substr(masked, at), /TC_E(USER|NOCKPT|LAYOUT|CHECKSUM|INCOMPLETE|DIVERGED|PEER)/);
       at += RSTART + RLENGTH - 1)
    emit("status", at + RSTART - 1, RLENGTH,
         substr(masked, at + RSTART - 1, RLENGTH) == "TC_EUSER" ? "TC_ENOCKPT" : "TC_EUSER")
}

FNR == 1 { comment = 0; func_name = "-"; previous = ";" }
{
  line = $0
  masked = mask(line)
  if (masked ~ /^[A-Za-z].*[A-Za-z0-9_]\(/ && masked !~ /;$/) {
    func_name = masked
    sub(/\(.*/, "", func_name)
    sub(/.*[^A-Za-z0-9_]/, "", func_name)
  } else if (masked ~ /^[A-Za-z]/ && masked !~ /^[A-Za-z0-9_]*:$/) {
    func_name = "-"
  }
  if (masked ~ /^ *#/ || masked ~ /ASSERT/ || masked ~ /^ *$/) next
  operator("relation", "<", "<= >=")
  operator("relation", "<=", "< >")
  operator("relation", ">", ">= <=")
  operator("relation", ">=", "> <")
  operator("relation", "==", "!= >=")
  operator("relation", "!=", "== <")
  operator("arithmetic", "+", "-")
  operator("arithmetic", "-", "+")
  operator("arithmetic", "*", "/")
  operator("arithmetic", "/", "*")
  operator("arithmetic", "%", "*")
  operator("arithmetic", "+=", "-=")
  operator("arithmetic", "-=", "+=")
  operator("arithmetic", "<<", ">>")
  operator("arithmetic", ">>", "<<")
  operator("arithmetic", "&", "|")
  operator("arithmetic", "|", "&")
  operator("logic", "&&", "||")
  operator("logic", "||", "&&")
  constants()
  if (masked ~ /^ /) {
    conditions()
    arguments()
    statements()
  }
  statuses()
  previous = masked
  sub(/[ $]+$/, "", previous)
  if (previous ~ /^ *$/) previous = ";"
}
