# compdb.awk - from what `make -n` prints to compile_commands.json: one entry for each source.
# -v top=FOLDER/ of the sources, -v folder=FOLDER where make runs. Fails if no command compiles anything.
/ -c / {
  gsub(/`[^`]*`/, top)                     # automake asks the shell where a source is
  sub(/ *&&.*/, "")
  gsub(/ -M[TF] [^ ]+| -M[DP]/, "")        # dependencies
  source = ""
  for (i = 1; i <= NF; i++) if ($i ~ /\.(c|cc|cu)$/) source = $i
  if (source == "" || source in seen) next
  seen[source] = 1
  gsub(/[\\"]/, "\\\\&")
  printf "%s{\"directory\": \"%s\", \"file\": \"%s\",\n \"command\": \"%s\"}",
    n++ ? ",\n" : "[\n", folder, source, $0
}
END {
  if (!n) exit 1
  print "\n]"
}
