# mutate.awk - the places at which tests/mutate may change C sources, one a line:
#
#   KIND <tab> FILE <tab> LINE <tab> COLUMN <tab> LENGTH <tab> FUNCTION <tab> REPLACEMENT
#
# It knows the layout of this tree rather than C: operators have spaces around them, a function's
# name stands in a line that begins at column 1. Comments, strings, preprocessor lines and
# assertions are left alone, as is what only frees memory: no test sees that without a sanitizer.
#
# What can make no difference by the tree's own conventions is left out by the rules below, each a function of
# "rules"; a change that makes none for a reason of its own is explained in tests/mutate.same. -v headers="F...":
# headers and .def files, whose enums the rules know besides those of the sources themselves.

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

# ---- what is known of the sources before the first line is changed -------------------------------------------------

# The last value that an enum has, and before a count of them ("[TC_OPS]" somewhere) the last but one: highest[name].
function learn_enum(file, text,    n, m, i, last, before) {
  sub(/^[^{]*\{/, "", text)
  n = split(text, m, ",")
  if (m[n] ~ /^[ \n]*$/) n--
  for (i = 1; i <= n; i++) {
    if (m[i] ~ /= *[A-Z][A-Z0-9_]*[ \n]*$/ && i > 1) continue    # another name of one above
    # With values of their own, the last one need not be the highest.
    if (m[i] ~ /=/ && (i > 1 || m[i] !~ /= *-?[01]? *$/)) return
    gsub(/[ \n]|=.*/, "", m[i])
    before = last
    last = m[i]
    if (m[i] !~ /^[A-Z][A-Z0-9_]*$/) return
  }
  if (before == "") return
  highest[file, last] = 1
  pending[file, last] = before
}

# An enum made from a list: #define OP(id, ...) TC_OP_##id, and #include "src/graph/op.def"; its last row's name.
function last_row(prefix, def,    s, id) {
  while ((getline s < def) > 0) if (match(s, /^[A-Z]+\([A-Za-z0-9_]+/)) { id = substr(s, 1, RLENGTH); sub(/.*\(/, "", id) }
  close(def)
  return prefix id
}

function learn(file, is_header,    s, where, text, in_enum, prefix, def, f, open_f, scope, rest) {
  scope = is_header ? "" : file
  comment = 0
  while ((getline s < file) > 0) {
    if (in_enum && s ~ /^#define .*##/) { prefix = s; sub(/##.*/, "", prefix); sub(/.*[ (]/, "", prefix) }
    if (in_enum && s ~ /^#include ".*\.def"/) { def = s; gsub(/^#include "|"$/, "", def); text = text last_row(prefix, def) "," }
    s = mask(s)
    gsub(/\$/, "", s)
    if (s ~ /^#/) continue
    # A count is the length of an array; "[LAST] = x", in a list, names a value.
    for (rest = s; match(rest, /\[[A-Z][A-Z0-9_]*\]/); rest = substr(rest, RSTART + RLENGTH - 1)) {
      where = substr(rest, RSTART + 1, RLENGTH - 2)
      if (RSTART > 1 && substr(rest, RSTART - 1, 1) ~ /[A-Za-z0-9_\]]/) counts[where] = 1
      else values[where] = 1
    }
    if (!in_enum && match(s, /enum [a-z_]*[ ]?\{/)) { in_enum = 1; text = ""; s = substr(s, RSTART) }
    if (in_enum) {
      text = text s "\n"
      if (s ~ /\}/) { in_enum = 0; where = text; sub(/\}.*/, "", where); learn_enum(scope, where) }
      continue
    }
    if (s ~ /^[A-Za-z].*[A-Za-z0-9_]\(/ && s !~ /;$/) {         # a function begins, as below
      f = s
      sub(/\(.*/, "", f)
      sub(/.*[^A-Za-z0-9_]/, "", f)
      f = file SUBSEP f
      open_f = 1
      is_int[f] = s ~ /^(static )?int /
    }
    if (open_f && s ~ /struct tc_err \*/) takes_err[f] = 1
    if (s ~ /\)$/ || s ~ /^\{/) open_f = 0
    if (s ~ /return [1-9]|\? [1-9][0-9]* :|: [1-9][0-9]*;/) counts_up[f] = 1
    if (s ~ /TC_TRY\(|tc_fail\(|return bad\(/) takes_err[f] = 1
    if (s ~ /rc = (MPI|PMIx|pthread|posix)_/) foreign[f] = 1
    if (match(s, s ~ /;$/ ? "(^|[ (])hid_t [^;]*" : "(^|[ (])hid_t [^;)]*")) handles[f] = handles[f] " " substr(s, RSTART, RLENGTH) " "
  }
  close(file)
}

# ---- rules: what makes no difference wherever it stands ------------------------------------------------------------

# An enum's highest value: nothing is above it, so "==" and ">=", "!=" and "<" are the same.
function above_highest(op, new, rest) {
  if (!((op == "==" && new == ">=") || (op == "!=" && new == "<")) || !match(rest, /^[A-Z][A-Z0-9_]*/)) return 0
  rest = substr(rest, 1, RLENGTH)
  return ((FILENAME, rest) in highest) || (("", rest) in highest)
}

# A status is 0 or below 0: "rc == 0" and "rc >= 0" are the same, and of its values below 0 or a call's only
# the sign is asked for. Statuses of MPI, PMIx and pthread are positive.
function sign_of_status(op, new, left) {
  if (!((op == "==" && new == ">=") || (op == "!=" && new == "<")) || ((FILENAME, func_name) in foreign)) return 0
  return left ~ /(^|[^A-Za-z0-9_>.])rc$/ || left ~ /(^|[^A-Za-z0-9_])(access|mkdir|put_[a-z_]*|make_[a-z_]*)\([^()]*\)$/
}

# 0 is no handle: descriptors (*fd; 0 is stdin, open from the start) and HDF5's objects are above 0 or below.
function not_handle(left,    name) {
  if (!match(left, /[A-Za-z_][A-Za-z0-9_]*$/)) return 0
  name = substr(left, RSTART)
  return name ~ /fd$/ || handles[FILENAME, func_name] ~ "[ ,*]" name "[ ,]"
}
function handle_at_zero(op, new, left, rest) {
  return ((op == ">=" && new == ">") || (op == "<" && new == "<=")) && rest ~ /^0([^0-9]|$)/ && not_handle(left)
}

# "if (x != y) return x < y ? -1 : 1": where the order of two that differ is asked, they are not equal.
function known_to_differ(op, new, left) {
  return ((op == "<" && new == "<=") || (op == ">" && new == ">=")) && left ~ /if \(.* != .*\) return / &&
         masked ~ /\? -1 : 1;/
}

# What only frees: "if (n >= 0) tc_names_free(names, n);" of none, or of the one that is not there.
function only_frees() { return masked ~ /^ *(else )?if \(.*\) ([A-Za-z0-9_]*free[a-z_]*|[A-Za-z0-9]*close|TC_FREE)\([^()]*\);/ }

# The value of a hash that is compared within one process: any that spreads does; what is divided does not spread.
function only_spreads() { return func_name == "hash" }

# How often a loop polls before it gives up the core: only the speed.
function polls(s) { return substr(masked, 1, s - 1) ~ /(^|[ ,])(SPINS|YIELDS) = $/ }

# A function of statuses: an int that is 0 or below 0. A command's is its exit status.
function is_status(    f) {
  f = FILENAME SUBSEP func_name
  return (f in takes_err) && is_int[f] && !(f in counts_up) && func_name !~ /cmd_/
}

# A constant that becomes `new` at column s of n characters.
function same_constant(s, n, was, new,    before, after) {
  before = substr(masked, 1, s - 1)
  after = substr(masked, s + n)
  if (only_frees() || only_spreads() || polls(s)) return 1
  # -1 is "none" or "failed", for which anything below 0 is taken.
  if (was == 1 && new == 2 && before ~ /(return|[?:]|[^=!<>]=|memset\([^,]*,) -$/) return 1
  # Room for more than there are.
  if (before ~ /alloc\(/ && new > was) return 1
  # A status of 0 that becomes 1: only its sign is asked for.
  if (was == 0 && new == 1 && before ~ /return ([^;]* [?:] [^;]*: )?$/ && after ~ /^;/ && is_status()) return 1
  if (was == 0 && new == 1 && before ~ /\? -1 : $/ && after ~ /^;/) return 1
  # The status in an error's struct: looked at after a failure only, which sets it.
  if (before ~ /struct tc_err [a-z_]+ = \{ ?$/) return 1
  return was == 0 && new == 1 && before ~ /(>=|<) $/ && not_handle(substr(before, 1, length(before) - (before ~ /= $/ ? 4 : 3)))
}

function same_operator(kind, op, new, at,    left, rest) {
  left = substr(masked, 1, at - 2)
  rest = substr(masked, at + length(op) + 1)
  if (kind == "arithmetic") return only_spreads() && op ~ /^(<<|>>|[+])$/ || left ~ /alloc\(/ && op == "/" && new == "*"
  return kind == "relation" && (above_highest(op, new, rest) || sign_of_status(op, new, left) ||
         handle_at_zero(op, new, left, rest) || known_to_differ(op, new, left) ||
         (only_frees() && op new ~ /^(>=>|>>=|<<=|<=<)$/))
}

# ---- changes -------------------------------------------------------------------------------------------------------

function emit(kind, col, len, new) {
  if (substr(line, col, len) == new) return
  printf "%s\t%s\t%d\t%d\t%d\t%s\t%s\n", kind, FILENAME, FNR, col, len, func_name, new
}

# Each " OP " of the line becomes each word of `new`.
function operator(kind, op, new,    at, p, n, w, i) {
  n = split(new, w, " ")
  for (at = 1; (p = index(substr(masked, at), " " op " ")) > 0; at += p)
    for (i = 1; i <= n; i++)
      if (!same_operator(kind, op, w[i], at + p)) emit(kind, at + p, length(op), w[i])
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

function constants(    at, s, before, after, n, len, start) {
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
    len = RLENGTH                                # the rules match, too
    start = RSTART
    if (!same_constant(s, len, n, n + 1)) emit("constant", s, len, sprintf("%.0f", n + 1))
    if (n > 0 && !same_constant(s, len, n, n - 1)) emit("constant", s, len, sprintf("%.0f", n - 1))
    RSTART = start
    RLENGTH = len
  }
}

function conditions(    at, open, end) {
  if (masked ~ /(free|TC_FREE|_destroy|_close)\(/) return
  for (at = 1; match(substr(masked, at), /(if|while) \(/); at += RSTART + RLENGTH - 1) {
    open = at + RSTART + RLENGTH - 2
    end = closing(open)
    if (end) emit("negation", open, end - open + 1, "(!" substr(line, open, end - open + 1) ")")
  }
}

# Whether the call whose parentheses stand at `open` and `end` gives the same with its first two arguments
# the other way round: a maximum, or a comparison of which only equality is asked ("same_place(a, b)").
function symmetric(open, end, n,    before, after) {
  before = substr(masked, 1, open)
  after = substr(masked, end + 1)
  if (n == 2 && before ~ /(^|[^A-Za-z_])([a-z_]*(equal|same|alike)|same_[a-z_]+)\($/ && before !~ /fail_alike\($/) return 1
  if (before ~ /(^|[^A-Za-z_])(TC_MAX|TC_MIN|fmax|fmin)\($/) return 1
  if (before !~ /(^|[^A-Za-z_])(strcmp|strncmp|strcasecmp|strncasecmp|memcmp)\($/) return 0
  return after ~ /^ [!=]= 0[^0-9]/ || before ~ /!(strcmp|strncmp|strcasecmp|strncasecmp|memcmp)\($/ ||
         (before ~ /bool [a-z_]+ = [^,]*$/ && after ~ /^[,;]/) ||
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
    for (i = symmetric(open, end, n) ? 2 : 1; i < n; i++) {
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
  if (s ~ /^[a-z_0-9]*((_free|_destroy|_decref|_close)\(|_done\(&)/) return
  if (s ~ /^pthread_(mutex|cond)_init\(.*, NULL\);$/) return      # zeroed memory is one
  if (s ~ /^([a-z_][A-Za-z0-9_>.-]*|TC_TRY|TC_APPEND)\(.*\);$/ ||
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

BEGIN {
  n_headers = split(headers, header, " ")
  for (i = 1; i <= n_headers; i++) learn(header[i], 1)
  for (i = 1; i < ARGC; i++) learn(ARGV[i], 0)
  for (key in pending) {
    split(key, part, SUBSEP)
    if ((part[2] in counts) && !(part[2] in values)) highest[part[1], pending[key]] = 1
  }
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
