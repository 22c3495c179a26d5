# gpu_node.sh - a node of two sockets of one CPU, with GPUs, that is not there. Sourced.
#
# gpu_node DIR "BUSES" "BUSES": DIR/node.xml is for HWLOC_XMLFILE, with the GPUs of each socket;
# below DIR/root, for TERCIO_SYSROOT, are device files and the driver's: nvidiaN is the GPU with the
# N-th bus in order. Buses are two digits.

node_gpu() {                     # BUS
  echo "<object type=\"Bridge\" gp_index=\"1$1\" bridge_type=\"0-1\" depth=\"0\"" \
    "bridge_pci=\"0000:[$1-$1]\"><object type=\"PCIDev\" gp_index=\"2$1\"" \
    "pci_busid=\"0000:$1:00.0\" pci_type=\"0302 [10de:2330] [10de:16c1] a1\"" \
    "pci_link_speed=\"63.0\"/></object>"
}

node_object() {                  # TYPE INDEX SET MORE ID
  echo "<object type=\"$1\" os_index=\"$2\" cpuset=\"$3\" complete_cpuset=\"$3\" nodeset=\"$3\"" \
    "complete_nodeset=\"$3\" gp_index=\"$5\" $4>"
}

node_socket() {                  # INDEX BUSES
  set=0x0000000$(($1 + 1))
  node_object Package "$1" $set "" "1$1"
  node_object NUMANode "$1" $set 'local_memory="1073741824"' "2$1"
  echo '</object>'
  node_object PU "$1" $set "" "3$1"
  echo '</object>'
  for bus in $2; do node_gpu "$bus"; done
  echo '</object>'
}

gpu_node() {
  {
    echo '<?xml version="1.0" encoding="UTF-8"?>'
    echo '<!DOCTYPE topology SYSTEM "hwloc2.dtd"><topology version="2.0">'
    node_object Machine 0 0x00000003 'allowed_cpuset="0x00000003" allowed_nodeset="0x00000003"' 1
    node_socket 0 "$2"
    node_socket 1 "$3"
    echo '</object></topology>'
  } > "$1/node.xml"
  mkdir -p "$1/root/dev" "$1/root/proc/driver/nvidia/gpus"
  minor=0
  for bus in $(printf '%s\n' $2 $3 | sort); do
    : > "$1/root/dev/nvidia$minor"
    mkdir "$1/root/proc/driver/nvidia/gpus/0000:$bus:00.0"
    printf 'Model: \t GPU of a test\nGPU UUID: \t GPU-%s\nDevice Minor: \t %s\n' $((minor + 1))$minor \
      $minor > "$1/root/proc/driver/nvidia/gpus/0000:$bus:00.0/information"
    minor=$((minor + 1))
  done
}
